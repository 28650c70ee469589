"""Exports a model of any format with a TensorFlow graph as a SavedModel whose logits are calibrated."""

import os
import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_robust.data.source import Source
from tf_robust.layers import ScaleLogits
from tf_robust.saved_models.classifier import Classifier
from tf_robust.saved_models.export import Servable, input_card
from tf_robust.utils.files import atomic_folder, write_json


class CalibratedNetwork(tf.Module):
    """A loaded classifier behind `ScaleLogits`, as `Servable` takes it: images as the model takes them -> logits.

    Args:
        classifier: the model.
        image_shape: (H, W, C) of its images.
        scale: of the logits, a number or one for each class.
        bias: of the logits, a number or one for each class.
    """

    def __init__(self, classifier: Classifier, image_shape: Sequence[int], scale: float | Sequence[float], bias: float | Sequence[float]):
        super().__init__()
        self.classifier, self.layer = classifier, ScaleLogits(scale, bias)
        self.spec = classifier.input_spec(image_shape)
        self.input_shape = tuple(self.spec.shape)

    def __call__(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
        outputs = self.classifier.outputs_of(images)
        embedding = {"embedding": outputs["embedding"]} if self.classifier.has_embedding else {}
        return {"logits": self.layer(outputs["logits"]), **embedding}


def export_calibrated(
    classifier: Classifier, source: Source, path: str, *, scale: float | Sequence[float], bias: float | Sequence[float], card: dict
) -> None:
    """Writes a SavedModel folder atomically, with `card.json` inside. It takes images as the model takes them.

    Args:
        classifier: the model.
        source: has the size of the images.
        path: of the folder.
        scale: of the logits, a number or one for each class.
        bias: of the logits, a number or one for each class.
        card: content of `card.json`, to which the input and the output are added.
    """
    network = CalibratedNetwork(classifier, source.image_shape, scale, bias)
    servable = Servable(network, source.fit, spec=network.spec, input_of=classifier.model_input)
    servable.held = list(servable.serve.get_concrete_function().variables)  # a loaded model may hold them in objects that are not tracked
    signatures: dict[str, typing.Any] = {"serving_default": servable.serve, "serving_bytes": servable.serve_bytes}
    interface = {"input": input_card(source, network.spec, classifier.pixel_scale), "output": "logits"}
    with atomic_folder(path) as temporary:
        tf.saved_model.save(servable, temporary, signatures=signatures)
        write_json(os.path.join(temporary, "card.json"), {**card, **interface})
