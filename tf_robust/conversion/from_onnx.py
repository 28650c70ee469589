"""Converts an ONNX file to a trainable Keras model: `to_keras`."""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np

from tf_robust.conversion import graph as onnx_graph
from tf_robust.conversion.builder import CHANNELS_LAST, Binding, Builder, Tensor, Value, unsupported
from tf_robust.conversion.graph import BATCH, Constant
from tf_robust.conversion.operations import OPERATIONS


@dataclasses.dataclass(frozen=True, eq=False)
class ConvertedGraph:
    """A Keras model that was converted from an ONNX file.

    Attributes:
        model: functional; float32 [N, H, W, C] on the file's pixel scale -> what the file returns.
        graph: of the file.
        bindings: the place in the file of each variable.
        untrained: names of the file's initializers, with more than one number, that are constants in the model.
        order: axes of the file's images in the order [N, H, W, C].
    """

    model: keras.Model
    graph: onnx_graph.Graph
    bindings: list[Binding]
    untrained: tuple[str, ...]
    order: tuple[int, ...]


def to_keras(path: str, image_size: tuple[int, int] | None = None) -> ConvertedGraph:
    """Converts an ONNX file to a trainable Keras model.

    Args:
        path: of a file of opset 11 or later, with one input, images [N, C, H, W] or [N, H, W, C], and one output.
        image_size: height and width, for a file that leaves them open.

    Raises:
        ValueError: the file cannot be read or converted; the message names the node.
    """
    graph = onnx_graph.read(path)
    shape = graph.input_shape
    if len(shape) != 4:
        raise ValueError(f"Expected a file that takes images [N, C, H, W] or [N, H, W, C]. Received: {path} with an input of shape {shape}")
    first = shape[1] in (1, 3) or (shape[3] not in (1, 3) and shape[1] is not None)
    order = CHANNELS_LAST if first else (0, 1, 2, 3)
    height, width, channels = (shape[axis] for axis in order[1:])
    if image_size:
        height, width = height or image_size[0], width or image_size[1]
    if None in (height, width, channels):
        raise ValueError(f"Expected the size of the images of {path}, whose input has shape {shape}. Received: none. Try: image_size")
    images = keras.Input((height, width, channels), name="images")
    build = Builder(graph, images)
    build.values[graph.input] = Tensor(images, order, preprocessed=True)
    for node in graph.nodes:
        convert(build, node)
    scores = build.values[graph.output]
    if not isinstance(scores, Tensor):
        raise ValueError(f"Expected scores that depend on the images. Received: {path}, whose output is constant")
    scores = scores.in_order()
    if scores.factor != 1 or len(scores.shape) != 2 or scores.shape[0] != BATCH:
        raise ValueError(f"Expected scores [N, classes]. Received: {path} with an output of shape {scores.value.shape}")
    model = keras.Model(images, scores.value, name="converted")
    return ConvertedGraph(model, graph, build.bindings, tuple(sorted(build.untrained)), order)


def convert(build: Builder, node: onnx_graph.Node) -> None:
    """Adds the outputs of a node to the values of a graph."""
    if all(name in build.done for name in node.outputs if name):
        return
    inputs = [build.values[name] if name else None for name in node.inputs]
    constants = all(value is None or isinstance(value, Constant) for value in inputs)
    if node.kind == "Constant":
        results: Value | Sequence[Value] = constant_of(node)
    elif constants:
        results = onnx_graph.fold(node, inputs)
    elif node.kind != "Gather" and any(isinstance(value, Constant) and value.counts_images for value in inputs):
        raise unsupported(node, "which computes with the numbers of the images")
    elif node.kind in OPERATIONS:
        results = OPERATIONS[node.kind](build, node, inputs)
    else:
        raise unsupported(node, "which is not among them")
    build.values.update(zip(node.outputs, results if isinstance(results, Sequence) else [results]))


def constant_of(node: onnx_graph.Node) -> Constant:
    """Returns the value of a constant node, whose floats may be weights."""
    (name, value), *_ = node.attributes.items()
    if name not in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        raise unsupported(node, f"with {name}")
    array = np.asarray(value)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        return Constant(array)
    return Constant(array.astype(np.float32), node.outputs[0], np.arange(array.size, dtype=np.int32).reshape(array.shape))
