"""Layers as PyTorch makes them by default, for networks whose published code is PyTorch's."""

import keras
import tensorflow as tf

from tf_robust.ops import philox


def convolution(x, filters, size, stride=1, use_bias=False, initializer=None):
    """A convolution with `size // 2` zeros on all sides; TensorFlow's SAME pads stride 2 at the bottom and right only.

    Args:
        initializer: of the kernel; None: uniform within +-1 / sqrt(fan-in), of the bias too.
    """
    if size > 1 and stride > 1:
        x = keras.layers.ZeroPadding2D(size // 2)(x)
    bound = (size * size * x.shape[-1]) ** -0.5
    return keras.layers.Conv2D(
        filters, size, stride, padding="valid" if size > 1 and stride > 1 else "same", use_bias=use_bias,
        kernel_initializer=initializer or _uniform(bound), bias_initializer=_uniform(bound))(x)


def batch_norm(x, momentum=0.9):
    """Batch norm with epsilon 1e-5. momentum: Keras', the share of the running average that is kept."""
    return keras.layers.BatchNormalization(momentum=momentum, epsilon=1e-5)(x)


def relu(x, name=None):
    return keras.layers.ReLU(name=name)(x)


def logits_initializers(features):
    """The linear layer's: kernel and bias uniform within +-1 / sqrt(features)."""
    return {"kernel_initializer": _uniform(features ** -0.5), "bias_initializer": _uniform(features ** -0.5)}


def _uniform(bound):
    return keras.initializers.RandomUniform(-bound, bound)


class Dropout(keras.layers.Dropout):
    """Dropout whose mask also depends on the replica; Keras' is the same on all."""

    def call(self, inputs, training=False):
        if not training or not self.rate:
            return inputs
        context = tf.distribute.get_replica_context()
        replica = context.replica_id_in_sync_group if context else 0
        seed = philox.fold(tf.cast(self.seed_generator.next(), tf.int64), tf.cast(replica, tf.int64))
        kept = philox.uniform(tf.shape(inputs), seed) >= self.rate
        return tf.where(kept, inputs / (1.0 - self.rate), tf.zeros_like(inputs))
