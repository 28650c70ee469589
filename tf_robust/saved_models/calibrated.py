"""Exports a model of any format with a TensorFlow graph as a SavedModel whose logits are calibrated."""

import os
import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_robust.data.source import Source
from tf_robust.layers import ScaleLogits
from tf_robust.saved_models.classifier import Classifier
from tf_robust.saved_models.export import Servable
from tf_robust.utils.files import atomic_folder, write_json


class Calibrated(Servable):
    """A loaded classifier behind `ScaleLogits`, with the signatures of an exported model.

    Args:
        classifier: the model.
        source: has the size of the images, and how encoded images are fitted to it.
        scale: of the logits, a number or one for each class.
        bias: of the logits, a number or one for each class.
    """

    def __init__(self, classifier: Classifier, source: Source, scale: float | Sequence[float], bias: float | Sequence[float]):
        self.layer = ScaleLogits(scale, bias)
        super().__init__(_WithShape(classifier, source.image_shape), source.fit)
        self.held = list(self.serve.get_concrete_function().variables)  # a loaded model may hold them in objects that are not tracked

    def _serve(self, images):
        outputs = self.classifier.classifier.outputs(images)
        logits = self.layer(outputs["logits"])
        embedding = {"embedding": outputs["embedding"]} if self.classifier.classifier.has_embedding else {}
        return {"logits": logits, "probabilities": tf.nn.softmax(logits), **embedding}


class _WithShape:
    """A classifier and the shape of its images, as `Servable` takes it."""

    def __init__(self, classifier, image_shape):
        self.classifier, self.input_shape = classifier, (None, *image_shape)


def export_calibrated(
    classifier: Classifier, source: Source, path: str, *, scale: float | Sequence[float], bias: float | Sequence[float], card: dict
) -> None:
    """Writes a SavedModel folder atomically, with `card.json` inside.

    Args:
        classifier: the model; its images are in [0, 1] in the SavedModel, whatever its own range is.
        source: has the size of the images.
        path: of the folder.
        scale: of the logits, a number or one for each class.
        bias: of the logits, a number or one for each class.
        card: content of `card.json`.
    """
    servable = Calibrated(classifier, source, scale, bias)
    signatures: dict[str, typing.Any] = {"serving_default": servable.serve, "serving_bytes": servable.serve_bytes}
    with atomic_folder(path) as temporary:
        tf.saved_model.save(servable, temporary, signatures=signatures)
        write_json(os.path.join(temporary, "card.json"), card)
