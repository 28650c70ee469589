"""Models of ONNX and PyTorch in the commands and functions: attacked, converted, exported, hardened, and written back."""

import json

import keras
import numpy as np
import onnx
import onnxruntime
import pytest

import tf_robust as tfr
from tests.command_line import main
from tests.conversion.files import NODES, WEIGHTS, check_same_scores, torch_module, train, weight, write
from tf_robust import api
from tf_robust.conversion.converted import converted
from tf_robust.evaluation.model_evaluation import with_gradients
from tf_robust.hardening.trainable import trainable
from tf_robust.saved_models.loading import ModelInterface, as_keras, load_classifier

RANDOM = np.random.RandomState(4)
IMAGES, LABELS = RANDOM.uniform(size=(40, 8, 6, 3)).astype(np.float32), RANDOM.randint(0, 5, 40)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "model.onnx")


@pytest.fixture
def data(tmp_path):
    np.savez(tmp_path / "data.npz", images=(255 * IMAGES).astype(np.uint8), labels=LABELS)
    return f"--data=npz:{tmp_path / 'data.npz'}"


def start_of(path, input_range="-1,1", state_dict=""):
    classifier = load_classifier(path, ModelInterface(input_range, "logits"))
    return trainable(as_keras(classifier, IMAGES), (8, 6, 3), state_dict)


def test_a_trained_model_is_written_as_keras_and_as_onnx(path, tmp_path):
    start = start_of(path)
    assert start.suffix == ".keras" and start.other_suffixes == (".onnx",)
    train(start.model)
    line, missing = start.save_others(str(tmp_path / "hardened"), IMAGES)
    assert missing.startswith(f"Not written: {tmp_path}/hardened.pt") and line.startswith(f"Written: {tmp_path}/hardened.onnx")
    check_same_scores(start.model, str(tmp_path / "hardened.onnx"))
    loaded = keras.saving.load_model(start.save(tmp_path / "robust.keras"))
    check_same_scores(loaded, start.save(tmp_path / "robust.onnx"))
    with pytest.raises(ValueError, match="state_dict .*model.onnx"):
        start.save(tmp_path / "robust.pt")
    with pytest.raises(ValueError, match="robust.tflite"):
        start.save(tmp_path / "robust.tflite")


def test_an_onnx_file_returns_to_the_state_dict_that_is_given(path, tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({name: torch.from_numpy(value) for name, value in WEIGHTS.items()}, tmp_path / "weights.pt")
    start = start_of(path, state_dict=str(tmp_path / "weights.pt"))
    train(start.model)
    assert [line.split(",")[0] for line in start.save_others(str(tmp_path / "hardened"), IMAGES)] == [
        f"Written: {tmp_path / 'hardened'}{suffix}" for suffix in (".onnx", ".pt")
    ]
    new = {name: value.numpy() for name, value in torch.load(tmp_path / "hardened.pt", weights_only=True).items()}
    check_same_scores(start.model, write(tmp_path / "again.onnx", weights=new))
    torch.save({"other": torch.zeros(3)}, tmp_path / "others.pt")
    with pytest.raises(ValueError, match="state_dict"):
        start_of(path, state_dict=str(tmp_path / "others.pt"))
    (tmp_path / "damaged.pt").write_bytes(b"text")
    with pytest.raises(ValueError, match="damaged.pt"):
        start_of(path, state_dict=str(tmp_path / "damaged.pt"))


def test_attacks_on_onnx_have_the_gradients_of_the_graph(path):
    options = {"norm": "linf", "radius": 0.1, "steps": 3}
    labels = tfr.load(path)(IMAGES[:8]).numpy().argmax(axis=1)  # images that are misclassified stay as they are
    attacked = tfr.attack(path, IMAGES[:8], labels, "pgd", **options)
    expected = tfr.attack(tfr.load(path, trainable=True), IMAGES[:8], labels, "pgd", **options)
    np.testing.assert_allclose(attacked, expected, atol=1e-5)
    assert np.abs(attacked - IMAGES[:8]).max() > 0.09


def test_a_graph_that_cannot_be_converted_is_named_and_has_no_gradients(tmp_path):
    nodes = (*NODES[:5], ("CumSum", ["flatten", "axis"], {}), ("Gemm", ["cumsum", "head.weight", "head.bias"], {"transB": 1}))
    path = write(tmp_path / "model.onnx", nodes, WEIGHTS)
    graph = onnx.load(path)
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "axis"))
    onnx.save(graph, path)
    given = load_classifier(path, ModelInterface("0,1", "logits"))
    same, reason = with_gradients(given, IMAGES[:4])
    assert same is given and "'CumSum_node' (CumSum)" in reason
    with pytest.raises(ValueError, match="CumSum_node"):
        start_of(path)


def test_a_copy_of_a_converted_model_is_written_too(path, tmp_path):
    model = tfr.load(path, trainable=True)
    copied = api._copy(model)
    train(copied)
    converted(copied).save(tmp_path / "copied.onnx")
    check_same_scores(copied, str(tmp_path / "copied.onnx"))
    converted(model).save(tmp_path / "unchanged.onnx")
    assert (tmp_path / "unchanged.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()


def test_weights_that_are_operands_are_in_the_keras_file(tmp_path):
    nodes = (("Mul", ["images", "scale"], {}), ("Conv", ["mul", "stem.conv.weight"], {"pads": [1, 1, 1, 1]}), *NODES[1:])
    path = write(tmp_path / "model.onnx", nodes, {**WEIGHTS, "scale": weight(3, 1, 1)})
    model = tfr.load(path, trainable=True)
    model.save(tmp_path / "model.keras")
    check_same_scores(tfr.load(tmp_path / "model.keras", trainable=True), path)


def test_the_command_converts_a_file(path, data, tmp_path):
    main("convert", path, "--to=keras", f"--output={tmp_path / 'out' / 'made.keras'}", "--input_range=-1,1")
    check_same_scores(keras.saving.load_model(tmp_path / "out" / "made.keras"), path)
    card = json.loads((tmp_path / "out" / "made.keras.json").read_text())
    assert card["input"] == {"range": "-1,1"} and card["converted_from"] == path and card["largest_difference"] < 1e-5
    main("convert", path, data, "--input_range=-1,1", "--check_inputs=false")
    card = json.loads((tmp_path / "model.keras.json").read_text())
    assert card["input"]["range"] == [-1.0, 1.0] and card["output"] == "logits"
    for arguments, message in (
        ((path, "--output=made.h5"), "made.h5"),
        ((str(tmp_path / "model.keras"),), "model.keras"),
        ((path, "--input_range=auto"), "input_range=auto"),
    ):
        with pytest.raises(ValueError, match=message):
            main("convert", *arguments)


def test_an_onnx_file_is_exported_in_other_formats(path, data, tmp_path):
    main("export", path, data, "--formats=tflite", "--input_range=-1,1", "--check_inputs=false", f"--workdir={tmp_path / 'exported'}")
    values = 2 * IMAGES - 1
    (expected,) = onnxruntime.InferenceSession(path).run(None, {"images": values.transpose(0, 3, 1, 2)})
    exported = load_classifier(str(tmp_path / "exported" / "model.tflite"))
    np.testing.assert_allclose(exported(IMAGES), expected, rtol=1e-4, atol=1e-4)


def test_a_module_is_evaluated_attacked_and_returned_with_new_weights(tmp_path):
    torch, module = pytest.importorskip("torch"), torch_module().train()
    module[1].eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    labels = load_module(module)(IMAGES[:8]).numpy().argmax(axis=1)
    attacked = [
        tfr.attack(model, IMAGES[:8], labels, "pgd", norm="l2", radius=0.5, steps=2).numpy()
        for model in (module, tfr.load(module, trainable=True, image_size=(8, 6)))
    ]
    np.testing.assert_allclose(*attacked, atol=1e-5)
    assert np.abs(attacked[0] - IMAGES[:8]).max() > 0.01
    start = trainable(as_keras(load_module(module), IMAGES), (8, 6, 3))
    assert start.other_suffixes == (".onnx", ".pt")
    train(start.model)
    written = start.save(tmp_path / "new.pt")
    assert start.origin.difference_of(written, IMAGES) < 1e-5
    torch.save(before, written)
    assert start.origin.difference_of(written, IMAGES) > 1e-2  # of the file, not of the model in memory
    new = start.origin.module().eval()
    scores = new(torch.from_numpy(IMAGES.transpose(0, 3, 1, 2).copy())).detach().numpy()
    np.testing.assert_allclose(scores, np.asarray(start.model(IMAGES)), rtol=1e-4, atol=1e-5)
    assert [one.training for one in module] == [True, False, *[True] * 5]
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())


def load_module(module):
    return api._classifier(module, ModelInterface("0,1", "logits"))
