"""Reads Keras models: `.keras` archives, HDF5 files, and models by name: `zoo:NAME`, `applications:NAME` and `keras_hub:PRESET`.

Python code in files (Lambda layers) runs only if they are trusted. Models by name take images in [0, 1]: the preprocessing that belongs
to their weights is part of the signature.
"""

import contextlib
import inspect
import json
import os
import shutil
import tempfile
import typing
import warnings
import zipfile
from collections.abc import Iterator

import h5py
import keras
import tensorflow as tf

import tf_robust.layers  # noqa: F401 (registers the layers of converted models)
from tf_robust import models
from tf_robust.models.batch_norms import folded_batch_norms
from tf_robust.models.named import application_family
from tf_robust.saved_models import zoo
from tf_robust.saved_models.signatures import BEFORE_SOFTMAX, Signature
from tf_robust.utils.errors import readable
from tf_robust.utils.files import atomic_file
from tf_robust.utils.lazy import import_extra

_ADVICE = (
    "Try: copy it again; or, with the code of its custom classes, write a SavedModel by model.export(DIR), and load that; "
    "keras_hub models are read from their preset folder."
)
_ADVICE_ON_OLD = (
    "It was written by Keras {version} and cannot be read by Keras {present}. Try: load it with TensorFlow 2.15 or the package tf_keras, "
    "and write a SavedModel by tf.saved_model.save(model, DIR), which can be read."
)
_MOVED: dict[object, dict[str, object]] = {
    "Functional": {"module": "keras.src.models.functional"},
    "Model": {"module": "keras.src.models.functional", "class_name": "Functional", "registered_name": "Functional"},
    "Sequential": {"module": "keras", "registered_name": None},
}
_OF_ALL_LAYERS = ("name", "trainable", "dtype", "activity_regularizer", "batch_input_shape", "batch_shape", "input_shape", "ragged")
_UNNAMED = ("Functional", "__keras_tensor__")  # classes of Keras without a public name


def read_archive(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads a `.keras` file as one signature, `serving_default`, as in Keras' `export`. trust: run Lambda layers."""
    with readable(path, _ADVICE), zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
        metadata = json.loads(archive.read("metadata.json")) if "metadata.json" in archive.namelist() else {}
    return _load(path, config, str(metadata.get("keras_version", "")), trust)


def read_hdf5(path: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Reads a whole model in HDF5, as `model.save("model.h5")` writes it. Arguments as in `read_archive`."""
    with readable(path, _ADVICE), h5py.File(path) as file:
        config, version = file.attrs.get("model_config"), file.attrs.get("keras_version", "")
    if config is None:
        raise ValueError(f"Expected a whole model in {path}. Received: weights only. Try: load them into the model in Keras, and save that")
    return _load(path, json.loads(config), version.decode() if isinstance(version, bytes) else str(version), trust)


def read_pretrained(name: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Loads a pretrained model of this package."""
    return _with_signature(zoo.load(name))


def read_application(name: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Builds a model of `keras.applications` with its ImageNet weights, which Keras downloads once."""
    family = application_family(name)
    with readable(f"applications:{name}", "Try: connect to the internet once: Keras downloads the ImageNet weights to ~/.keras/models."):
        model = getattr(keras.applications, name)(weights="imagenet", classifier_activation=None)
    images = keras.Input(model.input_shape[1:], name="images")
    return _with_signature(keras.Model(images, model(family.preprocess_input(255 * images)), name=model.name))


def read_preset(name: str, trust: bool) -> tuple[dict[str, Signature], object]:
    """Builds an image classifier of keras_hub. name: of a preset, or the path of its folder."""
    hub = import_extra("keras_hub", "keras_hub")
    with readable(name, "Try: the name of an image classifier of keras_hub, or the folder of model.save_to_preset(FOLDER)."):
        model = hub.models.ImageClassifier.from_preset(name)
    converter = getattr(model.preprocessor, "image_converter", None)
    signature = keras_signature(model)
    ((name, spec),) = signature.inputs.items()
    if converter is None:
        return {"serving_default": Signature(lambda images: signature.call(**{name: images}), {"images": spec}, signature.outputs)}, model
    function = tf.function(lambda images: signature.call(**{name: tf.cast(converter(255 * images), spec.dtype)}))
    shape = [None, None, None, spec.shape[3]] if converter.image_size else spec.shape  # with a size it resizes
    return {"serving_default": Signature(function, {"images": tf.TensorSpec(shape, tf.float32, "images")}, signature.outputs)}, model


def _with_signature(model):
    return {"serving_default": keras_signature(model)}, model


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

    function = tf.function(serve, autograph=False, input_signature=list(specs.values()))
    outputs = {name: spec for name, spec in function.get_concrete_function().structured_outputs.items() if name not in before}
    return Signature(lambda **named: function(*named.values()), specs, outputs)


def _by_name(outputs):
    return outputs if isinstance(outputs, dict) else {f"output_{i}": tensor for i, tensor in enumerate(keras.tree.flatten(outputs))}


def compiled_as_given(model: keras.Model, path: str, trust: bool = False) -> keras.Model:
    """Compiles a model as it is in the file that it was loaded from, by `compile_like`, and returns it; unchanged without such a file."""
    if model.compiled or not os.path.isfile(path):
        return model
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # losses of the user's own, or a file of another version
        warnings.simplefilter("ignore")
        return compile_like(model, keras.saving.load_model(path, safe_mode=not trust))
    return model


def write(model: keras.Model, path: str, name: str = "") -> None:
    """Writes a Keras file, `.keras` or `.h5`, atomically; `name` is that of the model, for messages."""
    with tempfile.TemporaryDirectory() as folder:  # Keras takes no open file
        complete = os.path.join(folder, f"model{os.path.splitext(path)[1].lower()}")
        try:
            model.save(complete)
        except (NotImplementedError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ValueError(
                f"Expected a model that Keras can save. Received: {name or model.name}: {reason}. "
                "Try: get_config and from_config in its custom classes"
            ) from error
        with open(complete, "rb") as file, atomic_file(path, "wb") as written:
            shutil.copyfileobj(file, written)


def compile_like(model: keras.Model, given: keras.Model) -> keras.Model:
    """Compiles a model with the loss, metrics and optimizer of another one, whose state it does not share, and returns it.

    It stays uncompiled if the other one is, or has losses or metrics that Keras cannot copy.
    """
    with contextlib.suppress(Exception):
        if given.compiled:
            model.compile_from_config(given.get_compile_config())
    return model


def _load(path, config, version, trust):
    has_code = any(one.get("class_name") == "Lambda" for one in _dictionaries(config))
    if has_code and not trust:  # also checked here: old versions of Keras run those of HDF5 files
        raise ValueError(
            f"Expected a model that can be loaded. Received: {path}: it contains Python code (a Lambda layer), which is not run. "
            "Try: trust, if you trust the file; or write a SavedModel by model.export(DIR), and load that."
        )
    is_old = version.startswith("2.")
    advice = _ADVICE_ON_OLD.format(version=version, present=keras.__version__) if is_old else _advice_on_classes(config)
    with readable(path, advice), tempfile.TemporaryDirectory() as folder:
        file = _rewritten(path, _of_keras_3(config), folder) if is_old else path
        model = keras.saving.load_model(file, compile=False, safe_mode=not trust)
        if not getattr(model, "inputs", None):
            raise ValueError("its inputs are unknown (a subclass of keras.Model)")
        return _with_signature(model)


def _rewritten(path, config, folder):
    """A copy of a file with another configuration."""
    copy = os.path.join(folder, os.path.basename(path))
    if not zipfile.is_zipfile(path):
        shutil.copyfile(path, copy)
        with h5py.File(copy, "r+") as file:
            file.attrs["model_config"] = json.dumps(config)
        return copy
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(copy, "w") as target:
        for name in source.namelist():
            target.writestr(name, json.dumps(config) if name == "config.json" else source.read(name))
    return copy


def _of_keras_3(config: typing.Any) -> typing.Any:
    """A configuration of Keras 2 as this version reads it: modules have moved, some arguments without effect have gone, names have no /."""
    if isinstance(config, str):
        return config.replace("/", "_")
    if isinstance(config, list):
        return [_of_keras_3(one) for one in config]
    if not isinstance(config, dict):
        return config
    config = {name: _of_keras_3(value) for name, value in config.items()}
    name, arguments = config.get("class_name"), config.get("config")
    if isinstance(module := config.get("module"), str):
        config["module"] = module.removeprefix("tf_")
    if name in _MOVED and str(config.get("module", "keras.src")).startswith("keras.src"):
        config |= {key: value for key, value in _MOVED[name].items() if key in config}
    layer = getattr(keras.layers, str(name), None)
    if isinstance(arguments, dict) and isinstance(layer, type) and issubclass(layer, keras.layers.Layer):
        known = {*inspect.signature(layer).parameters, *_OF_ALL_LAYERS}
        config["config"] = {
            key: value for key, value in arguments.items() if key in known or not (value in (None, False, 1) or key.startswith("kernel_"))
        }
        if isinstance(axes := arguments.get("axis"), list) and len(axes) == 1:
            config["config"]["axis"] = axes[0]
    return config


def _advice_on_classes(config):
    """Advice for a model that cannot be loaded, with its classes that Keras does not know."""
    names = sorted({name for name in _custom_names(config) if keras.saving.get_registered_object(name) is None})
    if not names:
        return _ADVICE
    objects = ", ".join(f"'{name}': {name.rpartition('>')[2]}" for name in names)
    return (
        f"It has custom classes: {', '.join(names)}. Try: MODULE:FUNCTION, a function of your code that returns "
        f"keras.saving.load_model(FILE, custom_objects={{{objects}}}); or a SavedModel, written by model.export(DIR)."
    )


def _custom_names(config: object) -> Iterator[str]:
    """Yields the names of the classes in a configuration that are not of Keras; HDF5 files do not state the modules of layers."""
    for one in _dictionaries(config):
        name = str(one.get("class_name", ""))
        if "config" in one and one.get("registered_name") and not str(one.get("module")).startswith("keras."):
            yield str(one["registered_name"])
        elif "config" in one and "module" not in one and name not in _UNNAMED and not (hasattr(keras.layers, name) or hasattr(keras, name)):
            yield name


def _dictionaries(config: object) -> Iterator[dict]:
    """Yields all dictionaries in a configuration."""
    if isinstance(config, dict):
        yield config
    for value in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
        yield from _dictionaries(value)
