"""Operations of a training step's graph, and the memory of features that it keeps for the backward pass."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

_KEPT = ("Conv2D", "DepthwiseConv2dNative", "Relu")  # their outputs stay in memory until the backward pass


def flops(graph: tf.Graph, of_branches: Callable[[Sequence[float]], float] = np.mean, iterations: int = 1, batch: int = 0) -> float:
    """Returns the multiplications and additions of the convolutions and matrix products of a graph.

    Args:
        graph: of a function.
        of_branches: numbers of alternative branches -> the number that counts.
        iterations: of loops.
        batch: number of images if the graph leaves it open.
    """
    return float(_total(graph, functools.partial(_products, batch=batch), of_branches, iterations))


def kept_bytes(graph: tf.Graph) -> float:
    """Returns the bytes of the features that a training step keeps for its backward pass, of alternative branches the largest.

    An upper estimate: features of forward passes without gradients are counted too.

    Args:
        graph: of a training step.
    """
    return float(_total(graph, _kept, max, 1))


def _total(graph, of_operation, of_branches, iterations):
    """The sum over all operations of a graph, including those inside calls, branches and loops."""

    def of(operation):
        def inside(name):
            return _total(_function(graph, name), of_operation, of_branches, iterations)

        if operation.type in ("PartitionedCall", "StatefulPartitionedCall"):
            return inside(operation.get_attr("f").name)
        if operation.type in ("If", "StatelessIf"):
            return of_branches([inside(operation.get_attr(branch).name) for branch in ("then_branch", "else_branch")])
        if operation.type in ("While", "StatelessWhile"):
            return iterations * inside(operation.get_attr("body").name)
        if operation.type in ("Case", "StatelessCase"):
            return of_branches([inside(branch.name) for branch in operation.get_attr("branches")])
        return of_operation(operation)

    return sum(map(of, _needed(graph)))


def _needed(graph):
    """The operations on which the outputs and side effects of a graph depend; the others are never run."""
    needed, pending = set(), [*(tensor.op for tensor in graph.outputs), *graph.control_outputs]
    while pending:
        operation = pending.pop()
        if operation not in needed:
            needed.add(operation)
            pending += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return needed


def _kept(operation):
    return sum(_size(tensor.shape) * tensor.dtype.size for tensor in operation.outputs) if operation.type in _KEPT else 0


def _products(operation, batch):
    shapes = [tensor.shape.as_list() if tensor.shape.rank is not None else [] for tensor in (*operation.inputs, *operation.outputs)]
    if operation.type in ("MatMul", "BatchMatMulV2"):
        shared = shapes[0][-2 if operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x") else -1]
        return 2 * _size(shapes[2], batch) * (shared or 0)
    if operation.type in ("Conv2D", "DepthwiseConv2dNative"):
        return 2 * _size(shapes[2], batch) * _taps(operation, shapes[1])
    if operation.type in ("Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput"):
        return 2 * _size(shapes[2], batch) * _taps(operation, shapes[1])
    if operation.type in ("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter"):
        return 2 * _size(shapes[2], batch) * _taps(operation, shapes[3])
    return 0


def _taps(operation, kernel):
    """Products per output value of a convolution: height and width of the kernel, times its channels unless it is depthwise."""
    height, width, channels = kernel[:3]
    return height * width * (1 if operation.type.startswith("Depthwise") else channels)


def _size(shape, unknown=0):
    return np.prod([side or unknown for side in shape]) if shape else 0


def _function(graph, name):
    while graph is not None:
        function = graph._functions.get(name)  # there is no public API from a call to its graph
        if function is not None:
            return function.graph
        graph = getattr(graph, "outer_graph", None)
    raise KeyError(name)
