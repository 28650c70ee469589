"""Shared by the tests of training a user's own model: small Keras models, batches, and comparisons of weights."""

import functools

import keras
import numpy as np
import tensorflow as tf

from tests.conftest import tiny_source
from tests.methods.common import OPTIONS
from tf_robust import data, methods

SOURCE = tiny_source(48)
X, Y = SOURCE.images.astype(np.float32) / 255, SOURCE.labels.astype(np.int64)
ON_IMAGES_AND_LABELS = [name for name, method in methods.METHODS.items() if not method.needs_positions]


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


@functools.cache
def _arrays(count, size):
    made = data.training_batches(SOURCE, size, seed=0).take(count)
    return tuple(np.stack(parts) for parts in zip(*((batch.views[0], batch.labels) for batch in made)))


def batches(count=4, size=12):
    """(x, y) batches equal to those of the pipeline of seed 0."""
    return tf.data.Dataset.from_tensor_slices(_arrays(count, size))


def darkened(name):
    """Returns a view of few operations, whose draws depend on its seed, with the name of another."""

    def view(images, seed):
        return images * tf.random.stateless_uniform(tf.shape(images), seed, 0.5)

    view.__name__ = name
    return view


def cheap_views(name, **options):
    """Returns a method's usual views; in place of AugMix or SimCLR's, whose graphs take seconds to trace, those of `darkened`."""
    usual = methods.METHODS[name](functional(), **options).default_views
    return [view if view == "clean" else darkened(view) for view in usual]


def quick_options(name):
    """Returns options of a method for a user's model; NoisyMix mixes at one stage, since tracing each further one takes half a second."""
    return {"stages": ("first",)} if name == "noisymix" else OPTIONS.get(name, {})


def fitted(method, dataset=None, optimizer="sgd", compile_options=(), eager=False, **options):
    """Trains by `fit`; eager: without a graph, which takes longer to trace than a few steps of a tiny model take."""
    method.compile(optimizer, **{"run_eagerly": eager, **dict(compile_options)})
    return method.fit(batches() if dataset is None else dataset, verbose=0, **options).history


def fit_of(method, x=X, y=Y):
    method.compile("sgd")
    method.fit(x, y, verbose=0)


def weights(model):
    return [v.numpy() for v in model.variables]


def assert_equal_histories(received, expected, rtol=1e-3):
    assert received.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(received[name], values, rtol=rtol, err_msg=name)


def assert_equal(first, second, atol=1e-6):
    for a, b in zip(weights(first), weights(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)
