"""What a step's graph does: its products, and what it must keep until they are differentiated."""

import functools

import numpy as np

_KEPT = ("Conv2D", "DepthwiseConv2dNative", "Relu")  # what comes out of them stays in memory until the backward pass


def flops(graph, of_branches=np.mean, turns=1, batch=0):
    """Multiplications and additions of a graph's convolutions and matrix products.

    Args:
        of_branches: what counts of a choice of branches, a function of their numbers. turns: how often a loop's body is run.
        batch: images where the graph does not know how many there are.
    """
    return float(_total(graph, functools.partial(_products, batch=batch), of_branches, turns))


def kept_bytes(graph):
    """Bytes of the features that a training step's graph keeps for its backward pass, of a choice of branches the largest: about, for
    passes that nothing is differentiated of are counted too."""
    return float(_total(graph, _kept, max, 1))


def _total(graph, of_operation, of_branches, turns):
    """The sum over all operations of a graph, those inside of calls, branches and loops included."""

    def of(operation):
        def inside(name):
            return _total(_function(graph, name), of_operation, of_branches, turns)

        if operation.type in ("PartitionedCall", "StatefulPartitionedCall"):
            return inside(operation.get_attr("f").name)
        if operation.type in ("If", "StatelessIf"):
            return of_branches([inside(operation.get_attr(branch).name) for branch in ("then_branch", "else_branch")])
        if operation.type in ("While", "StatelessWhile"):
            return turns * inside(operation.get_attr("body").name)
        if operation.type in ("Case", "StatelessCase"):
            return of_branches([inside(branch.name) for branch in operation.get_attr("branches")])
        return of_operation(operation)

    return sum(map(of, _needed(graph)))


def _needed(graph):
    """The operations that a graph's outputs and effects depend on: the rest is never run."""
    found, left = set(), [*(tensor.op for tensor in graph.outputs), *graph.control_outputs]
    while left:
        operation = left.pop()
        if operation not in found:
            found.add(operation)
            left += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return found


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
    """Products a value of the convolution's output: height, width and, unless each channel is by itself, channels of the kernel."""
    height, width, channels = kernel[:3]
    return height * width * (1 if operation.type.startswith("Depthwise") else channels)


def _size(shape, unknown=0):
    return np.prod([side or unknown for side in shape]) if shape else 0


def _function(graph, name):
    while graph is not None:
        found = graph._functions.get(name)  # no public way leads from a call to its graph
        if found is not None:
            return found.graph
        graph = getattr(graph, "outer_graph", None)
    raise KeyError(name)
