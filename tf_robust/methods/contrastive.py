"""Base class of contrastive methods: two views, and labels only for a linear monitor without effect on the encoder."""

import functools
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_robust import data, metrics
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_order
from tf_robust.methods.base import Method, View
from tf_robust.ops import image_ops

MONITORED = 2000  # maximum number of images of each set


class ContrastiveMethod(Method):
    """Trains an encoder to discriminate images by two views of each.

    The classifier's logits are trained at the same time on embeddings through which no gradient flows: the logged accuracy is
    that of a linear classifier on the current features, and the exported model contains it. The validation also logs the
    accuracy of nearest neighbors, and alignment and uniformity of the embeddings.
    """

    term_names: tuple[str, ...] = ("contrastive", "linear")
    default_views = ("simclr", "simclr")

    def __init__(self, classifier: keras.Model, **kwargs):
        super().__init__(classifier, **kwargs)
        if self.logits_layer is None:
            raise ValueError(f"Expected a model whose last Dense layer takes the embedding for {type(self).__name__}. Received: another")

    def check_views(self, views: Sequence[str]) -> None:
        if len(views) != 2:
            raise ValueError(
                f"Expected two views for the method {type(self).__name__}, such as simclr,simclr or urrl,urrl. "
                f"Received: views={','.join(views)}"
            )

    def linear(self, embeddings: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (cross-entropy [N], logits [N, C]) of the linear monitor for embeddings [N, E] and labels int [N]."""
        assert self.logits_layer is not None
        logits = self.logits_layer(tf.stop_gradient(embeddings))
        return self.cross_entropy(labels, logits), logits

    @functools.cached_property
    def _embedding(self):
        return tf.function(lambda images: self.network(images, training=False)["embedding"], reduce_retracing=True)

    def monitors(self, source: Source, validation: Source, views: Sequence[View]) -> dict[str, float]:
        known, known_labels, _ = _embed(self._embedding, source, ())
        embeddings, labels, of_views = _embed(self._embedding, validation, views)
        first, second = [embeddings, *of_views][-2:]  # with a single view: the image itself and the view
        return {
            "nearest_neighbours": metrics.nearest_neighbour_accuracy(known, known_labels, embeddings, labels),
            "alignment": metrics.alignment(first, second),
            "uniformity": metrics.uniformity(embeddings),
        }


def _embed(encode, source, views):
    """Returns (embeddings, labels, [embeddings of each view]) of at most MONITORED images; each view has its own seed."""
    if source.random_access:
        source = source.subset(np.sort(stratified_order(np.asarray(source.labels))[:MONITORED]))
    batches = data.evaluation_batches(source).take(-(-MONITORED // 256))
    embeddings, labels, of_views = [], [], [[] for _ in views]
    for number, (images, batch_labels) in enumerate(batches):
        embeddings.append(encode(images))
        labels.append(batch_labels)
        for position, view in enumerate(views):
            of_views[position].append(encode(view(images, image_ops.fold(tf.constant([number, position], tf.int64), 0))))
    return np.concatenate(embeddings), np.concatenate(labels), [np.concatenate(parts) for parts in of_views]
