"""Writes a classifier: as a SavedModel, loadable without this package, differentiable, with a card; and in other formats of deployment.

The SavedModel of a network of this package:

    model = tf.saved_model.load("saved_model")
    model.signatures["serving_default"](images=images)   # float32 [N, H, W, C] in [0, 1]
    model.signatures["serving_bytes"](encoded=strings)     # PNG or JPEG files of any size

Both return `logits` [N, classes], `probabilities` [N, classes] and `embedding` [N, E]. Other models take images on their own pixel scale
and return what they return, as `logits` (with their `probabilities`) or as `probabilities` alone.

`write` writes a `Deployable` in a format. Every file takes and returns what the model takes and returns. TensorFlow Lite files are written
by TensorFlow's converter and ONNX files by tf2onnx, as by `keras.Model.export`. They have one input, `images`, and one output, `logits` or
`probabilities`, which is float32, also with integers inside.
"""

import functools
import logging
import os
import pathlib
import re
import shutil
import typing
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tf_robust import models
from tf_robust.data.source import Fit, Source
from tf_robust.layers import ScaleLogits
from tf_robust.models.batch_norms import folded_batch_norms
from tf_robust.ops import image_ops
from tf_robust.saved_models.classifier import Classifier, nodes_of, types_in
from tf_robust.saved_models.formats import FORMATS, files
from tf_robust.saved_models.formats.keras_files import compiled_as_given
from tf_robust.saved_models.interface import Kind
from tf_robust.saved_models.loading import classifier_of
from tf_robust.saved_models.zoo import rebuild
from tf_robust.utils import quiet
from tf_robust.utils.files import atomic_folder, read_json, write_json
from tf_robust.utils.lazy import import_extra

OUTPUTS = ("logits", "probabilities", "embedding")
_OPERATIONS = r"(?:Custom|TF Select) ops: ([\w, ]+)|'tf\.(\w+)' op is neither"  # in messages of TensorFlow's converter
_HALF = (tf.float16, tf.bfloat16)


def export(classifier: keras.Model, path: str, card: Mapping, fit: Fit | None = None) -> None:
    """Writes a network as a SavedModel folder, atomically, with `card.json` and the weights for `models.load_encoder` inside.

    classifier: float32 images in [0, 1] -> some of `OUTPUTS`, at least logits or probabilities. fit: how encoded images are fitted to a
    height and width; None: they are stretched to those of the model.
    """
    spec = tf.TensorSpec([None, *classifier.input_shape[1:]], tf.float32, "images")
    _save(classifier, functools.partial(classifier, training=False), spec, tf.identity, path, card, fit)


def _save(tracked, call, spec, input_of, path, card, fit):
    """Writes a SavedModel of a function of images as in `spec`, which `input_of` makes of images in [0, 1]; `tracked` has its layers."""
    height, width, channels = spec.shape[1:]
    fit = fit or Fit(height, width, "stretch")

    def serve(images):
        with folded_batch_norms():
            outputs = call(images)
        named = {name: outputs[name] for name in OUTPUTS if name in outputs}
        if "logits" in named and named["logits"].shape[1] != 1:  # one logit is that of a sigmoid
            named["probabilities"] = tf.nn.softmax(named["logits"])
        return named

    def decode(encoded):
        return tf.clip_by_value(fit(image_ops.to_float(image_ops.decode(encoded, channels))), 0.0, 1.0)

    def serve_bytes(encoded):
        decoded = tf.TensorSpec([fit.height, fit.width, channels], tf.float32)
        return serve(input_of(tf.map_fn(decode, encoded, fn_output_signature=decoded)))

    servable = tf.Module()
    servable.classifier = tracked
    servable.serve = tf.function(serve, input_signature=[spec])
    servable.serve_bytes = tf.function(serve_bytes, input_signature=[tf.TensorSpec([None], tf.string, "encoded")])
    servable.held = [*servable.serve.get_concrete_function().variables]  # a loaded model may have them in objects that are not tracked
    with atomic_folder(path) as temporary:
        tf.saved_model.save(servable, temporary, signatures={"serving_default": servable.serve, "serving_bytes": servable.serve_bytes})
        if isinstance(tracked, keras.Model):
            models.write_weights(tracked, temporary)
        write_json(os.path.join(temporary, "card.json"), dict(card))


def input_card(source: Source, spec: tf.TensorSpec | None = None, input_range: str = "0,1") -> dict[str, object]:
    """Returns the part of a card that describes the input of a model of images of a source, for JSON.

    spec: of the model's input; None: float32 [None, H, W, C], of the size of the images. input_range: as in `ModelInterface`.
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


def export_calibrated(
    classifier: Classifier, source: Source, path: str, *, scale: float | Sequence[float], bias: float | Sequence[float], card: dict
) -> None:
    """Writes a model of any format with a TensorFlow graph as a SavedModel whose logits are calibrated: scaled, and shifted by a bias.

    It takes images, of the size of those of `source`, as the model takes them. scale, bias: a number or one for each class. card: to which
    the input and the output are added.
    """
    layer, spec = ScaleLogits(scale, bias), classifier.input_spec(source.image_shape)

    def call(images):
        outputs = classifier.outputs_of(images)
        embedding = {"embedding": outputs["embedding"]} if classifier.has_embedding else {}
        return {"logits": layer(outputs["logits"]), **embedding}

    card = {**card, "input": input_card(source, spec, classifier.pixel_scale), "output": "logits"}
    _save(layer, call, spec, classifier.model_input, path, card, source.fit)


class Deployable(tf.Module):
    """A classifier of any format with a TensorFlow graph, as a function that takes and returns what the model takes and returns.

    Args:
        classifier: the model, whose `interface.outputs` is known.
        shape: (H, W, C) of the images, before they are resized to `interface.input_size`.
        unit_range: whether the function takes float32 images in [0, 1], whatever the model takes.
        logits: whether the function returns logits, also of a model that returns probabilities.

    Attributes:
        float32: the classifier; of a run in bfloat16 the network with its weights, which are float32, and computations in float32, as
            converters have no operations in bfloat16.
        output: name of the output: logits or probabilities.
        input_range: pixel scale of the images, as a `ModelInterface.input_range`.
        spec: TensorSpec of the images [None, H, W, C]; half precision is float32.
        serve: tf.function: images -> {output: [N, classes], or [N, 1] of a model with one output}, float32.
    """

    def __init__(self, classifier: Classifier, shape: tuple[int, ...], *, unit_range: bool = False, logits: bool = False):
        super().__init__()
        self.classifier, self.unit_range = classifier, unit_range
        self._takes_logarithm = logits and classifier.interface.outputs == "probabilities"
        self.output: Kind = "logits" if logits or classifier.interface.outputs != "probabilities" else "probabilities"
        self.input_range = "0,1" if unit_range else classifier.pixel_scale
        self.float32 = classifier
        if classifier.is_exported and classifier.card.get("flags", {}).get("mixed_precision") == "True":
            self.float32 = classifier_of(rebuild(classifier.card, classifier.path))
        spec = classifier.input_spec(shape)
        self.spec = tf.TensorSpec(spec.shape, tf.float32 if unit_range or spec.dtype in _HALF else spec.dtype, "images")
        self.serve = tf.function(lambda images: {self.output: self._scores(self.float32, images)[1]}, input_signature=[self.spec])
        other = f"Expected a model of TensorFlow operations. Received: {classifier.path}, which calls Python code"
        try:
            function = self.serve.get_concrete_function()
        except (TypeError, NotImplementedError) as error:  # of NumPy and others, given a symbolic tensor
            raise ValueError(f"{other} ({type(error).__name__})") from error
        self.held = list(function.variables)  # found and frozen by the converters
        if any(node.op in ("PyFunc", "PyFuncStateless", "EagerPyFunc") for node in nodes_of(function.graph)):
            raise ValueError(f"{other} (tf.py_function)")

    def input_of(self, images: tf.Tensor) -> tf.Tensor:
        """Returns images [N, H, W, C] in [0, 1] as the function takes them."""
        if self.unit_range:
            return self.classifier.resized(tf.cast(images, tf.float32))
        return tf.cast(self.classifier.model_input(images), self.spec.dtype)

    def scores(self, images: tf.Tensor, classifier: Classifier | None = None) -> tf.Tensor:
        """Returns what the function returns for images [N, H, W, C] in [0, 1]; classifier: computes it instead of `self.classifier`."""
        return self._scores(classifier or self.classifier, self.input_of(images))[1]

    def _scores(self, classifier, images):
        """(outputs of the model by name, the scores that the function returns)."""
        values = classifier.scaled(images) if self.unit_range else tf.cast(images, classifier.input_spec(images.shape[1:]).dtype)
        outputs, scores = classifier.native_outputs(values)
        return outputs, _log(scores, classifier.has_one_output) if self._takes_logarithm else scores

    def __call__(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs, scores = self._scores(self.classifier, images)
        return {self.output: scores, **({"embedding": outputs["embedding"]} if self.classifier.has_embedding else {})}

    @functools.cached_property
    def network(self) -> keras.Model | None:
        """The model as a network of this package, images in [0, 1] -> {"logits", "embedding"}; None if it is another one."""
        classifier, interface = self.classifier, self.classifier.interface
        if classifier.is_exported:
            return rebuild(classifier.card, classifier.path)
        scale, offset = (np.array(values) for values in interface.affine())
        as_is = (scale == 1).all() and (offset == 0).all() and not interface.blue_first and not interface.input_size
        return classifier.loaded if isinstance(classifier.loaded, keras.Model) and models.is_network(classifier.loaded) and as_is else None

    def keras_model(self) -> keras.Model:
        """Returns the model as a keras.Model: as it was loaded, or with another input or output if that was asked for."""
        if reason := self.why_not_keras():
            raise ValueError(
                f"Expected a Keras model for the format keras. Received: {self.classifier.path}, {reason}. Try: formats without keras"
            )
        model: typing.Any = self.classifier.loaded
        interface = self.classifier.interface
        if self.network not in (None, model):
            return self.network
        if self.network is not None or not (self.unit_range or self._takes_logarithm):
            return compiled_as_given(model, self.classifier.path, interface.trust)
        images = x = keras.Input(self.spec.shape.as_list()[1:], name="images", dtype=self.spec.dtype.name)
        if self.unit_range:
            scale, offset = (list(values) for values in interface.affine())
            x = keras.layers.Rescaling(scale, offset, name="input_range")(x)
            x = keras.ops.flip(x, axis=-1) if interface.blue_first else x
        scores = model(x)
        scores = scores[self.classifier.output_name] if isinstance(scores, dict) else scores
        if self._takes_logarithm:
            scores = _log(scores, self.classifier.has_one_output, keras.ops)
        return keras.Model(images, scores, name=model.name)

    def why_not_keras(self) -> str:
        """Returns why the model cannot be a keras.Model; empty if it can."""
        if self.network is not None:
            return ""
        if not getattr(self.classifier.loaded, "inputs", None) or not isinstance(self.classifier.loaded, keras.Model):
            return "whose layers are unknown"
        return "which takes uint8, with unit_range" if self.unit_range and self.classifier.takes_uint8 else ""


def _log(probabilities, one_output, ops=tf.math):
    """Logits of probabilities [N, classes]: their logarithms; of one output [N, 1] log(p / (1 - p))."""
    logarithms = ops.log(ops.maximum(probabilities, models.SMALLEST_PROBABILITY))
    return logarithms - ops.log(ops.maximum(1 - probabilities, models.SMALLEST_PROBABILITY)) if one_output else logarithms


def write(name: str, model: Deployable, path: str, card: Mapping, *, calibration: np.ndarray | None = None, fit: Fit | None = None) -> None:
    """Writes a model in one of `FORMATS`; raises ValueError, with the unsupported operations, if the format cannot express it.

    card: of a SavedModel, which contains it. calibration: images [N, H, W, C] in [0, 1] whose activations give the ranges of integers.
    fit: of encoded images, as in `export`.
    """
    writer = FORMATS[name].writer
    assert writer is not None  # of `formats.files`
    writer(name, model, path, card, calibration, fit)


def write_saved_model(name, model, path, card, calibration, fit):
    """Writes a SavedModel folder; arguments as in `write`."""
    if model.classifier.is_exported:
        shutil.copytree(model.classifier.path, path)
        update_card(path, **card)
    elif model.network is not None:
        export(model.network, path, card, fit)
    else:
        _save(model, model, model.spec, model.input_of, path, card, fit)


def write_keras(name, model, path, *_):
    """Writes a Keras file; arguments as in `write`."""
    model.keras_model().save(path)


def write_tflite(name, model, path, card, calibration, fit):
    """Writes a TensorFlow Lite file with floats, float16 weights or integers; arguments as in `write`."""
    converter = tf.lite.TFLiteConverter.from_concrete_functions([model.serve.get_concrete_function()], model)
    if name != "tflite":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if name == "tflite_float16":
        converter.target_spec.supported_types = [tf.float16]
    if name == "tflite_int8":
        converter.representative_dataset = lambda: ([model.input_of(image[None]).numpy()] for image in calibration)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    pathlib.Path(path).write_bytes(_converted(name, model, converter.convert))


def write_onnx(name, model, path, *_):
    """Writes an ONNX file; arguments as in `write`."""
    converter, onnx = import_extra("tf2onnx", "onnx"), import_extra("onnx", "onnx")
    _register_erfc()
    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # unsupported operations are raised below
    convert, signature = converter.convert.from_function, model.serve.input_signature
    proto, _ = _converted("onnx", model, lambda: convert(_with_constants(model), input_signature=signature))
    unsupported = {node.op_type for node in proto.graph.node if not onnx.defs.has(node.op_type, node.domain)}
    if unsupported:
        raise _not_convertible("onnx", model, unsupported)
    pathlib.Path(path).write_bytes(proto.SerializeToString())


@functools.cache
def _register_erfc():
    """Adds Erfc, of which TensorFlow's exact GELU is made and which tf2onnx lacks: 1 - erf(x) of float32 tensors."""
    from tf2onnx.handler import tf_op
    from tf2onnx.utils import make_name

    @tf_op("Erfc")
    class Erfc:
        @classmethod
        def version_9(cls, ctx, node, **kwargs):
            """Replaces the node in an ONNX graph of operation set 9, the first with Erf, or later."""
            shapes, dtypes = node.output_shapes, node.output_dtypes
            one = ctx.make_const(make_name("one"), np.array(1, np.float32))
            erf = ctx.make_node("Erf", node.input, name=make_name("erf"))
            ctx.remove_node(node.name)
            ctx.make_node("Sub", [one.output[0], erf.output[0]], name=node.name, outputs=node.output, shapes=shapes, dtypes=dtypes)


def _with_constants(model):
    """The tf.function of images whose constants from outside, such as the mean of a Normalization layer, are part of its graph; the
    converter to ONNX takes them for inputs."""
    serve = model.serve
    concrete = serve.get_concrete_function()
    captured = zip(concrete.captured_inputs, concrete.inputs[1:], strict=True)
    constants = {internal.name: external.numpy() for external, internal in captured if external.dtype != tf.resource}
    if not constants:
        return serve
    frozen = convert_variables_to_constants_v2(concrete, lower_control_flow=False, aggressive_inlining=True)
    graph, (images, *_), (scores,) = frozen.graph.as_graph_def(), concrete.inputs, frozen.outputs

    def call(values):
        inputs = {images.name: values, **{name: tf.constant(constant) for name, constant in constants.items()}}
        return {model.output: tf.graph_util.import_graph_def(graph, inputs, [scores.name], name="")[0]}

    return tf.function(call, input_signature=serve.input_signature)


def _converted(name: str, model: Deployable, convert: Callable):
    """Calls a converter, whose errors become a ValueError that names the operations."""
    if tf.bfloat16.as_datatype_enum in types_in(model.serve.get_concrete_function().graph):
        raise ValueError(  # converters make files that do not run, if any
            f"Expected a model that computes in float32 for the format {name}. Received: {model.classifier.path}, which computes in "
            "bfloat16. Try: build it after keras.config.set_dtype_policy('float32') and load its weights, or formats=savedmodel,keras"
        )
    try:
        with quiet.native_output():
            return convert()
    except Exception as error:  # of the kinds that converters raise: ConverterError, RuntimeError, ValueError, ...
        found = [operation for pair in re.findall(_OPERATIONS, str(error)) for text in pair for operation in text.split(",")]
        names = {operation.strip() for operation in found if operation.strip()}
        raise _not_convertible(name, model, names, " ".join(str(error).split())[:300]) from error


def _not_convertible(name: str, model: Deployable, operations: set[str], reason: str = "") -> ValueError:
    received = f"unsupported operations: {', '.join(sorted(operations))}" if operations else reason
    others = [other for other in files() if other.partition("_")[0] != name.partition("_")[0]]
    return ValueError(
        f"Expected a model of operations that the format {name} has. Received: {model.classifier.path}: {received}. "
        f"Try: replace the layers with these operations, or formats={others[0]}"
    )
