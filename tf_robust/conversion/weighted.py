"""Operations with weights: convolutions, dense layers and normalization."""

import math
from collections.abc import Sequence

import numpy as np
from keras import layers, ops

from tf_robust.conversion.builder import (
    Builder,
    Tensor,
    constant,
    factor_of,
    feature_map,
    unsupported,
)
from tf_robust.conversion.graph import Constant, Node


def spatial_pads(
    node: Node, size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[tuple[int, int]]:
    """Returns [(before, after)] of height and width."""
    mode = node.attributes.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = list(node.attributes.get("pads", [0, 0, 0, 0]))
        return [(pads[0], pads[2]), (pads[1], pads[3])]
    if mode == "VALID":
        return [(0, 0), (0, 0)]
    found = []
    for length, k, stride, dilation in zip(size, kernel, strides, dilations):
        total = max((math.ceil(length / stride) - 1) * stride + (k - 1) * dilation + 1 - length, 0)
        small, large = total // 2, total - total // 2
        found.append((small, large) if mode == "SAME_UPPER" else (large, small))
    return found


def pad_spatial(value, pads, fill=0.0):
    """Pads a feature map [N, H, W, C]."""
    if not any(map(any, pads)):
        return value
    if any(size < 0 for pair in pads for size in pair):
        crop = [tuple(max(-size, 0) for size in pair) for pair in pads]
        value = layers.Cropping2D(crop)(value)
        pads = [tuple(max(size, 0) for size in pair) for pair in pads]
        return pad_spatial(value, pads, fill)
    if fill == 0:
        return layers.ZeroPadding2D([tuple(pair) for pair in pads])(value)
    return ops.pad(value, [(0, 0), *[tuple(pair) for pair in pads], (0, 0)], constant_values=fill)


def convolution(build: Builder, node: Node, inputs: list) -> Tensor:
    x, weight = feature_map(node, inputs[0]), constant(node, inputs[1], "kernel")
    bias = constant(node, inputs[2], "bias") if len(inputs) > 2 and inputs[2] is not None else None
    if weight.value.ndim != 4:
        raise unsupported(node, f"whose kernel has shape {weight.value.shape}")
    kernel, channels, groups = weight.value.shape[2:], x.value.shape[3], node.attributes.get("group", 1)
    strides, dilations = (tuple(node.attributes.get(name, (1, 1))) for name in ("strides", "dilations"))
    pads = spatial_pads(node, x.value.shape[1:3], kernel, strides, dilations)
    same = strides == (1, 1) and all(pair == ((k - 1) * d // 2,) * 2 and k % 2 for pair, k, d in zip(pads, kernel, dilations))
    value = x.value if same else pad_spatial(x.value, pads)
    options = {
        "strides": strides,
        "dilation_rate": dilations,
        "padding": "same" if same else "valid",
        "use_bias": bias is not None,
        "name": build.name(node, weight),
    }
    depthwise = groups == channels and groups > 1 and strides[0] == strides[1]
    options["depthwise_initializer" if depthwise else "kernel_initializer"] = "zeros"  # the values come from the file
    if depthwise:
        multiplier = weight.value.shape[0] // groups
        layer = layers.DepthwiseConv2D(kernel, depth_multiplier=multiplier, **options)
        shape = (groups, multiplier, *kernel)
        weights = {"kernel": (weight, lambda array: array.reshape(shape).transpose(2, 3, 0, 1))}
    else:
        layer = layers.Conv2D(weight.value.shape[0], kernel, groups=groups, **options)
        weights = {"kernel": (weight, lambda array: array.transpose(2, 3, 1, 0))}
    return _weighted(build, node, layer, x, value, weights, bias)


def _weighted(build, node, layer, x, value, weights, bias=None):
    """The output of a layer with its weights."""
    result = layer(value)
    if bias is not None:
        weights["bias"] = (bias, lambda array: array.reshape(-1))
    build.bind(node, layer, weights)
    return Tensor(result, x.axes, x.factor)


def transposed_convolution(build: Builder, node: Node, inputs: list) -> Tensor:
    x, weight = feature_map(node, inputs[0]), constant(node, inputs[1], "kernel")
    bias = constant(node, inputs[2], "bias") if len(inputs) > 2 and inputs[2] is not None else None
    strides, dilations = (tuple(node.attributes.get(name, (1, 1))) for name in ("strides", "dilations"))
    if node.attributes.get("group", 1) != 1 or dilations != (1, 1) or "output_shape" in node.attributes or weight.value.ndim != 4:
        raise unsupported(node, "with groups, dilations or an output shape")
    kernel = weight.value.shape[2:]
    if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise unsupported(node, "with automatic padding")
    pads, extra = node.attributes.get("pads", [0, 0, 0, 0]), node.attributes.get("output_padding", [0, 0])
    options = {"strides": strides, "use_bias": False, "kernel_initializer": "zeros", "name": build.name(node, weight)}
    layer = layers.Conv2DTranspose(weight.value.shape[1], kernel, **options)
    result = _weighted(build, node, layer, x, x.value, {"kernel": (weight, lambda array: array.transpose(2, 3, 1, 0))})
    missing = []  # Keras has at least stride * size rows
    for axis in range(2):
        length = (x.value.shape[1 + axis] - 1) * strides[axis] + kernel[axis]
        after = length - pads[2 + axis] + extra[axis] - result.value.shape[1 + axis]
        missing.append((-pads[axis], after))
    value = pad_spatial(result.value, missing)
    if bias is not None:
        value = ops.add(value, build.operand(bias, node).value)
    return Tensor(value, x.axes, x.factor)


def gemm(build: Builder, node: Node, inputs: list) -> Tensor:
    options = node.attributes
    if options.get("transA", 0) or options.get("alpha", 1.0) != 1 or options.get("beta", 1.0) != 1:
        raise unsupported(node, "with transA, alpha or beta")
    if not isinstance(inputs[0], Tensor) or not isinstance(inputs[1], Constant):
        raise unsupported(node, "of two tensors that depend on the images")
    weight = inputs[1].move(np.transpose) if options.get("transB", 0) else inputs[1]
    bias = constant(node, inputs[2], "bias") if len(inputs) > 2 and inputs[2] is not None else None
    return dense(build, node, inputs[0], weight, bias)


def dense(build: Builder, node: Node, x: Tensor, weight: Constant, bias: Constant | None) -> Tensor:
    """Returns x @ weight + bias by a dense layer."""
    x = x if x.axes[-1] == len(x.axes) - 1 else x.in_order()
    units = weight.value.shape[1]
    if bias is not None and bias.value.size != units:  # a scalar or a column
        bias = Constant(np.broadcast_to(bias.value, (units,)))
    layer = layers.Dense(units, use_bias=bias is not None, kernel_initializer="zeros", name=build.name(node, weight))
    return _weighted(build, node, layer, x, x.value, {"kernel": (weight, lambda array: array)}, bias)


def matmul(build: Builder, node: Node, inputs: list) -> Tensor:
    left, right = inputs
    if isinstance(left, Tensor) and isinstance(right, Constant) and right.value.ndim == 2:
        following = build.only_consumer(node, "Add")
        others = [build.values.get(name) for name in following.inputs if name != node.outputs[0]] if following else []
        bias = others[0] if len(others) == 1 else None
        if following is None or not isinstance(bias, Constant) or bias.value.shape != right.value.shape[1:]:
            return dense(build, node, left, right, None)
        build.done.add(following.outputs[0])
        result = build.values[following.outputs[0]] = dense(build, node, left, right, bias)
        return result
    left, right = (build.operand(value, node).in_order() for value in inputs)
    result = ops.matmul(left.value, right.value)
    return Tensor(result, tuple(range(len(result.shape))), factor_of(left, right))


def einsum(build: Builder, node: Node, inputs: list) -> Tensor:
    tensors = [build.operand(value, node).in_order() for value in inputs]
    result = ops.einsum(node.attributes["equation"], *(tensor.value for tensor in tensors))
    return Tensor(result, tuple(range(len(result.shape))), factor_of(*tensors))


# Normalization


def batch_normalization(build: Builder, node: Node, inputs: list) -> Tensor:
    if node.attributes.get("training_mode", 0):
        raise unsupported(node, "in training mode. Try: export the model in inference mode")
    x = inputs[0]
    scale, offset, mean, variance = (constant(node, value, "statistics") for value in inputs[1:5])
    layer = layers.BatchNormalization(
        axis=x.axes.index(1),
        momentum=node.attributes.get("momentum", 0.9),
        epsilon=node.attributes.get("epsilon", 1e-5),
        name=build.name(node, scale),
    )
    same = _unchanged
    weights = {"gamma": (scale, same), "beta": (offset, same), "moving_mean": (mean, same), "moving_variance": (variance, same)}
    return _weighted(build, node, layer, x, x.value, weights)


def _unchanged(array):
    return array


def layer_normalization(build: Builder, node: Node, inputs: list) -> Tensor:
    x, scale = inputs[0].in_order(), constant(node, inputs[1], "scale")
    bias = constant(node, inputs[2], "bias") if len(inputs) > 2 and inputs[2] is not None else None
    axis = node.attributes.get("axis", -1) % len(x.axes)
    layer = layers.LayerNormalization(
        axis=list(range(axis, len(x.axes))),
        epsilon=node.attributes.get("epsilon", 1e-5),
        center=bias is not None,
        name=build.name(node, scale),
    )
    weights = {"gamma": (scale, _unchanged)} | ({} if bias is None else {"beta": (bias, _unchanged)})
    return _weighted(build, node, layer, x, x.value, weights)


def instance_normalization(build: Builder, node: Node, inputs: list) -> Tensor:
    x, scale, bias = inputs[0], constant(node, inputs[1], "scale"), constant(node, inputs[2], "bias")
    layer = layers.GroupNormalization(
        groups=-1, axis=x.axes.index(1), epsilon=node.attributes.get("epsilon", 1e-5), name=build.name(node, scale)
    )
    return _weighted(build, node, layer, x, x.value, {"gamma": (scale, _unchanged), "beta": (bias, _unchanged)})
