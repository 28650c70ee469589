"""Evaluations of models in memory and in files."""

import dataclasses

import keras
import pytest

from tf_robust import evaluation
from tf_robust.experiments import model_evaluation
from tf_robust.experiments.config import TrainConfig
from tf_robust.experiments.evaluation_data import EvaluationData
from tf_robust.saved_models import loading

CONFIG = evaluation.EvalConfig(evaluations=("clean", "corruptions"), severities=(3,), subset=20)


@pytest.fixture
def softmax(tmp_path):
    """A file of an untrained classifier of digits that returns probabilities."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10, activation="softmax")])
    path = str(tmp_path / "softmax.keras")
    model.save(path)
    return path


def test_advice_about_the_outputs_is_printed_once(softmax, tmp_path, capsys):
    done = model_evaluation.evaluate_file(
        softmax,
        EvaluationData(TrainConfig(data="digits"), CONFIG),
        str(tmp_path),
        row="softmax",
        interface=loading.ModelInterface(check_inputs=False),
    )
    assert capsys.readouterr().out.count("look like probabilities") == 1
    assert (tmp_path / "figures").is_dir() and len(done.source) == 20


def test_data_in_memory_are_evaluated_as_a_whole_unless_a_split_is_chosen(softmax, tmp_path):
    classifier = loading.load_classifier(softmax, loading.ModelInterface(check_inputs=False))
    clean = dataclasses.replace(CONFIG, evaluations=("clean",), subset=0)
    images = EvaluationData(TrainConfig(data="digits"), clean).source("train")
    data = EvaluationData(TrainConfig(data="arrays"), clean, images=images)
    done = model_evaluation.evaluate(classifier, data, str(tmp_path), row="softmax", saved_model=softmax)
    assert done.source is images and done.content["split"] == "all" == done.data.eval_config.evaluation_split
    assert done.content["rows"][0]["count"] == len(images) and data.eval_config.evaluation_split == "test"
    with pytest.raises(ValueError, match="Expected evaluation_split=all for digits"):
        model_evaluation.evaluate(classifier, data, str(tmp_path), row="softmax", saved_model=softmax, split_chosen=True)
