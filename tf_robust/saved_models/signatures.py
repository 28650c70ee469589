"""Readers of model files of all kinds, as signatures: names and types of input and output tensors, and how to call the model.

A SavedModel is a program that runs with its user's rights: load only those that you trust. `.keras` files are read in Keras'
safe mode, which runs no Python code from the file.
"""

import contextlib
import dataclasses
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping

import keras
import tensorflow as tf

OUTPUTS = ("logits", "probabilities")


@dataclasses.dataclass(frozen=True)
class Signature:
    """One way to call a model.

    Attributes:
        call: function of keyword arguments named after the inputs -> {name: tensor}.
        inputs: {name: TensorSpec}.
        outputs: {name: TensorSpec}.
    """

    call: Callable[..., dict[str, tf.Tensor]]
    inputs: dict[str, tf.TensorSpec]
    outputs: dict[str, tf.TensorSpec]

    def __str__(self) -> str:
        return f"{described(self.inputs)} -> {described(self.outputs)}"

    def misfit(self) -> str:
        """Returns why this does not take a batch of images [N, H, W, C]; empty if it does."""
        if len(self.inputs) != 1:
            return f"takes {len(self.inputs)} tensors, not one"
        (spec,) = self.inputs.values()
        shape = spec.shape
        if spec.dtype == tf.string:
            return "takes strings (encoded images?), not pixels"
        if not spec.dtype.is_floating and spec.dtype != tf.uint8:
            return f"takes {spec.dtype.name}, neither floats nor uint8"
        if shape.rank is None:
            return ""
        if shape.rank != 4:
            return f"takes tensors of rank {shape.rank}, not 4"
        if shape[1] in (1, 3) and shape[3] not in (1, 3):
            return "takes channels first (NCHW), which is not supported: transpose inside the model and export it again"
        if shape[0] is not None:
            return f"takes exactly {shape[0]} images at a time: export it with a free batch size (None)"
        return ""

    def output(self, kind: str) -> str:
        """Returns the name of the output with logits or probabilities: the output of that name, or else the only one.

        Args:
            kind: logits or probabilities.

        Raises:
            ValueError: there is no such output, or it is not float [N, classes].
        """
        name = kind if kind in self.outputs else next(iter(self.outputs), "")
        other = OUTPUTS[1 - OUTPUTS.index(kind)]
        if name == other or (name != kind and len(self.outputs) != 1):
            advice = f" For {other!r}, pass --outputs={other}." if other in self.outputs else ""
            raise ValueError(f"Expected an output named {kind!r}, or only one output. Received: {described(self.outputs)}.{advice}")
        spec = self.outputs[name]
        classes = spec.shape[1] if spec.shape.rank == 2 else None
        if not spec.dtype.is_floating or spec.shape.rank not in (None, 2) or classes in (0, 1):
            raise ValueError(f"Expected {kind} as floats [N, classes], at least 2 classes. Received: {described({name: spec})}")
        return name


def read(path: str | os.PathLike) -> tuple[str, dict[str, Signature], object]:
    """Reads the signatures of a model.

    Args:
        path: a SavedModel folder, a `.keras` file, or a folder with a SavedModel folder `saved_model` in it.

    Returns:
        (path of the SavedModel folder or `.keras` file itself, {name: `Signature`}, the object that holds the weights).

    Raises:
        FileNotFoundError: there is no model.
        ValueError: it cannot be loaded.
    """
    path = _model_path(os.fspath(path))
    signatures, loaded = (_saved_model if os.path.isdir(path) else _keras_file)(path)
    return path, signatures, loaded


def listed(signatures: Mapping[str, Signature]) -> str:
    """Returns all signatures with their inputs and outputs, one per line."""
    lines = "".join(f"\n  {name}: {signature}" for name, signature in signatures.items())
    return f"Its signatures:{lines}" if lines else "It has none: save it with signatures={'serving_default': ...}."


def described(specs: Mapping[str, tf.TensorSpec]) -> str:
    """Returns name, type and shape of each TensorSpec as text."""
    return ", ".join(f"{name} {spec.dtype.name} {shape_text(spec.shape)}" for name, spec in specs.items()) or "nothing"


def shape_text(shape: tf.TensorShape) -> str:
    """Returns a shape as text."""
    return "of any shape" if shape.rank is None else str(shape.as_list())


def _model_path(path: str) -> str:
    if folder := _saved_model_folder(path):
        return folder
    expected = "Expected a SavedModel folder (with saved_model.pb), a .keras file, or a workdir with saved_model/."
    if os.path.isdir(path):
        names = sorted(os.listdir(path))
        below = [name for name in names if _saved_model_folder(os.path.join(path, name))]
        advice = f" Did you mean {os.path.join(path, below[-1])}?" if below else ""
        inside = ", ".join(names[:10]) or "nothing"
        raise FileNotFoundError(f"{expected} Received: {path}, a folder with: {inside}.{advice}")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{expected} Not found: {path!r}")
    if not (path.endswith(".keras") and zipfile.is_zipfile(path)):
        raise ValueError(
            f"{expected} Received: {path}, which is not a complete .keras archive (a zip file). "
            "Try: the folder of a SavedModel; for an HDF5 model, load it in Keras and save it as .keras."
        )
    return path


def _saved_model_folder(path: str) -> str | None:
    return next((folder for folder in (path, os.path.join(path, "saved_model")) if tf.saved_model.contains_saved_model(folder)), None)


def _saved_model(path: str) -> tuple[dict[str, Signature], object]:
    with _readable(path, "Try: copy it or export it again."):
        loaded = tf.saved_model.load(path)
        return {
            name: Signature(call, call.structured_input_signature[1], call.structured_outputs) for name, call in loaded.signatures.items()
        }, loaded


def _keras_file(path: str) -> tuple[dict[str, Signature], object]:
    """The model with one signature, `serving_default`, as in Keras' `export`."""
    with _readable(
        path,
        "Try: copy it again; or, with the code of its custom classes and Lambda layers, write a SavedModel by "
        "model.export(DIR), and load that.",
    ):
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
        if not getattr(model, "inputs", None):
            raise ValueError("its inputs are unknown (a subclass of keras.Model)")
        return {"serving_default": keras_signature(model)}, model


def keras_signature(model: keras.Model) -> Signature:
    """Returns the `Signature` of a built keras.Model in inference mode, as in Keras' `export`."""
    structure = getattr(model, "input", model.inputs[0])  # as the model was built: a tensor, or a dictionary of tensors
    specs = {x.name: tf.TensorSpec(x.shape, x.dtype, x.name) for x in model.inputs}

    def serve(*tensors):
        result = model(keras.tree.pack_sequence_as(structure, tensors), training=False)
        return result if isinstance(result, dict) else {f"output_{i}": tensor for i, tensor in enumerate(keras.tree.flatten(result))}

    function = tf.function(serve, input_signature=list(specs.values()))
    outputs = function.get_concrete_function().structured_outputs
    return Signature(lambda **named: function(*named.values()), specs, outputs)


@contextlib.contextmanager
def _readable(path: str, advice: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # damaged files raise OSError, ValueError, KeyError, IndexError, RuntimeError, ...
        text = " ".join(str(error).split())
        text = text if len(text) < 500 else f"{text[:200]} ... {text[-300:]}"  # long messages of Keras end with the cause
        reason = f"{text} ({type(error).__name__})"
        if "safe_mode" in str(error):
            reason = "it contains Python code (a Lambda layer), which is not run"
        raise ValueError(f"Expected a model that can be loaded. Received: {path}: {reason}. {advice}") from error
