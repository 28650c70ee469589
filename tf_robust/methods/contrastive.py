"""What contrastive methods share: two views, no labels but for a linear monitor that the encoder never sees."""

import tensorflow as tf

from tf_robust import losses
from tf_robust.methods.base import Method


class ContrastiveMethod(Method):
    """Trains an encoder to tell pictures apart by two views of each.

    The classifier's logits are trained beside it on embeddings that no gradient flows back from: the logged accuracy is a
    linear classifier's on the features as they are, and the exported model has it.
    """

    term_names = ("contrastive", "linear")

    def check_views(self, views):
        if len(views) != 2:
            raise ValueError(f"Expected two views for the method {type(self).__name__}, say simclr,simclr or urrl,urrl. "
                             f"Received: views={','.join(views)}")

    def linear(self, embeddings, labels):
        """(cross-entropy [N], logits [N, C]) of the linear monitor. embeddings: [N, E]."""
        logits = self.classifier.get_layer("logits")(tf.stop_gradient(embeddings))
        return losses.cross_entropy(labels, logits), logits
