"""Proximal operators of the four norms: argmin over v of strength * size(v) + |v - u|^2 / 2, image by image.

Perturbations u are float32 [N, H, W, C]; strength, >= 0, is a number or float32 [N], and 0 changes nothing. Sources:
Pooladian et al. (AISTATS 2020); Parikh and Boyd, "Proximal Algorithms" (2014), chapter 6.
"""

import tensorflow as tf

_TINY = 1e-30


def l0(perturbations, strength):
    """Hard threshold: values up to sqrt(2 strength) become 0, the others stay."""
    return tf.where(perturbations ** 2 > 2.0 * _column(strength), perturbations, 0.0)


def l0_in_cube(perturbations, strength, low, high):
    """The same with v held between low and high, which have the perturbations' shape, low <= 0 <= high.

    A value beyond a face is worth the more the farther it is beyond, while l0 cut off at the faces treats all alike.
    """
    inside = tf.clip_by_value(perturbations, low, high)
    return tf.where(gain_of_keeping(perturbations, low, high) > _column(strength), inside, 0.0)


def gain_of_keeping(perturbations, low, high):
    """By how much |v - u|^2 / 2 is smaller for v the nearest value to u between low and high than for v = 0."""
    inside = tf.clip_by_value(perturbations, low, high)
    return inside * (perturbations - inside / 2)


def l1(perturbations, strength):
    """Soft threshold: every value comes nearer to 0 by strength, and stays at 0 once there."""
    return tf.sign(perturbations) * tf.maximum(tf.abs(perturbations) - _column(strength), 0.0)


def l2(perturbations, strength):
    """Shrinkage: the length becomes shorter by strength, and 0 if it was not longer."""
    length = tf.sqrt(tf.reduce_sum(perturbations ** 2, axis=[1, 2, 3], keepdims=True))
    return perturbations * tf.maximum(1.0 - _column(strength) / tf.maximum(length, _TINY), 0.0)


def linf(perturbations, strength):
    """Cuts the largest values to one height, so that what is cut sums to strength; 0 if the values sum to less.

    By Moreau's decomposition u less its projection on the l1 ball of radius strength, which is strength times the
    projection of u / strength on the unit ball.
    """
    return perturbations - projected_on_l1_ball(perturbations, strength)


def projected_on_l1_ball(perturbations, radius):
    """The nearest perturbations whose absolute values sum to at most radius, a number or [N]; what is inside stays.

    By sorting (Held et al., 1974; Duchi et al., 2008, figure 1): a soft threshold at the height above which the values
    sum to radius.
    """
    shape = tf.shape(perturbations)
    radius = tf.reshape(tf.cast(radius, tf.float32), [-1, 1])
    sizes = tf.abs(tf.reshape(perturbations, [shape[0], -1]))
    falling = tf.sort(sizes, direction="DESCENDING")
    ranks = tf.range(1, tf.shape(sizes)[1] + 1, dtype=tf.float32)
    heights = (tf.cumsum(falling, axis=1) - radius) / ranks
    # the heights rise with the rank and then fall, and the one that is right is their largest: no rank need be counted
    height = tf.maximum(tf.reduce_max(heights, axis=1), 0.0)  # 0 inside the ball
    return l1(perturbations, height)


PROXIMAL = {operator.__name__: operator for operator in (l0, l1, l2, linf)}


def _column(numbers):
    return tf.reshape(tf.cast(numbers, tf.float32), [-1, 1, 1, 1])
