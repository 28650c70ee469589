"""The model to harden, as training methods take it."""

import dataclasses
import os
import typing
from collections.abc import Sequence

import keras
import numpy as np

from tf_robust import models
from tf_robust.hardening.saved_model_function import function_of
from tf_robust.saved_models.formats import FORMATS, format_of
from tf_robust.saved_models.loading import Classifier

_FROM_LOGITS = {"logits": True, "probabilities": False}
_CONVERTED = "a file without gradients. Try: the Keras model or SavedModel from which it was converted"
_TORCH = "whose weights PyTorch trains. Try: the model as a Keras model"
_PRESET = (
    "a preset of keras_hub, whose preprocessing is not part of the model. "
    "Try: keras.Model(images, classifier(preprocessed images)) in Python, saved as .keras"
)
_SAMPLES = 8  # noise images by whose scores the kind of output is known


@dataclasses.dataclass(frozen=True)
class TrainableModel:
    """A model whose weights a search replaces.

    Attributes:
        classifier: the model as a function of images in [0, 1]; computes with the current weights.
        network: keras.Model that shares the weights, for training methods: the model itself, or behind the normalization of its input,
            or the function of a SavedModel in inference mode.
        options: `input_range` and `from_logits` of a method on `network`.
        skip: names of methods that do not suit the model.
        has_batch_norm: whether training updates moving averages of batch normalization; not those of a SavedModel, whose training mode
            is lost.
    """

    classifier: Classifier
    network: keras.Model
    options: dict[str, typing.Any] = dataclasses.field(default_factory=dict)
    skip: tuple[str, ...] = ()
    has_batch_norm: bool = False

    @property
    def model(self) -> typing.Any:
        """The model as it was loaded: a keras.Model, or the object of `tf.saved_model.load`."""
        return self.classifier.loaded


def trainable(classifier: Classifier, image_shape: Sequence[int] = ()) -> TrainableModel:
    """Returns the model behind a classifier for training.

    Args:
        classifier: loaded from a Keras file, a SavedModel or a keras.Model.
        image_shape: (H, W, C) of the images, for a model that takes any size.

    Raises:
        ValueError: it is of another format, is frozen or quantized, or no gradient reaches its weights.
    """
    if classifier.interface.input_size:
        size = classifier.interface.input_size
        raise ValueError(f"Expected images of the model's size. Received: input_size={size}. Try: image_size={size} in its place")
    saved_model = is_saved_model(classifier)
    check_format(classifier.path)
    if not saved_model and not isinstance(classifier.loaded, keras.Model):
        raise _not_trainable(classifier.path, "a function, whose weights are unknown. Try: the keras.Model that it calls")
    shape = _image_shape(classifier, image_shape)
    if classifier.interface.outputs == "auto":
        classifier = classifier.with_known_outputs(np.random.default_rng(0).random((_SAMPLES, *shape), np.float32))
    if saved_model:
        network, skip = function_of(classifier, shape)
        return TrainableModel(classifier, network, skip=skip)
    return _of_keras_model(classifier, shape)


def check_format(path: str | os.PathLike) -> None:
    """Raises ValueError if models of the format cannot be trained; nothing is read, so that no package of the format is needed."""
    found = format_of(path)
    if found is FORMATS["keras_hub"]:
        raise _not_trainable(os.fspath(path), _PRESET)
    if found and not found.graph:
        raise _not_trainable(os.fspath(path), _TORCH if found.gradients else _CONVERTED)


def check_input(classifier: Classifier) -> None:
    """Raises ValueError if the input of a model is uint8."""
    if classifier.takes_uint8:
        raise _not_hardened(classifier)


def check_gradients(classifier: Classifier, image_shape: Sequence[int]) -> None:
    """Raises ValueError if no gradient flows from the scores of a model to images of a shape (H, W, C), which hardening attacks."""
    if not classifier.has_gradients(tuple(image_shape)):
        raise _not_hardened(classifier)


def _not_hardened(classifier):
    return ValueError(
        "Expected a model that can be hardened, with gradients with respect to its images. "
        f"Received: {classifier.path}, {classifier.why_no_gradients()}"
    )


def _not_trainable(path, reason):
    return ValueError(
        "Expected a model that can be trained: a Keras model (.keras, .h5, zoo:NAME, applications:NAME or a keras.Model) "
        f"or a SavedModel folder. Received: {path}, {reason}"
    )


def is_saved_model(classifier: Classifier) -> bool:
    """Returns whether a classifier was loaded from a SavedModel folder."""
    return os.path.isfile(os.path.join(classifier.path, "saved_model.pb"))


def _image_shape(classifier, image_shape):
    """(H, W, C) of the model's input, of the images where it takes any."""
    accepted = classifier.input_shape[1:]
    if image_shape:
        classifier.check_images_match(tuple(image_shape))
        accepted = accepted.merge_with(tuple(image_shape))
    if not accepted.is_fully_defined():
        raise ValueError(f"Expected image_shape=(H, W, C) for {classifier.path}, which takes {accepted}. Received: {tuple(image_shape)}")
    return tuple(accepted.as_list())


def _of_keras_model(classifier, shape):
    model, interface = classifier.loaded, classifier.interface
    _check_keras_weights(model, classifier.path)
    leaves = model._flatten_layers(include_self=False)
    has_batch_norm = any(isinstance(leaf, keras.layers.BatchNormalization) and leaf.trainable for leaf in leaves)
    scale, offset = (np.array(values) for values in interface.affine())
    as_images = getattr(model, "input_shape", (None, *shape))[1:] == shape and not interface.blue_first
    if models.is_network(model) and as_images and (scale == 1).all() and (offset == 0).all():
        return TrainableModel(classifier, model, has_batch_norm=has_batch_norm)
    options = {} if models.is_network(model) else {"from_logits": _FROM_LOGITS[interface.outputs]}
    if as_images and len(scale) == len(offset) == 1 and options and not _has_named_outputs(model):
        input_range = (float(offset[0]), float(offset[0] + scale[0]))
        return TrainableModel(classifier, model, {**options, "input_range": input_range}, has_batch_norm=has_batch_norm)
    images = keras.Input(shape, name="images")
    x = keras.layers.Rescaling(scale.tolist(), offset.tolist(), name="input_range")(images)
    x = keras.ops.flip(x, axis=-1) if interface.blue_first else x
    outputs = model(x)
    if options and isinstance(outputs, dict):
        name = classifier.output_name
        outputs = outputs[name if name in outputs else next(one for one in ("logits", "probabilities", *outputs) if one in outputs)]
    return TrainableModel(classifier, keras.Model(images, outputs), options, has_batch_norm=has_batch_norm)


def _has_named_outputs(model):
    return isinstance(getattr(model, "output", None), dict)


def _check_keras_weights(model, path):
    quantized = [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(getattr(layer, "dtype_policy", None), keras.dtype_policies.QuantizedDTypePolicy)
    ]
    if quantized:
        raise ValueError(
            f"Expected a model with float weights. Received: {path}, whose layers {', '.join(quantized[:3])} are quantized. "
            "Try: the model before model.quantize, and quantize the hardened one"
        )
    if not model.trainable_variables:
        raise ValueError(
            f"Expected trainable weights. Received: {path}, all of whose layers are frozen. "
            "Try: model.trainable = True (also of each frozen layer), and save it again"
        )
