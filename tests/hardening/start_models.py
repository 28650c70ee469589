"""Shared by the tests of starts and delivery: a small Keras model and SavedModels of all kinds."""

import keras
import numpy as np
import tensorflow as tf

from tf_robust.saved_models import export

SHAPE, CLASSES = (8, 8, 1), 3
SPEC = tf.TensorSpec([None, *SHAPE], tf.float32, "x")


def keras_model(low=0.0, high=1.0, softmax=True, seed=0):
    """A network with batch norm and dropout that takes images in [low, high]; rescaling is inside."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input(SHAPE, name="pixels"),
            keras.layers.Rescaling(1 / (high - low), -low / (high - low)),
            keras.layers.Conv2D(4, 3, activation="silu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES, activation="softmax" if softmax else None),
        ]
    )
    normalization = model.layers[2]
    normalization.moving_mean.assign([0.3, -0.2, 0.1, 0.0])
    normalization.moving_variance.assign([0.5, 1.5, 0.8, 1.0])
    return model


def sample_images(count=6, shape=SHAPE):
    return np.random.RandomState(1).rand(count, *shape).astype(np.float32)


class Callable(tf.Module):
    """A module without signatures, called with a batch."""

    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(np.random.RandomState(0).randn(64, CLASSES).astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None, *SHAPE], tf.float32)])
    def __call__(self, images):
        return tf.reshape(images, [-1, 64]) @ self.kernel


def save_all(folder, network):
    """Writes SavedModels; returns {name: path}. `ours` is an export of `network`."""
    paths = {name: str(folder / name) for name in ("keras_export", "keras_save", "module", "ours", "bytes", "constants")}
    keras_model().export(paths["keras_export"], verbose=False)
    model, module = keras_model(), Callable()
    serve = tf.function(lambda x: {"scores": model(x, training=False)}, input_signature=[SPEC])
    twice = tf.function(lambda x: {"logits": 2 * model(x, training=False)}, input_signature=[SPEC])
    tf.saved_model.save(model, paths["keras_save"], signatures={"serving_default": serve, "twice": twice})
    tf.saved_model.save(module, paths["module"])
    export.export(network, paths["ours"], {"method": "tested"})
    of_bytes = tf.function(
        lambda x: {"logits": module(tf.cast(x, tf.float32) / 255)}, input_signature=[tf.TensorSpec([None, *SHAPE], tf.uint8, "x")]
    )
    tf.saved_model.save(module, paths["bytes"], signatures={"serving_default": of_bytes})
    kernel = module.kernel.numpy()
    constants = tf.function(lambda x: {"logits": tf.reshape(x, [-1, 64]) @ kernel}, input_signature=[SPEC])
    tf.saved_model.save(tf.Module(), paths["constants"], signatures={"serving_default": constants})
    return paths
