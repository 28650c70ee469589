"""What the operations of a graph are built with: tensors, trainable arrays, and the places of weights in the file.

A tensor is stored in an order of axes of its own: images and feature maps with channels last, where ONNX has them second. A
transposition only changes this order, and convolutions receive the order that Keras expects.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import layers, ops

from tf_robust.conversion.graph import BATCH, Constant, Graph, Node
from tf_robust.layers import Parameter

CHANNELS_LAST = (0, 2, 3, 1)
_AUTOMATIC = re.compile(r"^(onnx::|/|val_|_val|const|_const|t_?\d)", re.IGNORECASE)  # names that exporters give computed constants


@dataclasses.dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor that depends on the images.

    Attributes:
        value: Keras tensor.
        axes: position in ONNX' order of each axis of `value`.
        factor: size of the batch axis, in numbers of images.
        preprocessed: whether only constants were applied to the images so far.
    """

    value: keras.KerasTensor
    axes: tuple[int, ...]
    factor: int = 1
    preprocessed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in ONNX' order, with `BATCH` for the number of images."""
        return tuple(self._size(self.axes.index(axis)) for axis in range(len(self.axes)))

    def _size(self, position):
        size = self.value.shape[position]
        return self.factor * BATCH if size is None else size

    def with_value(self, value: keras.KerasTensor, axes: Sequence[int] | None = None) -> "Tensor":
        """Returns another tensor of as many images."""
        return Tensor(value, self.axes if axes is None else tuple(axes), self.factor, self.preprocessed)

    def stored(self, axes: Sequence[int]) -> "Tensor":
        """Returns the tensor stored in an order of axes."""
        axes = tuple(axes)
        if axes == self.axes:
            return self
        order = [self.axes.index(axis) for axis in axes]
        long = [position for position in order if self.value.shape[position] != 1]
        if long == sorted(long):  # axes of size 1 move without a transposition
            shape = [-1 if self.value.shape[position] is None else self.value.shape[position] for position in order]
            return self.with_value(ops.reshape(self.value, shape), axes)
        return self.with_value(ops.transpose(self.value, order), axes)

    def in_order(self) -> "Tensor":
        """Returns the tensor stored in ONNX' order."""
        return self.stored(range(len(self.axes)))


@dataclasses.dataclass(frozen=True)
class Binding:
    """Where a variable comes from: `variable.flat[i]` is element `index.flat[i]` of the initializer."""

    variable: keras.Variable
    initializer: str
    index: np.ndarray
    node: str  # first output of the operation that takes it


class Builder:
    """The Keras layers of a graph, and their variables' places in the file.

    Attributes:
        graph: that is converted.
        values: {name: `Constant` or `Tensor`} so far.
        images: Keras input.
        bindings: of all variables.
        untrained: names of initializers with more than one number that are constants in the Keras model.
    """

    def __init__(self, graph: Graph, images: keras.KerasTensor):
        self.graph, self.images = graph, images
        self.values: dict[str, Constant | Tensor] = dict(graph.initializers)
        self.bindings: list[Binding] = []
        self.untrained: set[str] = set()
        self.consumers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in node.inputs:
                self.consumers.setdefault(name, []).append(node)
        self.done: set[str] = set()  # outputs of nodes that were computed along with another one
        self._names: set[str] = set()

    def name(self, node: Node, weight: Constant | None = None) -> str:
        """Returns a new name of a layer: the weight's without its last part, or the node's."""
        text = node.name
        if weight is not None and weight.initializer and not _AUTOMATIC.match(weight.initializer):
            text = weight.initializer.rpartition(".")[0] or weight.initializer
        text = re.sub(r"[^A-Za-z0-9_.\-]+", "_", text).strip("_") or node.kind.lower()
        name, count = text, 1
        while name in self._names:
            count += 1
            name = f"{text}_{count}"
        self._names.add(name)
        return name

    def bind(self, node: Node, layer: layers.Layer, weights: dict[str, tuple[Constant, Callable[[np.ndarray], np.ndarray]]]) -> None:
        """Gives the variables of a built layer their values: {attribute: (constant, its rearrangement)}."""
        for attribute, (constant, rearrange) in weights.items():
            variable = getattr(layer, attribute)
            moved = constant.move(rearrange)
            variable.assign(moved.value)
            if moved.index is not None:
                self.bindings.append(Binding(variable, moved.initializer, np.ascontiguousarray(moved.index), node.outputs[0]))

    def operand(self, value: Constant | Tensor, node: Node, trainable: bool = True, repeat: bool = False) -> Tensor:
        """Returns a value as a tensor: a named float initializer as a trainable one, if `trainable`."""
        if isinstance(value, Tensor):
            return value
        axes = tuple(range(value.value.ndim))
        if trainable and self.is_weight(value):
            layer = Parameter(value.value.shape, repeat, name=self.name(node, value))
            self.bind(node, layer, {"array": (value, lambda array: array)})
            return Tensor(layer(self.images), axes)
        self.keep(value)
        array = value.value
        if repeat:
            ones = ops.ones_like(ops.reshape(self.images, (-1, math.prod(self.images.shape[1:])))[:, :1])
            ones = ops.reshape(ones, (-1, *[1] * (array.ndim - 1)))
            return Tensor(ops.multiply(ones, array), axes)
        return Tensor(ops.convert_to_tensor(array), axes)  # never a Keras tensor: an array in an operation

    def is_weight(self, value: Constant) -> bool:
        """Returns whether a constant is a weight that can be trained: each element is one of a named initializer."""
        return (
            value.index is not None
            and value.value.size > 1
            and not _AUTOMATIC.match(value.initializer)
            and len(np.unique(value.index)) == value.index.size
        )

    def keep(self, value: Constant) -> None:
        """Notes an initializer that stays as it is."""
        if value.index is not None and value.value.size > 1:
            self.untrained.add(value.initializer)

    def only_consumer(self, node: Node, kind: str) -> Node | None:
        """Returns the node that alone takes the output of a node, if it is of a kind."""
        found = self.consumers.get(node.outputs[0], [])
        return found[0] if len(found) == 1 and found[0].kind == kind and node.outputs[0] != self.graph.output else None


Value = Constant | Tensor
Operation = Callable[[Builder, Node, list], Value | Sequence[Value]]


def unsupported(node: Node, reason: str) -> ValueError:
    """Returns the error of a node that cannot be converted."""
    return ValueError(f"Expected a graph of feed-forward operations that Keras has. Received: {node}, {reason}")


def constant(node: Node, value: Value | None, what: str) -> Constant:
    """Returns a constant input; raises ValueError if it depends on the images."""
    if not isinstance(value, Constant):
        raise unsupported(node, f"whose {what} depends on the images")
    return value


def integers(node: Node, inputs: list, position: int, name: str) -> list[int] | None:
    """Returns the integers of an input (newer versions) or an attribute (older ones); None: neither is there."""
    if len(inputs) > position and inputs[position] is not None:
        return [int(number) for number in np.atleast_1d(constant(node, inputs[position], name).value)]
    found = node.attributes.get(name)
    return found if found is None else [int(number) for number in np.atleast_1d(found)]


def required_integers(node: Node, inputs: list, position: int, name: str) -> list[int]:
    """As `integers`; raises ValueError if neither is there."""
    found = integers(node, inputs, position, name)
    if found is None:
        raise unsupported(node, f"without {name}")
    return found


def feature_map(node: Node, value: Value) -> Tensor:
    """Returns an input as [N, H, W, C]."""
    if not isinstance(value, Tensor) or len(value.axes) != 4:
        raise unsupported(node, "whose input is not a feature map [N, C, H, W]")
    return value.stored(CHANNELS_LAST)


def factor_of(*tensors: Tensor) -> int:
    """Returns the number of images of the first tensor that has a batch axis."""
    return next((tensor.factor for tensor in tensors if None in tensor.value.shape), 1)


def remaining(axes: Sequence[int], removed: Sequence[int]) -> list[int]:
    """Returns an order of axes without some of them, counted anew."""
    left = [axis for axis in axes if axis not in removed]
    return [sorted(left).index(axis) for axis in left]
