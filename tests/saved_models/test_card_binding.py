"""A card beside a model binds: what it declares is used, and flags that contradict it are refused with both values."""

import contextlib
import json

import keras
import numpy as np
import pytest

import tf_robust as tfr
from tests.saved_models.loading_models import CLASSES, SHAPE, sample_images
from tf_robust.evaluation import model_evaluation
from tf_robust.saved_models.interface import declared_range, training_data
from tf_robust.saved_models.loading import ModelInterface, load_classifier

CARD = {"input": {"shape": [None, *SHAPE], "range": [0.0, 255.0]}, "output": "probabilities"}


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input(SHAPE), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(CLASSES, "softmax")]
    )


@pytest.fixture(scope="module")
def paths(model, tmp_path_factory):
    """{kind of file: path} of a model of 0..255 that returns probabilities, each with a card."""
    folder = tmp_path_factory.mktemp("cards")
    model.save(folder / "m.keras")
    model.export(str(folder / "m"), verbose=False)
    for path in (folder / "m.keras.json", folder / "m" / "card.json"):
        path.write_text(json.dumps(CARD))
    return {"keras": str(folder / "m.keras"), "savedmodel": str(folder / "m")}


@pytest.mark.parametrize("kind", ["keras", "savedmodel"])
@pytest.mark.parametrize("given", [{}, {"input_range": "auto"}, {"input_range": "0.0,255"}, {"outputs": "probabilities"}])
def test_the_card_is_used(paths, model, kind, given):
    classify = load_classifier(paths[kind], ModelInterface(**given))
    assert (classify.interface.affine(), classify.interface.outputs) == (((255,), (0,)), "probabilities")
    np.testing.assert_allclose(classify(sample_images()), np.log(model(255 * sample_images())), atol=1e-4)


@pytest.mark.parametrize("name, declared, given", [
    ("input_range", "0,255", "0,1"), ("input_range", "0,255", "imagenet"), ("input_range", "0,255", "0,255 bgr"),
    ("outputs", "probabilities", "logits"),
])  # fmt: skip
def test_contradictions_name_both_values(paths, name, declared, given):
    with pytest.raises(ValueError, match=f"{name}={declared}, .*{name}={given}"):
        load_classifier(paths["keras"], ModelInterface(**{name: given}))


def test_contradictions_in_python(paths):
    images, labels = sample_images(count=20), np.arange(20) % CLASSES
    with pytest.raises(ValueError, match="input_range=0,255.*input_range=0,1"):
        tfr.evaluate(paths["keras"], data=(images, labels), evaluations="clean", input_range="0,1")
    with pytest.raises(ValueError, match="input_range=0,255.*input_range=0,1"):
        tfr.attack(paths["keras"], images, labels, "fgsm", input_range=(0, 1), norm="linf", radius=0.1)
    with pytest.raises(ValueError, match="input_range=0,1.*input_range=0,255"):
        tfr.evaluate("zoo:digits/lenet_augmix", data="digits", evaluations="clean", input_range="0,255")


def test_an_output_of_another_name_is_no_contradiction(tmp_path):
    images = keras.Input(SHAPE)
    logits = keras.layers.Dense(CLASSES)(keras.layers.Flatten()(images))
    keras.Model(images, {"logits": logits, "probabilities": keras.layers.Softmax()(logits)}).save(tmp_path / "m.keras")
    (tmp_path / "m.keras.json").write_text(json.dumps({**CARD, "output": "logits"}))
    assert load_classifier(tmp_path / "m.keras").interface.outputs == "logits"
    assert load_classifier(tmp_path / "m.keras", ModelInterface(outputs="probabilities")).interface.outputs == "probabilities"


@pytest.mark.parametrize("entry", [None, "images", [0, 1], {"range": None}, {"range": "unit"}, {"range": [0, "x"]}, {"range": [1, 2, 3]}])
def test_cards_of_other_programs_declare_nothing(entry):
    interface = ModelInterface(input_range="-1,1", outputs="logits")
    assert interface.with_card({"input": entry, "output": ["x"]}, "m.keras") == interface


@pytest.mark.parametrize("value, expected", [([0, 255], "0,255"), ([-1.0, 1.0], "-1,1"), ("0,255 bgr", "0,255 bgr")])
def test_declared_ranges(value, expected):
    assert declared_range({"input": {"range": value}}) == expected and declared_range({}) == ""


@pytest.mark.parametrize(
    "names, raises", [(["2", "1", "0"], True), (["0", "1", "2"], False), (["a", "b", "c"], False), (["0", "x", "1"], True)]
)
def test_classes_in_another_order_than_in_the_card(names, raises, tmp_path, source):
    model = keras.Sequential([keras.Input((16, 16, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.save(tmp_path / "m.keras")
    (tmp_path / "m.keras.json").write_text(json.dumps({"classes": names}))
    classify = load_classifier(tmp_path / "m.keras")
    with pytest.raises(ValueError, match=r"class '\d' in column \d") if raises else contextlib.nullcontext():
        model_evaluation.check_model_suits(classify, source())


def test_the_record_of_hardening_binds_too(model, tmp_path):
    model.save(tmp_path / "hardened.keras")
    record = {"model": "hardened.keras", "interface": {"input_range": "0,255", "outputs": "probabilities"}}
    (tmp_path / "harden.json").write_text(json.dumps(record))
    classify = load_classifier(tmp_path / "hardened.keras")
    np.testing.assert_allclose(classify(sample_images()), np.log(model(255 * sample_images())), atol=1e-4)


@pytest.mark.parametrize("file", ["model/card.json", "model/saved_model/card.json", "model.json"])
def test_training_data_are_in_the_card(file, tmp_path):
    (tmp_path / "model" / "saved_model").mkdir(parents=True)
    assert training_data(str(tmp_path / "model")) == ""
    for text, expected in ((json.dumps({"data": "mnist"}), "mnist"), ("{", ""), ("[1]", ""), ('{"data": 3}', "")):
        (tmp_path / file).write_text(text)
        assert training_data(str(tmp_path / "model")) == expected
    (tmp_path / file).write_text('{"data": "mnist"}')
    (tmp_path / "model" / "flags.txt").write_text("--data=mnist\n")  # of a run, whose recorded flags hold
    assert training_data(str(tmp_path / "model")) == ""
    assert training_data("zoo:cifar10/resnet8_augmix") == "cifar10"
