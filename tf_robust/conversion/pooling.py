"""Pooling, reductions and resizing."""

import math
from collections.abc import Callable

import numpy as np
from keras import layers, ops

from tf_robust.conversion.builder import (
    CHANNELS_LAST,
    Builder,
    Operation,
    Tensor,
    constant,
    feature_map,
    integers,
    remaining,
    unsupported,
)
from tf_robust.conversion.graph import Node
from tf_robust.conversion.weighted import pad_spatial, spatial_pads


def pool(kind: str) -> Operation:
    """Returns the operation of maximum or average pooling."""

    def operation(build: Builder, node: Node, inputs: list) -> Tensor:
        x = feature_map(node, inputs[0])
        kernel = tuple(node.attributes["kernel_shape"])
        strides = tuple(node.attributes.get("strides", (1, 1)))
        if set(node.attributes.get("dilations", (1, 1))) != {1} or len(node.outputs) > 1:
            raise unsupported(node, "with dilations or indices")
        pads = spatial_pads(node, x.value.shape[1:3], kernel, strides, (1, 1))
        extra = [0, 0]
        if node.attributes.get("ceil_mode", 0):
            for axis in range(2):
                length = x.value.shape[1 + axis] + sum(pads[axis])
                windows = math.ceil((length - kernel[axis]) / strides[axis]) + 1
                if (windows - 1) * strides[axis] >= x.value.shape[1 + axis] + pads[axis][0]:
                    windows -= 1  # a window that begins behind the image
                extra[axis] = max((windows - 1) * strides[axis] + kernel[axis] - length, 0)
        padded = [(before, after + more) for (before, after), more in zip(pads, extra)]
        name = build.name(node)
        if kind == "max":
            value = pad_spatial(x.value, padded, float(np.finfo(np.float32).min))
            return x.with_value(layers.MaxPooling2D(kernel, strides, name=name)(value))
        value = layers.AveragePooling2D(kernel, strides, name=name)(pad_spatial(x.value, padded))
        counted = np.ones(x.value.shape[1:3])
        if node.attributes.get("count_include_pad", 0):
            counted = np.pad(counted, pads, constant_values=1)
            counted = np.pad(counted, [(0, more) for more in extra])
        else:
            counted = np.pad(counted, padded)
        windows = np.lib.stride_tricks.sliding_window_view(counted, kernel)[:: strides[0], :: strides[1]]
        fractions = windows.mean(axis=(2, 3), dtype=np.float32)[None, :, :, None]
        return x.with_value(value if (fractions == 1).all() else ops.divide(value, fractions))

    return operation


def global_pool(layer: type[layers.Layer]) -> Operation:
    """Returns the operation of a pooling over height and width."""

    def operation(build: Builder, node: Node, inputs: list) -> Tensor:
        x = feature_map(node, inputs[0])
        return x.with_value(layer(keepdims=True, name=build.name(node))(x.value))

    return operation


def reduction(function: Callable) -> Operation:
    """Returns the operation of a reduction over some axes."""

    def operation(build: Builder, node: Node, inputs: list) -> Tensor:
        x, rank = inputs[0], len(inputs[0].axes)
        axes = [axis % rank for axis in integers(node, inputs, 1, "axes") or range(rank)]
        if 0 in axes and x.value.shape[x.axes.index(0)] is None:
            raise unsupported(node, "over the images of a batch")
        keep = bool(node.attributes.get("keepdims", 1))
        positions = tuple(sorted(x.axes.index(axis) for axis in axes))
        if function is ops.mean and x.axes == CHANNELS_LAST and positions == (1, 2):
            value = layers.GlobalAveragePooling2D(keepdims=keep, name=build.name(node))(x.value)
        else:
            value = function(x.value, axis=positions, keepdims=keep)
        return x.with_value(value, x.axes if keep else remaining(x.axes, axes))

    return operation


def resize(build: Builder, node: Node, inputs: list) -> Tensor:
    x = feature_map(node, inputs[0])
    scales = inputs[2] if len(inputs) > 2 and inputs[2] is not None and inputs[2].value.size else None
    sizes = inputs[3] if len(inputs) > 3 and inputs[3] is not None else None
    if scales is not None:
        size = [int(length * scale) for length, scale in zip(x.value.shape[1:3], constant(node, scales, "scales").value[2:])]
    elif sizes is not None:
        size = [int(length) for length in constant(node, sizes, "sizes").value[2:]]
    else:
        raise unsupported(node, "without scales and sizes")
    factors = [new / old for new, old in zip(size, x.value.shape[1:3])]
    mode, transformation = node.attributes.get("mode", "nearest"), node.attributes.get("coordinate_transformation_mode", "half_pixel")
    integer = all(factor == int(factor) for factor in factors)
    if mode == "nearest" and integer:
        return x.with_value(layers.UpSampling2D([int(factor) for factor in factors], name=build.name(node))(x.value))
    if mode == "linear" and transformation in ("half_pixel", "pytorch_half_pixel") and min(size) > 1:
        return x.with_value(ops.image.resize(x.value, size, interpolation="bilinear", antialias=False, data_format="channels_last"))
    raise unsupported(node, f"with mode {mode}, {transformation} and factors {factors}")
