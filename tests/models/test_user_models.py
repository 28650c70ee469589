"""Wrapping the models of users."""

import keras
import numpy as np
import pytest
import scipy.special

from tf_robust import models

layers = keras.layers


def test_the_last_layer_of_a_nested_model_tells_the_output_and_the_embedding():
    keras.utils.set_random_seed(0)
    inner = [layers.Flatten(), layers.Dense(7, "relu"), layers.Dense(5, "relu"), layers.Dense(3, "softmax")]
    model = keras.Sequential([keras.Input((4, 4, 1)), keras.Sequential([keras.Input((4, 4, 1)), *inner])])
    wrapped = models.wrap(model)
    images = np.random.default_rng(0).random((6, 4, 4, 1), np.float32)
    outputs = wrapped.network(images)
    assert not wrapped.from_logits
    np.testing.assert_allclose(scipy.special.softmax(outputs["logits"], axis=1), model(images), atol=1e-6)
    features = keras.Model(inner[0].input, inner[2].output)
    np.testing.assert_allclose(outputs["embedding"], features(images), atol=1e-6)


@pytest.mark.parametrize("units, operation", [(3, keras.ops.softmax), (3, keras.activations.softmax), (1, keras.ops.sigmoid)])
def test_activations_that_are_operations_give_probabilities(units, operation):
    images = keras.Input([4, 4, 1])
    model = keras.Model(images, operation(layers.Dense(units)(layers.Flatten()(images))))
    wrapped, x = models.wrap(model), np.random.RandomState(0).rand(5, 4, 4, 1).astype(np.float32)
    assert not wrapped.from_logits
    np.testing.assert_allclose(scipy.special.softmax(wrapped.network(x)["logits"], axis=1)[:, -1], model(x)[:, -1], atol=1e-6)
