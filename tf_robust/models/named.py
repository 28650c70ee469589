"""Models by name, to train: `applications:NAME`, `keras_hub:PRESET`, and `module:function` of the user's own code.

Each becomes a network float32 [N, H, W, C] in [0, 1] -> {"logits", "embedding"} with as many logits as the data have classes. The
preprocessing of keras.applications and keras_hub (0 to 255, -1 to 1, ImageNet's mean and standard deviation, blue first) is part of
the network; a model of one's own takes images in [0, 1].
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import keras
import numpy as np

from tf_robust.models import heads, user_models
from tf_robust.utils.errors import line_of_user, readable, unknown
from tf_robust.utils.lazy import import_extra

_FUNCTION = "Try: module:function, such as models:build for the function build in models.py"
PRETRAINED = "imagenet"  # --init_from for the weights that Keras downloads


def is_named(name: str) -> bool:
    """Returns whether a name is `applications:NAME`, `keras_hub:PRESET` or `module:function`."""
    return ":" in name


def build_named(name: str, input_shape: Sequence[int], num_classes: int, *, resize: int = 0, weights: str | None = None) -> keras.Model:
    """Returns the network of a named model with a layer of `num_classes` logits; arguments as in `models.build`.

    Gray images become three equal channels for models of color images. Raises ImportError if keras_hub is not installed, and ValueError if
    there is no such model, or it does not take such images.
    """
    kind, _, rest = name.partition(":")
    if weights and kind != "applications":
        raise ValueError(f"Expected applications:NAME with init_from={weights}. Received: {name}")
    if kind == "applications":
        preprocess = application_family(rest).preprocess_input
    elif kind == "keras_hub":
        hub = import_extra("keras_hub", "keras_hub")
    else:
        if resize:
            raise ValueError(f"Expected resize=0 for {name}. Received: {resize}. Try: a Resizing layer in the model, or image_size")
        return _of_function(name, tuple(input_shape), num_classes)
    with readable(name, "Try: image_size or resize for images of another size; for ImageNet's weights, a connection to the internet."):
        if kind == "applications":
            shape = (resize, resize, 3) if resize else (*input_shape[:2], 3)
            backbone = getattr(keras.applications, rest)(include_top=False, weights=weights, input_shape=shape)
        else:
            backbone, preprocess = hub.models.Backbone.from_preset(rest), _converter(hub, rest)
        scale, offset, is_reversed = _affine(preprocess)
        mean, std = tuple(-offset / scale), tuple(1 / scale)  # scale * x + offset = (x - mean) / std
        images, x = heads.normalized_input(tuple(input_shape), mean, std, 1, name, resize, layer="preprocessing")
        features = backbone(x[..., ::-1] if is_reversed else x)
        return heads.classifier(images, heads.pooled(features), num_classes, backbone.name)


def _converter(hub, name):
    """Returns the preprocessing of a preset, for images in 0..255."""
    try:
        converter = hub.layers.ImageConverter.from_preset(name)
    except ValueError:  # a preset without preprocessing takes images in [0, 1]
        return lambda images: images / 255
    converter.image_size = None  # the data set and `resize` choose the size
    return converter


def application_family(name: str) -> ModuleType:
    """Returns the module of keras.applications that has a model and its `preprocess_input`; raises ValueError for an unknown name."""
    families = {
        function: module
        for module in vars(keras.applications).values()
        if inspect.ismodule(module) and hasattr(module, "preprocess_input")
        for function in vars(module)
        if function in vars(keras.applications) and inspect.isfunction(getattr(module, function))
    }
    if name not in families:
        raise unknown("model of keras.applications", name, families)
    return families[name]


def model_of_function(name: str, **arguments: object) -> keras.Model | Callable:
    """Returns the model that `module:function` names: the result of a function without further required arguments, or the function.

    The function may be another object that can be called with images. Modules are also found in the working directory. arguments: passed to
    the function if it has parameters of these names. Raises ValueError if there is no such module or function, or it fails.
    """
    module_name, _, function_name = name.partition(":")
    with readable(name, lambda error: line_of_user(error) or _FUNCTION):
        sys.path.insert(0, os.getcwd())
        try:
            module = importlib.import_module(module_name)
        finally:
            sys.path.remove(os.getcwd())
        function = getattr(module, function_name)
        if not inspect.isfunction(function):
            return function
        parameters = inspect.signature(function).parameters
        given = {key: value for key, value in arguments.items() if key in parameters}
        required = [x for x in parameters.values() if x.default is x.empty and x.kind == x.POSITIONAL_OR_KEYWORD and x.name not in given]
        model = function if required else function(**given)
    if not callable(model):
        raise ValueError(f"Expected {name} to return a keras.Model or a function of images. Received: {type(model).__name__}")
    return model


def _of_function(name, input_shape, num_classes):
    """Returns the network of the user's model; with a new output layer where it has another number of classes."""
    model = model_of_function(name, input_shape=input_shape, num_classes=num_classes)
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Expected {name} to return a keras.Model, given input_shape and num_classes (or neither). Received: {type(model).__name__}"
        )
    wrapped = None if user_models.is_network(model) else user_models.wrap(model)
    network = wrapped.network if wrapped else model
    if tuple(network.input_shape[1:]) != input_shape:
        raise ValueError(
            f"Expected {name} to take images {input_shape}. Received: {tuple(network.input_shape[1:])}. "
            "Try: a parameter input_shape of the function, or image_size"
        )
    head, same = wrapped.logits_layer if wrapped else None, network.output["logits"].shape[-1] == num_classes
    if same and head is None:
        return network
    embedding = network.output["embedding"]
    layer, node = user_models.history(embedding)
    features = node.input_tensors[0] if layer.name == "embedding" else embedding  # a new layer takes the name
    result = heads.classifier(network.input, features, num_classes, network.name)
    if same and head is not None:
        for variable, value in zip(result.get_layer("logits").variables, head.dense.variables):  # without a bias it stays 0
            variable.assign(value.numpy())
    return result


def _affine(preprocess):
    """Returns (scale [3], offset [3], reversed) of a preprocessing of images in 0..255, for images in [0, 1] before any reversal."""

    def apply(color):
        return np.asarray(preprocess(np.tile(np.float32(color), (1, 8, 8, 1))), np.float64)[0, 0, 0]

    offset = apply((0, 0, 0))
    matrix = np.stack([apply(color) - offset for color in 255 * np.eye(3)], axis=1)  # [channel of the output, of the input]
    is_reversed = abs(matrix[0, 2]) > abs(matrix[0, 0])
    matrix, offset = (matrix[::-1], offset[::-1]) if is_reversed else (matrix, offset)
    if np.abs(matrix - np.diag(np.diag(matrix))).max() > 1e-3:
        raise ValueError("Expected a preprocessing that scales each channel. Received: another")
    return np.diag(matrix), offset, is_reversed
