"""The model to harden, as training methods take it, and as files of the kind that it came as."""

import dataclasses
import os
import shutil
import typing
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_robust import models
from tf_robust.conversion import converted, torch_files
from tf_robust.models import weights
from tf_robust.saved_models import formats
from tf_robust.saved_models.formats import FORMATS, keras_files
from tf_robust.saved_models.loading import Classifier
from tf_robust.utils.files import atomic_folder, disk_is_full, storable
from tf_robust.utils.progress import print_note

KERAS = (*FORMATS["keras"].suffixes, *FORMATS["hdf5"].suffixes)
_SAMPLES = 8  # noise images by whose scores the kind of output is known
# files of a SavedModel folder that depend on its weights or graph; others, such as card.json, are copied
_WRITTEN = ("saved_model.pb", "fingerprint.pb", "keras_metadata.pb", "variables", "assets", weights.FILE)

_FOLDED = (
    "{} has no batch normalization. If its exporter folded it into the convolutions, as PyTorch's does by default, training is less stable "
    "and gains less. Try: the PyTorch model itself, or an export with dynamo=False, training=torch.onnx.TrainingMode.PRESERVE"
)


@dataclasses.dataclass(frozen=True)
class TrainableModel:
    """A model whose weights a search replaces.

    Training methods take `network`, which shares the weights of `classifier`: the model itself, or behind the normalization of its input,
    or the function of a SavedModel in inference mode.
    """

    classifier: Classifier  # images in [0, 1] -> logits, with the current weights
    network: keras.Model
    options: dict[str, typing.Any] = dataclasses.field(default_factory=dict)  # `input_range` and `from_logits` of a method on `network`
    skip: tuple[str, ...] = ()  # names of methods that do not suit the model
    has_batch_norm: bool = False  # whether training updates moving averages; False for a SavedModel, whose training mode is lost
    entries: Mapping[str, np.ndarray] | None = None  # the `state_dict` from which an ONNX file was exported

    @property
    def model(self) -> typing.Any:
        """The model as it was loaded: a keras.Model, or the object of `tf.saved_model.load`."""
        return self.classifier.loaded

    @property
    def suffix(self) -> str:
        """The end of the path of the hardened model: the suffix of the initial model's file; empty for a SavedModel folder."""
        if _is_saved_model(self.classifier.path):
            return ""
        suffix = os.path.splitext(self.classifier.path)[1].lower()
        return suffix if suffix in KERAS and os.path.isfile(self.classifier.path) else KERAS[0]

    @property
    def origin(self) -> converted.Converted | None:
        """The ONNX file or PyTorch model that the model was converted from; None: it was not converted."""
        return converted.converted(self.model) if isinstance(self.model, keras.Model) else None

    @property
    def other_suffixes(self) -> tuple[str, ...]:
        """Suffixes of further files that are written: of a converted model its ONNX file, and the `state_dict` of a PyTorch model."""
        if (record := self.origin) is None:
            return ()
        has_entries = record.entries is not None or self.entries is not None
        return (converted.ONNX, converted.STATE_DICT[0]) if has_entries else (converted.ONNX,)

    def save(self, path: str | os.PathLike) -> str:
        """Writes the model with its current weights, atomically, and returns the path, whose suffix may be omitted.

        A converted model is also written as the ONNX file (`.onnx`) and, if it is PyTorch's, its `state_dict` (`.pt`). An older model is
        replaced. Raises ValueError for the suffix of another format, or if Keras cannot write the model; FileExistsError
        if something else than a model is there; OSError if the model cannot be written.
        """
        path, suffix = os.fspath(path), self.suffix
        stem, given = os.path.splitext(path)
        if self.origin and given.lower() in (converted.ONNX, *converted.STATE_DICT):
            suffix = given.lower()
        if given.lower() not in formats.suffixes():
            path += suffix
        elif given.lower() != suffix and {given.lower(), suffix} != {".h5", ".hdf5"}:
            known = " or ".join([suffix, *self.other_suffixes])
            expected = f"a path that ends with {known}" if suffix else "a folder: the initial model is a SavedModel"
            raise ValueError(f"Expected {expected}. Received: {path}. Try: {stem}{suffix}")
        replaceable = os.path.isfile(path) if suffix else _is_saved_model(path) or os.path.isdir(path) and not os.listdir(path)
        if os.path.lexists(path) and not replaceable:
            kind = "file" if suffix else "SavedModel folder"
            raise FileExistsError(f"Expected a path without anything, or a {kind} to replace. Received: {path}. Try: another path")
        write = _write_original if suffix not in ("", *KERAS) else _write_keras_file if suffix else _write_saved_model
        try:
            write(self, path)
        except (OSError, tf.errors.OpError) as error:
            reason = "the disk is full" if disk_is_full(error) else " ".join(str(error).split())
            raise OSError(
                f"Expected to write the model to {path}. Received: {reason}. Nothing was written. "
                "Try: free disk space, or save to another path"
            ) from error
        return path

    def save_others(self, stem: str, images: np.ndarray) -> list[str]:
        """Writes the files of `other_suffixes`, and returns a line about each: how much its scores differ, or why it is not written.

        images: [N, H, W, C] in [0, 1], on which the scores of the written files are compared with the model's.
        """
        lines: list[str] = []
        if (origin := self.origin) is None:
            return lines
        values = self.classifier.model_input(images).numpy()
        for suffix in self.other_suffixes:
            path = f"{stem}{suffix}"
            try:
                self.save(path)
                difference = origin.difference_of(path, values)
            except ValueError as error:
                lines.append(f"Not written: {path}: {error}")
            else:
                measured = "" if difference is None else f", whose scores differ by at most {difference:.1g} of the largest"
                lines.append(f"Written: {path}{measured}")
        if converted.STATE_DICT[0] not in self.other_suffixes:
            lines.append(f"Not written: {stem}{converted.STATE_DICT[0]}. Try: state_dict=FILE with the weights in PyTorch, if it has any")
        return lines


def _write_original(start, path):
    start.origin.save(path, start.entries)


def _write_keras_file(start, path):
    keras_files.write(start.model, path, start.classifier.path)


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


def check_format(path: str | os.PathLike) -> None:
    """Raises ValueError if models of the format cannot be trained; nothing is read, so that no package of the format is needed."""
    found, reason = formats.format_of(path), ""
    if found is FORMATS["keras_hub"]:
        reason = (
            "a preset of keras_hub, whose preprocessing is not part of the model. Try: keras.Model(images, classifier(preprocessed images))"
        )
    elif found and not found.graph and not found.converted:
        reason = "a file without gradients. Try: the Keras model or SavedModel from which it was converted"
    if reason:
        raise _not_trainable(os.fspath(path), reason)


def _not_trainable(path, reason):
    return ValueError(
        "Expected a model that can be trained: a Keras model (.keras, .h5, zoo:NAME, applications:NAME or a keras.Model), a SavedModel "
        f"folder, an ONNX file (.onnx) or a PyTorch model (.pt, .pt2). Received: {path}, {reason}"
    )


def check_gradients(classifier: Classifier, image_shape: Sequence[int] = ()) -> None:
    """Raises ValueError if a model takes uint8, or if no gradient flows from its scores to images (H, W, C), which hardening attacks."""
    if classifier.takes_uint8 or image_shape and not classifier.has_gradients(tuple(image_shape)):
        expected = "Expected a model that can be hardened, with gradients with respect to its images"
        raise ValueError(f"{expected}. Received: {classifier.path}, {classifier.why_no_gradients()}")


def _is_saved_model(path):
    return os.path.isfile(os.path.join(path, "saved_model.pb"))


def trainable(classifier: Classifier, image_shape: Sequence[int] = (), state_dict: str = "") -> TrainableModel:
    """Returns the model behind a classifier for training on images (H, W, C); empty: the shape of its input.

    state_dict: file of the weights from which an ONNX file was exported. Raises ValueError if the model is of another format, is frozen or
    quantized, no gradient reaches its weights, or the `state_dict` does not fit.
    """
    if size := classifier.interface.input_size:
        raise ValueError(f"Expected images of the model's size. Received: input_size={size}. Try: image_size={size} in its place")
    check_format(classifier.path)
    saved_model = _is_saved_model(classifier.path)
    if not saved_model and not isinstance(classifier.loaded, keras.Model):
        raise _not_trainable(classifier.path, "a function, whose weights are unknown. Try: the keras.Model that it calls")
    shape = tuple(image_shape or classifier.input_shape[1:].as_list())
    classifier.check_images_match(shape)
    if classifier.interface.outputs == "auto":
        classifier = classifier.with_known_outputs(np.random.default_rng(0).random((_SAMPLES, *shape), np.float32))
    start = _of_saved_model(classifier, shape) if saved_model else _of_keras_model(classifier, shape)
    if start.origin and classifier.path.endswith(converted.ONNX) and not start.has_batch_norm:
        print_note(_FOLDED.format(classifier.path))
    if not state_dict:
        return start
    if start.origin is None or start.origin.entries is not None:
        raise ValueError(f"Expected an ONNX file with state_dict, its weights in PyTorch. Received: {classifier.path}")
    entries = torch_files.read_entries(state_dict)
    start.origin.state_dict(entries)  # raises if an entry does not fit
    return dataclasses.replace(start, entries=entries)


def _of_keras_model(classifier, shape):
    model, interface = classifier.loaded, classifier.interface
    layers = model._flatten_layers()
    quantized_policy = keras.dtype_policies.QuantizedDTypePolicy
    quantized = [layer.name for layer in layers if isinstance(getattr(layer, "dtype_policy", None), quantized_policy)]
    if quantized:
        raise ValueError(
            f"Expected a model with float weights. Received: {classifier.path}, whose layers {', '.join(quantized[:3])} are quantized. "
            "Try: the model before model.quantize, and quantize the hardened one"
        )
    if not model.trainable_variables:
        raise ValueError(
            f"Expected trainable weights. Received: {classifier.path}, all of whose layers are frozen. "
            "Try: model.trainable = True (also of each frozen layer), and save it again"
        )
    has_batch_norm = any(isinstance(layer, keras.layers.BatchNormalization) and layer.trainable for layer in layers)
    is_network, (scale, offset) = models.is_network(model), (np.array(values) for values in interface.affine())
    options = {} if is_network else {"from_logits": interface.outputs == "logits"}
    network = model
    as_images = getattr(model, "input_shape", (None, *shape))[1:] == shape and not interface.blue_first and len(scale) == len(offset) == 1
    if as_images and not is_network and not isinstance(getattr(model, "output", None), dict):
        options["input_range"] = (float(offset[0]), float(offset[0] + scale[0]))
    elif not (as_images and is_network and scale[0] == 1 and offset[0] == 0):
        images = keras.Input(shape, name="images")
        x = keras.layers.Rescaling(scale.tolist(), offset.tolist(), name="input_range")(images)
        outputs = model(keras.ops.flip(x, axis=-1) if interface.blue_first else x)
        if options and isinstance(outputs, dict):
            name = next(one for one in (classifier.output_name, "logits", "probabilities", *outputs) if one in outputs)
            outputs = outputs[name]
        network = keras.Model(images, outputs)
    return TrainableModel(classifier, network, options, has_batch_norm=has_batch_norm)


class _Function(keras.layers.Layer):
    """The function of a SavedModel in inference mode: images -> {"logits", "embedding"}; its weights are the SavedModel's variables."""

    def __init__(self, classifier, variables):
        super().__init__(name="saved_model", dtype="float32")
        self.classifier, self.built = classifier, True
        self.of_function = []
        for number, one in enumerate(variables):
            name = f"{number:04d}_{one.name.removesuffix(':0').replace('/', '_')}"
            self.of_function.append(keras.Variable(one, trainable=one.trainable, dtype=one.dtype.name, name=name))

    def call(self, images):
        outputs = self.classifier.outputs(0.5 * images + 0.5)
        return {"logits": outputs["logits"], "embedding": outputs["embedding"] if _has_embedding(outputs) else outputs["logits"]}


def _of_saved_model(classifier, shape):
    """The function of a SavedModel in inference mode, without the methods that need what it does not give."""
    function = tf.function(classifier.outputs).get_concrete_function(tf.TensorSpec([None, *shape]))
    captured = [id(tensor) for tensor in function.captured_inputs]
    variables = [variable for variable in function.variables if variable.dtype.is_floating or variable.dtype.is_integer]
    variables.sort(key=lambda variable: captured.index(id(variable.handle)))  # in the order of their use, the same in every process
    trained = [variable for variable in variables if variable.trainable]
    images = tf.constant(np.random.default_rng(0).random((1, *shape), np.float32))

    def image_gradient():
        with tf.GradientTape() as tape:
            tape.watch(images)
            squares = classifier(images) ** 2
        return tape.gradient(squares, images)

    if not _reaches(lambda: classifier(images), trained):
        received = "no gradient reaches its variables" if variables else "it has no variables: its weights are constants"
        raise ValueError(
            f"Expected a SavedModel with variables that can be trained. Received: {classifier.path}: {received}. "
            "Try: the Keras model from which it was exported, as .keras"
        )
    skip = ["similarity"]  # it copies the layers
    if not _has_embedding(function.structured_outputs):
        skip.append("fcl")
    if not _reaches(image_gradient, trained):
        skip.append("input_gradient")
    inputs = keras.Input(shape, name="images")
    x = keras.layers.Rescaling(2.0, -1.0, name="normalization")(inputs)  # in [-1, 1], where methods add noise
    return TrainableModel(classifier, keras.Model(inputs, _Function(classifier, variables)(x)), skip=tuple(skip))


def _reaches(compute, sources):
    """Whether a gradient of a computed tensor reaches one of the sources."""
    try:
        with tf.GradientTape() as tape:
            tape.watch(sources)
            result = compute()
        return result is not None and any(gradient is not None for gradient in tape.gradient(result, sources))
    except LookupError:  # an operation has no gradient
        return False


def _has_embedding(outputs):
    return "embedding" in outputs and outputs["embedding"].shape.rank == 2
