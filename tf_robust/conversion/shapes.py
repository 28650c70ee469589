"""Operations that rearrange the elements of a tensor."""

import math
from collections.abc import Sequence

import numpy as np
from keras import layers, ops

from tf_robust.conversion.builder import (
    CHANNELS_LAST,
    Builder,
    Tensor,
    Value,
    constant,
    integers,
    remaining,
    required_integers,
    unsupported,
)
from tf_robust.conversion.elementwise import binary
from tf_robust.conversion.graph import BATCH, FEW, Constant, Node
from tf_robust.conversion.weighted import pad_spatial


def shape(build: Builder, node: Node, inputs: list) -> Constant:
    sizes = inputs[0].shape
    return Constant(np.array(sizes[node.attributes.get("start", 0) : node.attributes.get("end", len(sizes))], np.int64))


def reshape(build: Builder, node: Node, inputs: list) -> Tensor:
    x = inputs[0].in_order()
    target = [int(size) for size in constant(node, inputs[1], "shape").value]
    if not node.attributes.get("allowzero", 0):
        target = [x.shape[position] if size == 0 else size for position, size in enumerate(target)]
    return reshaped(build, node, x, target)


def reshaped(build: Builder, node: Node, x: Tensor, target: list[int]) -> Tensor:
    """Returns a tensor in ONNX' order with a shape, in which `BATCH` stands for the number of images and one size may be -1."""
    fixed = build.graph.input_shape[0]
    if fixed and target and target[0] == fixed and not any(size % BATCH == 0 for size in target if size):
        target = [BATCH, *target[1:]]  # the file was exported for a fixed number of images
    total = math.prod(x.shape)
    if -1 in target:
        rest = -math.prod(target)
        target[target.index(-1)] = total // rest if rest and total % rest == 0 else 0
    if math.prod(target) != total:
        raise unsupported(node, f"from shape {_readable(x.shape)} to {_readable(target)}")
    batches = [position for position, size in enumerate(target) if size % BATCH == 0]
    if len(batches) != 1:
        raise unsupported(node, f"from shape {_readable(x.shape)} to {_readable(target)}")
    factor = target[batches[0]] // BATCH
    sizes = [-1 if position == batches[0] else size for position, size in enumerate(target)]
    if batches == [0] and x.value.shape[0] is None and factor == x.factor:
        value = layers.Reshape(sizes[1:])(x.value)
    else:
        value = ops.reshape(x.value, sizes)
    return Tensor(value, tuple(range(len(sizes))), factor, x.preprocessed)


def _readable(sizes):
    return tuple("N" if size == BATCH else f"{size // BATCH}N" if size and size % BATCH == 0 else size for size in sizes)


def flatten(build: Builder, node: Node, inputs: list) -> Tensor:
    x = inputs[0].in_order()
    axis = node.attributes.get("axis", 1) % (len(x.axes) + 1)
    return reshaped(build, node, x, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])


def transpose(build: Builder, node: Node, inputs: list) -> Tensor:
    x = inputs[0]
    order = list(node.attributes.get("perm", range(len(x.axes))[::-1]))
    return x.with_value(x.value, [order.index(axis) for axis in x.axes])


def squeeze(build: Builder, node: Node, inputs: list) -> Tensor:
    x, rank = inputs[0], len(inputs[0].axes)
    axes = integers(node, inputs, 1, "axes")
    axes = [axis for axis, size in enumerate(x.shape) if size == 1] if axes is None else [axis % rank for axis in axes]
    value = ops.squeeze(x.value, tuple(x.axes.index(axis) for axis in axes))
    return x.with_value(value, remaining(x.axes, axes))


def unsqueeze(build: Builder, node: Node, inputs: list) -> Tensor:
    x = inputs[0]
    new = required_integers(node, inputs, 1, "axes")
    rank = len(x.axes) + len(new)
    new = sorted(axis % rank for axis in new)
    old = [axis for axis in range(rank) if axis not in new]
    value = x.value
    for _ in new:
        value = ops.expand_dims(value, -1)
    return x.with_value(value, [*(old[axis] for axis in x.axes), *new])


def concat(build: Builder, node: Node, inputs: list) -> Tensor:
    x = next(value for value in inputs if isinstance(value, Tensor))
    axis = node.attributes["axis"] % len(x.axes)
    repeat = axis != 0
    tensors = [value if isinstance(value, Tensor) else build.operand(value, node, repeat=repeat) for value in inputs]
    value = layers.Concatenate(axis=x.axes.index(axis), name=build.name(node))([tensor.stored(x.axes).value for tensor in tensors])
    return Tensor(value, x.axes, x.factor)


def split(build: Builder, node: Node, inputs: list) -> list[Tensor]:
    x = inputs[0]
    axis = node.attributes.get("axis", 0) % len(x.axes)
    position, size = x.axes.index(axis), x.shape[axis]
    sizes = integers(node, inputs, 1, "split")
    if sizes is None:
        each = math.ceil(size / len(node.outputs))
        sizes = [min(each, size - start) for start in range(0, size, each)]
    parts = ops.split(x.value, [int(stop) for stop in np.cumsum(sizes)[:-1]], axis=position)
    return [x.with_value(part) for part in parts]


def slices(build: Builder, node: Node, inputs: list) -> Tensor:
    x, rank = inputs[0], len(inputs[0].axes)
    starts, ends = (required_integers(node, inputs, position, name) for position, name in ((1, "starts"), (2, "ends")))
    axes, steps = integers(node, inputs, 3, "axes") or range(len(starts)), integers(node, inputs, 4, "steps") or [1] * len(starts)
    value = x.value
    for start, end, axis, step in zip(starts, ends, axes, steps):
        axis %= rank
        size = x.shape[axis]
        kept = range(size)[start:end:step]
        if len(kept) == size and step > 0:
            continue
        if size % BATCH == 0:
            raise unsupported(node, "of the images of a batch")
        value = take(value, kept, x.axes.index(axis))
    return x.with_value(value)


def take(value, kept, position):
    """Elements of an axis; consecutive ones by a split, whose gradient is fast."""
    if not kept:
        raise ValueError("Expected a slice with elements.")
    if kept.step == 1:
        stops = [stop for stop in (kept.start, kept.stop) if 0 < stop < value.shape[position]]
        return ops.split(value, stops, axis=position)[1 if kept.start else 0]
    return ops.take(value, np.array(kept), axis=position)


def gather(build: Builder, node: Node, inputs: list) -> Tensor:
    found = constant(node, inputs[1], "indices")
    indices, x = found.value, build.operand(inputs[0], node)
    if found.counts_images:
        return _gather_in_each_image(node, x, indices)
    rank, axis = len(x.axes), node.attributes.get("axis", 0) % len(x.axes)
    position, size = x.axes.index(axis), x.shape[axis]
    if size % BATCH == 0:
        raise unsupported(node, "of the images of a batch")
    indices = np.where(indices < 0, indices + size, indices)
    if indices.ndim == 0:
        value = ops.squeeze(take(x.value, range(int(indices), int(indices) + 1), position), position)
        return x.with_value(value, remaining(x.axes, [axis]))
    if indices.ndim > 1 and x.axes != tuple(range(rank)):
        x, position = x.in_order(), axis
    value = ops.take(x.value, indices, axis=position)
    if indices.ndim == 1:
        return x.with_value(value)
    return x.with_value(value, range(len(value.shape)))


def _gather_in_each_image(node, x, indices):
    """The same elements of each image, from all images in one axis: a view with strides, as PyTorch exports it."""
    numbers = np.arange(len(indices)).reshape(-1, *[1] * (indices.ndim - 1))
    if (
        len(x.axes) != 1
        or len(indices) != FEW
        or not np.array_equal(indices, indices[:1] + x.factor * numbers)
        or not (0 <= indices[0].min() and indices[0].max() < x.factor)
    ):
        raise unsupported(node, "whose indices are not the same in each image")
    value = ops.take(ops.reshape(x.value, (-1, x.factor)), indices[0], axis=1)
    return Tensor(value, tuple(range(indices.ndim)), 1, x.preprocessed)


def expand(build: Builder, node: Node, inputs: list) -> Value | Sequence[Value]:
    target = [1 if size % BATCH == 0 and size else int(size) for size in constant(node, inputs[1], "shape").value]
    ones = Constant(np.ones([1 if size == -1 else size for size in target], np.float32))
    return binary(ops.multiply)(build, node, [inputs[0], ones])


def tile(build: Builder, node: Node, inputs: list) -> Tensor:
    x = inputs[0]
    repeats = required_integers(node, inputs, 1, "repeats")
    return x.with_value(ops.tile(x.value, [repeats[axis] for axis in x.axes]))


def pad(build: Builder, node: Node, inputs: list) -> Tensor:
    x, rank = inputs[0], len(inputs[0].axes)
    sizes, mode = required_integers(node, inputs, 1, "pads"), node.attributes.get("mode", "constant")
    axes = [axis % rank for axis in integers(node, inputs, 3, "axes") or range(rank)]
    fill = constant(node, inputs[2], "value").value if len(inputs) > 2 and inputs[2] is not None else node.attributes.get("value", 0.0)
    pairs = [(0, 0)] * rank
    for number, axis in enumerate(axes):
        pairs[x.axes.index(axis)] = (sizes[number], sizes[number + len(axes)])
    if mode not in ("constant", "reflect") or (mode != "constant" and any(size < 0 for pair in pairs for size in pair)):
        raise unsupported(node, f"with mode {mode}")
    if mode == "reflect":
        return x.with_value(ops.pad(x.value, pairs, mode="reflect"))
    if rank == 4 and x.axes[1:] == CHANNELS_LAST[1:] and pairs[0] == pairs[3] == (0, 0):
        return x.with_value(pad_spatial(x.value, pairs[1:3], float(np.ravel(fill)[0])))
    if any(size < 0 for pair in pairs for size in pair):
        raise unsupported(node, "that crops")
    return x.with_value(ops.pad(x.value, pairs, constant_values=float(np.ravel(fill)[0])))


def depth_to_space(build: Builder, node: Node, inputs: list) -> Tensor:
    x, block = inputs[0].in_order(), node.attributes["blocksize"]
    count, channels, height, width = x.shape
    parts = [block, block, channels // block**2] if node.attributes.get("mode", "DCR") == "DCR" else [channels // block**2, block, block]
    order = (0, 3, 4, 1, 5, 2) if node.attributes.get("mode", "DCR") == "DCR" else (0, 1, 4, 2, 5, 3)
    split_up = reshaped(build, node, x, [count, *parts, height, width])
    moved = split_up.with_value(split_up.value, [order.index(axis) for axis in split_up.axes]).in_order()
    return reshaped(build, node, moved, [count, channels // block**2, height * block, width * block])


def same(build: Builder, node: Node, inputs: list) -> Value:
    return inputs[0]


def cast(build: Builder, node: Node, inputs: list) -> Tensor:
    kind = np.dtype(keras_type(node.attributes["to"]))
    if kind.kind not in "fb":
        raise unsupported(node, f"to {kind}")
    return inputs[0] if kind.kind == "f" else inputs[0].with_value(ops.cast(inputs[0].value, "bool"))


def keras_type(number: int) -> str:
    """Returns the name of a type of ONNX."""
    import onnx

    name = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)).name
    return "float32" if name in ("bfloat16", "float16", "float64") else name
