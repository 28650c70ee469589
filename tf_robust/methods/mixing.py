"""What the mixing methods share: images, or what a network makes of them, mixed with those of other images.

x_i becomes share * x_i + (1 - share) * x_partner(i), and likewise the labels. One share serves the whole step, on all
replicas; partners are drawn within a replica. A batch of one image is mixed with itself: nothing
happens to it, but that Puzzle Mix may move its blocks.
"""

import tensorflow as tf

from tf_robust import losses
from tf_robust.ops import philox
from tf_robust.ops.draws import Draws


def beta(seed, first, second):
    """One number of Beta(first, second), from an int [2] seed."""
    return Draws(seed, 1, "beta").beta(float(first), float(second))[0]


def partners(seed, count):
    """A random order of range(count): int32 [count]."""
    return tf.argsort(philox.uniform([count], seed))


def blend(values, partner, share):
    """share * values + (1 - share) * values[partner]. values: [N, ...]. partner: int [N]. share: a number, or [N, 1, ...]."""
    share = tf.cast(share, values.dtype)
    return share * values + (1.0 - share) * tf.gather(values, partner)


def mixed_cross_entropy(labels, partner, share, logits):
    """Cross-entropy to both labels, [N]. share: of the first; a number, or [N]."""
    first, second = losses.cross_entropy(labels, logits), losses.cross_entropy(tf.gather(labels, partner), logits)
    share = tf.cast(share, first.dtype)
    return share * first + (1.0 - share) * second
