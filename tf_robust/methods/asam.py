"""Adaptive sharpness-aware minimization (Kwon et al., 2021): SAM in a ball that scales with the weights.

The ball is |T_w^-1 e|_2 <= rho, T_w = diag(|w_1|, ..., |w_k|) + eta I (section 3), so that the sharpness does not change if weights of
one layer are multiplied by a factor and those of the next are divided by it. Algorithm 1 with p = 2 (eq. 14):

    g = grad L_B(w)
    e = rho T_w^2 g / |T_w g|_2
    w <- w - alpha (grad L_B(w + e) + lambda w)

The paper's T_w has all weights; in the authors' code biases have T = 1.
"""

import keras
import tensorflow as tf

from tf_robust.methods.checks import positive
from tf_robust.methods.sam import SAM, to_length


class ASAM(SAM):
    """Cross-entropy at the weights of the largest loss within a ball that is wider for large weights.

    Args:
        radius: rho, of the ball, relative to the weights.
        offset: eta, added to the absolute value of every weight.

    Examples:
        >>> network = keras.Sequential([keras.Input((1, 1, 1)), keras.layers.Flatten(), keras.layers.Dense(2, use_bias=False)])
        >>> network.set_weights([np.array([[1.0, -3.0]])])
        >>> model = tfr.methods.ASAM(network, radius=0.5, offset=0.01)
        >>> model.perturbation([tf.constant([[1.0, 1.0]])])[0].numpy().round(2)  # of the two weights: more of the larger one
        array([[0.16, 1.43]], dtype=float32)
    """

    def __init__(self, classifier: keras.Model, *, radius: float = 0.5, offset: float = 0.01, **kwargs):
        super().__init__(classifier, radius=radius, **kwargs)
        self.offset = positive("offset", offset)

    def perturbation(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        scales = [tf.abs(v.value) + self.offset for v in self.trainable_variables]
        unit = to_length([scale * g for scale, g in zip(scales, gradients, strict=True)], self.radius)
        return [scale * one for scale, one in zip(scales, unit, strict=True)]
