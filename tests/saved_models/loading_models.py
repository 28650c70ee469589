"""Shared by the tests of loading: a linear classifier with known weights, saved with signatures of all kinds."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tf_robust.saved_models import formats

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
            "channels_first": (lambda m, x: {"y": m.scores(x)}, spec(3, 8, 8)),
            "one_by_one": (lambda m, x: {"y": m.scores(x)}, tf.TensorSpec([1, *SHAPE], tf.float32, "x")),
            "two_inputs": (lambda m, x, y: {"y": m.scores(x)}, spec(*SHAPE), tf.TensorSpec([], tf.bool, "training")),
            "two_outputs": (lambda m, x: {"a": m.scores(x), "probabilities": m.scores(x)}, spec(*SHAPE)),
            "unnamed_outputs": (lambda m, x: {"a": m.scores(x), "b": m.scores(x)}, spec(*SHAPE)),
            "one_score": (lambda m, x: {"y": m.scores(x)[:, :1]}, spec(*SHAPE)),
            "a_map": (lambda m, x: {"y": x}, spec(*SHAPE)),
            "classes": (lambda m, x: {"y": tf.cast(m.scores(x), tf.int64)}, spec(*SHAPE)),
            "wide": (lambda m, x: {"y": m.scores(x[:, :, :8])}, spec(8, 16, 3)),
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "read", functools.lru_cache(formats.read))
        yield path
