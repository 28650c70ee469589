"""Models of any format: one reader per format, chosen by the name of the model.

A reader is a function (path or name, trust) -> ({name: `Signature`}, the object that holds the weights). It imports an optional
package only when it is called. SavedModels are programs that run with their user's rights: load only those that you trust.
"""

import os
from collections.abc import Callable

from tf_robust.saved_models.formats import keras_files, named_models, onnx_file, saved_model_folder, tflite_file, torchscript_file
from tf_robust.saved_models.signatures import Signature

Reader = Callable[[str, bool], tuple[dict[str, Signature], object]]

PREFIXES: dict[str, Reader] = {
    "zoo": named_models.read_pretrained,
    "applications": named_models.read_application,
    "keras_hub": named_models.read_preset,
}
FOLDERS: dict[str, Reader] = {"saved_model.pb": saved_model_folder.read, "task.json": named_models.read_preset}  # {file in it: reader}
FILES: dict[str, Reader] = {
    ".keras": keras_files.read_archive,
    ".h5": keras_files.read_hdf5,
    ".hdf5": keras_files.read_hdf5,
    ".tflite": tflite_file.read,
    ".onnx": onnx_file.read,
    ".pt": torchscript_file.read,
    ".pth": torchscript_file.read,
    ".torchscript": torchscript_file.read,
}


def read(path: str | os.PathLike, trust: bool = False) -> tuple[str, dict[str, Signature], object]:
    """Reads the signatures of a model.

    Args:
        path: a SavedModel folder, a preset folder of keras_hub, a file of a known format, a folder with a SavedModel folder
            `saved_model` in it, or PREFIX:NAME.
        trust: run the Python code in the model's file (Lambda layers of Keras).

    Returns:
        (path of the model's folder or file itself, {name: `Signature`}, the object that holds the weights).

    Raises:
        FileNotFoundError: there is no model.
        ValueError: it cannot be loaded.
    """
    path = os.fspath(path)
    prefix, _, name = path.partition(":")
    if prefix in PREFIXES:
        return (path, *PREFIXES[prefix](name, trust))
    if found := _in_folder(path):
        folder, reader = found
        return (folder, *reader(folder, trust))
    if os.path.isdir(path):
        raise FileNotFoundError(f"{_expected()} Received: {path}, a folder with: {_content(path)}")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{_expected()} Not found: {path!r}")
    file_reader = FILES.get(os.path.splitext(path)[1].lower())
    if not file_reader:
        raise ValueError(f"{_expected()} Received: {path}, which is not one of these. Try: the folder of a SavedModel")
    return (path, *file_reader(path, trust))


def is_function(path: str | os.PathLike) -> bool:
    """Returns whether a path is no file but `module:function`."""
    module, _, function = os.fspath(path).partition(":")
    parts = [*module.split("."), function]
    return not os.path.exists(path) and module not in PREFIXES and all(part.isidentifier() for part in parts)


def _expected():
    names = ", ".join(f"{prefix}:NAME" for prefix in PREFIXES)
    return (
        f"Expected a SavedModel folder (with saved_model.pb), a file *{', *'.join(FILES)}, a workdir with saved_model/, "
        f"{names} or module:function."
    )


def _in_folder(path):
    """(folder of a model, its reader) for the folder or its subfolder `saved_model`; None if there is no model."""
    for folder in (path, os.path.join(path, "saved_model")):
        for name, reader in FOLDERS.items():
            if os.path.isfile(os.path.join(folder, name)):
                return folder, reader
    return None


def _content(path):
    """The names of the files in a folder, and advice if one of them is a model."""
    names = sorted(os.listdir(path))
    below = [name for name in names if _in_folder(os.path.join(path, name))]
    return f"{', '.join(names[:10]) or 'nothing'}.{f' Did you mean {os.path.join(path, below[-1])}?' if below else ''}"
