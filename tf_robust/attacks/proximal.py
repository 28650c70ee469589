"""Proximal operators of the four norms: argmin over v of strength * size(v) + |v - u|^2 / 2 for each image.

Perturbations u are float32 [N, H, W, C]; strength >= 0 is a number or float32 [N], and 0 changes nothing. Sources:
Pooladian et al. (AISTATS 2020); Parikh and Boyd, "Proximal Algorithms" (2014), chapter 6.
"""

from collections.abc import Callable

import tensorflow as tf

from tf_robust.attacks.norms import per_image

_TINY = 1e-30


def l0(perturbations: tf.Tensor, strength: float | tf.Tensor) -> tf.Tensor:
    """Applies the hard threshold: values up to sqrt(2 strength) become 0, the others are unchanged."""
    return tf.where(perturbations**2 > 2.0 * _strengths(strength), perturbations, 0.0)


def l0_in_cube(perturbations: tf.Tensor, strength: float | tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """Applies the hard threshold with v constrained to [low, high].

    The farther a value lies outside its interval, the more keeping it is worth. `l0` with clipping afterwards would treat all
    values outside alike.

    Args:
        perturbations: float32 [N, H, W, C].
        strength: a number or float32 [N], >= 0.
        low: lower bounds, the shape of the perturbations, <= 0.
        high: upper bounds, the shape of the perturbations, >= 0.
    """
    clipped = tf.clip_by_value(perturbations, low, high)
    return tf.where(gain_of_keeping(perturbations, low, high) > _strengths(strength), clipped, 0.0)


def gain_of_keeping(perturbations: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """Returns by how much |v - u|^2 / 2 is smaller for v = clip(u, low, high) than for v = 0, for each value."""
    clipped = tf.clip_by_value(perturbations, low, high)
    return clipped * (perturbations - clipped / 2)


def l1(perturbations: tf.Tensor, strength: float | tf.Tensor) -> tf.Tensor:
    """Applies the soft threshold: every value moves towards 0 by `strength` and stops there."""
    return tf.sign(perturbations) * tf.maximum(tf.abs(perturbations) - _strengths(strength), 0.0)


def l2(perturbations: tf.Tensor, strength: float | tf.Tensor) -> tf.Tensor:
    """Shrinks perturbations: the length decreases by `strength`, at most to 0."""
    length = tf.sqrt(tf.reduce_sum(perturbations**2, axis=[1, 2, 3], keepdims=True))
    return perturbations * tf.maximum(1.0 - _strengths(strength) / tf.maximum(length, _TINY), 0.0)


def linf(perturbations: tf.Tensor, strength: float | tf.Tensor) -> tf.Tensor:
    """Clips the largest values to one height, so that what is cut off sums to `strength`; 0 if the values sum to less.

    By Moreau's decomposition: u minus its projection onto the l1 ball of radius `strength`, which is `strength` times the
    projection of u / strength onto the unit ball.
    """
    return perturbations - projected_on_l1_ball(perturbations, strength)


def projected_on_l1_ball(perturbations: tf.Tensor, radius: float | tf.Tensor) -> tf.Tensor:
    """Projects perturbations onto an l1 ball; those inside do not change.

    By sorting (Held et al., 1974; Duchi et al., 2008, figure 1): a soft threshold at the height above which the values
    sum to the radius.

    Args:
        perturbations: float32 [N, H, W, C].
        radius: a number or [N], >= 0.
    """
    shape = tf.shape(perturbations)
    radius = tf.reshape(tf.cast(radius, tf.float32), [-1, 1])
    sizes = tf.abs(tf.reshape(perturbations, [shape[0], -1]))
    descending = tf.sort(sizes, direction="DESCENDING")
    ranks = tf.range(1, tf.shape(sizes)[1] + 1, dtype=tf.float32)
    heights = (tf.cumsum(descending, axis=1) - radius) / ranks
    # the heights rise with the rank, then fall; the threshold is their maximum, so its rank need not be searched for
    height = tf.maximum(tf.reduce_max(heights, axis=1), 0.0)  # 0 inside the ball
    return l1(perturbations, height)


def _strengths(strength):
    return per_image(tf.cast(strength, tf.float32))


PROXIMAL: dict[str, Callable[[tf.Tensor, float | tf.Tensor], tf.Tensor]] = {operator.__name__: operator for operator in (l0, l1, l2, linf)}
