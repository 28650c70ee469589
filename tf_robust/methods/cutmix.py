"""CutMix (Yun et al., 2019): a box of each image is replaced by its partner's, and the labels are mixed by area."""

import tensorflow as tf

from tf_robust.methods import mixing
from tf_robust.methods.base import Method
from tf_robust.methods.checks import positive
from tf_robust.ops import philox


class CutMix(Method):
    """One box serves the whole step: its centre is uniform over the image, and what sticks out of it is cut off.

    Args:
        alpha: the image keeps a share of Beta(alpha, alpha) of its area, before the box is cut off.
        probability: share of the steps that mix; the others see the images as they are.
    """

    def __init__(self, classifier, *, alpha: float = 1.0, probability: float = 1.0, **kwargs):
        super().__init__(classifier, **kwargs)
        self.alpha, self.probability = positive("alpha", alpha), probability
        if not 0 < probability <= 1:
            raise ValueError(f"Expected probability in (0, 1]. Received: {probability}")

    def loss_terms(self, batch, training):
        step, images = batch.step[0], batch.views[0]
        partner = mixing.partners(self.random_seed(step, 0), tf.shape(images)[0])
        share = mixing.beta(self.shared_seed(step, 0), self.alpha, self.alpha)
        draws = philox.uniform([3], self.shared_seed(step, 1))
        share = tf.where(draws[2] < self.probability, share, 1.0)
        mask, share = box(images.shape[1:3], draws[:2], share)
        logits = self.encode(tf.where(mask, tf.gather(images, partner), images), training)["logits"]
        return {"cross_entropy": mixing.mixed_cross_entropy(batch.labels, partner, share, logits)}, logits


def box(size, centre, share):
    """The box that is replaced.

    Args:
        size: (H, W). centre: [2] in [0, 1), of the box: shares of height and width. share: a number in [0, 1]: what of the
            area is kept; the box's sides are sqrt(1 - share) of the image's, in whole pixels.

    Returns:
        (bool [1, H, W, 1], inside of the box; what of the area is kept, after the box is cut off at the borders)
    """
    def inside(length, centre):
        side = tf.floor(length * tf.sqrt(1.0 - share))
        start = tf.floor(length * centre) - tf.floor(side / 2)
        places = tf.range(length, dtype=tf.float32)
        return (places >= start) & (places < start + side)
    rows, columns = (inside(float(length), centre[axis]) for axis, length in enumerate(size))
    mask = rows[:, None] & columns[None]
    return mask[None, :, :, None], 1.0 - tf.reduce_mean(tf.cast(mask, tf.float32))
