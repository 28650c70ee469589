"""Exports the classifier alone as a SavedModel: loadable without this package, differentiable, with a card.

Of a network of this package:

    model = tf.saved_model.load("saved_model")
    model.signatures["serving_default"](images=images)   # float32 [N, H, W, C] in [0, 1]
    model.signatures["serving_bytes"](encoded=strings)     # PNG or JPEG files of any size

Both return `logits` [N, classes], `probabilities` [N, classes] and `embedding` [N, E]. Other models take images on their own pixel scale
and return what they return, as `logits` (with their `probabilities`) or as `probabilities` alone.
"""

import os
import typing
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from tf_robust import models
from tf_robust.data.source import Fit, Source
from tf_robust.layers import ScaleLogits
from tf_robust.models.folded_batch_norms import folded_batch_norms
from tf_robust.ops import image_ops
from tf_robust.saved_models.classifier import Classifier
from tf_robust.utils.files import atomic_folder, read_json, write_json

OUTPUTS = ("logits", "probabilities", "embedding")


class Function(typing.Protocol):
    """A function of images with variables: of images as `spec` says, which `input_of` makes of decoded ones, [N, h, w, C] in [0, 1]."""

    spec: tf.TensorSpec

    def input_of(self, images: tf.Tensor) -> tf.Tensor: ...

    def __call__(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]: ...


class Servable(tf.Module):
    """A classifier with the two signatures.

    Args:
        classifier: images -> some of `OUTPUTS`, at least logits or probabilities; a keras.Model takes float32 images in [0, 1].
        fit: how encoded images are fitted to a height and width; None: they are stretched to those of the model.
    """

    def __init__(self, classifier: keras.Model | Function, fit: Fit | None):
        super().__init__()
        self.classifier, self.input_of = classifier, tf.identity
        if isinstance(classifier, keras.Model):
            spec = tf.TensorSpec([None, *classifier.input_shape[1:]], tf.float32, "images")
        else:
            spec, self.input_of = classifier.spec, classifier.input_of
        height, width, self.channels = spec.shape[1:]
        self.fit = fit or Fit(height, width, "stretch")
        self.serve = tf.function(self._serve, input_signature=[spec])
        self.serve_bytes = tf.function(self._serve_bytes, input_signature=[tf.TensorSpec([None], tf.string, "encoded")])

    def _serve(self, images):
        with folded_batch_norms():
            outputs = self.classifier(images, training=False)
        named = {name: outputs[name] for name in OUTPUTS if name in outputs}
        if "logits" in named and named["logits"].shape[1] != 1:  # one logit is that of a sigmoid
            named["probabilities"] = tf.nn.softmax(named["logits"])
        return named

    def _serve_bytes(self, encoded):
        decoded = tf.TensorSpec([self.fit.height, self.fit.width, self.channels], tf.float32)
        return self._serve(self.input_of(tf.map_fn(self._decode, encoded, fn_output_signature=decoded)))

    def _decode(self, encoded):
        return tf.clip_by_value(self.fit(image_ops.to_float(image_ops.decode(encoded, self.channels))), 0.0, 1.0)


def export(classifier: keras.Model | Function, path: str, card: Mapping, fit: Fit | None = None) -> None:
    """Writes a SavedModel folder atomically, with `card.json` and, of a keras.Model, the weights for `models.load_encoder` inside.

    Args:
        classifier: as in `Servable`.
        path: of the folder.
        card: content of `card.json`.
        fit: as in `Servable`.
    """
    _save(Servable(classifier, fit), path, card)


def _save(servable, path, card):
    with atomic_folder(path) as temporary:
        tf.saved_model.save(servable, temporary, signatures={"serving_default": servable.serve, "serving_bytes": servable.serve_bytes})
        if isinstance(servable.classifier, keras.Model):
            models.write_weights(servable.classifier, temporary)
        write_json(os.path.join(temporary, "card.json"), dict(card))


def input_card(source: Source, spec: tf.TensorSpec | None = None, input_range: str = "0,1") -> dict[str, object]:
    """Returns the part of a card that describes the input of a model of images of a source, for JSON.

    spec: TensorSpec of the model's input; None: float32 [None, H, W, C], of the size of the images. input_range: as in `ModelInterface`.
    """
    limits = input_range.split(",")
    is_interval = len(limits) == 2 and "=" not in input_range and "bgr" not in input_range
    return {
        "shape": [None, *source.image_shape] if spec is None else list(spec.shape),
        "type": "float32" if spec is None else spec.dtype.name,
        "range": [float(one) for one in limits] if is_interval else input_range,
        "layout": "NHWC",
        "encoded": str(source.fit or Fit(source.image_shape[0], source.image_shape[1], "stretch")),
    }


def update_card(path: str, **entries: object) -> None:
    """Adds entries, values for JSON, to the card of an exported model in its SavedModel folder."""
    file = os.path.join(path, "card.json")
    write_json(file, {**read_json(file), **entries})


class CalibratedNetwork(tf.Module):
    """A loaded classifier behind `ScaleLogits`, as `Servable` takes it: images as the model takes them -> logits."""

    def __init__(self, classifier: Classifier, image_shape: Sequence[int], scale: float | Sequence[float], bias: float | Sequence[float]):
        super().__init__()
        self.classifier, self.layer = classifier, ScaleLogits(scale, bias)
        self.spec, self.input_of = classifier.input_spec(image_shape), classifier.model_input

    def __call__(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
        outputs = self.classifier.outputs_of(images)
        embedding = {"embedding": outputs["embedding"]} if self.classifier.has_embedding else {}
        return {"logits": self.layer(outputs["logits"]), **embedding}


def export_calibrated(
    classifier: Classifier, source: Source, path: str, *, scale: float | Sequence[float], bias: float | Sequence[float], card: dict
) -> None:
    """Writes a model of any format with a TensorFlow graph as a SavedModel whose logits are calibrated: scaled, and shifted by a bias.

    It takes images, of the size of those of `source`, as the model takes them. scale, bias: a number or one for each class. card: content
    of `card.json`, to which the input and the output are added.
    """
    network = CalibratedNetwork(classifier, source.image_shape, scale, bias)
    servable = Servable(network, source.fit)
    servable.held = list(servable.serve.get_concrete_function().variables)  # a loaded model may hold them in objects that are not tracked
    _save(servable, path, {**card, "input": input_card(source, network.spec, classifier.pixel_scale), "output": "logits"})
