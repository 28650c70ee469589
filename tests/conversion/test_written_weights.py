"""Trained weights come back into the ONNX file and the state_dict that they came from; what cannot be converted is named."""

import keras
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tf_robust as tfr
from tests.conversion.files import NODES, WEIGHTS, check_same_scores, torch_module, train, write
from tf_robust.conversion.converted import convert, converted
from tf_robust.conversion.state_dict import trained_entries


@pytest.mark.parametrize("kind", (np.float32, np.float16))
def test_a_trained_file_differs_in_its_weights_alone(tmp_path, kind):
    path, written = write(tmp_path / "model.onnx", kind=kind), str(tmp_path / "hardened.onnx")
    model = tfr.load(path, trainable=True)
    assert len(model.trainable_weights) == 5 and [layer.name for layer in model.layers if layer.weights] == ["stem.conv", "stem.bn", "head"]
    converted(model).save_onnx(written)
    assert (tmp_path / "hardened.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()
    train(model)
    converted(model).save_onnx(written)
    check_same_scores(model, written, kind, rtol=1e-5 if kind == np.float32 else 2e-2)
    before, after = (onnx.load(one) for one in (path, written))
    assert [one.name for one in after.graph.initializer] == list(WEIGHTS)
    assert {one.data_type for one in after.graph.initializer} == {helper.np_dtype_to_tensor_dtype(np.dtype(kind))}
    for one in (before, after):
        del one.graph.initializer[:]
    assert before.SerializeToString() == after.SerializeToString()


def test_a_weight_that_two_operations_share_becomes_one_for_each(tmp_path):
    norm = [f"stem.bn.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
    nodes = (NODES[0], ("BatchNormalization", ["conv", *norm], {}), ("InstanceNormalization", ["batchnormalization", *norm[:2]], {}))
    nodes += (("GlobalMaxPool", ["instancenormalization"], {}), ("Flatten", ["globalmaxpool"], {}))
    path, written = write(tmp_path / "model.onnx", nodes), str(tmp_path / "hardened.onnx")
    found = convert(path)
    train(found.model)
    found.save_onnx(written)
    check_same_scores(found.model, written)
    assert [one.name for one in onnx.load(written).graph.initializer][-2:] == ["stem.bn.weight_2", "stem.bn.bias_2"]


def test_gradients_reach_the_images_and_the_weights(tmp_path):
    model = tfr.load(write(tmp_path / "model.onnx"), trainable=True)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    model.fit(np.random.RandomState(0).uniform(size=(8, 8, 6, 3)), np.arange(8) % 5, verbose=0)
    assert all((old != new).any() for old, new in zip(before, model.get_weights()))


def folded(entries, epsilon=1e-5):
    """(weights of a file, by name) of the entries, with batch normalization folded into the convolution by hand."""
    scale = entries["bn.weight"] / np.sqrt(entries["bn.running_var"] + epsilon)
    bias = entries["bn.bias"] + (entries["conv.bias"] - entries["bn.running_mean"]) * scale
    return {"onnx::Conv_1": entries["conv.weight"] * scale[:, None, None, None], "onnx::Conv_2": bias, "head": entries["head.weight"].T}


def entries():
    random = np.random.RandomState(3)
    found = {name.removeprefix("stem."): random.normal(size=value.shape).astype(np.float32) for name, value in WEIGHTS.items()}
    found["bn.running_var"], found["conv.bias"] = found["bn.running_var"] ** 2 + 0.5, random.normal(size=4).astype(np.float32)
    return {name: value for name, value in found.items() if name != "head.bias"} | {"bn.num_batches_tracked": np.array(7)}


@pytest.mark.parametrize("smallest", (1, 1e-6, 0))
def test_folded_batch_normalization_is_unfolded_and_transposed_weights_are_found_by_value(smallest):
    initial = entries()
    initial["bn.weight"] = initial["bn.weight"] * np.float32([smallest, 1, 1, 1])  # a channel that is nearly switched off
    trained = {name: [value * np.float32(1.1) + np.float32(0.1)] for name, value in folded(initial).items()}
    result = trained_entries(initial, folded(initial), trained)
    again = folded(result.entries)
    for name, (value,) in trained.items():
        np.testing.assert_allclose(again[name], value, rtol=1e-4, atol=1e-5)
    assert result.unmatched == () and result.entries.keys() == initial.keys() and result.entries["bn.num_batches_tracked"] == 7
    assert {name: value.shape for name, value in result.entries.items()} == {name: value.shape for name, value in initial.items()}


@pytest.mark.parametrize("epsilon", (1e-5, 1e-3))
def test_the_epsilon_that_fits_best_is_divided_out(epsilon):
    """With a variance of 20, both differ by 2.5e-5: as much as a wrong weight."""
    initial = entries()
    initial["bn.running_var"] = initial["bn.running_var"] + np.float32(20)
    trained = {name: [value * np.float32(1.1)] for name, value in folded(initial, epsilon).items()}
    again = folded(trained_entries(initial, folded(initial, epsilon), trained).entries, epsilon)
    np.testing.assert_allclose(again["onnx::Conv_1"], trained["onnx::Conv_1"][0], rtol=1e-6)


def test_entries_that_do_not_fit_are_refused():
    initial = entries()
    weights = folded(initial)
    with pytest.raises(ValueError, match="onnx::Conv_1, onnx::Conv_2, head"):
        trained_entries({"other": np.ones(3, np.float32)}, weights, {name: [value + 1] for name, value in weights.items()})
    twice = {"first": np.ones(4, np.float32), "second": np.ones(4, np.float32)}
    with pytest.raises(ValueError, match="Received: first, .*shared"):
        trained_entries(twice, {"shared": twice["first"]}, {"shared": [np.full(4, 2.0), np.full(4, 3.0)]})


GEMM = ("Gemm", ["images", "head.weight"], {})


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"nodes": (("Det", ["images"], {}),)}, "'Det_node' .Det., which is not among them"),
        ({"domain": "com.example"}, "'Gemm_node', com.example.Gemm"),
        ({"opset": 10}, "opset 11 or later.*with opset 10"),
        ({"shape": ("n", 3, "h", "w")}, "Try: image_size"),
        ({"shape": ("n", 12)}, "takes images"),
        ({"nodes": NODES[:2]}, "Expected scores"),
        ({"nodes": (("If", ["images"], {}),)}, "'If_node' .If."),
        ({"inputs": [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 6]) for name in ("images", "more")]}, "images, more"),
    ],
)
def test_what_cannot_be_converted_is_named(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        convert(write(tmp_path / "model.onnx", **arguments))


def test_a_file_that_is_missing_or_damaged_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing.onnx"):
        convert(tmp_path / "missing.onnx")
    (tmp_path / "damaged.onnx").write_bytes(b"\x08\x07damaged")
    with pytest.raises(ValueError, match="damaged.onnx"):
        convert(tmp_path / "damaged.onnx")


def test_files_of_open_sizes_and_fixed_batches(tmp_path):
    model = tfr.load(write(tmp_path / "open.onnx", shape=("n", 3, "h", "w")), trainable=True, image_size=(8, 6))
    assert model.input_shape == (None, 8, 6, 3)
    check_same_scores(model, str(tmp_path / "open.onnx"))
    for count in (2, 6):
        fixed = tfr.load(write(tmp_path / "fixed.onnx", shape=(count, 3, 8, 6)), trainable=True)
        assert np.asarray(fixed(np.zeros((5, 8, 6, 3)))).shape == (5, 5)


def test_scores_that_differ_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(keras.Model, "predict_on_batch", lambda self, images: np.asarray(self(images)) * 1.01)
    with pytest.raises(ValueError, match="differ by 0.01"):
        convert(write(tmp_path / "model.onnx"))


@pytest.mark.parametrize("kind", ("module", "torchscript", "pt2"))
def test_models_of_pytorch_and_back(tmp_path, kind):
    torch, module = pytest.importorskip("torch"), torch_module()
    images = np.random.RandomState(0).uniform(size=(3, 8, 6, 3)).astype(np.float32)
    batch = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    source = module
    if kind == "torchscript":
        source = tmp_path / "model.pt"
        torch.jit.trace(module, batch).save(source)
    elif kind == "pt2":
        source = tmp_path / "model.pt2"
        torch.export.save(torch.export.export(module, (batch,), dynamic_shapes=({0: torch.export.Dim("n")},)), source)
    model = tfr.load(source, trainable=True, image_size=(8, 6))
    np.testing.assert_allclose(np.asarray(model(images)), module(batch).detach().numpy(), rtol=1e-4, atol=1e-5)
    train(model)
    assert converted(model).save_state_dict(tmp_path / "hardened.pt") == ()
    loaded = torch.load(tmp_path / "hardened.pt", weights_only=True)
    assert kind != "module" or loaded._metadata == module.state_dict()._metadata  # for which a module's own code may ask
    module.load_state_dict(loaded)
    np.testing.assert_allclose(np.asarray(model(images)), module(batch).detach().numpy(), rtol=1e-4, atol=1e-5)
