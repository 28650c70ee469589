"""The model to harden, as training methods take it."""

import dataclasses
import typing

import keras
import numpy as np

from tf_robust import models
from tf_robust.saved_models.loading import Classifier

_FROM_LOGITS = {"logits": True, "probabilities": False}


@dataclasses.dataclass(frozen=True)
class TrainableModel:
    """A Keras model whose weights a search replaces.

    Attributes:
        model: as it was loaded; shares its weights with `network`.
        network: the same, or behind the normalization of its input.
        options: `input_range` and `from_logits` of a method on `network`.
    """

    model: keras.Model
    network: keras.Model
    options: dict[str, typing.Any]


def trainable(classifier: Classifier) -> TrainableModel:
    """Returns the Keras model behind a classifier.

    Raises:
        ValueError: there is none, or it has no trainable weights or several inputs.
    """
    model, interface = classifier.loaded, classifier.interface
    if not isinstance(model, keras.Model) or ":" in classifier.path and not classifier.path.startswith("zoo:"):
        raise ValueError(
            f"Expected a Keras model (.keras, .h5, zoo:NAME or a keras.Model), which can be trained. Received: {classifier.path}. "
            "Try: the Keras file from which it was exported; TensorFlow Lite, ONNX and TorchScript files have no training mode"
        )
    if not model.trainable_variables:
        raise ValueError(
            f"Expected trainable weights. Received: {classifier.path}, all of whose layers are frozen. Try: model.trainable = True"
        )
    if models.is_network(model):
        return TrainableModel(model, model, {})
    scale, offset = (np.array(values) for values in interface.affine())
    options = {"from_logits": _FROM_LOGITS[interface.outputs]}
    if len(scale) == len(offset) == 1 and not interface.blue_first and not interface.input_size:
        return TrainableModel(model, model, {**options, "input_range": (float(offset[0]), float(offset[0] + scale[0]))})
    if interface.input_size:
        raise ValueError(
            f"Expected images of the model's size. Received: input_size={interface.input_size}. Try: image_size={interface.input_size}"
        )
    images = keras.Input(model.input_shape[1:])
    x = keras.layers.Rescaling(scale.tolist(), offset.tolist())(images)
    x = keras.ops.flip(x, axis=-1) if interface.blue_first else x
    return TrainableModel(model, keras.Model(images, model(x)), options)
