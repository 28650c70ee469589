"""Exports the classifier alone as a SavedModel: loadable without this package, differentiable, with a card.

    model = tf.saved_model.load("saved_model")
    model.signatures["serving_default"](images=images)   # float32 [N, H, W, C] in [0, 1]
    model.signatures["serving_bytes"](encoded=strings)     # PNG or JPEG files of any size

Both return `logits` [N, classes], `probabilities` [N, classes] and, for the networks of this package, `embedding` [N, E].
"""

import os
import typing
from collections.abc import Mapping

import keras
import tensorflow as tf

from tf_robust import models
from tf_robust.data.fitting import Fit
from tf_robust.data.source import Source
from tf_robust.models.folded_batch_norms import folded_batch_norms
from tf_robust.ops import image_ops
from tf_robust.utils.files import atomic_folder, read_json, write_json

OUTPUTS = ("logits", "probabilities", "embedding")


class Network(typing.Protocol):
    """A keras.Model, or another function of images with variables."""

    input_shape: tuple[typing.Any, ...]

    def __call__(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]: ...


class Servable(tf.Module):
    """A classifier with the two signatures.

    Args:
        classifier: images in [0, 1] -> {"logits", "embedding"}, or logits alone.
        fit: how encoded images are fitted to the model's height and width; None: they are stretched.
    """

    def __init__(self, classifier: Network, fit: Fit | None):
        super().__init__()
        self.classifier = classifier
        self.shape = tuple(classifier.input_shape[1:])
        self.fit = fit or Fit(self.shape[0], self.shape[1], "stretch")
        self.serve = tf.function(self._serve, input_signature=[tf.TensorSpec([None, *self.shape], tf.float32, "images")])
        self.serve_bytes = tf.function(self._serve_bytes, input_signature=[tf.TensorSpec([None], tf.string, "encoded")])

    def _serve(self, images):
        with folded_batch_norms():
            outputs = self.classifier(images, training=False)
        embedding = {"embedding": outputs["embedding"]} if "embedding" in outputs else {}
        return {"logits": outputs["logits"], "probabilities": tf.nn.softmax(outputs["logits"]), **embedding}

    def _serve_bytes(self, encoded):
        return self._serve(tf.map_fn(self._decode, encoded, fn_output_signature=tf.TensorSpec(self.shape, tf.float32)))

    def _decode(self, encoded):
        return tf.clip_by_value(self.fit(image_ops.to_float(image_ops.decode(encoded, self.shape[-1]))), 0.0, 1.0)


def export(classifier: Network, path: str, card: Mapping, fit: Fit | None = None) -> None:
    """Writes a SavedModel folder atomically, with `card.json` and, of a keras.Model, the weights for `models.load_encoder` inside.

    Args:
        classifier: images in [0, 1] -> {"logits", "embedding"}, or logits alone.
        path: of the folder.
        card: content of `card.json`.
        fit: how encoded images are fitted to the model's height and width; None: they are stretched.
    """
    servable = Servable(classifier, fit)
    with atomic_folder(path) as temporary:
        tf.saved_model.save(servable, temporary, signatures={"serving_default": servable.serve, "serving_bytes": servable.serve_bytes})
        if isinstance(classifier, keras.Model):
            models.write_weights(classifier, temporary)
        write_json(os.path.join(temporary, "card.json"), dict(card))


def input_card(source: Source) -> dict[str, object]:
    """Returns the part of a card that describes the input of a model of images of a source, for JSON."""
    return {
        "shape": [None, *source.image_shape],
        "type": "float32",
        "range": [0.0, 1.0],
        "layout": "NHWC",
        "normalization": "inside the model",
        "encoded": str(source.fit or Fit(source.image_shape[0], source.image_shape[1], "stretch")),
    }


def update_card(path: str, **entries: object) -> None:
    """Adds entries to the card of an exported model.

    Args:
        path: of the SavedModel folder.
        **entries: values for JSON.
    """
    file = os.path.join(path, "card.json")
    write_json(file, {**read_json(file), **entries})
