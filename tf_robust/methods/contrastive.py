"""What contrastive methods share: two views, no labels but for a linear monitor that the encoder never sees."""

import functools

import numpy as np
import tensorflow as tf

from tf_robust import data, losses, metrics
from tf_robust.data.subsets import stratified_order
from tf_robust.methods.base import Method
from tf_robust.ops import image_ops

MONITORED = 2000  # images of each set, at most


class ContrastiveMethod(Method):
    """Trains an encoder to tell images apart by two views of each.

    The classifier's logits are trained beside it on embeddings that no gradient flows back from: the logged accuracy is a
    linear classifier's on the features as they are, and the exported model has it. Beside it the validation logs the accuracy of
    nearest neighbours, and alignment and uniformity of the embeddings.
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

    @functools.cached_property
    def _embedding(self):
        return tf.function(lambda images: self.classifier(images, training=False)["embedding"], reduce_retracing=True)

    def monitors(self, source, validation, views):
        known, known_labels, _ = _embedded(self._embedding, source, ())
        found, labels, seen = _embedded(self._embedding, validation, views)
        first, second = [found, *seen][-2:]  # of one view: the image as it is and the view
        return {"nearest_neighbours": metrics.nearest_neighbour_accuracy(known, known_labels, found, labels),
                "alignment": metrics.alignment(first, second), "uniformity": metrics.uniformity(found)}


def _embedded(encode, source, views):
    """(embeddings, labels, [embeddings of each view]) of some images of a source, each view by a seed of its own."""
    if source.random_access:
        source = source.subset(np.sort(stratified_order(np.asarray(source.labels))[:MONITORED]))
    batches = data.evaluation_batches(source).take(-(-MONITORED // 256))
    embeddings, labels, seen = [], [], [[] for _ in views]
    for number, (images, truth) in enumerate(batches):
        embeddings.append(encode(images))
        labels.append(truth)
        for position, view in enumerate(views):
            seen[position].append(encode(view(images, image_ops.fold(tf.constant([number, position], tf.int64), 0))))
    return np.concatenate(embeddings), np.concatenate(labels), [np.concatenate(parts) for parts in seen]
