"""Writes a hardened model as the same kind as it came: a Keras file, or a SavedModel folder with the same signatures."""

import os
import shutil
import tempfile

import numpy as np
import tensorflow as tf

from tf_robust.hardening.trainable import TrainableModel, is_saved_model
from tf_robust.models import weights
from tf_robust.saved_models import formats
from tf_robust.utils.files import atomic_file, atomic_folder, disk_is_full, storable

KERAS = (*formats.FORMATS["keras"].suffixes, *formats.FORMATS["hdf5"].suffixes)
# files of a SavedModel folder that depend on its weights or graph; others, such as card.json, are copied
_WRITTEN = ("saved_model.pb", "fingerprint.pb", "keras_metadata.pb", "variables", "assets", weights.FILE)


def suffix_of(start: TrainableModel) -> str:
    """Returns how the path of the hardened model ends: with the suffix of the initial model's file; empty for a SavedModel folder."""
    suffix = os.path.splitext(start.classifier.path)[1].lower()
    if is_saved_model(start.classifier):
        return ""
    return suffix if suffix in KERAS and os.path.isfile(start.classifier.path) else KERAS[0]


def save(start: TrainableModel, path: str | os.PathLike) -> str:
    """Writes the model with its current weights, atomically, and returns the path with its suffix.

    Args:
        start: the model, with the weights of the hardened one.
        path: of the Keras file or the SavedModel folder; the suffix may be omitted. An older model of this path is replaced.

    Raises:
        ValueError: the suffix is that of another format, or Keras cannot write the model.
        FileExistsError: the path is that of something else than a model.
        OSError: the model cannot be written; nothing is left of it.
    """
    path = _with_suffix(os.fspath(path), suffix_of(start))
    _check_replaceable(path, is_saved_model(start.classifier))
    try:
        if is_saved_model(start.classifier):
            _write_saved_model(start, path)
        else:
            _write_keras_file(start, path)
    except (OSError, tf.errors.OpError) as error:
        reason = "the disk is full" if disk_is_full(error) else " ".join(str(error).split())
        raise OSError(
            f"Expected to write the model to {path}. Received: {reason}. Nothing was written. Try: free disk space, or save to another path"
        ) from error
    return path


def _with_suffix(path: str, suffix: str) -> str:
    given = os.path.splitext(path)[1].lower()
    if given in formats.suffixes() and given != suffix and {given, suffix} != {".h5", ".hdf5"}:
        expected = f"a path that ends with {suffix}, as a Keras file does" if suffix else "a folder: the initial model is a SavedModel"
        raise ValueError(f"Expected {expected}. Received: {path}. Try: {os.path.splitext(path)[0]}{suffix}")
    return path if given in formats.suffixes() else path + suffix


def _check_replaceable(path, is_folder):
    replaceable = os.path.isfile(os.path.join(path, "saved_model.pb")) if is_folder else os.path.isfile(path)
    if os.path.lexists(path) and not replaceable and not (is_folder and os.path.isdir(path) and not os.listdir(path)):
        kind = "SavedModel folder" if is_folder else "file"
        raise FileExistsError(f"Expected a path without anything, or a {kind} to replace. Received: {path}. Try: another path")


def _write_keras_file(start, path):
    """Writes a Keras file in a temporary folder first: Keras takes no open file."""
    with tempfile.TemporaryDirectory() as folder:
        complete = os.path.join(folder, f"model{os.path.splitext(path)[1].lower()}")
        try:
            start.model.save(complete)
        except (NotImplementedError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ValueError(
                f"Expected a model that Keras can save. Received: {start.classifier.path}: {reason}. "
                "Try: get_config and from_config in its custom classes"
            ) from error
        with open(complete, "rb") as file, atomic_file(path, "wb") as written:
            shutil.copyfileobj(file, written)


def _write_saved_model(start, path):
    source = start.classifier.path
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with atomic_folder(path) as folder:
        tf.saved_model.save(start.model, folder, signatures=dict(start.model.signatures) or None)
        _write_weights(source, folder, start.network.get_layer("saved_model").of_function)
        for name in set(os.listdir(source)) - set(_WRITTEN):
            copy = shutil.copytree if os.path.isdir(os.path.join(source, name)) else shutil.copyfile
            copy(os.path.join(source, name), os.path.join(folder, name))


def _write_weights(source, folder, variables):
    """Writes the weights for `models.load_encoder`, in the initial model's order; nothing if that has none, or others."""
    file = os.path.join(source, weights.FILE)
    values = {variable.value.name.removesuffix(":0"): variable.numpy() for variable in variables}
    if not os.path.exists(file):
        return
    with np.load(file) as old:
        names = {name: name.partition(":")[2] for name in sorted(old.files)}
        if len(values) == len(variables) and all(path in values and values[path].shape == old[name].shape for name, path in names.items()):
            np.savez(os.path.join(folder, weights.FILE), **{name: storable(values[path]) for name, path in names.items()})
