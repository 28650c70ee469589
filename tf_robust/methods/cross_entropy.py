"""The plain baseline, XE: softmax cross-entropy on the augmented images."""

import tensorflow as tf

from tf_robust.data.pipeline import Batch
from tf_robust.methods.base import Method, Terms


class CrossEntropy(Method):
    """Trains with cross-entropy only."""

    def loss_terms(self, batch: Batch, training: bool) -> tuple[Terms, tf.Tensor]:
        logits = self.encode(batch.views[0], training)["logits"]
        return {"cross_entropy": self.cross_entropy(batch.labels, logits)}, logits
