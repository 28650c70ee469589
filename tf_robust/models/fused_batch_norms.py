"""Makes the batch normalization of a Keras model use TensorFlow's fused kernels in training, whatever the model."""

import types

import keras
import tensorflow as tf

from tf_robust.ops import batch_norm


def fuse_batch_norms(model: keras.Model) -> None:
    """Lets the model's `keras.layers.BatchNormalization` layers train by fused kernels; their class, weights and files stay as they are.

    Results are those of Keras up to rounding. Layers remain Keras' own where the kernels do not apply: inputs that are not [N, H, W, C] or
    of double precision, masks, statistics synchronized over devices, subclasses; and in inference mode.

    Args:
        model: nested models and layers included.
    """
    for layer in model._flatten_layers():
        if type(layer) is keras.layers.BatchNormalization and not layer.synchronized and not getattr(layer, "renorm", False):
            layer.call = types.MethodType(_call, layer)


def _call(self, inputs, training=None, mask=None):
    """Replaces `keras.layers.BatchNormalization.call`."""
    images = inputs.shape.rank == 4 and self.axis in (-1, 3) and inputs.dtype in batch_norm.KINDS
    if not (training and self.trainable and images) or mask is not None:
        return keras.layers.BatchNormalization.call(self, inputs, training=training, mask=mask)
    channels = inputs.shape[-1]
    gamma = tf.cast(self.gamma, tf.float32) if self.scale else tf.ones([channels])
    beta = tf.cast(self.beta, tf.float32) if self.center else tf.zeros([channels])
    outputs, *statistics = batch_norm.batch_norm(inputs, gamma, beta, self.epsilon)
    for average, value in zip((self.moving_mean, self.moving_variance), statistics):
        average.assign(average * self.momentum + tf.cast(value, average.dtype) * (1.0 - self.momentum))
    return tf.cast(outputs, self.compute_dtype)
