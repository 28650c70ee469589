"""ONNX files of a small network, and a module of PyTorch, for tests."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

RANDOM = np.random.RandomState(0)


def weight(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


WEIGHTS = {
    "stem.conv.weight": weight(4, 3, 3, 3),
    "stem.bn.weight": weight(4) ** 2 + 0.5,
    "stem.bn.bias": weight(4),
    "stem.bn.running_mean": weight(4),
    "stem.bn.running_var": weight(4) ** 2 + 0.5,
    "head.weight": weight(5, 4),
    "head.bias": weight(5),
}
NODES = (
    ("Conv", ["images", "stem.conv.weight"], {"pads": [1, 1, 1, 1]}),
    ("BatchNormalization", ["conv", *(f"stem.bn.{part}" for part in ("weight", "bias", "running_mean", "running_var"))], {}),
    ("Relu", ["batchnormalization"], {}),
    ("GlobalAveragePool", ["relu"], {}),
    ("Flatten", ["globalaveragepool"], {}),
    ("Gemm", ["flatten", "head.weight", "head.bias"], {"transB": 1}),
)


def write(path, nodes=NODES, weights=WEIGHTS, *, shape=("n", 3, 8, 6), opset=17, kind=np.float32, domain="", **changed):
    """Writes a file of some nodes; the output of a node is named like its kind, in lower case."""
    made = [helper.make_node(name, inputs, [name.lower()], name=f"{name}_node", **options) for name, inputs, options in nodes]
    made[-1].output[0], made[-1].domain = "scores", domain
    kinds = {np.float32: TensorProto.FLOAT, np.float16: TensorProto.FLOAT16}
    images = helper.make_tensor_value_info("images", kinds[kind], shape)
    inputs = changed.get("inputs", [images])
    scores = helper.make_tensor_value_info("scores", kinds[kind], ["n", "classes"])
    initializers = [numpy_helper.from_array(np.asarray(value, kind), name) for name, value in weights.items()]
    graph = helper.make_graph(made, "network", inputs, [scores], initializers)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return str(path)


def torch_module():
    """A module of PyTorch of images 8 x 6 in inference mode."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Dropout(0.5)]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(4 * 3 * 2, 5)).eval()


def train(model):
    """Changes every weight a little, as a training would."""
    random = np.random.RandomState(1)
    for variable in model.weights:
        variable.assign(np.asarray(variable) * random.uniform(0.8, 1.2, variable.shape))


def check_same_scores(model, path, kind=np.float32, rtol=1e-5):
    images = np.random.RandomState(2).uniform(size=(3, *model.input_shape[1:])).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(path).run(None, {"images": images.transpose(0, 3, 1, 2).astype(kind)})
    np.testing.assert_allclose(np.asarray(model(images)), expected, rtol=rtol, atol=rtol)
