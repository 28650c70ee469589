"""Pretrained models: each loads, has the weights of its card, and classifies as its card says."""

import os
import shutil

import keras
import numpy as np
import pytest

import tf_robust as tfr
from tests.command_line import runs_of
from tf_robust.cli import show as help_texts
from tf_robust.saved_models import loading, zoo

NAMES = zoo.names()
SIZE = 8e6  # bytes of all pretrained models


def measured(card):
    return {row["metric"]: row["value"] for row in card["evaluation"]["rows"]}


@pytest.mark.parametrize("name", NAMES)
def test_each_loads_with_its_card(name):
    model, card = tfr.load(name), zoo.card(name)
    assert model.input_shape == tuple(card["input"]["shape"])
    outputs = model(np.random.default_rng(0).random((2, *model.input_shape[1:]), np.float32))
    assert outputs["logits"].shape == (2, len(card["classes"])) and np.isfinite(outputs["logits"]).all()
    assert model.count_params() == card["weights"]["parameters"] == sum(np.size(w) for w in model.get_weights())
    values = measured(card)
    assert {"clean", "un", "corruptions/mean15", "corruptions/fog/3"} <= set(values) and card["evaluation"]["split"] == "test"
    assert card["note"] or card["data"] != "cifar10"


def test_they_are_small():
    sizes = [os.path.getsize(os.path.join(folder, file)) for folder, _, files in os.walk(zoo.FOLDER) for file in files]
    assert len(NAMES) >= 2 and sum(sizes) < SIZE


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("digits/")])
def test_a_card_has_the_accuracy_of_the_model(name):
    result = tfr.evaluate(tfr.load(name), data="digits", evaluations="clean,noise")
    values = measured(zoo.card(name))
    assert result.values["clean"] == pytest.approx(values["clean"], abs=0.004)  # one image of 299
    assert result.values["un"] == pytest.approx(values["un"], abs=0.004) and values["clean"] > 0.9


def test_a_model_by_its_name_on_the_command_line_is_the_loaded_one():
    name, images = "digits/lenet_augmix", np.random.default_rng(0).random((3, 28, 28, 1), np.float32)
    classify = loading.load_classifier(f"zoo:{name}")
    np.testing.assert_allclose(classify(images), tfr.load(name)(images)["logits"], rtol=1e-4, atol=1e-5)
    assert classify.card["title"] == zoo.card(name)["title"]


def test_they_can_be_trained_further():
    name = "digits/lenet_cross_entropy"
    model = tfr.load(name)
    before = [np.copy(w) for w in model.get_weights()]
    robust = tfr.methods.Gaussian(model)
    robust.compile(optimizer=keras.optimizers.SGD(0.01), run_eagerly=True)
    images, labels = tfr.images(8, data="digits")
    robust.fit(images, labels, epochs=1, verbose=0)
    assert any((old != new).any() for old, new in zip(before, robust.classifier.get_weights()))


def test_a_run_begins_with_their_weights():
    (run,) = runs_of("--data=digits", "--model=lenet", "--init_from=zoo:digits/lenet_augmix", "--init_head")
    classifier = run.method(run.training_source()).classifier
    for value, expected in zip(classifier.get_weights(), tfr.load("digits/lenet_augmix").get_weights(), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_unknown_names_and_changed_weights(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="digits/lenet_augmx.*Did you mean.*digits/lenet_augmix"):
        tfr.load("digits/lenet_augmx")
    shutil.copytree(os.path.join(zoo.FOLDER, "digits"), tmp_path / "digits")
    monkeypatch.setattr(zoo, "FOLDER", str(tmp_path))
    with open(tmp_path / "digits" / "lenet_augmix" / "weights.npz", "r+b") as file:
        file.seek(200)
        file.write(b"\x00\x01")
    with pytest.raises(ValueError, match="weights of digits/lenet_augmix.*SHA-256"):
        tfr.load("digits/lenet_augmix")


def test_they_are_listed():
    text = help_texts.listing("zoo")
    assert all(name in text for name in NAMES) and f"{measured(zoo.card(NAMES[0]))['clean']:.3f}" in text
