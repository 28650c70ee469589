"""Activations and element-wise operations."""

import math
from collections.abc import Callable

import numpy as np
from keras import layers, ops

from tf_robust.conversion.builder import (
    Builder,
    Operation,
    Tensor,
    constant,
    factor_of,
    unsupported,
)
from tf_robust.conversion.graph import Node


def unary(function: Callable) -> Operation:
    """Returns the operation of a function of one tensor."""

    def operation(build: Builder, node: Node, inputs: list) -> Tensor:
        return inputs[0].with_value(function(inputs[0].value))

    return operation


def activation(make: Callable[[Node], layers.Layer]) -> Operation:
    """Returns the operation of a layer without weights."""

    def operation(build: Builder, node: Node, inputs: list) -> Tensor:
        return inputs[0].with_value(make(node)(inputs[0].value))

    return operation


def clip(build: Builder, node: Node, inputs: list) -> Tensor:
    bounds = []
    for position, (name, default) in enumerate((("min", -np.inf), ("max", np.inf)), start=1):
        given = inputs[position] if len(inputs) > position else None
        bounds.append(float(np.ravel(constant(node, given, name).value)[0]) if given is not None else node.attributes.get(name, default))
    low, high = bounds
    if low == 0:
        return inputs[0].with_value(layers.ReLU(max_value=None if np.isinf(high) else high)(inputs[0].value))
    limit = float(np.finfo(np.float32).max)
    return inputs[0].with_value(ops.clip(inputs[0].value, max(low, -limit), min(high, limit)))


def gelu(build: Builder, node: Node, inputs: list) -> Tensor:
    approximate = node.attributes.get("approximate", "none") == "tanh"
    return inputs[0].with_value(ops.gelu(inputs[0].value, approximate=approximate))


def hard_sigmoid(build: Builder, node: Node, inputs: list) -> Tensor:
    alpha, beta = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    x = inputs[0]
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return x.with_value(ops.hard_sigmoid(x.value))
    return x.with_value(ops.clip(x.value * alpha + beta, 0.0, 1.0))


def prelu(build: Builder, node: Node, inputs: list) -> Tensor:
    x = inputs[0]
    slope = _as_operand(build, node, x, inputs[1])
    return x.with_value(ops.add(ops.maximum(x.value, 0), ops.multiply(slope, ops.minimum(x.value, 0))))


def softmax(function: Callable) -> Operation:
    """Returns the operation of softmax or its logarithm."""

    def operation(build: Builder, node: Node, inputs: list) -> Tensor:
        x, rank = inputs[0], len(inputs[0].axes)
        axis = node.attributes.get("axis", -1 if node.opset >= 13 else 1) % rank
        if node.opset < 13 and axis != rank - 1:  # over all axes from this one on
            raise unsupported(node, "over several axes")
        return x.with_value(function(x.value, axis=x.axes.index(axis)))

    return operation


def _as_operand(build, node, x, other):
    """Another operand of an element-wise operation with a tensor, in its order of axes."""
    rank = len(x.axes)
    if isinstance(other, Tensor):
        return other.stored(x.axes).value
    array = other.value
    if array.size == 1:
        return float(array.reshape(())) if array.dtype.kind == "f" else int(array.reshape(()))
    moved = other.move(lambda a: a.reshape((1,) * (rank - a.ndim) + a.shape).transpose(x.axes))
    if not x.preprocessed and build.is_weight(other):
        return build.operand(moved, node).value
    build.keep(other)
    return moved.value


def binary(function: Callable) -> Operation:
    """Returns the operation of a function of two tensors, which are broadcast."""

    def operation(build: Builder, node: Node, inputs: list) -> Tensor:
        left, right = inputs
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        rank = max(len(value.axes) if isinstance(value, Tensor) else value.value.ndim for value in inputs)
        if any(len(tensor.axes) != rank for tensor in tensors):  # NumPy's rule adds axes in front
            tensors = [with_rank(tensor, rank) for tensor in tensors]
            left, right = (with_rank(value, rank) if isinstance(value, Tensor) else value for value in inputs)
        x = next(tensor for tensor in tensors if tensor.factor == max(one.factor for one in tensors) or None in tensor.value.shape)
        values = [value.value if value is x else _as_operand(build, node, x, value) for value in (left, right)]
        preprocessed = all(tensor.preprocessed for tensor in tensors)
        return Tensor(function(*values), x.axes, factor_of(*tensors), preprocessed)

    return operation


def with_rank(tensor, rank):
    missing = rank - len(tensor.axes)
    if not missing:
        return tensor
    value = tensor.value
    for _ in range(missing):
        value = ops.expand_dims(value, 0)
    return tensor.with_value(value, [*range(missing), *(axis + missing for axis in tensor.axes)])


def folded_left(function: Callable) -> Operation:
    """Returns the operation of a function of any number of tensors, two at a time."""
    pair = binary(function)

    def operation(build: Builder, node: Node, inputs: list) -> Tensor:
        result = inputs[0]
        for value in inputs[1:]:
            result = pair(build, node, [result, value])
        return result

    return operation


def where(build: Builder, node: Node, inputs: list) -> Tensor:
    rank = max(len(value.axes) if isinstance(value, Tensor) else value.value.ndim for value in inputs)
    tensors = [with_rank(value, rank) for value in inputs if isinstance(value, Tensor)]
    x = tensors[0]
    values = []
    for value in inputs:
        if isinstance(value, Tensor):
            value = with_rank(value, rank)
        values.append(x.value if value is x else _as_operand(build, node, x, value))
    return Tensor(ops.where(*values), x.axes, factor_of(*tensors))
