"""Reads ONNX models by ONNX Runtime. They have no gradients."""

import dataclasses
import importlib

import numpy as np
import tensorflow as tf

from tf_robust.saved_models.signatures import Axes, Signature, numpy_signature, run_in_layout
from tf_robust.utils.errors import readable
from tf_robust.utils.lazy import import_extra

_TYPES = {"float": "float32", "double": "float64"}  # where TensorFlow has another name


def read(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads an `.onnx` file as one signature, `serving_default`.

    Images are transposed to channels first if the shape of its input says so, or if it does not state channels and the model does not fail.
    """
    runtime = import_extra("onnxruntime", "onnx")
    with readable(path, "Try: copy it or export it again, with its .data file if it has one."):
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        inputs, outputs = (dict(map(_spec, tensors)) for tensors in (session.get_inputs(), session.get_outputs()))
    shapes = [spec.shape for spec in inputs.values()]
    is_unknown = all(shape.rank == 4 and shape[1] is None and shape[3] is None for shape in shapes)  # where the channels are
    known: list[Axes] = [] if is_unknown else [(0, 1, 2, 3)]

    def run(batch):
        (name,) = inputs
        return run_in_layout(lambda axes: session.run(None, {name: np.ascontiguousarray(batch.transpose(axes))}), known)

    signature = numpy_signature(run, inputs, outputs)
    return {"serving_default": dataclasses.replace(signature, float_type=lambda: _float_type(path))}, session


def _float_type(path):
    """The narrowest type of the weights; float32 if the package onnx is not installed."""
    try:
        onnx = importlib.import_module("onnx")
    except ImportError:
        return tf.float32
    types = {tensor.data_type for tensor in onnx.load(path, load_external_data=False).graph.initializer}
    narrow = {onnx.TensorProto.BFLOAT16: tf.bfloat16, onnx.TensorProto.FLOAT16: tf.float16}
    return next((kind for number, kind in narrow.items() if number in types), tf.float32)


def _spec(tensor):
    """(name, TensorSpec); symbolic sizes are unknown ones."""
    kind = tensor.type.removeprefix("tensor(").removesuffix(")")
    shape = [size if isinstance(size, int) else None for size in tensor.shape]
    return tensor.name, tf.TensorSpec(shape, tf.as_dtype(_TYPES.get(kind, kind)))
