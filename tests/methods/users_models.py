"""Shared by the tests of training a user's own model: small Keras models, batches, and comparisons of weights."""

import keras
import numpy as np
import tensorflow as tf

from tests.conftest import tiny_source
from tf_robust import data

SOURCE = tiny_source(48)
X, Y = SOURCE.images.astype(np.float32) / 255, SOURCE.labels.astype(np.int64)


def functional(activation=None, scale=False, regularizer=None):
    keras.utils.set_random_seed(0)
    images = keras.Input([16, 16, 1])
    x = keras.layers.Rescaling(1 / 255)(images) if scale else images
    x = keras.layers.Conv2D(4, 3, strides=2, activation="softplus", name="first")(x)
    x = keras.layers.BatchNormalization(momentum=0.9)(x)
    x = keras.layers.Conv2D(6, 3, strides=2, activation="softplus", name="second")(x)
    x = keras.layers.Flatten()(x)
    return keras.Model(images, keras.layers.Dense(3, activation=activation, kernel_regularizer=regularizer, name="classes")(x))


def sequential(activation=None):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input([16, 16, 1]),
            keras.layers.Conv2D(4, 3, strides=2, activation="softplus", name="first"),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
            keras.layers.Activation(activation or "linear"),
        ]
    )


class Subclassed(keras.Model):
    def __init__(self, activation=None):
        super().__init__()
        self.convolution, self.norm = keras.layers.Conv2D(4, 3, strides=2), keras.layers.BatchNormalization(momentum=0.9)
        self.classes = keras.layers.Dense(3, activation=activation)

    def call(self, images, training=False):
        x = tf.nn.softplus(self.norm(self.convolution(images), training=training))
        return self.classes(tf.reshape(x, [-1, 7 * 7 * 4]))


def subclassed(activation=None):
    keras.utils.set_random_seed(0)
    model = Subclassed(activation)
    model(X[:2])
    return model


MODELS = {"functional": functional, "sequential": sequential, "subclassed": subclassed}


def batches(count=4, size=12):
    """(x, y) batches equal to those of the pipeline of seed 0."""
    return data.training_batches(SOURCE, size, seed=0).take(count).map(lambda batch: (batch.views[0], batch.labels))


def fitted(method, dataset=None, optimizer="sgd", compile_options=(), **options):
    method.compile(optimizer, **dict(compile_options))
    history = method.fit(batches() if dataset is None else dataset, verbose=0, **options).history
    return history


def weights(model):
    return [v.numpy() for v in model.variables]


def assert_equal(first, second, atol=1e-6):
    for a, b in zip(weights(first), weights(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)
