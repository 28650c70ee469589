"""The noise of adversarial Puzzle Mix (Kim et al., 2020): one signed gradient step from a random start in a ball.

Images are float32 in [0, 1]. The paper describes the method; the constants are those of the published code.
"""

import tensorflow as tf

from tf_robust.ops import philox

OVERSHOOT = 2 / 255  # by which the step is longer than the radius


def random_start(images: tf.Tensor, radius: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns noise uniform in +-radius, clipped where an image would leave [0, 1].

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        radius: maximum absolute value.
        seed: int64 [2].
    """
    noise = philox.uniform(tf.shape(images), seed, -radius, radius)
    return tf.clip_by_value(images + noise, 0.0, 1.0) - images


def one_step(start: tf.Tensor, gradient: tf.Tensor, radius: float, fraction: tf.Tensor) -> tf.Tensor:
    """Returns noise after a step of radius + 2/255 along the gradient's signs, clipped at +-radius, times a fraction.

    Args:
        start: [N, H, W, C], of `random_start`.
        gradient: [N, H, W, C], of the loss at the images with that noise.
        radius: maximum absolute value.
        fraction: in [0, 1].
    """
    return fraction * tf.clip_by_value(start + (radius + OVERSHOOT) * tf.sign(gradient), -radius, radius)
