"""A loaded classifier as converters take it: one function of images in [0, 1], which holds the variables that it uses."""

import typing

import keras
import numpy as np
import tensorflow as tf

from tf_robust import models
from tf_robust.saved_models.classifier import Classifier
from tf_robust.saved_models.deployed_files import check_convertible
from tf_robust.saved_models.exported import is_exported, rebuild
from tf_robust.saved_models.loading import classifier_of


class Deployable(tf.Module):
    """A classifier of any format with a TensorFlow graph, as a function: images [N, H, W, C] in [0, 1] -> {"logits"}.

    Args:
        classifier: the model.
        shape: (H, W, C) of the images.

    Attributes:
        classifier: the model.
        float32: the same; of a run in bfloat16 the network with its weights, which are float32, and computations in float32, as converters
            have no operations in bfloat16.
        input_shape: (None, H, W, C).
        serve: tf.function: images -> {"logits": [N, classes]}.

    Raises:
        ValueError: the model is a file that was converted already, or calls Python code.
    """

    def __init__(self, classifier: Classifier, shape: tuple[int, ...]):
        super().__init__()
        check_convertible(classifier.path)
        self.classifier, self.input_shape = classifier, (None, *shape)
        self.float32 = classifier
        if is_exported(classifier) and classifier.card.get("flags", {}).get("mixed_precision") == "True":
            self.float32 = classifier_of(rebuild(classifier.card, classifier.path))
        spec = tf.TensorSpec(self.input_shape, tf.float32, "images")
        self.serve = tf.function(lambda images: {"logits": self.float32(images)}, input_signature=[spec])
        function = self.serve.get_concrete_function()
        self.held = list(function.variables)  # found and frozen by the converters
        definition = function.graph.as_graph_def()
        nodes = [*definition.node, *(node for one in definition.library.function for node in one.node_def)]
        if any(node.op in ("PyFunc", "PyFuncStateless", "EagerPyFunc") for node in nodes):
            raise ValueError(
                f"Expected a model of TensorFlow operations. Received: {classifier.path}, which calls Python code (tf.py_function)"
            )

    def __call__(self, images: tf.Tensor, training: bool = False) -> dict[str, tf.Tensor]:
        outputs = self.classifier.outputs(images)
        kept = {name: value for name, value in outputs.items() if name == "embedding" and value.shape.rank == 2}
        return {"logits": outputs["logits"], **kept}

    def network(self) -> keras.Model | None:
        """Returns the model as a network of this package, images in [0, 1] -> {"logits", "embedding"}; None if it is another one."""
        if is_exported(self.classifier):
            return rebuild(self.classifier.card, self.classifier.path)
        loaded = self.classifier.loaded
        return loaded if isinstance(loaded, keras.Model) and models.is_network(loaded) and self._takes_these_images() else None

    def keras_model(self) -> keras.Model:
        """Returns the model as a keras.Model of images in [0, 1] with the output `logits`.

        Raises:
            ValueError: its layers are not known.
        """
        if reason := self.why_not_keras():
            raise ValueError(
                f"Expected a Keras model of floats for the format keras. Received: {self.classifier.path}, {reason}. "
                "Try: --formats without keras"
            )
        network = self.network()
        return self._behind_its_input_range(self.classifier.loaded) if network is None else network

    def _behind_its_input_range(self, model: typing.Any) -> keras.Model:
        interface = self.classifier.interface
        scale, offset = (list(values) for values in interface.affine())
        images = keras.Input(self.input_shape[1:], name="images")
        x = keras.layers.Rescaling(scale, offset, name="input_range")(images)
        x = keras.ops.flip(x, axis=-1) if interface.blue_first else x
        scores = model(x)
        scores = scores[self.classifier.output_name] if isinstance(scores, dict) else scores
        scores = models.of_two_classes(scores, interface.outputs != "probabilities")
        if interface.outputs == "probabilities":
            scores = keras.ops.log(keras.ops.maximum(scores, models.SMALLEST_PROBABILITY))
        return keras.Model(images, {"logits": scores}, name=model.name)

    def why_not_keras(self) -> str:
        """Returns why the model cannot be a keras.Model of images in [0, 1]; empty if it can."""
        if self.network() is not None:
            return ""
        if not getattr(self.classifier.loaded, "inputs", None) or not isinstance(self.classifier.loaded, keras.Model):
            return "whose layers are unknown"
        if self.classifier.loaded.inputs[0].dtype == "uint8":
            return "which takes uint8"
        return "with --input_size" if self.classifier.interface.input_size else ""

    def _takes_these_images(self):
        interface = self.classifier.interface
        scale, offset = (np.array(values) for values in interface.affine())
        return (scale == 1).all() and (offset == 0).all() and not interface.blue_first and not interface.input_size
