"""CutMix (Yun et al., 2019): a box of each image is replaced by its partner's, and the labels are mixed by area."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_robust.data.pipeline import Batch
from tf_robust.methods import mixing
from tf_robust.methods.base import Method, Terms
from tf_robust.methods.checks import positive
from tf_robust.ops import philox


class CutMix(Method):
    """CutMix: replaces a box of each image by the same box of its partner, and mixes the labels by area.

    One box is drawn for the whole step: its center is uniform over the image, and it is clipped at the borders.

    Args:
        alpha: the fraction of its area that an image keeps is drawn from Beta(alpha, alpha), before the box is clipped.
        probability: fraction of the steps that mix; the others use the unmixed images.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.CutMix(network, alpha=1.0, probability=0.5)
        >>> model.compile("adam")
        >>> history = model.fit(images, labels, verbose=0)
        >>> np.array_equal(model(images), network(images))  # boxes are replaced in training alone
        True
    """

    def __init__(self, classifier: keras.Model, *, alpha: float = 1.0, probability: float = 1.0, **kwargs):
        super().__init__(classifier, **kwargs)
        self.alpha, self.probability = positive("alpha", alpha), probability
        if not 0 < probability <= 1:
            raise ValueError(f"Expected probability in (0, 1]. Received: {probability}")

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        step, images = batch.step[0], batch.views[0]
        partner = mixing.partners(self.random_seed(step, 0), tf.shape(images)[0])
        lam = mixing.beta(self.shared_seed(step, 0), self.alpha, self.alpha)
        draws = philox.uniform([3], self.shared_seed(step, 1))
        lam = tf.where(draws[2] < self.probability, lam, 1.0)
        mask, lam = box(images.shape[1:3], draws[:2], lam)
        logits = self.encode(tf.where(mask, tf.gather(images, partner), images), training)["logits"]
        return {"cross_entropy": mixing.mixed(self.cross_entropy, batch.labels, partner, lam, logits)}, logits


def box(size: Sequence[int], center: tf.Tensor, lam: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the box that is replaced.

    Args:
        size: (H, W).
        center: [2] in [0, 1), of the box, as fractions of height and width.
        lam: a number in [0, 1], the fraction of the area to keep; the box's sides are sqrt(1 - lam) of the image's, in
            whole pixels.

    Returns:
        (bool [1, H, W, 1], True inside the box; the fraction of the area that is kept after clipping the box at the borders)
    """

    def inside(length, center):
        side = tf.floor(length * tf.sqrt(1.0 - lam))
        start = tf.floor(length * center) - tf.floor(side / 2)
        positions = tf.range(length, dtype=tf.float32)
        return (positions >= start) & (positions < start + side)

    rows, columns = (inside(float(length), center[axis]) for axis, length in enumerate(size))
    mask = rows[:, None] & columns[None]
    return mask[None, :, :, None], 1.0 - tf.reduce_mean(tf.cast(mask, tf.float32))
