"""The formats of models, `FORMATS`: how their names or files end and begin, and how they are read and written.

A format of your own is one entry, which every command reads:

    def read(path, trust):
        function = my_package.load(path)  # float32 [N, H, W, C] -> [N, classes]
        return {"serving_default": Signature(...)}, function

    FORMATS["mine"] = Format(read, suffixes=(".mine",), gradients=False, graph=False)
    tfr.evaluate("model.mine", data="cifar10")

Optional packages are imported when a model is read or written. Importing this module does not import TensorFlow. SavedModels are
programs that run with their user's rights: load only those that you trust.
"""

import dataclasses
import os
import typing
from collections.abc import Callable

from tf_robust.utils.lazy import lazy

if typing.TYPE_CHECKING:
    from tf_robust.saved_models.signatures import Signature

    Reader = Callable[[str, bool], tuple[dict[str, Signature], object]]

__all__ = ["FORMATS", "Format"]


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of models.

    Attributes:
        reader: (path, or the name after the prefix; trust) -> ({name: `Signature`}, the object that holds the weights). `call` of a
            `Signature` works inside tf.function and, with gradients, in tf.GradientTape.
        suffixes: of its files, in lower case.
        marker: file in its folders.
        prefix: of the names of models that are not files: PREFIX:NAME.
        gradients: whether scores have gradients with respect to the images.
        graph: whether the model is a TensorFlow graph, which can be converted.
        converted: whether `conversion` makes a Keras model of it, which can be trained and converted.
        file: name of the file that `export` writes; empty: it is not written.
        writer: (name of the format, `Deployable`, path, card, calibration images or None, `Fit` or None) writes a model; see
            `export.write`.
        runtime: (path, images float32 [1, H, W, C]) -> function that computes the scores, whose latency is measured; None: TensorFlow.
        quantized: whether ranges of integers are calibrated on training images.
        float32: whether the file keeps all digits of the weights.
        extra: of this package, which installs `packages`.
        packages: modules that write and run the format.

    Examples:
        >>> from tf_robust.saved_models.formats import FORMATS
        >>> FORMATS["onnx"].suffixes, FORMATS["onnx"].gradients, FORMATS["onnx"].converted
        (('.onnx',), False, True)
        >>> sorted(name for name, one in FORMATS.items() if one.quantized)
        ['tflite_int8']
    """

    reader: "Reader"
    suffixes: tuple[str, ...] = ()
    marker: str = ""
    prefix: str = ""
    gradients: bool = True
    graph: bool = True
    converted: bool = False
    file: str = ""
    writer: Callable[..., None] | None = None
    runtime: Callable[..., Callable[[], object]] | None = None
    quantized: bool = False
    float32: bool = True
    extra: str = ""
    packages: tuple[str, ...] = ()


def _function(name):
    return lazy(f"tf_robust.saved_models.{name}")


_TFLITE = Format(
    _function("formats.converted_files:read_tflite"),
    suffixes=(".tflite",),
    gradients=False,
    graph=False,
    file="model.tflite",
    writer=_function("export:write_tflite"),
    runtime=_function("latency:litert"),
    extra="tflite",
    packages=("ai_edge_litert",),
)
FORMATS: dict[str, Format] = {
    "savedmodel": Format(
        _function("formats.saved_model_folder:read"),
        marker="saved_model.pb",
        file="saved_model",
        writer=_function("export:write_saved_model"),
    ),
    "keras": Format(
        _function("formats.keras_files:read_archive"), suffixes=(".keras",), file="model.keras", writer=_function("export:write_keras")
    ),
    "hdf5": Format(_function("formats.keras_files:read_hdf5"), suffixes=(".h5", ".hdf5")),
    "tflite": _TFLITE,
    "tflite_float16": dataclasses.replace(_TFLITE, file="model_float16.tflite", float32=False),
    "tflite_int8": dataclasses.replace(_TFLITE, file="model_int8.tflite", float32=False, quantized=True),
    "onnx": Format(
        _function("formats.converted_files:read_onnx"),
        suffixes=(".onnx",),
        gradients=False,
        graph=False,
        converted=True,
        file="model.onnx",
        writer=_function("export:write_onnx"),
        runtime=_function("latency:onnx"),
        extra="onnx",
        packages=("onnx", "onnxruntime", "tf2onnx"),
    ),
    "torch": Format(
        _function("formats.torch_models:read"),
        suffixes=(".pt", ".pth", ".torchscript", ".pt2"),
        graph=False,
        converted=True,
        extra="torch",
        packages=("torch",),
    ),
    "zoo": Format(_function("formats.keras_files:read_pretrained"), prefix="zoo"),
    "applications": Format(_function("formats.keras_files:read_application"), prefix="applications"),
    "keras_hub": Format(
        _function("formats.keras_files:read_preset"), prefix="keras_hub", marker="task.json", extra="keras_hub", packages=("keras_hub",)
    ),
}


def files() -> dict[str, str]:
    """Returns {format: name of its file} of the formats that `export` writes."""
    return {name: one.file for name, one in FORMATS.items() if one.file}


def suffixes() -> tuple[str, ...]:
    """Returns the suffixes of model files."""
    return tuple(dict.fromkeys(suffix for one in FORMATS.values() for suffix in one.suffixes))


def prefixes() -> tuple[str, ...]:
    """Returns the prefixes of names of models."""
    return tuple(one.prefix for one in FORMATS.values() if one.prefix)


def format_of(path: str | os.PathLike) -> Format | None:
    """Returns the format of PREFIX:NAME, of a folder with its marker, or of a file with its suffix; None: none of these."""
    path = os.fspath(path)
    prefix, _, name = path.partition(":")
    if name and prefix in prefixes():
        fits = [one for one in FORMATS.values() if one.prefix == prefix]
    elif os.path.isdir(path):
        fits = [one for one in FORMATS.values() if one.marker and os.path.isfile(os.path.join(path, one.marker))]
    else:
        fits = [one for one in FORMATS.values() if os.path.splitext(path)[1].lower() in one.suffixes]
    return fits[0] if fits else None


def read(path: str | os.PathLike, trust: bool = False) -> "tuple[str, dict[str, Signature], object]":
    """Reads a model: (path of the model's folder or file itself, {name: `Signature`}, the object that holds the weights).

    path: a folder or file of a known format, a folder with a SavedModel folder `saved_model` in it, or PREFIX:NAME. trust: run the Python
    code in the model's file (Lambda layers of Keras).
    """
    path = os.fspath(path)
    prefix, _, name = path.partition(":")
    found = format_of(path)
    if found and prefix == found.prefix != "":
        return (path, *found.reader(name, trust))
    expected = (
        f"Expected a SavedModel folder (with saved_model.pb), a file *{', *'.join(suffixes())}, a workdir with saved_model/, "
        f"{', '.join(f'{one}:NAME' for one in prefixes())} or module:function."
    )
    if not os.path.exists(path):
        raise FileNotFoundError(f"{expected} Not found: {path!r}")
    if found is None and os.path.isdir(path):
        inner = os.path.join(path, "saved_model")
        if (found := format_of(inner)) is None:
            entries = sorted(os.listdir(path))
            below = [folder for folder in (os.path.join(path, one) for one in entries) if _is_model_folder(folder)]
            advice = f" Did you mean {below[-1]}?" if below else ""
            raise FileNotFoundError(f"{expected} Received: {path}, a folder with: {', '.join(entries[:10]) or 'nothing'}.{advice}")
        path = inner
    if found is None:
        raise ValueError(f"{expected} Received: {path}, which is not one of these. Try: the folder of a SavedModel")
    return (path, *found.reader(path, trust))


def _is_model_folder(folder):
    return os.path.isdir(folder) and bool(format_of(folder) or format_of(os.path.join(folder, "saved_model")))


def is_function(path: str | os.PathLike) -> bool:
    """Returns whether a path is no file but `module:function`."""
    module, _, function = os.fspath(path).partition(":")
    parts = [*module.split("."), function]
    return not os.path.exists(path) and module not in prefixes() and all(part.isidentifier() for part in parts)


def check_convertible(path: str) -> None:
    """Raises ValueError if a model was converted already, to a format without a TensorFlow graph that `conversion` does not read."""
    if (found := format_of(path)) and not found.graph and not found.converted:
        raise ValueError(
            "Expected a model that can be converted: the workdir of a run, a SavedModel, a Keras, ONNX or PyTorch file or zoo:NAME. "
            f"Received: {path}. Try: the float model that it was made of"
        )


def size(path: str) -> int:
    """Returns the bytes of a file, or of a SavedModel folder without the weights and the card beside its graph."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    variables = os.path.join(path, "variables")
    needed = [os.path.join(path, "saved_model.pb"), *(os.path.join(variables, name) for name in os.listdir(variables))]
    return sum(map(os.path.getsize, needed))
