"""Reads Keras models: `.keras` archives and HDF5 files. Python code in them (Lambda layers) runs only if they are trusted."""

import json
import zipfile
from collections.abc import Iterator

import h5py
import keras
import tensorflow as tf

from tf_robust import models
from tf_robust.models.folded_batch_norms import folded_batch_norms
from tf_robust.saved_models.formats.reading import readable
from tf_robust.saved_models.signatures import BEFORE_SOFTMAX, Signature

_ADVICE = (
    "Try: copy it again; or, with the code of its custom classes, write a SavedModel by model.export(DIR), and load that; "
    "keras_hub models are read from their preset folder."
)
_UNNAMED = ("Functional", "__keras_tensor__")  # classes of Keras without a public name


def read_archive(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads a `.keras` file as one signature, `serving_default`, as in Keras' `export`.

    Args:
        path: of the file.
        trust: run Lambda layers.

    Raises:
        ValueError: it is damaged, or contains Python code and is not trusted.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"Expected a .keras archive (a zip file). Received: {path}, which is not a complete .keras archive. Try: copy it again"
        )
    with readable(path, _ADVICE), zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
    return _load(path, config, trust)


def read_hdf5(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads a whole model in HDF5, as `model.save("model.h5")` writes it. Arguments as in `read_archive`.

    Raises:
        ValueError: it is damaged, has only weights, or contains Python code and is not trusted.
    """
    with readable(path, _ADVICE), h5py.File(path) as file:
        config = file.attrs.get("model_config")
    if config is None:
        raise ValueError(
            f"Expected a whole model in {path}, as model.save writes it. Received: weights only. "
            "Try: load them into the model in Keras and save that as .keras"
        )
    return _load(path, json.loads(config), trust)


def keras_signature(model: keras.Model) -> Signature:
    """Returns the `Signature` of a built keras.Model in inference mode, as in Keras' `export`.

    Its `call` also returns the logits of outputs that end with a softmax, named with `BEFORE_SOFTMAX`.
    """
    structure = getattr(model, "input", model.inputs[0])  # as the model was built: a tensor, or a dictionary of tensors
    before = {}
    if models.is_graph(model):
        scores = getattr(model, "output", model.outputs[0])
        found = {name: models.before_softmax(tensor) for name, tensor in _by_name(scores).items() if len(tensor.shape) == 2}
        before = {name + BEFORE_SOFTMAX: logits for name, logits in found.items() if logits is not None}
    network = keras.Model(structure, [scores, before]) if before else model
    specs = {x.name: tf.TensorSpec(x.shape, x.dtype, x.name) for x in model.inputs}

    def serve(*tensors):
        with folded_batch_norms():
            result = network(keras.tree.pack_sequence_as(structure, tensors), training=False)
        outputs, logits = result if before else (result, {})
        return {**_by_name(outputs), **logits}

    function = tf.function(serve, input_signature=list(specs.values()))
    outputs = {name: spec for name, spec in function.get_concrete_function().structured_outputs.items() if name not in before}
    return Signature(lambda **named: function(*named.values()), specs, outputs)


def _by_name(outputs):
    return outputs if isinstance(outputs, dict) else {f"output_{i}": tensor for i, tensor in enumerate(keras.tree.flatten(outputs))}


def _load(path, config, trust):
    if not trust and "Lambda" in _class_names(config):  # also checked here: old versions of Keras run those of HDF5 files
        raise ValueError(
            f"Expected a model that can be loaded. Received: {path}: it contains Python code (a Lambda layer), which is not run. "
            "Try: --trust, if you trust the file; or write a SavedModel by model.export(DIR), and load that."
        )
    with readable(path, _custom_classes(config) or _ADVICE):
        model = keras.saving.load_model(path, compile=False, safe_mode=not trust)
        if not getattr(model, "inputs", None):
            raise ValueError("its inputs are unknown (a subclass of keras.Model)")
        return {"serving_default": keras_signature(model)}, model


def _custom_classes(config):
    """Advice for a model with classes that Keras does not know; empty: there are none."""
    names = sorted({name for name in _custom_names(config) if keras.saving.get_registered_object(name) is None})
    if not names:
        return ""
    objects = ", ".join(f"'{name}': {name.rpartition('>')[2]}" for name in names)
    return (
        f"It has custom classes: {', '.join(names)}. Try: MODULE:FUNCTION, a function of your code that returns "
        f"keras.saving.load_model(FILE, custom_objects={{{objects}}}); or a SavedModel, written by model.export(DIR)."
    )


def _custom_names(config: object) -> Iterator[str]:
    """Yields the names of the classes in a configuration that are not of Keras; HDF5 files do not state the modules of layers."""
    if isinstance(config, dict) and "config" in config:
        name = str(config.get("class_name", ""))
        if config.get("registered_name") and not str(config.get("module")).startswith("keras."):
            yield str(config["registered_name"])
        elif "module" not in config and name not in _UNNAMED and not (hasattr(keras.layers, name) or hasattr(keras, name)):
            yield name
    for value in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
        yield from _custom_names(value)


def _class_names(config: object) -> Iterator[str]:
    """Yields all class names in a configuration."""
    if isinstance(config, dict):
        yield str(config.get("class_name", ""))
    for value in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
        yield from _class_names(value)
