"""Models that end with a softmax are exported without it on request."""

import keras
import numpy as np
import pytest
import scipy.special

from tests.saved_models.loading_models import CLASSES, SHAPE, sample_images, written
from tf_robust.saved_models import loading
from tf_robust.saved_models.loading import without_softmax

layers = keras.layers
ENDS = {
    "dense": lambda: [layers.Dense(CLASSES, "softmax")],
    "layer": lambda: [layers.Dense(CLASSES), layers.Softmax()],
    "activation": lambda: [layers.Dense(CLASSES), layers.Activation("softmax")],
}


def network(end):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(SHAPE), layers.Conv2D(8, 3, activation="relu"), layers.Flatten(), *end])
    model.set_weights([20 * weight if weight.shape[-1:] == (CLASSES,) else weight for weight in model.get_weights()])
    return model


def loaded(model, outputs="probabilities"):
    return loading.classifier_of(model, loading.ModelInterface(outputs=outputs))


@pytest.mark.parametrize("end", ENDS)
def test_the_logits_have_the_softmax_of_the_model(end):
    model = network(ENDS[end]())
    logits = without_softmax(loaded(model))(sample_images()).numpy()
    np.testing.assert_allclose(scipy.special.softmax(logits, axis=1), model(sample_images()).numpy(), rtol=1e-4, atol=1e-7)
    assert logits.max() > 1  # a logarithm of probabilities is not positive


def test_other_models_are_unchanged():
    for model in (network([layers.Dense(CLASSES)]), network([layers.Dense(CLASSES, "sigmoid")]), lambda images: images[:, 0, 0]):
        classifier = loaded(model)
        assert without_softmax(classifier) is classifier
    classifier = loaded(network(ENDS["layer"]()), outputs="logits")  # as the user says
    assert without_softmax(classifier) is classifier


def test_integers_keep_small_probabilities_apart(tmp_path):
    pytest.importorskip("ai_edge_litert")
    classifier = loaded(network(ENDS["dense"]()))
    expected = scipy.special.log_softmax(without_softmax(classifier)(sample_images()).numpy(), axis=1)
    errors = {}
    for name, one in (("probabilities", classifier), ("logits", without_softmax(classifier))):
        path = written("tflite_int8", one, tmp_path, calibration=sample_images(count=50, seed=1), logits=True)
        logits = loading.load_classifier(path, loading.ModelInterface(outputs="logits"))(sample_images()).numpy()
        errors[name] = np.abs(scipy.special.log_softmax(logits, axis=1) - expected).max()
    assert errors["logits"] < 0.05 * np.abs(expected).max() < errors["probabilities"]
