"""What all attacks share: checks, batches, the compiled graph, and a loss's gradients by the images.

A model is a differentiable callable from float32 [N, H, W, C] in [0, 1] to logits [N, classes] (or a dictionary with
"logits"): a Keras model, a reloaded SavedModel, a function. Sizes of perturbations are in that pixel scale.
"""

import numpy as np
import tensorflow as tf

from tf_robust import data
from tf_robust.attacks.criterion import Criterion
from tf_robust.models.outputs import checked_logits, output
from tf_robust.ops import image_ops


class Attack:
    """Callable: (model, images, labels) -> attacked images. A subclass has `attacked`, graph code for one batch.

    Args:
        seed: int; what is drawn for an image depends on it and on the image's index alone.
        restarts: how often it is tried, with other draws; an image on which it succeeded is not tried again.
        batch_size: images at once, which bounds the memory.
        skip_misclassified: leave alone what the model gets wrong already (or what already is of the wanted class).
    """

    def __init__(self, *, seed=0, restarts=1, batch_size=256, skip_misclassified=True):
        if batch_size < 1 or restarts < 1:
            raise ValueError(f"Expected batch_size >= 1 and restarts >= 1. Received: {batch_size}, {restarts}")
        self.seed, self.restarts, self.batch_size, self.skip_misclassified = seed, restarts, batch_size, skip_misclassified
        self._compiled = (None, None)

    def check(self, shape):
        """Raises ValueError if images of `shape` (H, W, C) cannot be attacked like this."""

    def attacked(self, predict, images, criterion, seed, indices):
        """One batch, as graph code: float32 [N, H, W, C] -> the same, in [0, 1].

        Args:
            predict: images -> logits. criterion: `Criterion`. seed: int64 [2], of this try; indices: int64 [N]; both for `Draws`.
        """
        raise NotImplementedError

    def __call__(self, model, images, labels, *, targets=None, indices=None):
        """Attacks images.

        Args:
            model: as the module says; Keras models run in inference mode.
            images: float32 [N, H, W, C] in [0, 1]. labels: int [N], the true classes.
            targets: int [N], classes that are wanted instead; None: any but the label.
            indices: int [N], positions in the data set, for what is drawn; None: 0..N-1.

        Returns:
            tf.Tensor float32 [N, H, W, C] in [0, 1].

        Raises:
            ValueError: images not finite or outside [0, 1]; labels or targets that the model does not have; a radius that
                is negative or larger than the images allow; a model without gradients; logits that are not finite.
        """
        images, labels = image_ops.check_images(images), np.asarray(labels)
        self.check(images.shape[1:])
        wanted = (labels if targets is None else np.asarray(targets)).astype(np.int64)
        indices = np.arange(len(images)) if indices is None else np.asarray(indices, np.int64)
        if not len(images) == len(labels) == len(wanted) == len(indices):
            raise ValueError(f"Expected as many labels, targets and indices as images, {len(images)}. Received: "
                             f"{len(labels)}, {len(wanted)}, {len(indices)}")
        found = images.copy()
        for start in range(0, len(images), self.batch_size):
            part = np.arange(start, min(start + self.batch_size, len(images)))
            logits = checked_logits(output(model, tf.constant(images[part]), "logits"), labels[part],
                                    "the images to attack")
            data.check_labels(wanted[part], logits.shape[1], "the targets of an attack")
            reached = Criterion(tf.constant(wanted[part]), targets is not None).reached(tf.constant(logits)).numpy()
            left = part[~reached] if self.skip_misclassified else part
            for attempt in range(self.restarts):
                if len(left):
                    found[left], reached = self._tried(model, images[left], wanted[left], targets is not None, attempt,
                                                       indices[left])
                    left = left[~reached]
        return tf.constant(found)

    def _tried(self, model, images, classes, targeted, attempt, indices):
        """One attempt at some images: (attacked images, bool [N] whether it was the last that is needed)."""
        try:
            return self._graph(model, targeted)(images, classes, [self.seed, attempt], indices)
        except tf.errors.InvalidArgumentError as error:
            if _NOT_FINITE not in error.message:
                raise
            raise ValueError(f"Expected finite logits from the model while {type(self).__name__} attacks it. Received NaN "
                             f"or infinity, in a batch of {len(images)} images from index {indices[0]} on") from error

    def _graph(self, model, targeted):
        """(images, classes, seed, indices) -> (attacked images, reached), compiled for `model`; the last one is kept."""
        if self._compiled[0] != (model, targeted):
            def predict(images):
                return output(model, images, "logits")

            @tf.function(autograph=False)  # converting takes longer than tracing, and there is nothing to convert
            def batch(images, classes, seed, indices):
                criterion = Criterion(classes, targeted)
                found = self.attacked(predict, images, criterion, seed, indices)
                return found, criterion.reached(predict(found)) if self.restarts > 1 else tf.zeros_like(classes, tf.bool)

            def call(images, classes, seed, indices):
                compiled = batch.get_concrete_function(
                    tf.TensorSpec([None, *images.shape[1:]], tf.float32), tf.TensorSpec([None], tf.int64),
                    tf.TensorSpec([2], tf.int64), tf.TensorSpec([None], tf.int64))
                return [part.numpy() for part in compiled(tf.constant(images), *(tf.constant(part, tf.int64) for part in
                                                                                 (classes, seed, indices)))]
            self._compiled = ((model, targeted), call)
        return self._compiled[1]


_NOT_FINITE = "logits of an attacked model"


def loss_and_gradient(predict, images, loss):
    """A loss of logits at images, with its gradient by them.

    Args:
        predict: images -> logits. loss: logits [N, C] -> [N].

    Returns:
        (loss [N], gradient [N, H, W, C], logits [N, C])

    Raises:
        ValueError: no gradient flows through the model.
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(images)
        logits = finite(predict(images))
        values = loss(logits)
        total = tf.reduce_sum(values)
    gradient = tape.gradient(total, images)
    if gradient is None:
        raise ValueError("Expected a model that is differentiable by its images. Received one that no gradient flows "
                         "through (images rounded to uint8, NumPy inside, or an argmax as output); the attack 'square' "
                         "needs none")
    return values, gradient, logits


def finite(logits):
    """The logits; if one is NaN or infinite (but -infinity, a class that is masked out), the graph ends with an error."""
    bad = tf.reduce_any(tf.math.is_nan(logits) | (logits == np.inf))
    with tf.control_dependencies([tf.debugging.assert_equal(bad, False, _NOT_FINITE)]):
        return tf.identity(logits)
