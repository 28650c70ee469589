"""Reads ONNX models by ONNX Runtime. They have no gradients."""

import tensorflow as tf

from tf_robust.saved_models.formats.reading import import_extra, numpy_signature, readable
from tf_robust.saved_models.signatures import Signature

_TYPES = {"float": "float32", "double": "float64"}  # where TensorFlow has another name


def read(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads an `.onnx` file as one signature, `serving_default`.

    Args:
        path: of the file.
        trust: not used: the format contains no Python code.

    Raises:
        ImportError: onnxruntime is not installed.
        ValueError: the file is damaged.
    """
    runtime = import_extra("onnxruntime", "onnx")
    with readable(path, "Try: copy it or export it again, with its .data file if it has one."):
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        inputs, outputs = (_specs(tensors) for tensors in (session.get_inputs(), session.get_outputs()))
    signature = numpy_signature(lambda batch: session.run(None, {next(iter(inputs)): batch}), inputs, outputs)
    return {"serving_default": signature}, session


def _specs(tensors):
    """{name: TensorSpec}; symbolic sizes are unknown ones."""
    return {
        tensor.name: tf.TensorSpec(
            [size if isinstance(size, int) else None for size in tensor.shape], tf.as_dtype(_TYPES.get(_type(tensor), _type(tensor)))
        )
        for tensor in tensors
    }


def _type(tensor):
    return tensor.type.removeprefix("tensor(").removesuffix(")")
