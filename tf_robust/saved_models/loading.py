"""Loads a classifier of any format as one callable: float32 [N, H, W, C] in [0, 1] -> logits float32 [N, classes].

    classify = load_classifier("runs/.../saved_model")
    classify = load_classifier("theirs.keras", ModelInterface(input_range="-1,1", outputs="probabilities", input_size=96))

A SavedModel is a program that runs with its user's rights: load only those that you trust.
"""

import dataclasses
import functools
import os
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tf_robust import models
from tf_robust.conversion import converted, torch_files
from tf_robust.models.named import model_of_function
from tf_robust.saved_models import formats
from tf_robust.saved_models.classifier import Classifier, advice_on_channels
from tf_robust.saved_models.formats.keras_files import keras_signature
from tf_robust.saved_models.interface import NAMED_RANGES, OUTPUTS, ModelInterface
from tf_robust.saved_models.signatures import Signature, listed, shape_text
from tf_robust.saved_models.zoo import rebuild
from tf_robust.utils.errors import cause, line_of_user
from tf_robust.utils.progress import print_note

__all__ = ["NAMED_RANGES", "Classifier", "ModelInterface", "classifier_of", "image_size_of", "load_classifier"]

COMPARED = 8  # images, on which a converted model is compared
_OF_TENSORFLOW = (keras.Layer, tf.Module, tf.types.experimental.PolymorphicFunction)  # other functions may compute by NumPy
_IMAGES = "takes one batch of images [N, H, W, C], floats or uint8. Received:"


def load_classifier(path: str | os.PathLike, interface: ModelInterface = ModelInterface()) -> Classifier:
    """Loads a model as a `Classifier`.

    Args:
        path: a SavedModel folder (of this package, `tf.saved_model.save`, Keras' `export`, tf.keras), a file of one of
            `formats.suffixes()`, `zoo:NAME`, `applications:NAME`, `keras_hub:PRESET` or its folder, `module:function`, or the workdir of
            a run.
        interface: its input and output conventions.

    Raises FileNotFoundError if there is no model, and ValueError if it cannot be loaded or does not fit the interface; the message lists
    the model's signatures.

    Examples:
        >>> from tf_robust.saved_models import loading
        >>> classifier = loading.load_classifier("zoo:digits/lenet_augmix")
        >>> images, labels = tfr.images(20, data="digits")
        >>> float(np.mean(np.argmax(classifier(images), axis=1) == labels))
        1.0
    """
    if formats.is_function(path):
        name = os.fspath(path)
        return classifier_of(model_of_function(name), interface, name)
    path, available, loaded = formats.read(path, interface.trust)
    chosen = available.get(interface.signature)
    misfit = chosen.misfit() if chosen else "does not exist"
    if chosen is None or misfit:
        fitting = [f"signature={name}" for name, signature in available.items() if not signature.misfit()]
        advice = f"\nTry: {' or '.join(fitting)}." if fitting else ""
        raise ValueError(f"Expected a signature that {_IMAGES} {interface.signature!r} of {path} {misfit}. {listed(available)}{advice}")
    try:
        return Classifier(chosen.channels_last(), interface, path=path, loaded=loaded)
    except ValueError as error:
        raise ValueError(f"{error}\n{path}: {listed(available)}") from error


def image_size_of(model: Classifier | keras.Model) -> tuple[int, int] | tuple[()]:
    """Returns (height, width) that images for a model must have; () if that is unknown or the model takes any size.

    Examples:
        >>> from tf_robust.saved_models import loading
        >>> loading.image_size_of(loading.load_classifier("zoo:digits/lenet_augmix"))
        (28, 28)
    """
    try:
        size = tuple(tf.TensorShape(getattr(model, "input_shape", None)).with_rank(4).as_list()[1:3])
    except (TypeError, ValueError):  # several inputs, or of unknown rank
        return ()
    return () if None in size else size


def classifier_of(model: keras.Model | Callable, interface: ModelInterface = ModelInterface(), name: str = "") -> Classifier:
    """Wraps a model in memory as a `Classifier`, in inference mode.

    Args:
        model: a keras.Model; a `torch.nn.Module`, in inference mode; or a callable from a float32 batch [N, H, W, C] on the pixel scale
            `interface.input_range` to scores [N, classes]. Each may return a dictionary with the entry `interface.outputs`, or logits or
            probabilities if that is auto.
        interface: its input and output conventions, which the model must fit, with the default signature.
        name: of the model, for messages; empty: its own.

    Examples:
        >>> from tf_robust.saved_models import loading
        >>> layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
        >>> network = keras.Sequential([keras.Input([28, 28, 1]), *layers])
        >>> interface = loading.ModelInterface(input_range="0,255", outputs="probabilities")
        >>> classifier = loading.classifier_of(network, interface)
        >>> classifier(np.ones([2, 28, 28, 1], np.float32)).shape, classifier.num_classes
        (TensorShape([2, 10]), 10)
    """
    if interface.signature != ModelInterface.signature:
        raise ValueError(f"Expected a SavedModel with signature={interface.signature!r}. Received: a model in memory. Try: omit signature")
    path = name or f"the model {getattr(model, 'name', None) or getattr(model, '__name__', None) or type(model).__name__!r}"
    if isinstance(model, keras.Model) and getattr(model, "inputs", None):
        signature = keras_signature(model)
        if misfit := signature.misfit():
            raise ValueError(f"Expected a model that {_IMAGES} {path}, which {misfit}")
    elif torch_files.is_module(model):
        from tf_robust.saved_models.formats.torch_models import signature_of

        signature = signature_of(model)
    else:
        spec = tf.TensorSpec(None, tf.float32)
        call = functools.partial(_scores_by_name, model, interface.outputs, path)
        signature = Signature(call, {"images": spec}, {"scores": spec}, has_graph=isinstance(model, _OF_TENSORFLOW))
    return Classifier(signature.channels_last(), interface, path=path, loaded=model)


def _scores_by_name(model, kind, path, images):
    """Returns {"scores": what a function returns for images}; its errors name the line of its code, or the channels of the images."""
    try:
        result = model(images)
    except (MemoryError, tf.errors.ResourceExhaustedError):
        raise
    except Exception as error:  # of any kind: the code is the user's
        received = shape_text(images.shape[1:])
        for channels, convert in ((1, tf.image.rgb_to_grayscale), (3, tf.image.grayscale_to_rgb)):
            if tf.executing_eagerly() and {images.shape[3], channels} == {1, 3} and _takes(model, convert(images)):
                expected = shape_text(tf.TensorShape([*images.shape[1:3], channels]))
                raise ValueError(
                    f"Expected images [height, width, channels] {expected} for {path}. Received: {received}. {advice_on_channels(channels)}"
                ) from error
        line = line_of_user(error)
        if not line and not isinstance(model, keras.Model):
            raise
        raise ValueError(f"Expected {path} to return scores of images {received}. Received: {cause(error)}. {line}".rstrip()) from error
    if isinstance(result, dict):
        names = [name for name in (OUTPUTS if kind == "auto" else (kind,)) if name in result]
        if not names:
            expected = " or ".join(OUTPUTS) if kind == "auto" else kind
            raise ValueError(f"Expected {path} to return {expected}. Received a dictionary with: {', '.join(map(repr, result))}")
        return {"scores": result[names[0]]}
    if isinstance(result, (tuple, list)) and len(result) != 1:
        raise ValueError(
            f"Expected {path} to return scores [N, classes]. Received: {len(result)} outputs. Try: a function that returns one of them"
        )
    try:
        return {"scores": tf.convert_to_tensor(result[0] if isinstance(result, (tuple, list)) else result)}
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected {path} to return scores [N, classes]. Received: {type(result).__name__}") from error


def _takes(model, images):
    try:
        model(images)
    except Exception:
        return False
    return True


def as_keras(classifier: Classifier, images: np.ndarray) -> Classifier:
    """Returns a classifier of ONNX or PyTorch as one of a trainable Keras model, which `conversion` makes of it; others as they are.

    Its card, interface and path are the same. images: float32 [N, H, W, C] in [0, 1], on which the scores of both are compared.

    Raises:
        ValueError: the model cannot be converted, with the node; or its scores differ.
    """
    read_by = formats.format_of(classifier.path)
    is_file = read_by is not None and read_by.converted
    if isinstance(classifier.loaded, keras.Model) or not is_file and not torch_files.is_module(classifier.loaded):
        return classifier
    given = classifier.model_input(images[:COMPARED]).numpy().astype(np.float32)
    record = converted.convert(classifier.path if is_file else classifier.loaded, images=given)
    print_note(f"{classifier.path} is converted to a Keras model, whose scores differ by at most {record.difference:.1g} of the largest.")
    if record.untrained:
        print_note(f"constants of {classifier.path} that are not trained: {', '.join(record.untrained)}.")
    return classifier_of(record.model, dataclasses.replace(classifier.interface, input_range=classifier.pixel_scale), classifier.path)


def with_batch_statistics(classifier: Classifier) -> Classifier:
    """Returns a classifier whose batch normalization uses mean and variance of each batch instead of the moving averages.

    Prediction-time batch normalization (Nado et al., 2020; Schneider et al., 2020): test-time adaptation, by which predictions depend on
    the other images of the batch. All else remains in inference mode, also frozen layers are adapted; the model itself does not change.
    Raises ValueError for a model without batch normalization, or in a format in which it cannot be reached.
    """
    model = rebuild(classifier.card, classifier.path) if classifier.is_exported else classifier.loaded
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None) or getattr(model, "preprocessor", None):
        raise ValueError(
            "Expected a model whose batch normalization can be reached, with adaptation=batch_norm: a run, a Keras model or file, zoo:NAME "
            f"or applications:NAME. Received: {classifier.path}. Try: the Keras file of it, or adaptation=none"
        )
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    if not layers:
        raise ValueError(
            f"Expected a model with batch normalization layers, with adaptation=batch_norm. Received: {classifier.path}, which has none. "
            "Try: adaptation=none"
        )
    before = [vars(layer).get("call") for layer in layers]
    for layer in layers:
        layer.call = functools.partial(_normalize_by_batch, layer)
    try:
        signature = keras_signature(model)  # traces the model
    finally:
        for layer, own in zip(layers, before, strict=True):
            if own is None:
                del layer.call
            else:
                layer.call = own
    return Classifier(signature.channels_last(), classifier.interface, path=classifier.path, loaded=model)


def _normalize_by_batch(layer, inputs, training=None, mask=None):
    """Replaces the `call` of a layer; moving averages do not change."""
    axis = layer.axis % inputs.shape.rank
    values = tf.cast(inputs, tf.float32)
    mean, variance = tf.nn.moments(values, [other for other in range(inputs.shape.rank) if other != axis])
    gamma, beta = layer.gamma if layer.scale else None, layer.beta if layer.center else None
    normalized = keras.ops.batch_normalization(values, mean, variance, axis, beta, gamma, layer.epsilon)
    return tf.cast(normalized, layer.compute_dtype)


def with_embedding(classifier: Classifier) -> Classifier | None:
    """Returns a model whose `outputs` have logits and `embedding` [N, E]: of a Keras model, the input of its last dense layer.

    None: it has no embedding.
    """
    if classifier.has_embedding:
        return classifier
    loaded = classifier.loaded
    dense = [layer for layer in getattr(loaded, "layers", ()) if isinstance(layer, keras.layers.Dense)]
    if not isinstance(loaded, keras.Model) or not dense or len(getattr(loaded, "outputs", None) or ()) != 1:
        return None
    outputs = {classifier.interface.outputs: loaded.outputs[0], "embedding": dense[-1].input}
    extended = classifier_of(keras.Model(loaded.inputs, outputs), classifier.interface)
    return extended if extended.has_embedding else None


def without_softmax(classifier: Classifier) -> Classifier:
    """Returns a model that gives the logits before its last softmax, or before the sigmoid of one output, if that is a layer, an operation
    or the activation of a Dense layer; otherwise the model itself, whose logits are the logarithms of its probabilities.

    In integers both differ: 8 bits resolve probabilities in steps of 1/256, and logits in as many steps over their whole range.
    """
    model = classifier.loaded
    if classifier.interface.outputs != "probabilities" or not isinstance(model, keras.Model) or len(getattr(model, "outputs", ())) != 1:
        return classifier
    logits = models.before_softmax(model.outputs[0]) if models.is_graph(model) else None
    if logits is None:
        return classifier
    layer, node = models.history(logits)
    if isinstance(layer, models.LinearOutput):  # as a layer of Keras, which files may contain
        linear = keras.layers.Dense.from_config({**layer.dense.get_config(), "activation": "linear"})
        logits = linear(node.input_tensors[0])
        linear.set_weights(layer.dense.get_weights())
    linear_model = keras.Model(model.inputs, logits, name=model.name)
    if any(isinstance(inner, models.LinearOutput) for inner in linear_model._flatten_layers()):  # in a nested model
        return classifier
    return classifier_of(linear_model, dataclasses.replace(classifier.interface, outputs="logits"), classifier.path)
