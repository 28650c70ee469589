"""Wraps any Keras model with one output as a network, images in [0, 1] -> {"logits", "embedding"}, that shares all its weights."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import scipy.special
import tensorflow as tf

from tf_robust.models import heads
from tf_robust.models.heads import output_dtype
from tf_robust.models.observed import Observed, calls_of, inner_layers
from tf_robust.models.outputs import are_probabilities

_FROM_LOGITS = {"linear": True, "softmax": False, "sigmoid": False}  # by the activation of the output
SMALL_SPAN = 0.05  # of images after a layer that normalizes them: those of an eight-bit range, divided by 255 twice, span 0.004
SMALLEST_PROBABILITY = 1e-35  # smaller ones are clipped to it before the logarithm, whose gradient remains finite in float32
_OF_PROBABILITIES = {False: "softmax", True: "sigmoid"}  # activation of probabilities, by whether there is one output


@dataclasses.dataclass
class WrappedModel:
    """A model of the user, as training methods use it.

    Attributes:
        network: keras.Model, float32 [N, H, W, C] in [0, 1] -> {"logits": [N, C], "embedding": [N, E]}.
        pieces: the network in pieces, as `models.stages` returns them.
        logits_layer: embedding -> logits; None where the logits are not a Dense layer's output for the embedding.
        from_logits: whether the model returns logits; otherwise probabilities.
        has_one_output: whether the model returns [N, 1], the logit or probability of the second of two classes.
    """

    network: keras.Model
    pieces: list[keras.Model]
    logits_layer: keras.layers.Layer | None
    from_logits: bool
    has_one_output: bool


@keras.saving.register_keras_serializable("tf_robust")
class LinearOutput(keras.layers.Layer):
    """The output of a Dense layer before its activation; shares the layer's weights.

    Args:
        dense: the layer.
        **kwargs: of `keras.layers.Layer`.
    """

    def __init__(self, dense: keras.layers.Dense, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.built = dense, True

    @property
    def kernel(self) -> keras.Variable:
        return self.dense.kernel

    @property
    def bias(self) -> keras.Variable | None:
        return self.dense.bias

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        outputs = keras.ops.matmul(inputs, self.dense.kernel)
        return outputs if self.dense.bias is None else outputs + self.dense.bias

    def get_config(self) -> dict:
        return {**super().get_config(), "dense": keras.saving.serialize_keras_object(self.dense)}

    @classmethod
    def from_config(cls, config: dict) -> "LinearOutput":
        return cls(keras.saving.deserialize_keras_object(config.pop("dense")), **config)


def _layers(model):
    """Yields the layers of graphs of layers, also of inner ones, without inputs and random augmentation."""
    for layer in model.layers:
        if is_graph(layer):
            yield from _layers(layer)
        elif not (isinstance(layer, keras.layers.InputLayer) or type(layer).__name__.startswith("Random")):
            yield layer


def _first_scale(model):
    """The factor by which the first layer of a graph of layers scales images, 1 where it is another layer."""
    layer = next(_layers(model), None) if is_graph(model) else None
    if isinstance(layer, keras.layers.Rescaling):
        return float(np.max(np.abs(layer.scale)))
    if isinstance(layer, keras.layers.Normalization) and layer.built:
        return 1 / float(np.min(np.sqrt(layer.variance)))
    return 1.0


def check_input_range(model: keras.Model, input_range: Sequence[float]) -> None:
    """Checks that images of a range are not scaled down so far by the first layer of a model that it must take a larger one.

    Raises:
        ValueError: they are.
    """
    span = (input_range[1] - input_range[0]) * _first_scale(model)
    if span < SMALL_SPAN:
        raise ValueError(
            f"Expected the input_range of {model.name}, whose first layer scales the images. Received: {tuple(input_range)}, which it "
            f"scales to a range of {span:.2g}. Try: input_range=(0, 255)"
        )


def wrap(
    model: keras.Model,
    *,
    embedding: str | None = None,
    stages: Sequence[str] = (),
    input_range: Sequence[float] = (0.0, 1.0),
    from_logits: bool | None = None,
) -> WrappedModel:
    """Wraps a Functional, Sequential or subclassed model from images to logits or probabilities.

    Args:
        model: keras.Model with one input [N, H, W, C] of known size and one output [N, classes], or [N, 1] for two classes: the
            probability p of the second, (1 - p, p), or its logit z, (0, z).
        embedding: name of the layer whose output is the embedding, feature maps averaged; None: the input of the last Dense layer, or the
            output of a model that does not end with one.
        stages: names of layers, in their order, after which the network is divided; of Functional and Sequential models.
        input_range: (low, high) of the model's images.
        from_logits: whether the model returns logits; None: inferred from the activation of its last layer.

    Raises:
        ValueError: another kind of model, or a layer that it does not have.
    """
    shape = _input_shape(model)
    low, high = (float(value) for value in input_range)
    if not high > low:
        raise ValueError(f"Expected input_range=(low, high) with low < high. Received: {tuple(input_range)}")
    scale = keras.layers.Rescaling(high - low, offset=low, name="input_range", dtype=output_dtype())
    images = keras.Input(shape, name="images", dtype=output_dtype())
    if not is_graph(model) or _is_model(history(model.outputs[0])[0]):
        if stages:
            raise ValueError(f"Expected stages=() for {model.name}, which is not a graph of layers. Received: {tuple(stages)}")
        return _wrap_observed(model, images, scale, embedding, from_logits)
    dense, features, activation = _last_dense(model.outputs[0])
    one_output = model.outputs[0].shape[-1] == 1
    if (
        from_logits is None
        and dense is None
        and activation == "linear"
        and _like_probabilities(model(scale(_noise(model)), training=False), one_output)
    ):
        raise ValueError(
            f"Expected from_logits=True or False for {model.name}, whose outputs look like probabilities and are not those of a Dense or "
            "Softmax layer. Received: None"
        )
    from_logits = _resolve_from_logits(model, activation, from_logits, one_output)
    features = None if one_output and activation == "linear" and not from_logits else features  # not the Dense layer's logit
    embedded = _layer_output(model, embedding) if embedding else model.outputs[0] if features is None else features
    before = None if from_logits or features is not None else before_softmax(model.outputs[0])
    if features is None:
        head, ends = None, [model.outputs[0] if before is None else before, embedded]
    else:
        head, ends = LinearOutput(dense, name="logits", dtype=output_dtype()), [features, embedded]

    def outputs(end, embedded):
        logits = of_two_classes(head(end), True) if head else _logits(end, from_logits or before is not None)
        return {"logits": logits, "embedding": _pooled(embedded)}

    starts = [model.inputs[0], *(_layer_output(model, name) for name in stages)]
    try:
        middle = [keras.Model(start, end, name=f"piece_{i}") for i, (start, end) in enumerate(zip(starts, starts[1:]), 1)]
        last = keras.Model(starts[-1], outputs(*ends), name=f"piece_{len(starts)}")
    except ValueError as error:
        raise ValueError(
            f"Expected stages in the order of the layers, each on every path through {model.name}. Received: {tuple(stages)}"
        ) from error
    body = keras.Model(model.inputs[0], ends, name=f"{model.name}_body")
    network = keras.Model(images, outputs(*body(scale(images))), name=f"{model.name}_network")
    first, *rest = [*middle, last]
    pieces = [*heads.in_centered_images(keras.Model(images, first(scale(images)))), *rest]
    return WrappedModel(network, pieces, head if embedding is None and not one_output else None, from_logits, one_output)


def is_network(model: keras.Model) -> bool:
    """Returns whether a model already returns {"logits", "embedding"}, as those of this package do."""
    outputs = getattr(model, "output", None)  # a Sequential or subclassed model may have none
    return isinstance(outputs, dict) and {"logits", "embedding"} <= set(outputs)


def _wrap_observed(model, images, scale, embedding, from_logits):
    leaves = list(dict.fromkeys(inner_layers(model)))
    named = [leaf for leaf in leaves if leaf.name == embedding]
    if embedding is not None and not named:
        raise ValueError(
            f"Expected a layer name of {model.name} as the embedding: {', '.join(leaf.name for leaf in leaves)}. Received: {embedding}"
        )
    dense, activation, one_output = _observed_end(model, leaves, scale)
    if embedding is None and dense is None:
        raise ValueError(
            f"Expected the name of a layer as the embedding of {model.name}, which has no Dense layer with its output's width: "
            f"{', '.join(leaf.name for leaf in leaves)}. Received: none"
        )
    if activation is None and from_logits is None:
        raise ValueError(f"Expected from_logits=True or False for {model.name}, which does not end with a Dense layer. Received: None")
    from_logits = _resolve_from_logits(model, activation, from_logits, one_output)
    layer = named[0] if embedding is not None else dense
    observed = Observed(model, layer, embedding is not None, name="model", dtype=output_dtype())

    def outputs(inputs):
        predictions, embedded = observed(inputs)
        return {"logits": _logits(predictions, from_logits), "embedding": _pooled(embedded)}

    network = keras.Model(images, outputs(scale(images)), name=f"{model.name}_network")
    with_head = embedding is None and not one_output and activation in ("linear", "softmax")
    head = LinearOutput(layer, name="logits", dtype=output_dtype()) if with_head else None
    return WrappedModel(network, heads.in_centered_images(network), head, from_logits, one_output)


def _observed_end(model, leaves, scale):
    """Returns (the Dense layer that is called last with the width of the output, the output's activation, whether it is [N, 1]).

    Found by calling the model on noise. The activation is None where the output is neither the layer's nor a softmax or sigmoid of it.
    """
    with calls_of([leaf for leaf in leaves if isinstance(leaf, keras.layers.Dense)]) as calls:
        found = model(scale(_noise(model)), training=False)
    if isinstance(found, dict | list | tuple):
        raise ValueError(
            f"Expected a model with one output [N, classes], a tensor. Received: {model.name}, which returns a {type(found).__name__}"
        )
    outputs = keras.ops.convert_to_numpy(found).astype(np.float64)
    own = {layer: keras.ops.convert_to_numpy(found).astype(np.float64) for layer, _, found in calls}  # of the last call
    dense = next((layer for layer, _, _ in calls[::-1] if own[layer].shape == outputs.shape), None)
    one_output = outputs.shape[-1] == 1
    if dense is None:
        return None, None, one_output
    same = functools.partial(np.allclose, outputs, rtol=1e-2, atol=1e-4)
    if same(own[dense]):
        return dense, _name(dense.activation), one_output
    if dense.activation is keras.activations.linear:
        if same(scipy.special.expit(own[dense]) if one_output else scipy.special.softmax(own[dense], axis=-1)):
            return dense, _OF_PROBABILITIES[one_output], one_output
    return dense, None, one_output


def _noise(model):
    return np.random.RandomState(0).uniform(size=(4, *_input_shape(model))).astype(np.float32)


def _like_probabilities(outputs, one_output):
    """Whether outputs may be probabilities: numbers from 0 to 1 that, of more than one class, sum to 1."""
    (outputs,) = tf.nest.flatten(outputs)
    values = keras.ops.convert_to_numpy(outputs).astype(np.float64)
    return bool(((values >= 0) & (values <= 1)).all()) if one_output else are_probabilities(values)


def is_graph(model: keras.Model) -> bool:
    """Returns whether a model is Functional or Sequential, with the `call` of Keras."""
    return type(model).call.__module__.startswith("keras.src.models") and bool(getattr(model, "inputs", None))


def _is_model(operation):
    return isinstance(operation, keras.Model)


def _input_shape(model):
    """Returns (H, W, C) of a model with one input and one output."""
    if not isinstance(model, keras.Model):
        raise ValueError(f"Expected a keras.Model. Received: {type(model).__name__}")
    if is_graph(model):
        shapes, outputs = [tensor.shape for tensor in model.inputs], [tensor.shape for tensor in model.outputs]
        integers = [tensor.dtype for tensor in model.inputs if "int" in tensor.dtype]
        if integers:
            raise ValueError(f"Expected a model of float images. Received: {model.name} of {integers[0]}. Try: a float32 Input")
    elif model.built and not isinstance(model, keras.Sequential):
        shapes = [shape for shape in (model.get_build_config() or {}).values() if shape]
        outputs = [(None, None)]
    else:
        raise ValueError(
            f"Expected a model with a known input shape. Received: {model.name}, which is not built. "
            "Try: call it on a batch of images first, or begin with keras.Input"
        )
    if len(shapes) != 1 or len(shapes[0]) != 4 or None in shapes[0][1:]:
        raise ValueError(f"Expected a model with one input [N, H, W, C] of known size. Received: {model.name} with inputs {shapes}")
    if len(outputs) != 1 or len(outputs[0]) != 2:
        raise ValueError(
            f"Expected a model with one output [N, classes], or [N, 1] for 2 classes. Received: {model.name} with outputs {outputs}"
        )
    return tuple(shapes[0][1:])


def history(tensor: keras.KerasTensor) -> tuple[Any, Any]:
    """Returns (the layer or operation that made a tensor of a Functional model, the node of its call)."""
    operation, node_index, _ = tensor._keras_history
    return operation, operation._inbound_nodes[node_index]


def before_softmax(tensor: keras.KerasTensor) -> keras.KerasTensor | None:
    """Returns the logits whose softmax is a tensor of a Functional model, or of one output [N, 1] the logit whose sigmoid it is.

    The softmax may be a layer or an operation, or the activation of a Dense layer, also at the end of a nested model. None: the tensor is
    no softmax.

    Args:
        tensor: an output of the model.
    """
    operation, node = history(tensor)
    if _is_model(operation) and is_graph(operation):
        logits = before_softmax(operation.outputs[tensor._keras_history.tensor_index])
        return None if logits is None else keras.Model(operation.inputs, logits)(list(node.input_tensors))
    if type(operation).__name__ in ("Softmax", "Sigmoid") and type(operation).__module__.startswith("keras.src."):  # layers and operations
        activation = type(operation).__name__.lower()
        if getattr(operation, "axis", -1) not in (-1, len(tensor.shape) - 1):
            return None
    elif type(operation) in (keras.layers.Dense, keras.layers.Activation):
        activation = next((name for name in _FROM_LOGITS if operation.activation is keras.activations.get(name)), "")
    else:
        return None
    if activation == "linear" and isinstance(operation, keras.layers.Activation):
        return before_softmax(node.input_tensors[0])
    if activation != _OF_PROBABILITIES[tensor.shape[-1] == 1]:
        return None
    if isinstance(operation, keras.layers.Dense):
        quantized = isinstance(operation.dtype_policy, keras.dtype_policies.QuantizedDTypePolicy)
        return None if quantized else LinearOutput(operation, dtype=operation.dtype_policy)(node.input_tensors[0])
    return node.input_tensors[0]


def _last_dense(tensor):
    """Returns (Dense layer, its input, name of the output's activation); None where the output is not a Dense layer's."""
    activation, one_output = "linear", tensor.shape[-1] == 1
    while True:
        operation, node = history(tensor)
        is_layer = isinstance(operation, keras.layers.Layer)
        named = isinstance(operation, keras.layers.Softmax) or not is_layer and type(operation).__name__ in ("Softmax", "Sigmoid")
        own = "sigmoid" if type(operation).__name__ == "Sigmoid" else "softmax" if named else _name(getattr(operation, "activation", None))
        activation = own if activation == "linear" else activation
        if isinstance(operation, keras.layers.Dense):
            known = activation in ("linear", _OF_PROBABILITIES[one_output])
            return (operation, node.input_tensors[0], activation) if known else (None, None, activation)
        if not named and not isinstance(operation, keras.layers.Activation):
            return None, None, activation
        tensor = node.input_tensors[0]


def _name(activation):
    return "linear" if activation is None else getattr(activation, "__name__", type(activation).__name__)


def _resolve_from_logits(model, activation, from_logits, one_output):
    if from_logits is not None:
        return from_logits
    if activation not in ("linear", _OF_PROBABILITIES[one_output]):
        raise ValueError(
            f"Expected logits or {_OF_PROBABILITIES[one_output]} probabilities as the output of {model.name}. "
            f"Received: the activation {activation!r}. Try: from_logits=True or False"
        )
    return _FROM_LOGITS[activation]


def _layer_output(model, name):
    """Returns the first output of a layer within the model's graph; `output` of a nested model is the one of its own graph."""
    try:
        layer = model.get_layer(name)
    except ValueError as error:
        names = ", ".join(layer.name for layer in model.layers)
        raise ValueError(f"Expected a layer of {model.name}: {names}. Received: {name!r}") from error
    graph = model._functional if isinstance(model, keras.Sequential) else model
    nodes = [node for depth in sorted(graph._nodes_by_depth, reverse=True) for node in graph._nodes_by_depth[depth]]
    return next(node for node in nodes if node.operation is layer).output_tensors[0]


def _logits(outputs, from_logits):
    outputs = of_two_classes(keras.ops.cast(outputs, output_dtype()), from_logits)
    return outputs if from_logits else keras.ops.log(keras.ops.maximum(outputs, SMALLEST_PROBABILITY))


def of_two_classes(scores, from_logits):
    """Returns scores [N, classes] of a Keras model as they are, or of one output [N, 1] those of both classes.

    Args:
        scores: logits or probabilities.
        from_logits: whether they are logits: (0, z) of one output z; else (1 - p, p) of one output p.
    """
    if scores.shape[-1] != 1:
        return scores
    return keras.ops.concatenate([keras.ops.zeros_like(scores) if from_logits else 1 - scores, scores], axis=-1)


def _pooled(features):
    if len(features.shape) > 2:
        features = keras.ops.mean(features, axis=tuple(range(1, len(features.shape) - 1)))
    return keras.ops.cast(features, output_dtype())


def stage_layers(model: keras.Model, count: int = 3) -> tuple[str, ...]:
    """Returns names of layers with feature maps, evenly spaced, after each of which `wrap` can divide a model; fewer if it has few.

    Args:
        model: any; one that is not a graph of layers has none.
        count: the largest number of names.
    """
    if not is_graph(model) or _is_model(history(model.outputs[0])[0]):
        return ()
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    found = []
    for number in range(1, count + 1):
        wanted = number * len(layers) / (count + 1)
        near = sorted(range(1, len(layers)), key=lambda position: (abs(position - wanted), position))
        near = [position for position in near if abs(position - wanted) <= len(layers) / (2 * count + 2)]
        found += [next((position for position in near if _divides(model, layers[position].name)), None)]
    return tuple(layers[position].name for position in sorted({position for position in found if position is not None}))


def _divides(model, name):
    """Whether all paths through a model pass a layer's output, which is a feature map."""
    try:
        output = _layer_output(model, name)
        if len(output.shape) != 4:
            return False
        keras.Model(output, model.outputs[0])
    except (ValueError, StopIteration, AttributeError):
        return False
    return True
