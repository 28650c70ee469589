"""What cards of models tell before TensorFlow is imported."""

import json

import pytest

from tf_robust.saved_models.interface import training_data


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


def test_zoo():
    assert training_data("zoo:cifar10/resnet8_augmix") == "cifar10"
