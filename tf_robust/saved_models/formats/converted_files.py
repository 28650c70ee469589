"""Reads TensorFlow Lite models by LiteRT, and ONNX models by ONNX Runtime: both compute on NumPy arrays and have no gradients."""

import importlib
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_robust.saved_models.signatures import Axes, Signature, run_in_layout
from tf_robust.utils import quiet
from tf_robust.utils.errors import readable
from tf_robust.utils.lazy import import_extra

_TYPES = {"float": "float32", "double": "float64"}  # of ONNX, where TensorFlow has another name


def read_tflite(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads a `.tflite` file as one signature, `serving_default`; quantized inputs and outputs become floats."""
    litert = import_extra("ai_edge_litert.interpreter", "tflite")
    names: tuple[dict[int, str], ...] = ({}, {})  # {index: name} of inputs and outputs, if the file has one signature
    with readable(path, "Try: copy it or convert it again."), quiet.native_output():
        interpreter = litert.Interpreter(model_path=path)
        interpreter.allocate_tensors()
        inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
        if len(signatures := list(interpreter.get_signature_list())) == 1:
            runner = interpreter.get_signature_runner(signatures[0])
            tensors = runner.get_input_details(), runner.get_output_details()
            names = tuple({detail["index"]: name for name, detail in details.items()} for details in tensors)
    lock = threading.Lock()

    def run(batch):
        (tensor,) = inputs
        with lock:
            if tuple(interpreter.get_input_details()[0]["shape"]) != batch.shape:
                interpreter.resize_tensor_input(tensor["index"], batch.shape)
                interpreter.allocate_tensors()
            interpreter.set_tensor(tensor["index"], _quantized(batch, tensor))
            interpreter.invoke()
            return [_dequantized(interpreter.get_tensor(output["index"]), output) for output in outputs]

    specs = (_tflite_specs(details, by_index) for details, by_index in zip((inputs, outputs), names))
    return {"serving_default": _signature(run, *specs)}, interpreter


def _tflite_specs(details, names):
    return {
        names.get(detail["index"], detail["name"]): tf.TensorSpec(
            [None if size == -1 else int(size) for size in detail["shape_signature"]],
            tf.float32 if detail["quantization"][0] else tf.as_dtype(detail["dtype"]),
        )
        for detail in details
    }


def _quantized(values, detail):
    """The integers of a tensor with quantized values; others as they are."""
    scale, zero_point = detail["quantization"]
    if not scale:
        return values
    limits = np.iinfo(detail["dtype"])
    return np.clip(np.round(values / scale + zero_point), limits.min, limits.max).astype(detail["dtype"])


def _dequantized(values, detail):
    scale, zero_point = detail["quantization"]
    return (values.astype(np.float32) - zero_point) * np.float32(scale) if scale else values


def read_onnx(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads an `.onnx` file as one signature, `serving_default`.

    Images are transposed to channels first if the shape of its input says so, or if it does not state channels and the model does not fail.
    """
    runtime = import_extra("onnxruntime", "onnx")
    with readable(path, "Try: copy it or export it again, with its .data file if it has one."):
        options = runtime.SessionOptions()
        # threads that wait in a loop for the next batch would take the cores from those that prepare it
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs, outputs = (dict(map(_onnx_spec, tensors)) for tensors in (session.get_inputs(), session.get_outputs()))
    shapes = [spec.shape for spec in inputs.values()]
    is_unknown = all(shape.rank == 4 and shape[1] is None and shape[3] is None for shape in shapes)  # where the channels are
    known: list[Axes] = [] if is_unknown else [(0, 1, 2, 3)]

    def run(batch):
        (name,) = inputs
        return run_in_layout(lambda axes: session.run(None, {name: np.ascontiguousarray(batch.transpose(axes))}), known)

    return {"serving_default": _signature(run, inputs, outputs, lambda: _onnx_float_type(path))}, session


def _onnx_float_type(path):
    """The narrowest type of the weights; float32 if the package onnx is not installed."""
    try:
        onnx = importlib.import_module("onnx")
    except ImportError:
        return tf.float32
    types = {tensor.data_type for tensor in onnx.load(path, load_external_data=False).graph.initializer}
    narrow = {onnx.TensorProto.BFLOAT16: tf.bfloat16, onnx.TensorProto.FLOAT16: tf.float16}
    return next((kind for number, kind in narrow.items() if number in types), tf.float32)


def _onnx_spec(tensor):
    """(name, TensorSpec); symbolic sizes are unknown ones."""
    kind = tensor.type.removeprefix("tensor(").removesuffix(")")
    shape = [size if isinstance(size, int) else None for size in tensor.shape]
    return tensor.name, tf.TensorSpec(shape, tf.as_dtype(_TYPES.get(kind, kind)))


def _signature(
    run: Callable[[np.ndarray], list[np.ndarray]],
    inputs: dict[str, tf.TensorSpec],
    outputs: dict[str, tf.TensorSpec],
    float_type: Callable[[], tf.DType] = lambda: tf.float32,
) -> Signature:
    """Returns the signature of a model that computes on NumPy arrays. run: batch of the only input -> list of outputs.

    With a fixed batch size in the input, batches are divided and the last part is padded.
    """
    if len(inputs) != 1:
        return Signature(lambda **_: {}, inputs, outputs)
    ((name, spec),) = inputs.items()
    size = spec.shape[0] if spec.shape.rank else None
    given, specs = (
        {key: tf.TensorSpec([None, *one.shape[1:]] if one.shape.rank else one.shape, one.dtype, key) for key, one in tensors.items()}
        for tensors in (inputs, outputs)
    )

    def run_parts(batch):
        parts = np.split(batch, range(size, len(batch), size)) if size else [batch]
        if size:
            parts[-1] = np.concatenate([parts[-1], np.zeros([size - len(parts[-1]), *batch.shape[1:]], batch.dtype)])
        return [np.concatenate(results)[: len(batch)] for results in zip(*map(run, parts), strict=True)]

    def call(**images):
        if tf.executing_eagerly():  # errors are those of the runtime
            results = [tf.convert_to_tensor(one) for one in run_parts(np.asarray(images[name]))]
        else:
            results = tf.numpy_function(run_parts, [images[name]], [spec.dtype for spec in specs.values()])
            results = results if isinstance(results, (list, tuple)) else [results]  # one type in the list: one tensor
        return {key: tf.ensure_shape(result, spec.shape) for (key, spec), result in zip(specs.items(), results, strict=True)}

    return Signature(call, given, specs, has_graph=False, float_type=float_type)
