"""Tikhonov regularization by the input gradient (Robustness of Contrastive Learning Models, eq. 2; Finlay and Oberman, 2019).

L = L_xe(x) + lambda / 2 |d L_xe / d x|^2, the norm l2, pictures on the [0, 1] scale.

With batch norm in training mode a picture's loss depends on the whole batch; its gradient is that of the batch's summed loss.
"""

import typing

import tensorflow as tf

from tf_robust import losses
from tf_robust.attacks.norms import L2
from tf_robust.methods.base import Method
from tf_robust.methods.checks import positive


class InputGradient(Method):
    """Cross-entropy plus lambda / 2 times the squared norm of its gradient by the picture.

    Args:
        weight: lambda.
        form: exact, by double back-propagation; or finite_difference, the loss's slope along the gradient's direction (Finlay
            and Oberman, 2019, section 3), through which direction no gradient flows.
        difference: length of the step of the finite difference.
    """

    term_names = ("cross_entropy", "input_gradient")

    def __init__(self, classifier, *, weight: float = 0.1, form: typing.Literal["exact", "finite_difference"] = "exact",
                 difference: float = 0.01, **kwargs):
        super().__init__(classifier, **kwargs)
        if form not in ("exact", "finite_difference"):
            raise ValueError(f"Expected form 'exact' or 'finite_difference'. Received: {form!r}")
        if not weight >= 0:
            raise ValueError(f"Expected weight >= 0. Received: {weight}")
        self.weight, self.form, self.difference = weight, form, positive("difference", difference)

    def loss_terms(self, batch, training):
        images = batch.views[0]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(images)
            logits = self.encode(images, training)["logits"]
            cross_entropy = losses.cross_entropy(batch.labels, logits)
            total = tf.reduce_sum(cross_entropy)
        gradient = tape.gradient(total, images)
        if self.form == "exact":
            squared = tf.reduce_sum(gradient ** 2, axis=[1, 2, 3])
        else:
            direction = tf.stop_gradient(L2.steepest(gradient))
            further = self.encode(images + self.difference * direction, training, update_statistics=False)["logits"]
            squared = ((losses.cross_entropy(batch.labels, further) - cross_entropy) / self.difference) ** 2
        return {"cross_entropy": cross_entropy, "input_gradient": self.weight / 2 * squared}, logits
