"""Loads a classifier of any format as one callable: float32 [N, H, W, C] in [0, 1] -> logits float32 [N, classes].

    classify = load_classifier("runs/.../saved_model")
    classify = load_classifier("theirs.keras", ModelInterface(input_range="-1,1", outputs="probabilities", input_size=96))

A SavedModel is a program that runs with its user's rights: load only those that you trust.
"""

import dataclasses
import hashlib
import os
import secrets
import typing
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tf_robust.models import outputs
from tf_robust.ops import image_ops, pixel_scale
from tf_robust.saved_models import formats, zoo
from tf_robust.saved_models.formats import named_models
from tf_robust.saved_models.formats.keras_files import keras_signature
from tf_robust.saved_models.signatures import OUTPUTS, Signature, described, listed, shape_text
from tf_robust.utils.deprecation import moved_names
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import digest_of_folder, read_json

__getattr__ = moved_names(__name__, {"Interface": "saved_models.loading.ModelInterface"})

SMALLEST_PROBABILITY = 1e-12  # smaller ones are clipped to it before the logarithm
SUM_TOLERANCE = 1e-3  # of the sum of probabilities
NAMED_RANGES = {
    "auto": "0,1",  # until it is found
    "imagenet": "mean=0.485,0.456,0.406 std=0.229,0.224,0.225",
    "caffe": "mean=0.48502,0.45795,0.40760 std=0.00392157 bgr",  # 255 x - (123.68, 116.779, 103.939), reversed
}


@dataclasses.dataclass(frozen=True)
class ModelInterface:
    """Input and output conventions of a model.

    Args:
        input_range: pixel scale of the model's input: LOW,HIGH (0,1 or -1,1 or 0,255), or a normalization of [0, 1] by
            one number or one per channel: "mean=0.485,0.456,0.406 std=0.229,0.224,0.225", for which imagenet is short; " bgr" at
            the end: blue first, as in "0,255 bgr"; caffe: blue first, in 0 to 255, ImageNet's mean subtracted; auto: the one of these
            with which the model classifies most images correctly.
        outputs: kind of the model's output; the output of that name is used, or else the only one.
        signature: of the SavedModel, to call.
        input_size: side in pixels that images are resized to for the model (bilinear, antialiased); 0: as they are.
        trust: run the Python code in a Keras file (Lambda layers).
        check_inputs: before an evaluation of a model from elsewhere, compare its accuracy on some images with those under other
            pixel scales and another order of the classes, and stop if one of them fits better.
    """

    input_range: str = "0,1"
    outputs: typing.Literal["logits", "probabilities"] = "logits"
    signature: str = "serving_default"
    input_size: int = 0
    trust: bool = False
    check_inputs: bool = True

    def __post_init__(self):
        self.affine()
        if self.outputs not in OUTPUTS:
            raise unknown("outputs", self.outputs, OUTPUTS)
        if self.input_size < 0:
            raise ValueError(f"Expected input_size >= 0 (0: images as they are). Received: {self.input_size}")

    def conventions(self) -> dict[str, str | int]:
        """Returns the fields that determine the logits, for JSON."""
        return {name: getattr(self, name) for name in ("input_range", "outputs", "signature", "input_size")}

    @property
    def blue_first(self) -> bool:
        """Whether the model takes the channels in the order blue, green, red."""
        return NAMED_RANGES.get(self.input_range, self.input_range).endswith(" bgr")

    def affine(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns (scale, offset), tuples of 1 or C numbers: the model takes scale * image + offset, before channels are reversed."""
        text = NAMED_RANGES.get(self.input_range, self.input_range).removesuffix(" bgr")
        return pixel_scale.affine(NAMED_RANGES.get(text, text), "input_range", ", each also with ' bgr'; imagenet, caffe or auto")


class Classifier:
    """A loaded model as a callable: float32 [N, H, W, C] in [0, 1] -> logits float32 [N, classes], a tf.Tensor.

    Works in `tf.function` and `tf.GradientTape`. With outputs="probabilities" the logits are log(max(p, 1e-12)), whose
    softmax is p. A model with uint8 inputs receives round(255 x), through which no gradient flows.

    Args:
        signature: how to call the model.
        interface: its input and output conventions.
        path: of the SavedModel folder or the `.keras` file itself.
        loaded: the object that holds the variables.

    Attributes:
        input_shape: accepted TensorShape [None, H, W, C]; None: any size.
        num_classes: None if unknown.
        card: content of the model's `card.json`, or {}.
        description: the model and how it is called, in one line.

    Raises:
        ValueError: the signature and the interface do not fit each other.
    """

    def __init__(self, signature: Signature, interface: ModelInterface, *, path: str, loaded: object):
        self.path, self.loaded, self.card, self.interface = path, loaded, _card(path), interface
        self._call, ((self._argument, spec),) = signature.call, signature.inputs.items()
        self._type, self._output = spec.dtype, signature.output(interface.outputs)
        input_shape, output_spec = spec.shape.with_rank(4), signature.outputs[self._output]
        self._signature = signature
        self._scale, self._offset = _scaling(interface, spec.dtype, input_shape[3])
        self.input_shape = _accepted_shape(input_shape, interface.input_size, 3 if interface.blue_first else len(self._scale))
        self.num_classes = output_spec.shape[1] if output_spec.shape.rank else None
        scale = "0,255 as uint8 (no gradients)" if spec.dtype == tf.uint8 else interface.input_range
        size = f", input_size {interface.input_size}" if interface.input_size else ""
        self.description = (
            f"{path}, signature {interface.signature!r}: {described(signature.inputs)}, "
            f"input_range {scale}{size} -> {described({self._output: output_spec})}, {interface.outputs}"
        )

    def __call__(self, images: tf.Tensor | ArrayLike) -> tf.Tensor:
        images = tf.convert_to_tensor(images)
        if not images.dtype.is_floating:
            raise ValueError(f"Expected images as float32 in [0, 1]. Received: {images.dtype.name}")
        self.check_images_match(images.shape[1:])
        outputs_by_name = self._call(**{self._argument: self._model_input(tf.cast(images, tf.float32))})
        scores = tf.cast(outputs_by_name[self._output], tf.float32)
        if self.interface.outputs == "logits":
            return scores
        return tf.math.log(tf.maximum(scores, SMALLEST_PROBABILITY))

    def _model_input(self, images: tf.Tensor) -> tf.Tensor:
        if self.interface.input_size:
            images = image_ops.resize(images, self.interface.input_size, self.interface.input_size)
        values = images * self._scale + self._offset
        values = values[..., ::-1] if self.interface.blue_first else values
        return tf.saturate_cast(tf.round(values), tf.uint8) if self._type == tf.uint8 else tf.cast(values, self._type)

    def has_gradients(self, image_shape: tuple[int, ...]) -> bool:
        """Returns whether gradients flow from the logits to images of `image_shape` [H, W, C]."""
        images = tf.fill([1, *image_shape], 0.5)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(images)
            total = tf.reduce_sum(self(images))
        return tape.gradient(total, images) is not None

    def with_input_range(self, input_range: str) -> "Classifier":
        """Returns the same model with another `interface.input_range`."""
        interface = dataclasses.replace(self.interface, input_range=input_range)
        return Classifier(self._signature, interface, path=self.path, loaded=self.loaded)

    def check_images_match(self, shape: tf.TensorShape | tuple[int | None, ...]) -> None:
        """Raises a ValueError with advice if images of `shape` [H, W, C] do not fit the model."""
        shape, expected = tf.TensorShape(shape), self.input_shape[1:]
        if expected.is_compatible_with(shape):
            return
        advice = "Try: convert the images, or use other data."
        if shape.rank == 3 and not expected[2:].is_compatible_with(shape[2:]):
            advice = f"Channels are neither repeated nor averaged automatically. {advice}"
        elif shape.rank == 3 and expected[0] and expected[0] == expected[1]:
            advice = (
                f"Try: --image_size={expected[0]}, which loads the data at the model's size. (--input_size={expected[0]} resizes "
                "in front of the model instead, after corruptions and attacks.)"
            )
        raise ValueError(
            f"Expected images [height, width, channels] {shape_text(expected)} for {self.path}. Received: {shape_text(shape)}. {advice}"
        )

    def digest(self) -> str:
        """Returns 16 hexadecimal digits that differ for another model: of its files or weights; of a function, new ones each time."""
        if os.path.exists(self.path):
            return digest_of_folder(self.path, exclude=("card.json",))
        if not isinstance(self.loaded, keras.Model):
            return secrets.token_hex(8)  # what a function computes is unknown
        digest = hashlib.sha256(self.path.encode())
        for weight in self.loaded.get_weights():
            digest.update(np.ascontiguousarray(weight).tobytes())
        return digest.hexdigest()[:16]

    def check(self, logits: ArrayLike) -> str:
        """Returns a warning if outputs [N, classes] of this model contradict `interface.outputs`, otherwise an empty text."""
        scores = np.asarray(logits, np.float64)
        sums = (np.exp(scores) if self.interface.outputs == "probabilities" else scores).sum(axis=1)
        normalized = np.abs(sums - 1) <= SUM_TOLERANCE
        if self.interface.outputs == "probabilities" and not normalized.all():
            return (
                f"The outputs of {self.path} are not probabilities: the sums over the classes lie in "
                f"[{sums.min():.3g}, {sums.max():.3g}]. If they are logits, pass --outputs=logits."
            )
        if self.interface.outputs == "logits" and len(scores) and normalized.all() and (scores >= 0).all():
            return (
                f"The outputs of {self.path} look like probabilities, but were read as logits: accuracies are not "
                "affected, calibration is. If they are probabilities, pass --outputs=probabilities."
            )
        return ""


def load_classifier(path: str | os.PathLike, interface: ModelInterface = ModelInterface()) -> Classifier:
    """Loads a model as a `Classifier`.

    Args:
        path: a SavedModel folder (of this package, `tf.saved_model.save`, Keras' `export`, tf.keras), a file `.keras`, `.h5`,
            `.tflite` or `.onnx`, `zoo:NAME`, `applications:NAME`, `keras_hub:PRESET` or its folder, `module:function`, or the workdir of
            a run.
        interface: its input and output conventions.

    Raises:
        FileNotFoundError: there is no model.
        ValueError: it cannot be loaded, or does not fit the interface; the message lists the model's signatures.
    """
    if formats.is_function(path):
        name = os.fspath(path)
        return classifier_of(named_models.model_of_function(name), interface, name)
    path, available, loaded = formats.read(path, interface.trust)
    chosen = available.get(interface.signature)
    misfit = chosen.misfit() if chosen else "does not exist"
    if chosen is None or misfit:
        fitting = [f"--signature={name}" for name, signature in available.items() if not signature.misfit()]
        advice = f"\nTry: {' or '.join(fitting)}." if fitting else ""
        raise ValueError(
            "Expected a signature that takes one batch of images [N, H, W, C], floats or uint8. "
            f"Received: {interface.signature!r} of {path} {misfit}. "
            f"{listed(available)}{advice}"
        )
    try:
        return Classifier(chosen.channels_last(), interface, path=path, loaded=loaded)
    except ValueError as error:
        raise ValueError(f"{error}\n{path}: {listed(available)}") from error


def image_size_of(model: Classifier | keras.Model) -> tuple[int, int] | tuple[()]:
    """Returns (height, width) that images for a model must have; () if that is unknown or the model takes any size."""
    try:
        size = tuple(tf.TensorShape(getattr(model, "input_shape", None)).with_rank(4).as_list()[1:3])
    except (TypeError, ValueError):  # several inputs, or of unknown rank
        return ()
    return () if None in size else size


def classifier_of(model: keras.Model | Callable, interface: ModelInterface = ModelInterface(), name: str = "") -> Classifier:
    """Wraps a model in memory as a `Classifier`, in inference mode.

    Args:
        model: a keras.Model, or a callable from a float32 batch [N, H, W, C] on the pixel scale `interface.input_range` to scores
            [N, classes]; either may return a dictionary with the entry `interface.outputs`.
        interface: its input and output conventions; a model in memory has no signatures.
        name: of the model, for messages; empty: its own.

    Raises:
        ValueError: the model does not take one batch of images, or does not fit the interface.
    """
    if interface.signature != ModelInterface.signature:
        raise ValueError(
            f"Expected the path of a SavedModel with signature={interface.signature!r}. Received: a model in memory, "
            f"which has none. Try: omit signature"
        )
    path = name or f"the model {getattr(model, 'name', None) or getattr(model, '__name__', None) or type(model).__name__!r}"
    if isinstance(model, keras.Model) and getattr(model, "inputs", None):
        signature = keras_signature(model)
        if misfit := signature.misfit():
            raise ValueError(
                f"Expected a model that takes one batch of images [N, H, W, C], floats or uint8. Received: {path}, which {misfit}"
            )
    else:
        signature = Signature(
            lambda images: {"scores": outputs.output(model, images, interface.outputs)},
            {"images": tf.TensorSpec(None, tf.float32)},
            {"scores": tf.TensorSpec(None, tf.float32)},
        )
    return Classifier(signature.channels_last(), interface, path=path, loaded=model)


def _scaling(interface: ModelInterface, dtype: tf.DType, channels: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns (scale, offset), float32 [1] or [C] each, for a model that takes `channels` (None: any) of type `dtype`."""
    scale, offset = interface.affine()
    if dtype == tf.uint8:
        if (scale, offset) not in (((1,), (0,)), ((255,), (0,))):
            raise ValueError(f"Expected input_range 0,255 for a model that takes uint8. Received: {interface.input_range!r}")
        scale = (255,)
    if interface.blue_first and channels not in (None, 3):
        raise ValueError(f"Expected input_range without 'bgr': the model takes {channels} channels. Received: {interface.input_range!r}")
    if channels and len(scale) not in (1, channels):
        raise ValueError(
            f"Expected one number, or {channels}, in mean and std: the model takes {channels} channels. Received: {interface.input_range!r}"
        )
    return np.array(scale, np.float32), np.array(offset, np.float32)


def _accepted_shape(input_shape: tf.TensorShape, size: int, numbers: int) -> tf.TensorShape:
    """Returns the shape [None, H, W, C] of images before resizing to `size`, for a model that takes `input_shape`.

    `numbers` is the length of mean and std, which determines the number of channels of a model that takes any.
    """
    height, width, channels = input_shape[1:]
    channels = channels or (numbers if numbers > 1 else None)
    if not size:
        return tf.TensorShape([None, height, width, channels])
    if not input_shape[1:3].is_compatible_with([size, size]):
        advice = (
            f"Try: --image_size={height} instead, which loads the data at that size"
            if height == width
            else "Try: omit input_size and pass images of that size"
        )
        raise ValueError(f"Expected input_size to equal the model's input, {height}x{width}. Received: {size}. {advice}")
    return tf.TensorShape([None, None, None, channels])


def _card(path: str) -> dict:
    if path.startswith("zoo:"):
        return zoo.card(path.removeprefix("zoo:"))
    file = os.path.join(path, "card.json")
    card = read_json(file, True) if os.path.exists(file) else {}
    return card if isinstance(card, dict) else {}  # written by other software
