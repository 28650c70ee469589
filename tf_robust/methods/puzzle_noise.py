"""The noise of adversarial Puzzle Mix (Kim et al., 2020): one signed gradient step from a random start in a ball.

Images are float32 in [0, 1]. The paper gives the idea; the numbers are those of the published code.
"""

import tensorflow as tf

from tf_robust.ops import philox

OVERSHOOT = 2 / 255  # the step is longer than the radius by it


def random_start(images, radius, seed):
    """Returns noise [N, H, W, C], uniform in +-radius, cut off where an image would leave [0, 1]. seed: int64 [2]."""
    noise = philox.uniform(tf.shape(images), seed, -radius, radius)
    return tf.clip_by_value(images + noise, 0.0, 1.0) - images


def one_step(start, gradient, radius, fraction):
    """Returns noise after a step of radius + 2/255 along the gradient's signs, cut off at +-radius, times a fraction.

    Args:
        start: [N, H, W, C], of `random_start`. gradient: of the loss at the images with that noise. fraction: in [0, 1].
    """
    return fraction * tf.clip_by_value(start + (radius + OVERSHOOT) * tf.sign(gradient), -radius, radius)
