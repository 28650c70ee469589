"""Reads TensorFlow Lite models by LiteRT. They have no gradients."""

import threading

import numpy as np
import tensorflow as tf

from tf_robust.saved_models.signatures import Signature, numpy_signature
from tf_robust.utils import quiet
from tf_robust.utils.errors import readable
from tf_robust.utils.lazy import import_extra


def read(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads a `.tflite` file as one signature, `serving_default`; quantized inputs and outputs become floats."""
    litert = import_extra("ai_edge_litert.interpreter", "tflite")
    names: tuple[dict[int, str], ...] = (
        {},
        {},
    )  # of inputs and outputs by index, if the file has one signature; tensors without a name there have their own
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

    signature = numpy_signature(run, *(_specs(details, by_index) for details, by_index in zip((inputs, outputs), names)))
    return {"serving_default": signature}, interpreter


def _specs(details, names):
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
