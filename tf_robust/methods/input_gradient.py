"""Tikhonov regularization by the input gradient (Robustness of Contrastive Learning Models, eq. 2; Finlay and Oberman, 2019).

L = L_xe(x) + lambda / 2 |d L_xe / d x|^2, the norm l2, images on the [0, 1] scale.

Eq. 2 is printed with the gradient g_i of each image's own loss: the mean over a batch of n images has lambda / 2 mean_i |g_i|^2. Another
reading is the gradient of the batch's mean loss: with respect to the image x_i it is g_i / n, so that its squared norm over the batch is
sum_i |g_i / n|^2 = mean_i |g_i|^2 / n, the printed penalty divided by the batch size.

With batch norm in training mode an image's loss depends on the whole batch, and its gradient is that of the batch's summed loss. With
`batch_norm=inference` the penalized loss is that of the network in inference mode, where images are independent.
"""

import typing

import keras
import tensorflow as tf

from tf_robust.attacks.norms import L2
from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Terms
from tf_robust.methods.checks import positive
from tf_robust.methods.further_views import FurtherViewsMethod


class InputGradient(FurtherViewsMethod):
    """Cross-entropy plus lambda / 2 times the squared norm of its gradient with respect to the image.

    Args:
        weight: lambda.
        form: exact, by double backpropagation; or finite_difference, the loss's slope along the gradient's direction (Finlay
            and Oberman, 2019, section 3); no gradient flows through the direction.
        loss: the loss whose gradient is penalized: image, each image's own loss, as eq. 2 is printed; or batch_mean, the mean loss over the
            global batch, which divides the penalty by the batch size.
        difference: step length of the finite difference.

    Examples:
        >>> network = keras.Sequential([keras.Input((2, 2, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])
        >>> network.set_weights([np.tile([1.0, -1.0], (4, 1)), np.zeros(2)])  # logits: the sum of the pixels, and minus the sum
        >>> model = tfr.methods.InputGradient(network, weight=0.1)
        >>> model.compile("adam")
        >>> history = model.fit(np.zeros((3, 2, 2, 1)), np.array([0, 1, 0]), verbose=0).history
        >>> round(history["input_gradient"][0], 4)  # 0.1 / 2 * 4: the slope is 1 or -1 in each of four pixels
        0.2
    """

    term_names = ("cross_entropy", "input_gradient")
    auto_batch_norm = "own"  # as in the published code
    batch_norm_choices = ("own", "inference")

    def __init__(
        self,
        classifier: keras.Model,
        *,
        weight: float = 0.1,
        form: typing.Literal["exact", "finite_difference"] = "exact",
        loss: typing.Literal["image", "batch_mean"] = "image",
        difference: float = 0.01,
        **kwargs,
    ):
        super().__init__(classifier, **kwargs)
        if form not in ("exact", "finite_difference"):
            raise ValueError(f"Expected form 'exact' or 'finite_difference'. Received: {form!r}")
        if loss not in ("image", "batch_mean"):
            raise ValueError(f"Expected loss 'image' or 'batch_mean'. Received: {loss!r}")
        if not weight >= 0:
            raise ValueError(f"Expected weight >= 0. Received: {weight}")
        self.weight, self.form, self.difference = weight, form, positive("difference", difference)
        self.of_batch_mean = loss == "batch_mean"

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        images = batch.views[0]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(images)
            logits = self.encode(images, training)["logits"]
            cross_entropy = self.cross_entropy(batch.labels, logits)
            penalized = cross_entropy  # the loss whose gradient is penalized
            if self.batch_norm == "inference":
                penalized = self.cross_entropy(batch.labels, self.encode_further(images, training)["logits"])
            total = tf.reduce_sum(penalized)
        gradient = tape.gradient(total, images)
        if self.form == "exact":
            squared = tf.reduce_sum(gradient**2, axis=[1, 2, 3])
        else:
            direction = tf.stop_gradient(L2.steepest(gradient))
            further = self.encode_further(images + self.difference * direction, training)["logits"]
            squared = ((self.cross_entropy(batch.labels, further) - penalized) / self.difference) ** 2
        if self.of_batch_mean:
            count = tf.shape(images)[0] * tf.distribute.get_strategy().num_replicas_in_sync
            squared /= tf.cast(count, squared.dtype)
        penalty = self.weight / 2 * tf.cast(squared, cross_entropy.dtype)  # float32 images in a float64 network
        return {"cross_entropy": cross_entropy, "input_gradient": penalty}, logits
