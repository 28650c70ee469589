"""Wraps any Keras model with one output as a network, images in [0, 1] -> {"logits", "embedding"}, that shares all its weights."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import scipy.special
import tensorflow as tf

from tf_robust.models import heads
from tf_robust.models.heads import output_dtype
from tf_robust.models.outputs import are_probabilities

_FROM_LOGITS = {"linear": True, "softmax": False, "sigmoid": False}  # by the activation of the output
_OF_PROBABILITIES = {False: "softmax", True: "sigmoid"}  # activation of probabilities, by whether there is one output
SMALL_SPAN = 0.05  # of images after a layer that normalizes them; an eight-bit range that is divided by 255 twice spans 0.004
SMALLEST_PROBABILITY = 1e-35  # smaller ones are clipped to it before the logarithm, whose gradient remains finite in float32


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
    """The output of a Dense layer before its activation; shares the layer's weights."""

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


class _Observed(keras.layers.Layer):
    """Calls a model whose layers are not known as a graph; also returns the input, or output, of the last call of one of its layers."""

    def __init__(self, model, layer, of_output, **kwargs):
        super().__init__(**kwargs)
        self.model, self.layer, self.of_output, self.built = model, layer, of_output, True

    def call(self, images, training=False):
        with _calls_of([self.layer]) as calls:
            outputs = self.model(images, training=training)
        if not calls:
            raise ValueError(f"Expected a layer that {self.model.name} calls. Received: {self.layer.name}. Try: embedding='another layer'")
        _, inputs, own = calls[-1]
        return outputs, own if self.of_output else inputs

    def get_config(self):
        raise ValueError(
            f"Expected a Functional or Sequential model for a method that copies its layers. Received: {type(self.model).__name__}"
        )


@contextlib.contextmanager
def _calls_of(layers: Sequence[keras.layers.Layer]) -> Iterator[list[tuple[keras.layers.Layer, Any, Any]]]:
    """Context with a list to which (layer, inputs, outputs) of each call of some layers is added."""
    calls: list[tuple[keras.layers.Layer, Any, Any]] = []

    def observed(layer, original):
        def call(inputs, *args, **kwargs):
            outputs = original(inputs, *args, **kwargs)
            calls.append((layer, inputs, outputs))
            return outputs

        return call

    for layer in layers:
        object.__setattr__(layer, "call", observed(layer, layer.call))
    try:
        yield calls
    finally:
        for layer in layers:
            object.__delattr__(layer, "call")


def _inner_layers(layer):
    """Yields the layers within a layer in their order; `_flatten_layers` of Keras reverses those of nested models."""
    for inner in layer._layers:
        yield inner
        yield from _inner_layers(inner)


def check_input_range(model: keras.Model, input_range: Sequence[float]) -> None:
    """Raises ValueError if the first layer of a graph of layers scales images of a range so far down that it must take a larger one."""

    def layers(graph):  # without inputs and random augmentation
        for layer in graph.layers:
            if is_graph(layer):
                yield from layers(layer)
            elif not (isinstance(layer, keras.layers.InputLayer) or type(layer).__name__.startswith("Random")):
                yield layer

    first, span = next(layers(model), None) if is_graph(model) else None, input_range[1] - input_range[0]
    if isinstance(first, keras.layers.Rescaling):
        span *= float(np.max(np.abs(first.scale)))
    elif isinstance(first, keras.layers.Normalization) and first.built:
        span /= float(np.min(np.sqrt(first.variance)))
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
    """
    shape = _input_shape(model)
    low, high = (float(value) for value in input_range)
    if not high > low:
        raise ValueError(f"Expected input_range=(low, high) with low < high. Received: {tuple(input_range)}")
    scale = keras.layers.Rescaling(high - low, offset=low, name="input_range", dtype=output_dtype())
    images = keras.Input(shape, name="images", dtype=output_dtype())
    if not _has_graph_to_output(model):
        if stages:
            raise ValueError(f"Expected stages=() for {model.name}, which is not a graph of layers. Received: {tuple(stages)}")
        return _wrap_observed(model, images, scale, embedding, from_logits)
    output, one_output = model.outputs[0], model.outputs[0].shape[-1] == 1
    dense, features, activation = _last_dense(output)
    if from_logits is None and dense is None and activation == "linear":
        values = _numpy(model(scale(_noise(model)), training=False))
        if ((values >= 0) & (values <= 1)).all() and (one_output or are_probabilities(values)):
            raise ValueError(
                f"Expected from_logits=True or False for {model.name}, whose outputs look like probabilities and are not those of a Dense "
                "or Softmax layer. Received: None"
            )
    from_logits = _resolve_from_logits(model, activation, from_logits, one_output)
    if one_output and activation == "linear" and not from_logits:  # the output is not the Dense layer's logit
        features = None
    before = None if from_logits or features is not None else before_softmax(output)
    end = features if features is not None else output if before is None else before
    head = None if features is None else LinearOutput(dense, name="logits", dtype=output_dtype())
    ends = [end, _layer_output(model, embedding) if embedding else output if features is None else features]

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
    leaves = list(dict.fromkeys(_inner_layers(model)))
    names = ", ".join(leaf.name for leaf in leaves)
    named = next((leaf for leaf in leaves if leaf.name == embedding), None)
    if embedding is not None and named is None:
        raise ValueError(f"Expected a layer name of {model.name} as the embedding: {names}. Received: {embedding}")
    dense, activation, one_output = _observed_end(model, leaves, scale)
    if embedding is None and dense is None:
        raise ValueError(
            f"Expected the name of a layer as the embedding of {model.name}, which has no Dense layer with its output's width: {names}. "
            "Received: none"
        )
    if activation is None and from_logits is None:
        raise ValueError(f"Expected from_logits=True or False for {model.name}, which does not end with a Dense layer. Received: None")
    from_logits = _resolve_from_logits(model, activation, from_logits, one_output)
    observed = _Observed(model, dense if named is None else named, named is not None, name="model", dtype=output_dtype())
    predictions, embedded = observed(scale(images))
    outputs = {"logits": _logits(predictions, from_logits), "embedding": _pooled(embedded)}
    network = keras.Model(images, outputs, name=f"{model.name}_network")
    with_head = embedding is None and not one_output and activation in ("linear", "softmax")
    head = LinearOutput(dense, name="logits", dtype=output_dtype()) if with_head else None
    return WrappedModel(network, heads.in_centered_images(network), head, from_logits, one_output)


def _observed_end(model, leaves, scale):
    """Returns (the Dense layer that is called last with the width of the output, the output's activation, whether it is [N, 1]).

    Found by calling the model on noise. The activation is None where the output is neither the layer's nor a softmax or sigmoid of it.
    """
    with _calls_of([leaf for leaf in leaves if isinstance(leaf, keras.layers.Dense)]) as calls:
        found = model(scale(_noise(model)), training=False)
    if isinstance(found, dict | list | tuple):
        raise ValueError(
            f"Expected a model with one output [N, classes], a tensor. Received: {model.name}, which returns a {type(found).__name__}"
        )
    outputs = _numpy(found)
    own = {layer: _numpy(found) for layer, _, found in calls}  # of the last call
    dense = next((layer for layer, _, _ in calls[::-1] if own[layer].shape == outputs.shape), None)
    one_output = outputs.shape[-1] == 1
    same = functools.partial(np.allclose, outputs, rtol=1e-2, atol=1e-4)
    if dense is None:
        activation = None
    elif same(own[dense]):
        activation = _name(dense.activation)
    else:
        probabilities = scipy.special.expit(own[dense]) if one_output else scipy.special.softmax(own[dense], axis=-1)
        is_linear = dense.activation is keras.activations.linear
        activation = _OF_PROBABILITIES[one_output] if is_linear and same(probabilities) else None
    return dense, activation, one_output


def _noise(model):
    return np.random.RandomState(0).uniform(size=(4, *_input_shape(model))).astype(np.float32)


def _numpy(outputs):
    (tensor,) = tf.nest.flatten(outputs)
    return keras.ops.convert_to_numpy(tensor).astype(np.float64)


def is_graph(model: keras.Model) -> bool:
    """Returns whether a model is Functional or Sequential, with the `call` of Keras."""
    return type(model).call.__module__.startswith("keras.src.models") and bool(getattr(model, "inputs", None))


def _has_graph_to_output(model):
    """Whether a model is a graph of layers that does not end with a nested model."""
    return is_graph(model) and not isinstance(history(model.outputs[0])[0], keras.Model)


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


def _activations(tensor):
    """Yields (tensor, name of the activation that made it) from an output back to the first one that is more than an activation.

    An activation is a softmax or sigmoid, layer or operation, or a layer Activation. The last name is that of the layer, such as Dense.
    """
    while True:
        operation, node = history(tensor)
        kind = type(operation).__name__
        is_softmax = kind in ("Softmax", "Sigmoid") and type(operation).__module__.startswith("keras.src.")
        yield tensor, kind.lower() if is_softmax else _name(getattr(operation, "activation", None))
        if not is_softmax and not isinstance(operation, keras.layers.Activation):
            return
        tensor = node.input_tensors[0]


def _name(activation):
    """Returns the name of an activation; a function of the user's own is not taken for a softmax by its name."""
    if activation is None:
        return "linear"
    name, module = getattr(activation, "__name__", type(activation).__name__), getattr(activation, "__module__", "")
    return name if name not in _FROM_LOGITS or module.startswith("keras.") else f"{module}.{name}"


def before_softmax(tensor: keras.KerasTensor) -> keras.KerasTensor | None:
    """Returns the logits whose softmax is an output of a Functional model, or of one output [N, 1] the logit whose sigmoid it is.

    The softmax may be a layer or an operation, or the activation of a Dense layer, also at the end of a nested model. None: no softmax.
    """
    chain = list(_activations(tensor))
    made, activation = next(((made, name) for made, name in chain if name != "linear"), chain[-1])
    operation, node = history(made)
    if isinstance(operation, keras.Model) and is_graph(operation):
        logits = before_softmax(operation.outputs[made._keras_history.tensor_index])
        return None if logits is None else keras.Model(operation.inputs, logits)(list(node.input_tensors))
    if activation != _OF_PROBABILITIES[tensor.shape[-1] == 1] or getattr(operation, "axis", -1) not in (-1, len(tensor.shape) - 1):
        return None
    if made is not chain[-1][0]:
        return node.input_tensors[0]
    if type(operation) is not keras.layers.Dense or isinstance(operation.dtype_policy, keras.dtype_policies.QuantizedDTypePolicy):
        return None
    return LinearOutput(operation, dtype=operation.dtype_policy)(node.input_tensors[0])


def _last_dense(tensor):
    """Returns (Dense layer, its input, name of the output's activation); None where the output is not a Dense layer's."""
    chain = list(_activations(tensor))
    activation, *others = [name for _, name in chain if name != "linear"] or ["linear"]
    operation, node = history(chain[-1][0])
    if isinstance(operation, keras.layers.Dense) and not others and activation in ("linear", _OF_PROBABILITIES[tensor.shape[-1] == 1]):
        return operation, node.input_tensors[0], activation
    return None, None, activation


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
    """Returns scores [N, classes] of a Keras model as they are, or of one output [N, 1] of both classes: logits (0, z) or (1 - p, p)."""
    if scores.shape[-1] != 1:
        return scores
    return keras.ops.concatenate([keras.ops.zeros_like(scores) if from_logits else 1 - scores, scores], axis=-1)


def _pooled(features):
    if len(features.shape) > 2:
        features = keras.ops.mean(features, axis=tuple(range(1, len(features.shape) - 1)))
    return keras.ops.cast(features, output_dtype())


def stage_layers(model: keras.Model, count: int = 3) -> tuple[str, ...]:
    """Returns up to `count` names of layers with feature maps, evenly spaced, after each of which `wrap` can divide a graph of layers."""
    if not _has_graph_to_output(model):
        return ()
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    names = {}
    for number in range(1, count + 1):
        wanted = number * len(layers) / (count + 1)
        near = sorted(range(1, len(layers)), key=lambda position: (abs(position - wanted), position))
        near = [position for position in near if abs(position - wanted) <= len(layers) / (2 * count + 2)]
        if (position := next((position for position in near if _divides(model, layers[position].name)), None)) is not None:
            names[position] = layers[position].name
    return tuple(names[position] for position in sorted(names))


def _divides(model, name):
    """Whether all paths through a model pass a layer's output, which is a feature map."""
    try:
        output = _layer_output(model, name)
        keras.Model(output, model.outputs[0])
    except (ValueError, StopIteration, AttributeError):
        return False
    return len(output.shape) == 4
