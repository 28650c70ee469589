"""Two logical CPU devices for tests of replicas; a tiny network and a tiny data set for tests of every method."""

import os

from tf_robust.utils import quiet

if "PYTEST_XDIST_WORKER" in os.environ:  # one of two processes: one core each
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

with quiet.importing([]):
    import keras
    import tensorflow as tf

import numpy as np
import pytest

from tf_robust import data
from tf_robust.models import heads

_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 2)


def tiny_network(shape=(16, 16, 1), classes=3, batch_norm=True, seed=0):
    """Returns a network of one convolution, which is stage 1, batch norm, and a dense embedding of 8."""
    keras.utils.set_random_seed(seed)
    images, x = heads.normalized_input(shape, 0.5, 0.5, 8, "tiny")
    x = keras.layers.Conv2D(4, 3, strides=2, activation="softplus", name="stage_1")(x)
    if batch_norm:
        x = keras.layers.BatchNormalization(momentum=0.9)(x)
    embedding = keras.layers.Dense(8, activation="tanh")(keras.layers.Flatten()(x))
    return heads.classifier(images, embedding, classes, "tiny")


def tiny_source(count=48, shape=(16, 16, 1), classes=3, split="train"):
    """Returns a source of noisy images whose class is the brightest third."""
    random = np.random.RandomState(count)
    labels = np.arange(count) % classes
    images = random.randint(0, 120, size=(count, *shape))
    for image, label in zip(images, labels):
        image[label * shape[0] // classes : (label + 1) * shape[0] // classes] += 120
    return data.ArraySource.of("tiny", split, images.astype(np.uint8), labels, map(str, range(classes)))


def sweep(names, quick):
    """Returns the parameters of a test over all names, of which the default run takes the quick ones alone."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture
def network():
    return tiny_network


@pytest.fixture
def source():
    return tiny_source


@pytest.fixture(scope="session")
def two_replicas():
    """One strategy for all tests: a second one in the same process would reuse the first one's collective keys."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def float64():
    """Networks and methods built in the test compute in float64."""
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy("float32")
