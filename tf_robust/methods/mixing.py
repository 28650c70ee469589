"""Mixing of images, features and labels with those of other images, for all mixing methods.

x_i becomes lam * x_i + (1 - lam) * x_partner(i), and likewise the labels. One mixing coefficient `lam` serves the whole step,
on all replicas; partners are drawn within a replica. An image in a batch of one is mixed with itself: it does not change,
except that Puzzle Mix may move its blocks.
"""

from collections.abc import Callable

import tensorflow as tf

from tf_robust.ops import philox
from tf_robust.ops.draws import Draws


def beta(seed: tf.Tensor, first: float, second: float) -> tf.Tensor:
    """Returns one draw from Beta(first, second), by a seed int [2]."""
    return Draws(seed, 1, "beta").beta(float(first), float(second))[0]


def partners(seed: tf.Tensor, count: tf.Tensor | int) -> tf.Tensor:
    """Returns a random permutation of range(count), int32 [count], by a seed int [2]."""
    return tf.argsort(philox.uniform([count], seed))


def blend(values: tf.Tensor, partner: tf.Tensor, lam: tf.Tensor) -> tf.Tensor:
    """Returns lam * values + (1 - lam) * values[partner].

    Args:
        values: [N, ...].
        partner: int [N].
        lam: a number, or [N, 1, ...].
    """
    lam = tf.cast(lam, values.dtype)
    return lam * values + (1.0 - lam) * tf.gather(values, partner)


def mixed(
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], labels: tf.Tensor, partner: tf.Tensor, lam: tf.Tensor, logits: tf.Tensor
) -> tf.Tensor:
    """Returns lam times the loss of the label plus 1 - lam times that of the partner's label, [N].

    Args:
        loss: (labels [N], logits [N, C]) -> [N].
        labels: int [N].
        partner: int [N].
        lam: a number, or [N].
        logits: [N, C].
    """
    first, second = loss(labels, logits), loss(tf.gather(labels, partner), logits)
    lam = tf.cast(lam, first.dtype)
    return lam * first + (1.0 - lam) * second
