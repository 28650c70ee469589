"""A loaded classifier as converters take it: one function of images, which holds the variables that it uses."""

import typing

import keras
import numpy as np
import tensorflow as tf

from tf_robust import models
from tf_robust.saved_models.classifier import Classifier
from tf_robust.saved_models.exported import rebuild
from tf_robust.saved_models.formats import check_convertible
from tf_robust.saved_models.formats.keras_files import compiled_as_given
from tf_robust.saved_models.interface import Kind
from tf_robust.saved_models.loading import classifier_of

_HALF = (tf.float16, tf.bfloat16)


class Deployable(tf.Module):
    """A classifier of any format with a TensorFlow graph, as a function that takes and returns what the model takes and returns.

    Args:
        classifier: the model, whose `interface.outputs` is known.
        shape: (H, W, C) of the images, before they are resized to `interface.input_size`.
        unit_range: whether the function takes float32 images in [0, 1], whatever the model takes.
        logits: whether the function returns logits, also of a model that returns probabilities.

    Attributes:
        classifier: the model.
        float32: the same; of a run in bfloat16 the network with its weights, which are float32, and computations in float32, as converters
            have no operations in bfloat16.
        unit_range: as given.
        output: name of the output: logits or probabilities.
        takes_logarithm: whether the logits are computed from probabilities.
        spec: TensorSpec of the images [None, H, W, C]; half precision is float32.
        serve: tf.function: images -> {output: [N, classes], or [N, 1] of a model with one output}, float32.

    Raises:
        ValueError: the model is a file that was converted already, or calls Python code.
    """

    def __init__(self, classifier: Classifier, shape: tuple[int, ...], *, unit_range: bool = False, logits: bool = False):
        super().__init__()
        check_convertible(classifier.path)
        self.classifier, self.unit_range = classifier, unit_range
        self.takes_logarithm = logits and classifier.interface.outputs == "probabilities"
        self.output: Kind = "logits" if logits or classifier.interface.outputs != "probabilities" else "probabilities"
        self.float32 = classifier
        if classifier.is_exported and classifier.card.get("flags", {}).get("mixed_precision") == "True":
            self.float32 = classifier_of(rebuild(classifier.card, classifier.path))
        spec = classifier.input_spec(shape)
        self.spec = tf.TensorSpec(spec.shape, tf.float32 if unit_range or spec.dtype in _HALF else spec.dtype, "images")
        self.serve = tf.function(lambda images: {self.output: self._scores(self.float32, images)[1]}, input_signature=[self.spec])
        function = self.serve.get_concrete_function()
        self.held = list(function.variables)  # found and frozen by the converters
        definition = function.graph.as_graph_def()
        nodes = [*definition.node, *(node for one in definition.library.function for node in one.node_def)]
        if any(node.op in ("PyFunc", "PyFuncStateless", "EagerPyFunc") for node in nodes):
            raise ValueError(
                f"Expected a model of TensorFlow operations. Received: {classifier.path}, which calls Python code (tf.py_function)"
            )

    @property
    def input_shape(self) -> tuple[int | None, ...]:
        """Shape of the images, (None, H, W, C)."""
        return tuple(self.spec.shape)

    @property
    def input_range(self) -> str:
        """Pixel scale of the images, as a `ModelInterface.input_range`."""
        return "0,1" if self.unit_range else self.classifier.pixel_scale

    def input_of(self, images: tf.Tensor) -> tf.Tensor:
        """Returns images [N, H, W, C] in [0, 1] as the function takes them."""
        if self.unit_range:
            return self.classifier.resized(tf.cast(images, tf.float32))
        return tf.cast(self.classifier.model_input(images), self.spec.dtype)

    def scores(self, images: tf.Tensor, classifier: Classifier | None = None) -> tf.Tensor:
        """Returns what the function returns for images in [0, 1].

        Args:
            images: float32 [N, H, W, C].
            classifier: computes them; None: `classifier`.
        """
        return self._scores(classifier or self.classifier, self.input_of(images))[1]

    def _scores(self, classifier, images):
        """(outputs of the model by name, the scores that the function returns)."""
        values = classifier.scaled(images) if self.unit_range else tf.cast(images, classifier.input_spec(images.shape[1:]).dtype)
        outputs, scores = classifier.native_outputs(values)
        if self.takes_logarithm:
            scores = _log(scores, classifier.has_one_output)
        return outputs, scores

    def __call__(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
        outputs, scores = self._scores(self.classifier, images)
        kept = {name: value for name, value in outputs.items() if name == "embedding" and value.shape.rank == 2}
        return {self.output: scores, **kept}

    def network(self) -> keras.Model | None:
        """Returns the model as a network of this package, images in [0, 1] -> {"logits", "embedding"}; None if it is another one."""
        if self.classifier.is_exported:
            return rebuild(self.classifier.card, self.classifier.path)
        loaded = self.classifier.loaded
        return loaded if isinstance(loaded, keras.Model) and models.is_network(loaded) and self._takes_these_images() else None

    def keras_model(self) -> keras.Model:
        """Returns the model as a keras.Model: as it was loaded, or with another input or output if that was asked for.

        Raises:
            ValueError: its layers are not known.
        """
        if reason := self.why_not_keras():
            raise ValueError(
                f"Expected a Keras model for the format keras. Received: {self.classifier.path}, {reason}. Try: formats without keras"
            )
        network, model = self.network(), self.classifier.loaded
        if network is None and (self.unit_range or self.takes_logarithm):
            return self._with_interface(model)
        return network if network not in (None, model) else compiled_as_given(model, self.classifier.path, self.classifier.interface.trust)

    def _with_interface(self, model: typing.Any) -> keras.Model:
        interface = self.classifier.interface
        images = x = keras.Input(self.input_shape[1:], name="images", dtype=self.spec.dtype.name)
        if self.unit_range:
            scale, offset = (list(values) for values in interface.affine())
            x = keras.layers.Rescaling(scale, offset, name="input_range")(x)
            x = keras.ops.flip(x, axis=-1) if interface.blue_first else x
        scores = model(x)
        scores = scores[self.classifier.output_name] if isinstance(scores, dict) else scores
        if self.takes_logarithm:
            scores = _log(scores, self.classifier.has_one_output, keras.ops)
        return keras.Model(images, scores, name=model.name)

    def why_not_keras(self) -> str:
        """Returns why the model cannot be a keras.Model; empty if it can."""
        if self.network() is not None:
            return ""
        if not getattr(self.classifier.loaded, "inputs", None) or not isinstance(self.classifier.loaded, keras.Model):
            return "whose layers are unknown"
        return "which takes uint8, with unit_range" if self.unit_range and self.classifier.takes_uint8 else ""

    def _takes_these_images(self):
        interface = self.classifier.interface
        scale, offset = (np.array(values) for values in interface.affine())
        return (scale == 1).all() and (offset == 0).all() and not interface.blue_first and not interface.input_size


def _log(probabilities, one_output, ops=tf.math):
    """Logits of probabilities [N, classes]: their logarithms; of one output [N, 1] log(p / (1 - p))."""
    logarithms = ops.log(ops.maximum(probabilities, models.SMALLEST_PROBABILITY))
    return logarithms - ops.log(ops.maximum(1 - probabilities, models.SMALLEST_PROBABILITY)) if one_output else logarithms
