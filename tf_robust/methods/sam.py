"""Sharpness-aware minimization (Foret et al., 2021): cross-entropy at the worst weights within a ball around the weights.

min over w of L_SAM(w) + lambda |w|^2,  L_SAM(w) = max over |e|_2 <= rho of L(w + e)   (eq. 1). Algorithm 1, for a batch B:

    g = grad L_B(w)
    e = rho g / |g|_2            (eq. 2 with p = 2)
    w <- w - eta grad L_B(w + e)   (eq. 3)

The norm is that of the gradient over all replicas (the paper has one perturbation per accelerator) and all trainable variables.
`weight_decay` is outside of the maximum, as in eq. 1.

Where the paper is silent: both passes see the same images, draws and dropout masks; batch statistics, terms and accuracy are those of the
first pass, at w, the weights that are exported.
"""

import keras
import tensorflow as tf

from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Gradients
from tf_robust.methods.checks import positive
from tf_robust.methods.cross_entropy import CrossEntropy


class SAM(CrossEntropy):
    """Cross-entropy at the weights of the largest loss within a ball around the weights: two gradients a step.

    Args:
        radius: rho, of the l2 ball.

    Examples:
        >>> network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
        >>> images, labels = np.random.rand(20, 8, 8, 1), np.arange(20) % 10
        >>> model = tfr.methods.SAM(network, radius=0.5)
        >>> model.perturbation([tf.constant([3.0, 4.0])])[0].numpy().round(4)  # of two weights with this gradient; its length is 0.5
        array([0.3, 0.4], dtype=float32)
        >>> model.compile("sgd")
        >>> sorted(model.fit(images, labels, verbose=0).history)
        ['accuracy', 'loss']
    """

    def __init__(self, classifier: keras.Model, *, radius: float = 0.05, **kwargs):
        super().__init__(classifier, **kwargs)
        self.radius = positive("radius", radius)

    def gradients(  # type: ignore[override]
        self, batch: Batch, step: tf.Tensor, weights: tf.Tensor | None = None
    ) -> Gradients:
        ascent, terms, logits, statistics = super().gradients(batch, step, weights, decay=False)
        shift = self.perturbation(self.all_sum(ascent))
        descent, *_ = super().gradients(batch, step, weights, shift=shift)
        return descent, terms, logits, statistics

    def perturbation(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns e, a tensor for each trainable variable, for the gradients of the loss; 0 where the gradient is 0."""
        return to_length(gradients, self.radius)


def to_length(tensors: list[tf.Tensor], length: float) -> list[tf.Tensor]:
    """Returns tensors whose joint l2 norm is `length`, of the same direction; zeros remain zeros."""
    norm = tf.linalg.global_norm(tensors)
    factor = tf.math.divide_no_nan(tf.constant(length, norm.dtype), norm)
    return [factor * one for one in tensors]
