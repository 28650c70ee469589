"""Feature Contrastive Learning (FCL, Algorithm 1).

The utility |d loss / d x| of every input value measures how much it matters for the image. Noise on the k values of lowest
utility should not change the embedding (positive); noise on the k values of highest utility should (negative).

Where the paper is silent: the utility is computed on the clean training-mode forward pass and no gradient flows through it; batch norm
normalizes the perturbed images by its moving averages, as the exported model does (see the argument `batch_norm`).
"""

import typing
import warnings

import keras
import numpy as np
import tensorflow as tf

from tf_robust import losses
from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Terms
from tf_robust.methods.checks import positive
from tf_robust.methods.further_views import AuxiliaryTermMethod
from tf_robust.ops import philox


def lowest(scores: tf.Tensor, k: int, compiled: bool = False) -> tf.Tensor:
    """Returns BOTTOM_k (Definition 3), a mask of the k smallest scores of each row; of equal scores those at lower indices.

    Args:
        scores: [N, D].
        k: 1..D.
        compiled: whether the code is compiled by XLA, which lacks the faster NthElement.

    Returns:
        bool [N, D]
    """
    values = _ordered(scores) if compiled else scores
    threshold = _kth(values, k) if compiled else tf.raw_ops.NthElement(input=values, n=k - 1)[:, None]  # [N, 1]
    selected = values <= threshold

    def without_excess_ties():
        equal, below = values == threshold, values < threshold
        missing = k - tf.math.count_nonzero(below, axis=1, keepdims=True, dtype=tf.int32)
        return below | (equal & (tf.cumsum(tf.cast(equal, tf.int32), axis=1) <= missing))

    ties = tf.math.count_nonzero(selected, dtype=tf.int32) > k * tf.shape(scores)[0]
    return tf.cond(ties, without_excess_ties, lambda: selected)


def _ordered(scores):
    """Returns int32 [N, D] in the same order as the float32 scores [N, D]."""
    bits = tf.bitcast(tf.where(scores == 0, 0.0, tf.cast(scores, tf.float32)), tf.int32)  # -0.0 and 0.0 are equal
    return tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, tf.int32.max), bits)


def _kth(values, k):
    """Returns the k-th smallest of each row of int32 [N, D]: [N, 1], determined bit by bit. Linear in D, unlike sorting."""

    def fewer(limit):
        return tf.math.count_nonzero(values <= limit, axis=1, keepdims=True, dtype=tf.int32) < k

    def set_bit(bit, result):
        return bit // 2, result + tf.where(fewer(result + (bit - 1)), bit, 0)

    start = tf.where(fewer(tf.constant(-1)), 0, tf.int32.min)
    return tf.while_loop(lambda bit, result: bit > 0, set_bit, (tf.constant(2**30), start))[1]


def perturb(
    images: tf.Tensor,
    scores: tf.Tensor,
    k: int,
    sigma: float,
    seed: tf.Tensor,
    compiled: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the two utility-aware perturbations (Definition 3): normal noise on k values of each image.

    Args:
        images: [N, H, W, C].
        scores: [N, H, W, C].
        k: number of the H * W * C values to perturb.
        sigma: standard deviation of the noise.
        seed: int [2].
        compiled: as for `lowest`.

    Returns:
        x + delta(BOTTOM_k(scores)) and x + delta(TOP_k(scores)), each [N, H, W, C]. Both use the same draw: they
        perturb different values unless 2k > H * W * C.
    """
    flat = tf.reshape(scores, [tf.shape(images)[0], -1])
    noise = sigma * tf.cast(philox.normal(tf.shape(images), seed), images.dtype)
    low, high = (tf.reshape(lowest(signed, k, compiled), tf.shape(images)) for signed in (flat, -flat))
    return tf.where(low, images + noise, images), tf.where(high, images + noise, images)


class FCL(AuxiliaryTermMethod):
    """FCL (FCL paper, Algorithm 1): L_xe + lambda L_fcl, with L_fcl of eq. 5 (softmax) or eq. 4 (margin).

    Args:
        weight: lambda, the weight of L_fcl.
        k: number of values (of H x W x C) that each perturbation changes; 0: a twelfth, the paper's 256 of 32 x 32 x 3.
        sigma: standard deviation of the perturbation on the [0, 1] scale.
        temperature: of the softmax form.
        form: `softmax` (eq. 5) or `margin` (eq. 4).
        margin: gamma of the margin form; cosine distances lie in [0, 2].
        selection: of values by `utility`, or at `random` as a control.
        minimum_utility: an image whose largest utility is below this has no high-utility negative.
        clip: clip the perturbed images to [0, 1].

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.FCL(network, weight=0.1, sigma=0.5)
        >>> model.k  # values that each perturbation changes: a twelfth of 8 x 8
        5
        >>> model.compile("adam")
        >>> sorted(model.fit(images, labels, verbose=0).history)
        ['accuracy', 'cross_entropy', 'feature_contrastive', 'loss']
    """

    term_names = ("cross_entropy", "feature_contrastive")

    def __init__(
        self,
        classifier: keras.Model,
        *,
        weight: float = 0.1,
        k: int = 0,
        sigma: float = 0.5,
        temperature: float = 0.1,
        form: typing.Literal["softmax", "margin"] = "softmax",
        margin: float = 1.0,
        selection: typing.Literal["utility", "random"] = "utility",
        minimum_utility: float = 1e-12,
        clip: bool = False,
        **kwargs,
    ):
        super().__init__(classifier, weight=weight, **kwargs)
        values = int(np.prod(self.network.input_shape[1:]))
        k = k or max(1, values // 12)
        if not 1 <= k <= values:
            raise ValueError(f"Expected k in 1..{values}, the values (H x W x C) of an image, or 0. Received: {k}")
        if 2 * k > values:
            warnings.warn(
                f"2k = {2 * k} is more than the {values} values of an image: the high- and the low-utility perturbation overlap",
                stacklevel=2,
            )
        for name, choice, choices in (("form", form, ("softmax", "margin")), ("selection", selection, ("utility", "random"))):
            if choice not in choices:
                raise ValueError(f"Expected {name} in {choices}. Received: {choice!r}")
        self.k, self.sigma, self.temperature = k, positive("sigma", sigma), positive("temperature", temperature)
        self.form, self.margin, self.selection = form, positive("margin", margin), selection
        self.minimum_utility, self.clip = minimum_utility, clip

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        images, step = batch.views[0], batch.step[0]
        joint = self.batch_norm == "joint"
        with tf.GradientTape() as tape:
            tape.watch(images)
            clean = self.encode(images, training, update_statistics=not joint)
            cross_entropy = self.cross_entropy(batch.labels, clean["logits"])
        utility = tf.stop_gradient(tf.abs(tape.gradient(cross_entropy, images)))
        scores = utility if self.selection == "utility" else philox.uniform(tf.shape(images), self.random_seed(step, 0))
        views = perturb(images, scores, self.k, self.sigma, self.random_seed(step, 1), bool(self.compiled_gradients))
        perturbed = [tf.clip_by_value(view, 0.0, 1.0) if self.clip else view for view in views]
        if joint:
            clean, low, high = self.encode_views([images, *perturbed], training)
            cross_entropy = self.cross_entropy(batch.labels, clean["logits"])
        else:
            low, high = (self.encode_further(view, training) for view in perturbed)
        useful = tf.cast(tf.reduce_max(utility, axis=[1, 2, 3]) >= self.minimum_utility, tf.float32)
        contrast = self.contrast(clean["embedding"], low["embedding"], high["embedding"], useful)
        return {"cross_entropy": cross_entropy, "feature_contrastive": self.weighted(contrast, step)}, clean["logits"]

    def contrast(self, anchors: tf.Tensor, positives: tf.Tensor, negatives: tf.Tensor, negative_weights: tf.Tensor) -> tf.Tensor:
        """Returns the contrastive loss [N] of embeddings [N, E]; negative_weights: [N], of each own negative."""
        if self.form == "margin":
            return losses.feature_contrastive_margin(anchors, positives, negatives, self.margin, negative_weights)
        return losses.feature_contrastive(anchors, positives, negatives, self.temperature, negative_weights)
