"""Wrapping the models of users."""

import keras
import numpy as np
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
