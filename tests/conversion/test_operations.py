"""Converted operations compute what ONNX Runtime computes, for each entry of the table."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.conversion.files import RANDOM, weight
from tf_robust.conversion import to_onnx
from tf_robust.conversion.from_onnx import to_keras
from tf_robust.conversion.operations import OPERATIONS

SHAPE = (3, 6, 8)  # channels, height, width


def positive(*shape):
    return RANDOM.uniform(0.5, 1.5, shape).astype(np.float32)


def ints(*numbers):
    return np.array(numbers, np.int64)


def case(kind, *inputs, opset=17, outputs=1, **attributes):
    """One operation: its inputs are arrays, None, "x" (the images), or tuples (kind, inputs, attributes) of other operations."""
    return kind, inputs, opset, outputs, attributes


ABS = ("Abs", ("x",), {})
FLAT = ("Reshape", ("x", np.array([-1])), {})


def in_each_image(stride):
    """Indices 3, 140, 5, 60 of the 144 values of each image, where all images are in one axis: `as_strided` of PyTorch."""
    shape = ("Slice", (("Shape", ("x",), {}), ints(0), ints(1)), {})
    count = ("Squeeze", (shape, ints(0)), {})
    first = ("Mul", (("Range", (np.int64(0), count, np.int64(1)), {}), np.int64(stride)), {})
    return ("Add", (("Unsqueeze", (first, ints(1, 2)), {}), np.array([[[3, 140], [5, 60]]])), {})


EXPONENT = np.float32(1.5)
CASES = [
    case("Abs", "x"),
    case("Add", "x", weight(3, 1, 1)),
    case("Add", "x", ABS),
    case("Add", weight(8), "x"),
    case("AveragePool", "x", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("AveragePool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
    case("AveragePool", "x", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("BatchNormalization", "x", positive(3), weight(3), weight(3), positive(3), epsilon=1e-3),
    case("Cast", "x", to=TensorProto.FLOAT),
    case("Clip", "x", np.float32(-0.3), np.float32(0.4)),
    case("Clip", "x", np.float32(0), np.float32(0.4)),
    case("Concat", "x", ABS, axis=1),
    case("Concat", ABS, "x", axis=-1),
    case("Conv", "x", weight(4, 3, 3, 3), weight(4), pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
    case("Conv", "x", weight(4, 3, 3, 2), strides=[2, 1], pads=[1, 0, 2, 1]),
    case("Conv", "x", weight(4, 3, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2], kernel_shape=[3, 3]),
    case("Conv", "x", weight(4, 3, 2, 2), auto_pad="SAME_LOWER", kernel_shape=[2, 2]),
    case("Conv", "x", weight(4, 3, 3, 3), dilations=[2, 2], pads=[2, 2, 2, 2]),
    case("Conv", "x", weight(6, 1, 3, 3), weight(6), group=3, pads=[1, 1, 1, 1]),
    case("Conv", ("Concat", ("x", "x"), {"axis": 1}), weight(4, 3, 3, 3), group=2),
    case("ConvTranspose", "x", weight(3, 4, 3, 3), weight(4), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    case("ConvTranspose", "x", weight(3, 4, 2, 2), strides=[2, 2]),
    case("ConvTranspose", "x", weight(3, 2, 2, 1), strides=[3, 2]),
    case("DepthToSpace", ("Conv", ("x", weight(8, 3, 1, 1)), {}), blocksize=2),
    case("DepthToSpace", ("Conv", ("x", weight(8, 3, 1, 1)), {}), blocksize=2, mode="CRD"),
    case("Div", "x", positive(1, 3, 1, 1)),
    case("Dropout", "x"),
    case("Einsum", "x", weight(8, 5), equation="nchw,wd->nchd"),
    case("Elu", "x", alpha=0.7),
    case("Erf", "x"),
    case("Exp", "x"),
    case("Expand", ("ReduceMean", ("x",), {"axes": [2, 3]}), ints(1, 3, 2, 4)),
    case("Flatten", "x"),
    case("Gather", FLAT, in_each_image(144)),
    case("Gather", "x", ints(2, 0), axis=1),
    case("Gather", "x", np.array(1, np.int64), axis=2),
    case("Gather", "x", ints(1, 0, 5, 2).reshape(2, 2), axis=2),
    case("Gelu", "x", opset=20),
    case("Gelu", "x", opset=20, approximate="tanh"),
    case("Gemm", ("Flatten", ("x",), {}), weight(144, 5), weight(5)),
    case("Gemm", ("Flatten", ("x",), {}), weight(5, 144), transB=1),
    case("GlobalAveragePool", "x"),
    case("GlobalMaxPool", "x"),
    case("HardSigmoid", "x"),
    case("HardSigmoid", "x", alpha=1 / 6, beta=0.5),
    case("HardSwish", "x"),
    case("Identity", "x"),
    case("InstanceNormalization", "x", positive(3), weight(3)),
    case("LayerNormalization", "x", positive(8), weight(8), axis=-1),
    case("LayerNormalization", ("Transpose", ("x",), {"perm": [0, 2, 3, 1]}), positive(3), weight(3)),
    case("LeakyRelu", "x", alpha=0.2),
    case("Log", ("Exp", ("x",), {})),
    case("LogSoftmax", "x", axis=1),
    case("MatMul", "x", weight(8, 5)),
    case("MatMul", "x", ("Transpose", ("x",), {"perm": [0, 1, 3, 2]})),
    case("Max", "x", ABS, np.float32(0.2)),
    case("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("Min", "x", ABS),
    case("Mish", "x", opset=18),
    case("Mul", "x", weight(3, 1, 1)),
    case("Neg", "x"),
    case("PRelu", "x", weight(3, 1, 1)),
    case("Pad", "x", ints(0, 0, 1, 2, 0, 0, 0, 1)),
    case("Pad", "x", ints(0, 0, 1, 2, 0, 0, 0, 1), np.float32(0.5)),
    case("Pad", "x", ints(0, 0, 1, 2, 0, 0, 0, 1), mode="reflect"),
    case("Pad", "x", ints(0, 1, 0, 0, 0, 1, 0, 0)),
    case("Pow", ABS, EXPONENT),
    case("Reciprocal", ("Exp", ("x",), {})),
    case("ReduceL2", "x", axes=[1], keepdims=1),
    case("ReduceMax", "x", axes=[1], keepdims=0),
    case("ReduceMean", "x", axes=[2, 3], keepdims=0),
    case("ReduceMean", "x", ints(-1), opset=18, keepdims=0),
    case("ReduceMin", "x", axes=[3]),
    case("ReduceSum", "x", ints(1, 2), keepdims=0),
    case("Relu", "x"),
    case("Reshape", "x", ints(0, -1, 4)),
    case("Reshape", "x", ints(-1, 16)),
    case("Resize", "x", None, np.array([1, 1, 2, 2], np.float32), coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    case("Resize", "x", None, np.array([1, 1, 2, 1.5], np.float32), mode="linear"),
    case("Resize", "x", None, None, ints(2, 3, 9, 4), mode="linear"),
    case("Selu", "x"),
    case("Sigmoid", "x"),
    case("Slice", "x", ints(1, 0), ints(5, 100), ints(2, 3), ints(2, 1)),
    case("Slice", "x", ints(-1), ints(-100), ints(3), ints(-1)),
    case("Softmax", "x", axis=1),
    case("Softplus", "x"),
    case("Split", "x", ints(2, 4), outputs=2, axis=2),
    case("Split", "x", outputs=3, axis=1),
    case("Sqrt", ABS),
    case("Squeeze", ("ReduceMean", ("x",), {"axes": [2]}), ints(2)),
    case("Sub", np.float32(1), "x"),
    case("Sum", "x", ABS, "x"),
    case("Tanh", "x"),
    case("Tile", "x", ints(1, 2, 1, 3)),
    case("Transpose", "x", perm=[0, 3, 1, 2]),
    case("Unsqueeze", "x", ints(2)),
    case("Where", np.array([True, False, True]).reshape(3, 1, 1), "x", np.float32(0.5)),
]  # fmt: skip


def write(path, example, count="n"):
    """Writes a file of one operation, whose flattened outputs are the scores, for so many images."""
    kind, inputs, opset, outputs, attributes = example
    nodes, initializers = [], []

    def name_of(value):
        if value is None or isinstance(value, str):
            return value or ""
        name = f"{'abcdefgh'[len(nodes)]}.weight{len(initializers)}"
        if isinstance(value, tuple):
            inner, values, options = value
            nodes.append(helper.make_node(inner, [name_of(one) for one in values], [f"made{len(nodes)}"], **options))
            return nodes[-1].output[0]
        initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    names = [name_of(value) for value in inputs]
    parts = [f"out{number}" for number in range(outputs)]
    nodes.append(helper.make_node(kind, names, parts, **attributes))
    flat = []
    for part in parts:
        nodes += [helper.make_node("Shape", ["x"], [f"{part}_s"]), helper.make_node("Slice", [f"{part}_s", "zero", "one"], [f"{part}_n"])]
        nodes += [helper.make_node("Concat", [f"{part}_n", "minus"], [f"{part}_t"], axis=0)]
        nodes += [helper.make_node("Reshape", [part, f"{part}_t"], [f"{part}_f"])]
        flat.append(f"{part}_f")
    initializers += [numpy_helper.from_array(ints(number), name) for name, number in (("zero", 0), ("one", 1), ("minus", -1))]
    nodes.append(helper.make_node("Concat", flat, ["scores"], axis=1))
    images = helper.make_tensor_value_info("x", TensorProto.FLOAT, [count, *SHAPE])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [count, "m"])
    graph = helper.make_graph(nodes, "one", [images], [scores], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)


@pytest.mark.parametrize("kind", OPERATIONS)
def test_an_operation_computes_what_onnx_runtime_computes(kind, tmp_path):
    if kind == "Shape":  # in every case
        return
    examples = [example for example in CASES if example[0] == kind]
    assert examples
    images = np.random.RandomState(1).normal(size=(2, *SHAPE)).astype(np.float32)
    for number, example in enumerate(examples):
        path = str(tmp_path / f"{number}.onnx")
        write(path, example)
        (expected,) = onnxruntime.InferenceSession(path).run(None, {"x": images})
        converted = to_keras(path)
        found = np.asarray(converted.model(images.transpose(0, 2, 3, 1)))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5, err_msg=str(example))
        to_onnx.check_unchanged(converted.graph, converted.bindings)


@pytest.mark.parametrize("example", [case("Gather", FLAT, in_each_image(100)), case("Where", in_each_image(144), "x", "x")])
def test_numbers_of_images_are_refused_elsewhere(example, tmp_path):
    write(path := str(tmp_path / "one.onnx"), example)
    with pytest.raises(ValueError, match="Received: node 'out0' .*(indices are not the same in each image|numbers of the images)"):
        to_keras(path)


def test_a_file_for_a_fixed_number_of_images_takes_any(tmp_path):
    write(path := str(tmp_path / "one.onnx"), case("Reshape", "x", ints(2, 48, 3)), count=2)
    images = np.random.RandomState(1).normal(size=(4, *SHAPE)).astype(np.float32)
    session = onnxruntime.InferenceSession(path)
    expected = np.concatenate([session.run(None, {"x": part})[0] for part in np.split(images, 2)])
    np.testing.assert_allclose(to_keras(path).model(images.transpose(0, 2, 3, 1)), expected, rtol=1e-6)
