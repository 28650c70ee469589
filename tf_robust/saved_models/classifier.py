"""A loaded model of any format as one callable: float32 [N, H, W, C] in [0, 1] -> logits float32 [N, classes]."""

import contextlib
import dataclasses
import hashlib
import os
import secrets
import typing
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tf_robust.models import SMALLEST_PROBABILITY, weights
from tf_robust.models.outputs import PROBABILITY_TOLERANCE
from tf_robust.ops import image_ops
from tf_robust.saved_models.formats import format_of
from tf_robust.saved_models.interface import Kind, ModelInterface, read_card
from tf_robust.saved_models.signatures import BEFORE_SOFTMAX, Signature, shape_text
from tf_robust.utils.errors import cause
from tf_robust.utils.files import digest_of_folder

_digests: dict[int, tuple[object, str]] = {}  # {id: (a function, which stays in memory, its digest)}
_SMALLEST_WITHOUT_GRADIENT = 1e-12  # of probabilities that may be rounded to 0: 28 nats, not 81
_LARGEST_FLOAT16 = 2.0**14  # a quarter of the largest number, so that sums stay finite
COARSEST_STEP = 1 / 64  # of quantized probabilities
MIN_SCORES = 20  # images, by whose scores one output is taken for a probability or a logit
_SCALES = ("0,1", "-1,1", "0,255")  # of images on which a probability stays in [0, 1]


class Classifier:
    """A loaded model as a callable: float32 [N, H, W, C] in [0, 1] -> logits float32 [N, classes], a tf.Tensor.

    Works in `tf.function` and `tf.GradientTape`. With outputs="probabilities" the logits are log(p), whose softmax is p: of a Keras model
    that ends with a softmax they are computed from its input, in which p is not rounded to 0 or 1; otherwise p is at least 1e-35, or
    1e-12 of TensorFlow Lite and ONNX files, which have no gradients and may round p to 0. A model with one output [N, 1] has two classes:
    its probability p is that of the second, (1 - p, p), and its logit z the difference of both, (0, z). A model with uint8 inputs receives
    round(255 x), through which no gradient flows.

    Args:
        signature: how to call the model.
        interface: its input and output conventions.
        path: of the SavedModel folder or the `.keras` file itself.
        loaded: the object that holds the variables.

    Attributes:
        input_shape: accepted TensorShape [None, H, W, C]; None: any size.
        takes_uint8: whether the input of the model is uint8.
        pixel_scale: of the model's input, as a `ModelInterface.input_range`; of uint8 always 0,255.
        num_classes: None if unknown; 2 of a model with one output.
        has_one_output: whether the scores are [N, 1]; None if unknown.
        has_embedding: whether the signature has an output `embedding` [N, E].
        has_graph: whether the model is a TensorFlow graph: not of TensorFlow Lite, ONNX or Torch, and no Python function but tf.function.
        is_exported: whether it is a SavedModel that this package exported, with its card and weights.
        output_name: of the logits or probabilities among the outputs of the signature.
        card: content of the model's `card.json`, or {}.
        batch_dependence: how its scores depend on the other images of a batch, for JSON; {}: not at all, or not checked.

    Examples:
        >>> from tf_robust.saved_models import loading
        >>> classifier = loading.load_classifier("zoo:digits/lenet_augmix")
        >>> classifier.input_shape, classifier.num_classes, classifier.pixel_scale, classifier.has_embedding
        (TensorShape([None, 28, 28, 1]), 10, '0,1', True)
        >>> images, _ = tfr.images(2, data="digits")
        >>> {name: one.shape.as_list() for name, one in sorted(classifier.outputs(images).items())}
        {'embedding': [2, 84], 'logits': [2, 10]}
    """

    def __init__(self, signature: Signature, interface: ModelInterface, *, path: str, loaded: object):
        self.path, self.loaded, self.card = path, loaded, read_card(path)
        interface = interface.with_card(self.card, path, signature.outputs)
        self.interface = interface = dataclasses.replace(interface, outputs=signature.kind(interface.outputs))
        self.batch_dependence: dict[str, typing.Any] = {}
        self._signature, ((self._argument, spec),) = signature, signature.inputs.items()
        self._type, self.output_name = spec.dtype, signature.output(interface.outputs)
        input_shape, output_shape = spec.shape.with_rank(4), signature.outputs[self.output_name].shape
        self._scale, self._offset = _scaling(interface, spec.dtype, input_shape[3])
        self.input_shape = _accepted_shape(input_shape, interface.input_size, 3 if interface.blue_first else len(self._scale))
        self.takes_uint8, self.has_graph = spec.dtype == tf.uint8, signature.has_graph
        self.pixel_scale = "0,255" if self.takes_uint8 else interface.input_range
        columns = output_shape[1] if output_shape.rank else None
        self.has_one_output, self.num_classes = None if columns is None else columns == 1, 2 if columns == 1 else columns
        self.has_embedding = "embedding" in signature.outputs and signature.outputs["embedding"].shape.rank == 2
        files = ("saved_model.pb", weights.FILE)
        self.is_exported = "input" in self.card and all(os.path.isfile(os.path.join(path, name)) for name in files)
        read_by = format_of(path)
        self._smallest = SMALLEST_PROBABILITY if read_by is None or read_by.gradients else _SMALLEST_WITHOUT_GRADIENT

    def __call__(self, images: tf.Tensor | ArrayLike) -> tf.Tensor:
        return self.outputs(images)["logits"]

    def outputs(self, images: tf.Tensor | ArrayLike) -> dict[str, tf.Tensor]:
        """Returns all outputs of the signature by name, and "logits" as the call returns them, for images [N, H, W, C] in [0, 1]."""
        return self.outputs_of(self.model_input(images))

    def outputs_of(self, values: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the same as `outputs`, for values as the model takes them (`model_input`)."""
        outputs_by_name, scores = self.native_outputs(values)
        before = outputs_by_name.get(self.output_name + BEFORE_SOFTMAX)
        if self.interface.outputs != "probabilities":
            scores = _of_two_classes(scores, False)
        elif before is not None:
            scores = tf.nn.log_softmax(_of_two_classes(tf.cast(before, tf.float32), False))
        else:
            scores = tf.math.log(tf.maximum(_of_two_classes(scores, True), self._smallest))
        return {**{name: value for name, value in outputs_by_name.items() if not name.endswith(BEFORE_SOFTMAX)}, "logits": scores}

    def native_outputs(self, values: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Returns (outputs of the signature by name, the logits or probabilities among them as the model returns them, float32).

        Outputs named with `BEFORE_SOFTMAX` are inputs of a last softmax. values: as `model_input` returns them.
        """
        try:
            outputs_by_name = self._signature.call(**{self._argument: values})
        except (MemoryError, tf.errors.ResourceExhaustedError):
            raise
        except Exception as error:  # of any kind: runtimes have their own
            of_package = type(error) is ValueError and str(error).startswith("Expected")
            if of_package or not tf.executing_eagerly() or not os.path.exists(self.path):
                raise
            raise ValueError(
                f"Expected {self.path} to return scores of a batch of images {list(values.shape)}. Received: {cause(error)}. "
                "Try: export it with a free batch size, and images of its size"
            ) from error
        scores = outputs_by_name[self.output_name]
        scores = _of_float16(scores) if scores.dtype == tf.float16 else tf.cast(scores, tf.float32)
        if not scores.shape.is_compatible_with([values.shape[0], None]):
            raise ValueError(f"Expected scores [{values.shape[0]}, classes] of {self.path}. Received: {shape_text(scores.shape)}")
        return outputs_by_name, scores

    def scores(self, images: tf.Tensor | ArrayLike) -> tf.Tensor:
        """Returns the scores of images [N, H, W, C] in [0, 1] as the model returns them: logits or probabilities."""
        return self.native_outputs(self.model_input(images))[1]

    def model_input(self, images: tf.Tensor | ArrayLike) -> tf.Tensor:
        """Returns images [N, H, W, C] in [0, 1] as the model takes them: of its size, pixel scale and type."""
        images = tf.convert_to_tensor(images)
        if not images.dtype.is_floating:
            raise ValueError(f"Expected images as float32 in [0, 1]. Received: {images.dtype.name}")
        self.check_images_match(images.shape[1:])
        return self.scaled(self.resized(tf.cast(images, tf.float32)))

    def resized(self, images: tf.Tensor) -> tf.Tensor:
        """Returns images at `interface.input_size`."""
        side = self.interface.input_size
        return image_ops.resize(images, side, side) if side else images

    def scaled(self, images: tf.Tensor) -> tf.Tensor:
        """Returns images in [0, 1] on the pixel scale of the model and of its type."""
        values = images * self._scale + self._offset
        values = values[..., ::-1] if self.interface.blue_first else values
        if self.takes_uint8:  # tf.saturate_cast clips by an operation that TensorFlow Lite lacks
            values = tf.minimum(tf.maximum(tf.round(values), 0), 255)
        return tf.cast(values, self._type)

    def input_spec(self, image_shape: Sequence[int]) -> tf.TensorSpec:
        """Returns the TensorSpec of the model's input for images of `image_shape` [H, W, C], before they are resized."""
        side = self.interface.input_size
        return tf.TensorSpec([None, *((side, side) if side else image_shape[:2]), image_shape[2]], self._type, "images")

    def has_gradients(self, image_shape: tuple[int, ...]) -> bool:
        """Returns whether gradients flow from the logits to images of `image_shape` [H, W, C]."""
        images = tf.fill([1, *image_shape], 0.5)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(images)
            total = tf.reduce_sum(self(images))
        return tape.gradient(total, images) is not None

    def why_no_gradients(self) -> str:
        """Returns why `has_gradients` is False, and what to do, for messages after the name of the model."""
        if self.takes_uint8:
            return "whose input is uint8: no gradient flows through the rounding. Try: export it with a float32 input (0 to 255)"
        if not self.has_graph and os.path.isfile(self.path):
            return "which computes outside of TensorFlow. Try: the float model that it was made of (Keras, SavedModel, TorchScript)"
        return "through which no gradient flows to the images. Try: the float model, without rounding, integers and NumPy functions"

    def float_type(self, image_shape: tuple[int, ...]) -> tf.DType:
        """Returns the narrowest type of floats that the model is known to compute in, for images of `image_shape` [H, W, C]."""
        if not self.has_graph:
            return self._signature.float_type()
        function = tf.function(self.scores, autograph=False)  # nothing to convert, and the conversion takes longer than tracing
        types = types_in(function.get_concrete_function(tf.TensorSpec([None, *image_shape])).graph)
        return next((one for one in (tf.bfloat16, tf.float16) if one.as_datatype_enum in types), tf.float32)

    def with_known_outputs(self, images: tf.Tensor | ArrayLike) -> "Classifier":
        """Returns the model with known `interface.outputs` and `has_one_output`, inferred from the scores of images [N, H, W, C] in [0, 1].

        Scores are probabilities if they sum to 1 over the classes; one output is a probability if it lies in [0, 1], whatever the pixel
        scale is.
        """
        kind = self.interface.outputs
        if kind != "auto" and self.has_one_output is not None:
            return self
        of_scales = [self.scores(images)]
        one_output = of_scales[0].shape[1] == 1
        for input_range in _SCALES if kind == "auto" and one_output else ():  # on another one a logit may lie in [0, 1], too
            with contextlib.suppress(ValueError):  # such as any but 0,255 for uint8
                of_scales.append(self.with_interface(input_range=input_range).scores(images))
        inferred: Kind = "probabilities" if all(map(_are_probabilities, of_scales)) else "logits"
        known = self.with_interface(outputs=inferred if kind == "auto" else kind)
        if known.has_one_output is None:
            known.has_one_output, known.num_classes = one_output, 2 if one_output else None
        return known

    def with_interface(self, **fields: typing.Any) -> "Classifier":
        """Returns the same model with other fields of its interface."""
        other = Classifier(self._signature, dataclasses.replace(self.interface, **fields), path=self.path, loaded=self.loaded)
        other.batch_dependence = self.batch_dependence
        if other.has_one_output is None:  # inferred from the scores of images
            other.has_one_output, other.num_classes = self.has_one_output, self.num_classes
        return other

    def check_images_match(self, shape: tf.TensorShape | tuple[int | None, ...]) -> None:
        """Raises a ValueError with advice if images of `shape` [H, W, C] do not fit the model."""
        shape, expected = tf.TensorShape(shape), self.input_shape[1:]
        if expected.is_compatible_with(shape):
            return
        advice = "Try: convert the images, or use other data."
        if shape.rank == 3 and not expected[2:].is_compatible_with(shape[2:]):
            advice = advice_on_channels(expected[2])
        elif shape.rank == 3 and expected[0] and expected[0] == expected[1]:
            advice = (
                f"Try: image_size={expected[0]}, which loads the data at the model's size. (input_size={expected[0]} resizes "
                "in front of the model instead, after corruptions and attacks.)"
            )
        raise ValueError(
            f"Expected images [height, width, channels] {shape_text(expected)} for {self.path}. Received: {shape_text(shape)}. {advice}"
        )

    def digest(self) -> str:
        """Returns 16 hexadecimal digits that differ for another model: of its files or weights; of a function, new ones in each process."""
        if os.path.exists(self.path):
            return digest_of_folder(self.path, exclude=("card.json",))
        if not isinstance(self.loaded, keras.Model):
            return _digests.setdefault(id(self.loaded), (self.loaded, secrets.token_hex(8)))[1]  # what a function computes is unknown
        digest = hashlib.sha256(self.path.encode())
        for weight in self.loaded.get_weights():
            digest.update(np.ascontiguousarray(weight).tobytes())
        return digest.hexdigest()[:16]

    def check(self, logits: ArrayLike) -> str:
        """Returns a warning if outputs [N, classes] of this model contradict `interface.outputs`, otherwise an empty text."""
        scores = np.asarray(logits, np.float64)
        if self.interface.outputs == "probabilities":
            if _sum_to_one(np.exp(scores)):
                return ""
            sums = np.exp(scores).sum(axis=1)
            found = f"are not probabilities: the sums over the classes lie in [{sums.min():.3g}, {sums.max():.3g}]. If they are logits"
            return f"The outputs of {self.path} {found}, pass outputs=logits."
        effect = "accuracies are not affected, calibration is"
        if self.has_one_output and len(scores) >= MIN_SCORES:
            scores, effect = scores[:, 1:], "its sign decides: all images are classified as the second class"
        found = f"look like probabilities, but were read as logits: {effect}. If they are probabilities"
        return f"The outputs of {self.path} {found}, pass outputs=probabilities." if _are_probabilities(scores) else ""


def nodes_of(graph: tf.Graph) -> list[typing.Any]:
    """Returns the nodes of a graph, and of the functions that it calls."""
    definition = graph.as_graph_def()
    return [*definition.node, *(node for function in definition.library.function for node in function.node_def)]


def types_in(graph: tf.Graph) -> set[int]:
    """Returns the types of values in a graph, as enumerated by TensorFlow."""
    return {value.type for node in nodes_of(graph) for value in node.attr.values()}


def _are_probabilities(scores: ArrayLike) -> bool:
    """Returns whether scores lie in [0, 1] and, of more than one class, sum to 1."""
    scores = np.asarray(scores, np.float64)
    if scores.shape[1] == 1:
        return bool(len(scores) and ((scores >= 0) & (scores <= 1)).all())
    return bool(len(scores) and (scores >= 0).all() and _sum_to_one(scores))


def _sum_to_one(probabilities: np.ndarray) -> bool:
    """Returns whether all rows [N, classes] sum to 1 up to rounding.

    Quantized probabilities are multiples of a step. Each differs from what was rounded by at most half a step; those above the largest
    integer are clipped, by at most one step; and those that are 0 lose something, but gain nothing.
    """
    step = _quantization_step(probabilities)
    errors = probabilities.sum(axis=1) - 1
    positive = (probabilities > step / 2).sum(axis=1)
    least = -PROBABILITY_TOLERANCE - step - probabilities.shape[1] * step / 2
    return bool(((errors >= least) & (errors <= PROBABILITY_TOLERANCE + positive * step / 2)).all())


def _quantization_step(values: np.ndarray) -> float:
    """Returns the step of which all values are multiples; 0 if there is none."""
    distinct = np.unique(values.round(7))
    gaps = np.diff(distinct)
    gaps = gaps[gaps > 1e-5]
    if not len(gaps) or not np.isfinite(distinct).all():
        return 0.0
    for parts in (1, 2, 3):  # of the smallest difference of two values
        step = distinct[-1] / max(round(distinct[-1] * parts / gaps.min()), 1)
        multiples = distinct / step if step else distinct
        if 0 < step <= COARSEST_STEP and np.abs(multiples - multiples.round()).max() < 0.02:
            return float(step)
    return 0.0


def advice_on_channels(expected: int | None) -> str:
    """Returns advice for images with another number of channels than a model takes."""
    convert = {1: "tf.image.rgb_to_grayscale(images)", 3: "tf.image.grayscale_to_rgb(images)"}.get(expected or 0, "")
    wrapped = f"module:function with a function of images that returns model({convert}), or" if convert else "convert the images, or"
    return f"Only image files are converted automatically, to gray for a model that takes one channel. Try: {wrapped} use other data."


@tf.custom_gradient
def _of_float16(scores):
    """Scores as float32; the gradient of the logarithm of a small probability would overflow."""

    def gradient(upstream):
        return tf.cast(tf.clip_by_value(upstream, -_LARGEST_FLOAT16, _LARGEST_FLOAT16), tf.float16)

    return tf.cast(scores, tf.float32), gradient


def _of_two_classes(scores, probabilities):
    """Scores [N, classes]: as they are, or of a model with one output [N, 1] those of both classes."""
    columns = scores.shape[1]
    if columns is not None and columns != 1:
        return scores
    one = scores if columns == 1 else scores[:, : tf.cast(tf.shape(scores)[1] == 1, tf.int32)]  # [N, 0] of more columns
    return tf.concat([1 - one if probabilities else tf.zeros_like(one), scores], axis=1)


def _scaling(interface: ModelInterface, dtype: tf.DType, channels: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns (scale, offset), float32 [1] or [C] each, for a model that takes `channels` (None: any) of type `dtype`."""
    scale, offset = interface.affine()
    if dtype == tf.uint8:
        if (scale, offset) not in (((1,), (0,)), ((255,), (0,))):
            raise ValueError(f"Expected input_range 0,255 for a model that takes uint8. Received: {interface.input_range!r}")
        scale = (255,)
    if channels and (len(scale) not in (1, channels) or interface.blue_first and channels != 3):
        numbers = f"one number, or {channels}, in mean and std{'' if channels == 3 else ', without bgr'}"
        raise ValueError(f"Expected input_range with {numbers}: the model takes {channels} channels. Received: {interface.input_range!r}")
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
        by_data, by_user = f"image_size={height} instead, which loads the data at that size", "omit input_size and pass images of that size"
        advice = by_data if height == width else by_user
        raise ValueError(f"Expected input_size to equal the model's input, {height}x{width}. Received: {size}. Try: {advice}")
    return tf.TensorShape([None, None, None, channels])
