"""Two logical CPU devices for tests of replicas; a tiny network and a tiny data set for tests of every method."""

import ctypes
import gc
import os
import resource
import types

from tf_robust.utils import quiet

if "PYTEST_XDIST_WORKER" in os.environ:  # one of two processes: one core each
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

with quiet.importing([]):
    import keras
    import tensorflow as tf

import numpy as np
import pytest
from tensorflow.python.framework import func_graph, ops

from tf_robust import data
from tf_robust.models import heads

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
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


def pytest_collection_finish():
    """Excludes the objects of the imported packages, about 400,000, from garbage collection: they stay."""
    gc.collect()
    gc.freeze()


_freed = [0]  # the process's largest size when graphs were freed last, in units of 1,024 bytes (Linux)


@pytest.fixture(scope="module", autouse=True)
def free_memory():
    """Frees the graphs of tests, which TensorFlow 2.21 keeps: an operation and its graph refer to each other in C++.

    A graph to which nothing but its own operations and tensors refers is not used any more. Finding those takes a second, so it waits
    until the process has grown by 250 MB.
    """
    yield
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < _freed[0] + 250_000:
        return
    gc.collect()
    graphs = {id(one): one for one in gc.get_objects() if isinstance(one, func_graph.FuncGraph)}
    referrers = [one for one in gc.get_referrers(*graphs.values()) if not isinstance(one, (tf.Operation, tf.Tensor, types.FrameType))]
    used = {id(one) for referrer in referrers if referrer is not graphs for one in gc.get_referents(referrer)}
    for graph in [graph for key, graph in graphs.items() if key not in used]:
        ops.dismantle_graph(graph)
    graphs.clear()
    gc.collect()
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
    _freed[0] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture
def float64():
    """Networks and methods built in the test compute in float64."""
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy("float32")
