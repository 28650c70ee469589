"""Writes a classifier in the formats of deployment. Every file takes and returns what the model takes and returns.

| format | file | by |
|---|---|---|
| savedmodel | saved_model/ | TensorFlow; also takes encoded images |
| keras | model.keras | Keras |
| tflite, tflite_float16, tflite_int8 | model.tflite, ... | TensorFlow's converter, which `keras.Model.export(format="litert")` calls |
| onnx | model.onnx | tf2onnx, which `keras.Model.export(format="onnx")` calls |

TensorFlow Lite and ONNX files have one input, `images`, and one output, `logits` or `probabilities`, which is float32, also with integers
inside.
"""

import logging
import re
import shutil
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tf_robust.data.source import Fit
from tf_robust.saved_models.deployable import Deployable
from tf_robust.saved_models.export import export, update_card
from tf_robust.saved_models.formats import FORMATS, files
from tf_robust.utils import quiet
from tf_robust.utils.reading import import_extra

_OPERATIONS = r"(?:Custom|TF Select) ops: ([\w, ]+)|'tf\.(\w+)' op is neither"  # in messages of TensorFlow's converter


def write(name: str, model: Deployable, path: str, card: Mapping, *, calibration: np.ndarray | None = None, fit: Fit | None = None) -> None:
    """Writes a model in one format.

    Args:
        name: of the format.
        model: to write.
        path: of the file or folder, with the suffix of the format.
        card: of a SavedModel, which contains it.
        calibration: images [N, H, W, C] in [0, 1] whose activations give the ranges of integers; None: not needed.
        fit: of encoded images, as in `export.export`.

    Raises:
        ValueError: the format cannot express the model; the message names unsupported operations.
        ImportError: a package is not installed.
    """
    writer = FORMATS[name].writer
    assert writer is not None  # of `formats.files`
    writer(name, model, path, card, calibration, fit)


def write_saved_model(name, model, path, card, calibration, fit):
    """Writes a SavedModel folder; arguments as in `write`."""
    if model.classifier.is_exported:
        shutil.copytree(model.classifier.path, path)
        return update_card(path, **card)
    network = model.network()
    if network is not None:
        return export(network, path, card, fit)
    return export(model, path, card, fit, spec=model.spec, input_of=model.input_of)


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
    _write(path, _converted(name, model, converter.convert))


def write_onnx(name, model, path, *_):
    """Writes an ONNX file; arguments as in `write`."""
    converter = import_extra("tf2onnx", "onnx")
    onnx = import_extra("onnx", "onnx")
    from tf_robust.saved_models import onnx_operations  # noqa: F401

    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # unsupported operations are raised below
    convert, signature = converter.convert.from_function, model.serve.input_signature
    proto, _ = _converted("onnx", model, lambda: convert(_with_constants(model), input_signature=signature))
    unsupported = {node.op_type for node in proto.graph.node if not onnx.defs.has(node.op_type, node.domain)}
    if unsupported:
        raise _not_convertible("onnx", model, unsupported)
    _write(path, proto.SerializeToString())


def _write(path, content):
    with open(path, "wb") as file:
        file.write(content)


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
    _check_float32(name, model)
    try:
        with quiet.native_output():
            return convert()
    except Exception as error:  # of the kinds that converters raise: ConverterError, RuntimeError, ValueError, ...
        found = [operation for pair in re.findall(_OPERATIONS, str(error)) for text in pair for operation in text.split(",")]
        names = {operation.strip() for operation in found if operation.strip()}
        raise _not_convertible(name, model, names, " ".join(str(error).split())[:300]) from error


def _check_float32(name: str, model: Deployable) -> None:
    """Raises ValueError for a model that computes in bfloat16, of which converters make files that do not run, if any."""
    graph = model.serve.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    if any(value.type == tf.bfloat16.as_datatype_enum for node in nodes for value in node.attr.values()):
        raise ValueError(
            f"Expected a model that computes in float32 for the format {name}. Received: {model.classifier.path}, which computes in "
            "bfloat16. Try: build it after keras.config.set_dtype_policy('float32') and load its weights, or formats=savedmodel,keras"
        )


def _not_convertible(name: str, model: Deployable, operations: set[str], reason: str = "") -> ValueError:
    received = f"unsupported operations: {', '.join(sorted(operations))}" if operations else reason
    others = [other for other in files() if other.partition("_")[0] != name.partition("_")[0]]
    return ValueError(
        f"Expected a model of operations that the format {name} has. Received: {model.classifier.path}: {received}. "
        f"Try: replace the layers with these operations, or formats={others[0]}"
    )
