"""Shared by the tests of saved models: a linear classifier saved with signatures of all kinds, a small network, and writers of files."""

import functools
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_robust.saved_models import export, formats

SHAPE, CLASSES = (8, 8, 3), 4
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZATION = "mean=0.485,0.456,0.406 std=0.229,0.224,0.225"


def sample_images(shape=SHAPE, count=5, seed=0):
    return np.random.RandomState(seed).rand(count, *shape).astype(np.float32)


WEIGHTS = sample_images((CLASSES,), 8 * 8 * 3, seed=1) - np.float32(0.5)


class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.weights = tf.Variable(WEIGHTS)

    def scores(self, values):
        return tf.reshape(tf.cast(values, tf.float32), [-1, 192]) @ self.weights


def saved(path, **signatures):
    """Saves a module; signatures: {name: (function(module, tensor) -> outputs, TensorSpec)}. Returns the path."""
    module = Module()

    def of(function, *specs):
        return tf.function(lambda *tensors: function(module, *tensors), input_signature=specs)

    tf.saved_model.save(module, str(path), signatures={name: of(*definition) for name, definition in signatures.items()})
    return str(path)


def spec(*shape, dtype=tf.float32):
    return tf.TensorSpec([None, *shape], dtype, "x")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """One model with signatures that fit and others that do not; read once."""
    path = saved(
        tmp_path_factory.mktemp("plain") / "m",
        **{
            "serving_default": (lambda m, x: {"scores": m.scores(x)}, spec(*SHAPE)),
            "doubled": (lambda m, x: {"a": x, "logits": 2 * m.scores(x)}, spec(*SHAPE)),
            "soft": (lambda m, x: {"probabilities": tf.nn.softmax(m.scores(x))}, spec(*SHAPE)),
            "half": (lambda m, x: {"y": tf.cast(m.scores(x), tf.float16)}, spec(*SHAPE, dtype=tf.float16)),
            "bytes": (lambda m, x: {"y": m.scores(x)}, spec(*SHAPE, dtype=tf.uint8)),
            "any_size": (lambda m, x: {"y": m.scores(x[:, :8, :8])}, spec(None, None, 3)),
            "any_channels": (lambda m, x: {"y": m.scores(x)}, spec(8, 8, None)),
            "any_shape": (lambda m, x: {"y": m.scores(x)}, tf.TensorSpec(None, tf.float32, "x")),
            "flat": (lambda m, x: {"y": x}, spec(192)),
            "encoded": (lambda m, x: {"y": tf.zeros([1, 4])}, spec(dtype=tf.string)),
            "whole_numbers": (lambda m, x: {"y": m.scores(x)}, spec(*SHAPE, dtype=tf.int32)),
            "channels_first": (lambda m, x: {"y": m.scores(tf.transpose(x, [0, 2, 3, 1]))}, spec(3, 8, 8)),
            "one_by_one": (lambda m, x: {"y": m.scores(x)}, tf.TensorSpec([1, *SHAPE], tf.float32, "x")),
            "two_inputs": (lambda m, x, y: {"y": m.scores(x)}, spec(*SHAPE), tf.TensorSpec([], tf.bool, "training")),
            "two_outputs": (lambda m, x: {"a": m.scores(x), "probabilities": m.scores(x)}, spec(*SHAPE)),
            "unnamed_outputs": (lambda m, x: {"a": m.scores(x), "b": m.scores(x)}, spec(*SHAPE)),
            "a_map": (lambda m, x: {"y": x}, spec(*SHAPE)),
            "classes": (lambda m, x: {"y": tf.cast(m.scores(x), tf.int64)}, spec(*SHAPE)),
            "wide": (lambda m, x: {"y": m.scores(x[:, :, :8])}, spec(8, 16, 3)),
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "read", functools.lru_cache(formats.read))
        yield path


def small_network():
    """A convolution, batch normalization and a dense layer."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    first = [keras.Input(SHAPE), layers.Conv2D(5, 3, activation="silu"), layers.BatchNormalization()]
    return keras.Sequential([*first, layers.GlobalAveragePooling2D(), layers.Dense(CLASSES)])


class Bessel(keras.layers.Layer):
    """An operation that TensorFlow Lite and ONNX lack."""

    def call(self, images):
        return tf.math.bessel_i1e(images)


def input_gradient(function, images):
    """The gradient of the sum of a function's values with respect to the images."""
    images = tf.convert_to_tensor(images)
    with tf.GradientTape() as tape:
        tape.watch(images)
        total = tf.reduce_sum(function(images))
    return tape.gradient(total, images)


def written(name, classifier, folder, shape=SHAPE, calibration=None, **options):
    """Writes a classifier in a format and returns the path; options: of `Deployable`."""
    path = os.path.join(folder, formats.FORMATS[name].file)
    export.write(name, export.Deployable(classifier, shape, **options), path, {}, calibration=calibration)
    return path


def write_onnx(path, nodes, weights, shape):
    """Writes an ONNX file and returns its path. nodes: (kind, inputs, outputs, attributes), from x of a shape to y [N, CLASSES]."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    made = [onnx.helper.make_node(kind, inputs.split(), outputs.split(), **attributes) for kind, inputs, outputs, attributes in nodes]
    sizes = {"x": shape, "y": [shape[0], CLASSES]}
    ends = [[onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, size)] for name, size in sizes.items()]
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = onnx.helper.make_graph(made, "graph", *ends, tensors)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)
