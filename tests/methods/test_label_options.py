"""Label smoothing and class weights against NumPy, in the terms of the methods."""

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.conftest import tiny_network
from tests.methods.common import OPTIONS, batches
from tf_robust import data, losses, methods

RANDOM = np.random.RandomState(0)
LOGITS, LABELS = RANDOM.randn(6, 3).astype(np.float32) * 3, np.array([0, 1, 2, 2, 1, 2])
WEIGHTS = (0.5, 1.0, 4.0)


def expected(labels, logits, smoothing):
    targets = (1 - smoothing) * np.eye(logits.shape[1])[labels] + smoothing / logits.shape[1]
    return -(targets * scipy.special.log_softmax(logits.astype(np.float64), axis=1)).sum(axis=1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_smoothed_cross_entropy_is_that_of_numpy_and_keras(smoothing):
    values = losses.cross_entropy(LABELS, LOGITS, smoothing).numpy()
    np.testing.assert_allclose(values, expected(LABELS, LOGITS, smoothing), rtol=1e-5)
    of_keras = keras.losses.categorical_crossentropy(np.eye(3)[LABELS], LOGITS, from_logits=True, label_smoothing=smoothing)
    np.testing.assert_allclose(values, of_keras, rtol=1e-5)


def term(name, network, source, **options):
    """Returns (the cross-entropy term of a batch, the batch, logits) in inference mode, where it is of the logits that are returned."""
    method = methods.METHODS[name](network, **{**OPTIONS.get(name, {}), **options})
    batch = next(batches(source(), 1, name=name))
    terms, logits = method.loss_terms(batch, training=False)
    return next(iter(terms.values())).numpy(), batch.labels.numpy(), logits.numpy()


PLAIN = ("cross_entropy", "fcl", "gaussian", "contrastive_gaussian", "input_gradient", "adversarial", "finetune", "augmax")


@pytest.mark.parametrize("name", PLAIN)
def test_terms_are_smoothed_and_weighted(name, source):
    values, labels, logits = term(name, tiny_network(), source, label_smoothing=0.2, class_weights=WEIGHTS)
    np.testing.assert_allclose(values, np.array(WEIGHTS)[labels] * expected(labels, logits, 0.2), rtol=1e-4)


def test_mixed_labels_have_each_its_weight():
    method = methods.CutMix(tiny_network(), label_smoothing=0.2, class_weights=WEIGHTS)
    partner, lam = np.array([5, 4, 3, 2, 1, 0]), 0.3
    values = methods.mixing.mixed(method.cross_entropy, tf.constant(LABELS), tf.constant(partner), tf.constant(lam), tf.constant(LOGITS))
    weights = np.array(WEIGHTS)
    first = weights[LABELS] * expected(LABELS, LOGITS, 0.2)
    second = weights[LABELS[partner]] * expected(LABELS[partner], LOGITS, 0.2)
    np.testing.assert_allclose(values, lam * first + (1 - lam) * second, rtol=1e-4)


@pytest.mark.parametrize("name", ["noisymix", "cutmix", "puzzlemix"])
def test_methods_that_mix_take_the_options(name, source):
    plain, labels, _ = term(name, tiny_network(), source)
    weighted, _, _ = term(name, tiny_network(), source, class_weights=(3.0, 3.0, 3.0))
    np.testing.assert_allclose(weighted, 3 * plain, rtol=1e-4)
    smoothed, _, _ = term(name, tiny_network(), source, label_smoothing=0.5)
    assert np.abs(smoothed - plain).max() > 1e-3


def test_balanced_weights_are_those_of_scikit_learn(source):
    from sklearn.utils.class_weight import compute_class_weight

    imbalanced = source().subset(np.flatnonzero((np.arange(48) % 3 != 1) | (np.arange(48) < 12)))
    weights = data.class_weights("balanced", imbalanced)
    np.testing.assert_allclose(weights, compute_class_weight("balanced", classes=np.arange(3), y=imbalanced.labels))
    assert data.class_weights("1,2,0.5", imbalanced) == (1.0, 2.0, 0.5)
    assert data.class_weights("", imbalanced) is None
    for text in ("1,2", "a", "1,2,-1", "1,2,nan", "1,2,inf"):
        with pytest.raises(ValueError, match="class_weights"):
            data.class_weights(text, imbalanced)


def test_class_weights_may_be_a_dictionary():
    assert methods.CrossEntropy(tiny_network(), class_weights={0: 3.0, 1: 0.5}).class_weights == (3.0, 0.5, 1.0)
