"""Formats of deployment: the file of each, and the packages that write and run it. Importing this module does not import TensorFlow."""

import os

FILES = {
    "savedmodel": "saved_model",
    "keras": "model.keras",
    "tflite": "model.tflite",
    "tflite_float16": "model_float16.tflite",
    "tflite_int8": "model_int8.tflite",
    "onnx": "model.onnx",
}
QUANTIZED = ("tflite_int8",)  # formats that need images to calibrate the ranges of integers on
FLOAT32 = ("savedmodel", "keras", "tflite", "onnx")  # formats that keep all digits of the weights
WITH_GRADIENTS = ("savedmodel", "keras")  # formats that attacks with gradients can be computed on
_PACKAGES = {"tflite": ("tflite", ("ai_edge_litert",)), "onnx": ("onnx", ("onnx", "onnxruntime", "tf2onnx"))}
_WITHOUT_GRAPH = (".tflite", ".onnx", ".pt", ".pth", ".torchscript")  # models that compute outside of TensorFlow


def packages(name: str) -> tuple[str, tuple[str, ...]]:
    """Returns the extra of this package that a format needs, and its packages; empty ones if it needs none.

    Args:
        name: one of `FILES`.
    """
    return _PACKAGES.get(name.partition("_")[0], ("", ()))


def check_convertible(path: str) -> None:
    """Raises ValueError if a model was converted already, to a format without a TensorFlow graph."""
    if os.path.splitext(path)[1].lower() in _WITHOUT_GRAPH:
        raise ValueError(
            "Expected a model that can be converted: the workdir of a run, a SavedModel, a Keras file or zoo:NAME. "
            f"Received: {path}. Try: the float model that it was made of"
        )


def size(path: str) -> int:
    """Returns the bytes of a file, or of a SavedModel folder without the weights and the card beside its graph."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    variables = os.path.join(path, "variables")
    needed = [os.path.join(path, "saved_model.pb"), *(os.path.join(variables, name) for name in os.listdir(variables))]
    return sum(map(os.path.getsize, needed))
