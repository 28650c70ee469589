"""Two logical CPU devices for tests of replicas; fixtures; the memory of graphs."""

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

import pytest
from tensorflow.python.framework import func_graph, ops

from tf_robust.testing.samples import tiny_network, tiny_source

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 2)


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
    """Excludes the objects of the imported packages, about 400,000, from garbage collection, and collects less often: they stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


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


@pytest.fixture
def eagerly():
    """Runs a few steps of training without graphs, which take longer to build."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
