"""Attacks on models whose logits are so far apart that probabilities are rounded to 0 and 1, and on models of half precision."""

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import tf_robust as tfr
from tests.attacks.oracles import SHAPE, Linear, median_radius, sample_images, wrong
from tf_robust import attacks, losses
from tf_robust.attacks.attack import loss_and_gradient
from tf_robust.attacks.criterion import Criterion
from tf_robust.methods.trades import _Divergence
from tf_robust.saved_models import loading
from tf_robust.utils.progress import NOTED

LOGITS = np.array([[40.0, 3.0, 5.0, -2.0], [-4.0, 30.0, -60.0, 1.0], [1.0, 2.0, 0.5, 0.0]], np.float32)
LABELS = np.array([0, 1, 3])
layers = keras.layers


def gradient_of(loss, logits):
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = loss(logits)
    return tape.gradient(value, logits).numpy()


@pytest.mark.parametrize("kind", ["indices", "one_hot", "soft"])
def test_the_gradient_of_the_cross_entropy_is_exact_for_confident_predictions(kind):
    one_hot = np.eye(4)[LABELS]
    targets = one_hot if kind != "soft" else 0.9 * one_hot + 0.1 * np.array([0.0, 0.5, 0.5, 0.0])
    labels = LABELS if kind == "indices" else targets.astype(np.float32)
    wide = LOGITS.astype(np.float64)
    others = scipy.special.softmax(wide, axis=1)
    expected = others - targets  # in float64 the label has no digits left, either: minus the sum of the others
    largest, rows = wide.argmax(axis=1), np.arange(3)
    expected[rows, largest] = 0
    expected[rows, largest] = -expected.sum(axis=1)
    found = gradient_of(lambda logits: losses.cross_entropy(labels, logits), LOGITS)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-36)
    values = -(targets * scipy.special.log_softmax(wide, axis=1)).sum(axis=1)
    np.testing.assert_allclose(losses.cross_entropy(labels, LOGITS), values, rtol=1e-5, atol=1e-6)


def test_the_second_derivative_of_the_cross_entropy_is_that_of_the_softmax():
    logits = tf.constant(LOGITS[2:].astype(np.float64))
    with tf.GradientTape() as outer:
        outer.watch(logits)
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = losses.cross_entropy(LABELS[2:], logits)
        gradient = tape.gradient(loss, logits)
    p = scipy.special.softmax(logits.numpy()[0])
    np.testing.assert_allclose(outer.jacobian(gradient, logits)[0, :, 0], np.diag(p) - np.outer(p, p), atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 30.0])  # logits up to 1,200 apart
def test_log_odds_are_those_of_the_softmax_and_their_gradient_does_not_vanish(scale):
    wide = scale * LOGITS.astype(np.float64)
    others = np.where(np.eye(4, dtype=bool)[LABELS], -np.inf, wide)
    expected = scipy.special.logsumexp(others, axis=1) - wide[np.arange(3), LABELS]
    np.testing.assert_allclose(losses.log_odds(LABELS, scale * LOGITS), expected, rtol=1e-6)
    found = gradient_of(lambda logits: losses.log_odds(LABELS, logits), scale * LOGITS)
    np.testing.assert_allclose(found, scipy.special.softmax(others, axis=1) - np.eye(4)[LABELS], atol=1e-6)
    masked = gradient_of(lambda logits: losses.log_odds(LABELS, logits), np.where(LOGITS == -2, -np.inf, LOGITS).astype(np.float32))
    assert np.isfinite(masked).all() and masked[0, 3] == 0


def test_the_loss_of_trades_keeps_the_part_of_the_predicted_class():
    clean, attacked = LOGITS[:1], LOGITS[:1] + np.float32([[-0.5, 0.2, 0.1, 0.4]])
    found = gradient_of(_Divergence(tf.constant(clean)).cross_entropy, attacked)
    p, q = (scipy.special.softmax(one.astype(np.float64), axis=1)[0, 1:] for one in (clean, attacked))
    np.testing.assert_allclose(found[0], [-(q - p).sum(), *(q - p)], rtol=1e-3)


@pytest.mark.parametrize("name, scale", [("fgsm", 60.0), ("pgd", 600.0)])
def test_the_cross_entropy_reaches_what_a_linear_model_permits(name, scale):
    model = Linear(classes=2, scale=scale)
    images, labels, distances, radius = median_radius(model, "linf", 24)
    assert np.ptp(model(images).numpy(), axis=1).max() > 34
    steps = {} if name == "fgsm" else {"steps": 20}
    attacked = attacks.ATTACKS[name](norm="linf", radius=radius, **steps)(model, images, labels)
    certain = np.abs(distances / radius - 1) > 0.02
    np.testing.assert_array_equal(wrong(model, attacked, labels)[certain], (distances < radius)[certain])


def keras_model(linear, end=lambda outputs: outputs, dtype=None, activation=None):
    """Returns a Keras model: a dense layer with the weights of a linear classifier, and what `end` makes of its outputs."""
    inputs = keras.Input(SHAPE)
    dense = layers.Dense(linear.weights.shape[1], activation, dtype=dtype)
    outputs = dense(layers.Flatten(dtype=dtype)(inputs))
    dense.set_weights([linear.weights, linear.offset])
    return keras.Model(inputs, end(outputs))


def classifier_of_probabilities(model):
    return loading.classifier_of(model, loading.ModelInterface(outputs="probabilities"))


def nested(logits):
    inputs = keras.Input([3])
    return keras.Model(inputs, layers.Softmax()(inputs))(logits)


ENDS = {
    "dense": {"activation": "softmax"},
    "layer": {"end": layers.Softmax()},
    "activation": {"end": layers.Activation("softmax")},
    "operation": {"end": keras.ops.softmax},
    "nested": {"end": nested},
    "cast": {"end": lambda logits: layers.Activation("linear", dtype="float32")(layers.Softmax()(logits))},
}


def input_gradient(predict, images, labels):
    """The gradient of the log-odds with respect to the images, [N, H * W]."""
    return loss_and_gradient(predict, tf.constant(images), Criterion(tf.constant(labels)).cross_entropy)[1].numpy().reshape(len(images), -1)


def expected_gradient(linear, images, labels):
    """The same of a linear classifier, in float64."""
    others = np.where(np.eye(3, dtype=bool)[labels], -np.inf, linear(images).numpy().astype(np.float64))
    return (scipy.special.softmax(others, axis=1) - np.eye(3)[labels]) @ linear.weights.T


@pytest.mark.parametrize("end", ENDS)
def test_the_softmax_of_a_keras_model_does_not_hide_its_gradient(end):
    linear = Linear(classes=3, scale=800)  # logits up to 700 apart
    classify = classifier_of_probabilities(keras_model(linear, **ENDS[end]))
    images, labels = sample_images(linear)
    expected = scipy.special.log_softmax(linear(images).numpy().astype(np.float64), axis=1)
    assert expected.min() < -200  # of which no probability is left in float32
    np.testing.assert_allclose(classify(images), expected, rtol=1e-5, atol=1e-2)
    np.testing.assert_allclose(input_gradient(classify, images, labels), expected_gradient(linear, images, labels), rtol=1e-3, atol=1)
    assert set(classify.outputs(images)) == {"output_0", "logits"} and classify.output_name == "output_0"


def test_the_sigmoid_of_a_keras_model_does_not_hide_its_gradient():
    linear, (images, _) = Linear(classes=1, scale=800), sample_images(Linear())
    labels = (linear(images).numpy()[:, 0] > 0).astype(int)
    classify = classifier_of_probabilities(keras_model(linear, activation="sigmoid"))
    signs = np.where(labels == 1, -1, 1)[:, None]
    np.testing.assert_allclose(input_gradient(classify, images, labels), signs * linear.weights.T, rtol=1e-4)


def test_probabilities_of_a_function_keep_their_gradient():
    linear = Linear(classes=3, scale=80)
    images, labels = sample_images(linear)
    assert 40 < np.ptp(linear(images).numpy(), axis=1).max() < 87
    classify = classifier_of_probabilities(lambda x: tf.nn.softmax(linear(x)))
    np.testing.assert_allclose(input_gradient(classify, images, labels), expected_gradient(linear, images, labels), rtol=1e-3, atol=0.1)


def test_probabilities_without_a_gradient_give_a_note(capsys):
    linear = Linear(classes=3, scale=800)  # logits up to 700 apart
    images, labels = sample_images(linear)
    NOTED.clear()
    tfr.attack(lambda x: tf.nn.softmax(linear(x)), images, labels, "fgsm", radius=0.01)
    assert "gradient" in capsys.readouterr().out
    tfr.attack(lambda x: linear(x), images, labels, "fgsm", radius=0.01)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_model_of_half_precision_is_attacked_like_its_weights_in_float32(policy):
    linear = Linear(classes=3, scale=80)
    images, labels = sample_images(linear)
    half, single = (classifier_of_probabilities(keras_model(linear, dtype=dtype, activation="softmax")) for dtype in (policy, None))
    found, expected = (input_gradient(classify, images, labels) for classify in (half, single))
    # of bfloat16 and float16, whose logits are rounded, too: the weights of rivals that are nearly level differ
    assert (np.sign(found) == np.sign(expected)).mean() > 0.9
    assert np.median(np.abs(found / expected - 1)) < 0.05


def test_small_gradients_pass_through_half_precision():
    images, labels = np.full([2, *SHAPE], 0.5, np.float32), tf.constant([0, 1], tf.int64)
    weights = np.random.RandomState(0).randn(16, 2).astype(np.float32) * 1e-3

    def predict(x):
        return tf.cast(tf.reshape(tf.cast(x, tf.float16) / 255, [-1, 16]) @ tf.cast(weights, tf.float16), tf.float32)

    _, gradient, _ = loss_and_gradient(predict, tf.constant(images), Criterion(labels).margin)
    expected = (weights[:, [1, 0]] - weights[:, [0, 1]]).T.reshape(images.shape) / 255
    np.testing.assert_allclose(gradient, expected, rtol=0.05, atol=1e-8)


def test_probabilities_taken_for_logits_give_a_warning():
    linear = Linear(classes=3)
    images, labels = sample_images(linear)
    with pytest.warns(UserWarning, match="look like probabilities"):
        attacks.FastGradient(radius=0.01)(lambda x: tf.nn.softmax(linear(x)), images, labels)


def test_small_probabilities_in_float16_have_finite_gradients():
    linear = Linear(classes=3, scale=40)
    images, labels = sample_images(linear)
    logits = linear(images).numpy()
    assert 14 < np.ptp(logits, axis=1).max() < 60  # 6e-8, the smallest float16, is 17 away

    half = classifier_of_probabilities(lambda x: tf.nn.softmax(tf.cast(linear(x), tf.float16)))
    found, expected = input_gradient(half, images, labels), expected_gradient(linear, images, labels)
    assert np.isfinite(found).all()
    near = np.ptp(logits, axis=1) < 5
    assert near.any() and (np.sign(found) == np.sign(expected))[near].mean() > 0.9
