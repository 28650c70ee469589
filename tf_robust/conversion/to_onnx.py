"""Writes trained weights back into a copy of the ONNX file that they come from: `write`.

Graph, names, opset and metadata stay; only initializers (or constant nodes) get new numbers. A weight that two operations share, for
example because an exporter merged equal ones, becomes one for each operation if they differ after training.
"""

import copy
import os
from collections.abc import Sequence

import numpy as np
import onnx
import onnx.numpy_helper

from tf_robust.conversion.builder import Binding
from tf_robust.conversion.graph import Graph

MAX_PROTO = 2**31 - 2**20  # bytes of a file without external data


def initial_arrays(graph: Graph) -> dict[str, np.ndarray]:
    """Returns {name: array of its own type} of the weights in a file."""
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.model.graph.initializer}
    for node in graph.model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            arrays[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
    return arrays


def trained_arrays(graph: Graph, bindings: Sequence[Binding]) -> dict[str, list[tuple[Binding, np.ndarray]]]:
    """Returns {name: [(binding, new array of the file's type)]} of the weights that have a variable."""
    initial = initial_arrays(graph)
    found: dict[str, list[tuple[Binding, np.ndarray]]] = {}
    for binding in bindings:
        array = np.array(initial[binding.initializer])
        array.reshape(-1)[binding.index.reshape(-1)] = np.asarray(binding.variable).reshape(-1).astype(array.dtype)
        found.setdefault(binding.initializer, []).append((binding, array))
    return {name: _merged(parts, initial[name]) for name, parts in found.items()}


def _merged(parts, initial):
    """Variables that hold different elements of one weight make one array; equal arrays are one."""
    merged = [parts[0]]
    for binding, array in parts[1:]:
        for position, (other, known) in enumerate(merged):
            if not np.intersect1d(binding.index, other.index).size:
                known.reshape(-1)[binding.index.reshape(-1)] = array.reshape(-1)[binding.index.reshape(-1)]
                joined = np.union1d(binding.index, other.index).astype(np.int32)
                merged[position] = (Binding(other.variable, other.initializer, joined, other.node), known)
                break
            if known.tobytes() == array.tobytes():
                break
        else:
            merged.append((binding, array))
    return merged


def new_model(graph: Graph, bindings: Sequence[Binding]) -> onnx.ModelProto:
    """Returns a copy of the file with the values of the variables.

    Raises:
        ValueError: operations share a weight in a way that cannot be taken apart, and differ after training.
    """
    model = copy.deepcopy(graph.model)
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = {node.output[0]: node for node in model.graph.node}
    for name, parts in trained_arrays(graph, bindings).items():
        _, array = parts[0]
        if name in initializers:
            initializers[name].CopyFrom(onnx.numpy_helper.from_array(array, name))
        else:
            nodes[name].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(array))
        for number, (binding, array) in enumerate(parts[1:], start=2):
            node = nodes.get(binding.node)
            if node is None or name not in node.input:
                raise ValueError(
                    f"Expected weights that belong to one operation. Received: {name}, which {binding.node} shares and which differs "
                    "after training. Try: export the model again without merging equal weights"
                )
            new = f"{name}_{number}"
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, new))
            node.input[:] = [new if one == name else one for one in node.input]
    return model


def write(graph: Graph, bindings: Sequence[Binding], path: str) -> None:
    """Writes the file with the values of the variables; weights beyond 2 GB beside it, in `path`.data."""
    model = new_model(graph, bindings)
    external = model.ByteSize() > MAX_PROTO
    options = {"save_as_external_data": True, "location": f"{os.path.basename(path)}.data"} if external else {}
    onnx.save(model, path, **options)


def check_unchanged(graph: Graph, bindings: Sequence[Binding]) -> None:
    """Checks that unchanged weights are written back bit for bit.

    Raises:
        ValueError: a weight is not.
    """
    initial = initial_arrays(graph)
    for name, parts in trained_arrays(graph, bindings).items():
        if len(parts) > 1 or parts[0][1].tobytes() != initial[name].tobytes():
            raise ValueError(
                f"Expected a weight that can be written back unchanged. Received: {name}, {initial[name].dtype} {initial[name].shape}"
            )
