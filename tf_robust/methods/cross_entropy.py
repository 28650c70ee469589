"""The plain baseline, XE: softmax cross-entropy on the augmented images."""

from tf_robust import losses
from tf_robust.methods.base import Method


class CrossEntropy(Method):
    """Trains by cross-entropy alone."""

    def loss_terms(self, batch, training):
        logits = self.encode(batch.views[0], training)["logits"]
        return {"cross_entropy": losses.cross_entropy(batch.labels, logits)}, logits
