"""Layers of the networks, with PyTorch's padding and initialization where the published code is in PyTorch."""

import keras
import tensorflow as tf

from tf_robust.ops import philox


def convolution(
    x: keras.KerasTensor, filters: int, size: int, stride: int = 1, use_bias: bool = False, initializer: keras.Initializer | None = None
) -> keras.KerasTensor:
    """Applies a convolution with `size // 2` zeros on all sides; TensorFlow's SAME pads stride 2 only at the bottom and right.

    The bias is uniform within +-1 / sqrt(fan-in), as the kernel is without an initializer.
    """
    if size > 1 and stride > 1:
        x = keras.layers.ZeroPadding2D(size // 2)(x)
    bound = (size * size * x.shape[-1]) ** -0.5
    return keras.layers.Conv2D(
        filters,
        size,
        stride,
        padding="valid" if size > 1 and stride > 1 else "same",
        use_bias=use_bias,
        kernel_initializer=initializer or _uniform(bound),
        bias_initializer=_uniform(bound),
    )(x)


def batch_norm(x: keras.KerasTensor, momentum: float = 0.9) -> keras.KerasTensor:
    """Applies batch norm with epsilon 1e-5; momentum, as in Keras, is the fraction of the moving average that is kept."""
    return keras.layers.BatchNormalization(momentum=momentum, epsilon=1e-5)(x)


def instance_batch_norm(x: keras.KerasTensor) -> keras.KerasTensor:
    """Applies instance normalization to the first half of the channels, batch normalization to the others (Pan et al., 2018, IBN-a)."""
    half = x.shape[-1] // 2
    instance = keras.layers.GroupNormalization(groups=-1, epsilon=1e-5)(x[..., :half])
    return keras.layers.Concatenate()([instance, batch_norm(x[..., half:])])


def relu(x: keras.KerasTensor, name: str | None = None) -> keras.KerasTensor:
    """Applies ReLU."""
    return keras.layers.ReLU(name=name)(x)


def logits_initializers(features: int) -> dict[str, keras.Initializer]:
    """Returns the initializers of a linear layer: kernel and bias uniform within +-1 / sqrt(features)."""
    return {"kernel_initializer": _uniform(features**-0.5), "bias_initializer": _uniform(features**-0.5)}


def _uniform(bound):
    return keras.initializers.RandomUniform(-bound, bound)


@keras.saving.register_keras_serializable("tf_robust")
class Dropout(keras.layers.Dropout):
    """Dropout whose mask also depends on the replica; in Keras it is the same on all."""

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if not training or not self.rate:
            return inputs
        context = tf.distribute.get_replica_context()
        replica = context.replica_id_in_sync_group if context else 0
        seed = philox.fold(tf.cast(self.seed_generator.next(), tf.int64), tf.cast(replica, tf.int64))
        kept = philox.uniform(tf.shape(inputs), seed) >= self.rate
        return tf.where(kept, inputs / (1.0 - self.rate), tf.zeros_like(inputs))
