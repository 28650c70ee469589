"""Loads a classifier of any format as one callable: float32 [N, H, W, C] in [0, 1] -> logits float32 [N, classes].

    classify = load_classifier("runs/.../saved_model")
    classify = load_classifier("theirs.keras", ModelInterface(input_range="-1,1", outputs="probabilities", input_size=96))

A SavedModel is a program that runs with its user's rights: load only those that you trust.

Other functions return a loaded classifier with an embedding, without its softmax, or with batch normalization by the statistics of the test
batch.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from tf_robust.models.named import model_of_function
from tf_robust.saved_models import formats
from tf_robust.saved_models.classifier import Classifier, advice_on_channels
from tf_robust.saved_models.formats.keras_files import keras_signature
from tf_robust.saved_models.interface import NAMED_RANGES, OUTPUTS, ModelInterface
from tf_robust.saved_models.signatures import Signature, listed, shape_text
from tf_robust.saved_models.zoo import rebuild
from tf_robust.utils.errors import cause, line_of_user

__all__ = ["NAMED_RANGES", "Classifier", "ModelInterface", "classifier_of", "image_size_of", "load_classifier"]

_OF_TENSORFLOW = (keras.Layer, tf.Module, tf.types.experimental.PolymorphicFunction)  # other functions may compute by NumPy


def load_classifier(path: str | os.PathLike, interface: ModelInterface = ModelInterface()) -> Classifier:
    """Loads a model as a `Classifier`.

    Args:
        path: a SavedModel folder (of this package, `tf.saved_model.save`, Keras' `export`, tf.keras), a file `.keras`, `.h5`,
            `.tflite` or `.onnx`, `zoo:NAME`, `applications:NAME`, `keras_hub:PRESET` or its folder, `module:function`, or the workdir of
            a run.
        interface: its input and output conventions.

    Raises:
        FileNotFoundError: there is no model.
        ValueError: it cannot be loaded, or does not fit the interface; the message lists the model's signatures.
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
        raise ValueError(
            "Expected a signature that takes one batch of images [N, H, W, C], floats or uint8. "
            f"Received: {interface.signature!r} of {path} {misfit}. {listed(available)}{advice}"
        )
    try:
        return Classifier(chosen.channels_last(), interface, path=path, loaded=loaded)
    except ValueError as error:
        raise ValueError(f"{error}\n{path}: {listed(available)}") from error


def image_size_of(model: Classifier | keras.Model) -> tuple[int, int] | tuple[()]:
    """Returns (height, width) that images for a model must have; () if that is unknown or the model takes any size."""
    try:
        size = tuple(tf.TensorShape(getattr(model, "input_shape", None)).with_rank(4).as_list()[1:3])
    except (TypeError, ValueError):  # several inputs, or of unknown rank
        return ()
    return () if None in size else size


def classifier_of(model: keras.Model | Callable, interface: ModelInterface = ModelInterface(), name: str = "") -> Classifier:
    """Wraps a model in memory as a `Classifier`, in inference mode.

    Args:
        model: a keras.Model, or a callable from a float32 batch [N, H, W, C] on the pixel scale `interface.input_range` to scores
            [N, classes]; either may return a dictionary with the entry `interface.outputs`, or logits or probabilities if that is auto.
        interface: its input and output conventions; a model in memory has no signatures.
        name: of the model, for messages; empty: its own.

    Raises:
        ValueError: the model does not take one batch of images, or does not fit the interface.
    """
    if interface.signature != ModelInterface.signature:
        raise ValueError(f"Expected a SavedModel with signature={interface.signature!r}. Received: a model in memory. Try: omit signature")
    path = name or f"the model {getattr(model, 'name', None) or getattr(model, '__name__', None) or type(model).__name__!r}"
    if isinstance(model, keras.Model) and getattr(model, "inputs", None):
        signature = keras_signature(model)
        if misfit := signature.misfit():
            raise ValueError(
                f"Expected a model that takes one batch of images [N, H, W, C], floats or uint8. Received: {path}, which {misfit}"
            )
    else:
        signature = Signature(
            lambda images: {"scores": _scores(_called(model, images, path), interface.outputs, path)},
            {"images": tf.TensorSpec(None, tf.float32)},
            {"scores": tf.TensorSpec(None, tf.float32)},
            has_graph=isinstance(model, _OF_TENSORFLOW),
        )
    return Classifier(signature.channels_last(), interface, path=path, loaded=model)


def _called(model, images, path):
    """Calls a function on images; its errors name the line of its code, or the channels of the images."""
    try:
        return model(images)
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


def _takes(model, images):
    try:
        model(images)
    except Exception:
        return False
    return True


def _scores(result: object, kind: str, path: str) -> tf.Tensor:
    """The scores in what a model returned."""
    if isinstance(result, dict):
        names = [name for name in (OUTPUTS if kind == "auto" else (kind,)) if name in result]
        if not names:
            expected = " or ".join(OUTPUTS) if kind == "auto" else kind
            raise ValueError(f"Expected {path} to return {expected}. Received a dictionary with: {', '.join(map(repr, result))}")
        return result[names[0]]
    if isinstance(result, (tuple, list)) and len(result) != 1:
        raise ValueError(
            f"Expected {path} to return scores [N, classes]. Received: {len(result)} outputs. Try: a function that returns one of them"
        )
    try:
        return tf.convert_to_tensor(result[0] if isinstance(result, (tuple, list)) else result)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected {path} to return scores [N, classes]. Received: {type(result).__name__}") from error


def with_batch_statistics(classifier: Classifier) -> Classifier:
    """Returns a classifier whose batch normalization uses mean and variance of each batch instead of the moving averages.

    Prediction-time batch normalization (Nado et al., 2020; Schneider et al., 2020): test-time adaptation, by which predictions depend on
    the other images of the batch. All else remains in inference mode; the model itself does not change. Raises ValueError for a model
    without batch normalization, or in a format in which it cannot be reached.
    """
    model = rebuild(classifier.card, classifier.path) if classifier.is_exported else classifier.loaded
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None) or getattr(model, "preprocessor", None):
        raise ValueError(
            "Expected a model whose batch normalization can be reached, with adaptation=batch_norm: a run, a Keras model, a .keras or .h5 "
            f"file, zoo:NAME or applications:NAME. Received: {classifier.path}. Try: the Keras file of it, or adaptation=none"
        )
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    if not layers:
        raise ValueError(
            f"Expected a model with batch normalization layers, with adaptation=batch_norm. Received: {classifier.path}, which has none. "
            "Try: adaptation=none"
        )
    with _batch_statistics(layers):
        signature = keras_signature(model)  # traces the model
    return Classifier(signature.channels_last(), classifier.interface, path=classifier.path, loaded=model)


@contextlib.contextmanager
def _batch_statistics(layers: Sequence[keras.layers.BatchNormalization]) -> Iterator[None]:
    """Lets layers normalize by the batch's statistics, also frozen ones; moving averages do not change."""
    before = [vars(layer).get("call") for layer in layers]
    for layer in layers:
        layer.call = _normalization(layer)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            if own is None:
                del layer.call
            else:
                layer.call = own


def _normalization(layer):
    """Returns the replacement of a layer's `call`."""

    def call(inputs, training=None, mask=None):
        axis = layer.axis % inputs.shape.rank
        values = tf.cast(inputs, tf.float32)
        mean, variance = tf.nn.moments(values, [other for other in range(inputs.shape.rank) if other != axis])
        gamma, beta = layer.gamma if layer.scale else None, layer.beta if layer.center else None
        normalized = keras.ops.batch_normalization(values, mean, variance, axis, beta, gamma, layer.epsilon)
        return tf.cast(normalized, layer.compute_dtype)

    return call


def with_embedding(classifier: Classifier) -> Classifier | None:
    """Returns a model whose `outputs` have logits and `embedding` [N, E]; None: it has no embedding.

    That of a Keras model is the input of its last dense layer.
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
    """Returns a model that gives the logits before its last softmax, if that is a Keras layer of its own or the activation of a Dense
    layer; otherwise the model itself, whose logits are the logarithms of its probabilities. The same holds for the sigmoid of a model with
    one output, whose logit is the difference of those of both classes.

    The softmax of both is the same. In integers they differ: 8 bits resolve probabilities in steps of 1/256, and logits in as many steps
    over their whole range.
    """
    model = classifier.loaded
    if classifier.interface.outputs != "probabilities" or not isinstance(model, keras.Model) or len(getattr(model, "outputs", ())) != 1:
        return classifier
    layer, one_output = model.outputs[0]._keras_history.operation, model.outputs[0].shape[-1] == 1
    activation = keras.activations.sigmoid if one_output else keras.activations.softmax
    if isinstance(layer, keras.layers.Softmax):
        gives_probabilities = layer.axis == -1 and not one_output
    else:
        gives_probabilities = type(layer) in (keras.layers.Dense, keras.layers.Activation) and layer.activation is activation
    if not gives_probabilities or len(layer._inbound_nodes) != 1:
        return classifier
    logits = layer.input
    if isinstance(layer, keras.layers.Dense):
        linear = keras.layers.Dense.from_config({**layer.get_config(), "activation": "linear"})
        logits = linear(logits)
        linear.set_weights(layer.get_weights())
    interface = dataclasses.replace(classifier.interface, outputs="logits")
    return classifier_of(keras.Model(model.inputs, logits, name=model.name), interface, classifier.path)
