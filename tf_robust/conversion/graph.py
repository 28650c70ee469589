"""Reads an ONNX graph: its nodes in order, with everything that does not depend on the images computed beforehand.

Shapes are constants, too: an image size is fixed, and the number of images is `BATCH`, a large prime, in them. A constant that holds
numbers of an initializer knows which: so a trained weight finds its way back into the file.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable

import numpy as np
import onnx
import onnx.checker
import onnx.inliner
import onnx.numpy_helper
import onnx.reference

BATCH = 1_000_003  # stands for the number of images in shapes
FEW = 3  # images that stand for all in constants that count them
MIN_OPSET = 11
MAX_FOLDED = 1 << 28  # elements of a computed constant
MOVES = {  # operations that only rearrange the elements of their first input
    "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Split", "Identity", "Cast",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """An array that does not depend on the images.

    Attributes:
        value: the array.
        initializer: name of the initializer whose elements it holds; empty: none, or not only these.
        index: int32, of the shape of `value`: position of each element in the flat initializer.
        counts_images: whether the value was computed from the numbers 0, 1, ... of the images, for the first `FEW` of them.
    """

    value: np.ndarray
    initializer: str = ""
    index: np.ndarray | None = None
    counts_images: bool = False

    def move(self, function: Callable[[np.ndarray], np.ndarray]) -> "Constant":
        """Returns the constant with its elements rearranged by a function."""
        return Constant(function(self.value), self.initializer, None if self.index is None else function(self.index))


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """An operation.

    Attributes:
        name: of the node, for messages; its first output if it has none.
        kind: name of the operation.
        inputs: names; empty for an omitted one.
        outputs: names.
        attributes: {name: value}.
        opset: version of the operations.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict
    opset: int

    def __str__(self) -> str:
        return f"node {self.name!r} ({self.kind})"


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """The graph of a classifier.

    Attributes:
        model: the file.
        nodes: in the order of computation.
        initializers: {name: `Constant`}.
        input: name of the images.
        input_shape: of the images as the file says, None for a free size.
        output: name of the scores.
    """

    model: onnx.ModelProto
    nodes: list[Node]
    initializers: dict[str, Constant]
    input: str
    input_shape: tuple[int | None, ...]
    output: str


def read(path: str) -> Graph:
    """Reads an ONNX file, with its external data.

    Raises:
        ValueError: it is not one graph from images to scores in operations of the versions from `MIN_OPSET` on.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"Expected an ONNX file. Received: {path}, which does not exist")
    try:
        model = onnx.load(path)
    except (FileNotFoundError, onnx.checker.ValidationError) as error:
        raise ValueError(f"Expected {path} with the files of its external data. Received: {error}. Try: copy them beside it") from error
    except Exception as error:  # of protobuf, or of a damaged file
        raise ValueError(f"Expected an ONNX file. Received: {path}, which cannot be read: {str(error).splitlines()[0]}") from error
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < MIN_OPSET:
        raise ValueError(f"Expected opset {MIN_OPSET} or later. Received: {path} with opset {opset}. Try: export it again")
    initializers = {}
    for tensor in model.graph.initializer:
        value = onnx.numpy_helper.to_array(tensor, base_dir=str(pathlib.Path(path).parent))
        floating = value.dtype.kind == "f" or value.dtype.name == "bfloat16"
        index = np.arange(value.size, dtype=np.int32).reshape(value.shape)
        initializers[tensor.name] = Constant(value.astype(np.float32), tensor.name, index) if floating else Constant(value)
    inputs = [entry for entry in model.graph.input if entry.name not in initializers]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        names = "; ".join(", ".join(entry.name for entry in entries) for entries in (inputs, model.graph.output))
        raise ValueError(f"Expected one input, the images, and one output, the scores. Received: {path} with {names}")
    sizes = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in inputs[0].type.tensor_type.shape.dim]
    nodes = [_node(node, opset, path) for node in model.graph.node]
    return Graph(model, nodes, initializers, inputs[0].name, tuple(sizes), model.graph.output[0].name)


def _node(node, opset, path):
    name = node.name or node.output[0]
    if node.domain not in ("", "ai.onnx"):
        raise ValueError(f"Expected operations of ONNX. Received: {path} with node {name!r}, {node.domain}.{node.op_type}")
    attributes = {entry.name: _attribute(onnx.helper.get_attribute_value(entry)) for entry in node.attribute}
    return Node(name, node.op_type, tuple(node.input), tuple(node.output), attributes, opset)


def _attribute(value):
    if isinstance(value, bytes):
        return value.decode()
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def fold(node: Node, inputs: list) -> list[Constant]:
    """Returns the outputs of a node whose inputs are constants."""
    counts = any(one is not None and one.counts_images for one in inputs)
    if node.kind == "Range" and inputs[1].value == BATCH:
        inputs, counts = [inputs[0], Constant(np.asarray(FEW, inputs[1].value.dtype)), inputs[2]], True
    return [dataclasses.replace(one, counts_images=counts) for one in _folded(node, inputs)]


def _folded(node, inputs):
    if node.kind == "ConstantOfShape":
        shape = [1 if size % BATCH == 0 and size else int(size) for size in inputs[0].value]
        fill = node.attributes.get("value", np.zeros(1, np.float32))
        return [Constant(np.full(shape, fill.reshape(-1)[0], fill.dtype))]
    if node.kind == "Expand":
        shape = [1 if size % BATCH == 0 and size else int(size) for size in inputs[1].value]
        return [inputs[0].move(lambda array: np.broadcast_to(array, np.broadcast_shapes(array.shape, shape)))]
    values = _run(node, [None if one is None else one.value for one in inputs])
    if any(value.size > MAX_FOLDED for value in values):
        raise ValueError(f"Expected shapes that are known without the images. Received: {node}")
    first = inputs[0] if inputs else None
    if node.kind in MOVES and first is not None and first.index is not None and values[0].dtype.kind == "f":
        index = (
            _run(node, [first.index, *(None if one is None else one.value for one in inputs[1:])]) if node.kind != "Cast" else [first.index]
        )
        return [Constant(value.astype(np.float32), first.initializer, moved) for value, moved in zip(values, index)]
    return [Constant(value.astype(np.float32) if value.dtype.kind == "f" else value) for value in values]


def _run(node, inputs):
    """The outputs of a node by ONNX' reference implementation."""
    names = [name if value is not None else "" for name, value in zip(node.inputs, inputs)]
    given = dict(zip(names, inputs))
    given.pop("", None)
    proto = onnx.helper.make_node(node.kind, names, list(node.outputs), name=node.name, **_attributes(node))
    graph = onnx.helper.make_graph(
        [proto],
        "folded",
        [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in given.items()
        ],
        [onnx.helper.make_empty_tensor_value_info(name) for name in node.outputs],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", node.opset)])
    return [np.asarray(value) for value in onnx.reference.ReferenceEvaluator(model).run(None, given)]


def _attributes(node):
    return {
        name: onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value for name, value in node.attributes.items()
    }
