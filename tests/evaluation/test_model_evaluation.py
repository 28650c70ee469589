"""Evaluations of models in memory and in files."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import binomtest

from tf_robust import api, evaluation, report
from tf_robust.configs import DataConfig
from tf_robust.evaluation import model_evaluation, recording
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.saved_models import loading
from tf_robust.utils.files import write_json

CONFIG = evaluation.EvalConfig(evaluations=("clean", "corruptions"), severities=(3,), subset=20)


@pytest.fixture(scope="module")
def softmax(tmp_path_factory):
    """A file of an untrained classifier of digits that returns probabilities."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10, activation="softmax")])
    path = str(tmp_path_factory.mktemp("model") / "softmax.keras")
    model.save(path)
    return path


def digits(config):
    return EvaluationData(DataConfig(data="digits"), config)


def evaluated(model, data, folder, outputs="auto", **options):
    classifier = loading.load_classifier(model, loading.ModelInterface(outputs=outputs, check_inputs=False))
    return model_evaluation.evaluate_model(classifier, data, str(folder), row="softmax", saved_model=model, **options)


def test_advice_about_the_outputs_is_printed_once(softmax, tmp_path, capsys):
    interface = loading.ModelInterface(outputs="logits", check_inputs=False)
    done = EvaluatedModel(softmax, digits(CONFIG), "softmax", interface).evaluate(str(tmp_path))
    assert capsys.readouterr().out.count("look like probabilities") == 1
    assert (tmp_path / "figures").is_dir() and len(done.source) == 20


@pytest.mark.parametrize(
    "evaluations, attack, named",
    [
        (("clean", "adversarial"), ("pgd",), "attack=pgd"),
        (("clean", "adversarial"), ("autoattack", "square"), "attack=autoattack"),
        (("clean", "attack_curves"), ("autoattack",), "evaluations=attack_curves"),
    ],
)
def test_attacks_by_gradient_on_a_model_without_are_refused_first(evaluations, attack, named, softmax, tmp_path):
    network = keras.saving.load_model(softmax)
    classifier = loading.classifier_of(lambda images: tf.stop_gradient(network(images)), loading.ModelInterface(check_inputs=False))
    data = digits(evaluation.EvalConfig(evaluations=evaluations, attack=attack, subset=20))
    with pytest.raises(ValueError, match=f"gradients for {named}"):
        model_evaluation.evaluate_model(classifier, data, str(tmp_path / "out"), row="rounded", saved_model=softmax)
    assert not (tmp_path / "out").exists()


def test_the_members_of_autoattack_and_its_warnings_are_recorded(softmax, tmp_path):
    """The model returns probabilities and is declared to return logits, so that there is a warning."""
    config = evaluation.EvalConfig(
        evaluations=("clean", "adversarial"), subset=20, attack_radii=("linf_0.02",), attack_queries=10, attack_checks=False
    )
    lines: list[str] = []
    done = evaluated(softmax, digits(config), tmp_path, "logits", log=lines.append)
    write_json(str(tmp_path / "evaluation.json"), done.content)
    read = evaluation.read_evaluation(str(tmp_path / "evaluation.json"))  # by its schema
    (metric, attacked), *others = read["attacks"].items()
    after, values = attacked["accuracy_after"], {row["metric"]: row["value"] for row in read["rows"]}
    assert metric == "robust/linf_0.02" and not others and list(after) == ["clean", "apgd_ce", "apgd_t", "fab_t", "square"]
    images, labels = evaluation.first_images(done.source, 20)
    correct = done.classifier(images).numpy().argmax(axis=1) == labels
    assert after["clean"] == pytest.approx(np.mean(correct)) and after["clean"] > 0
    assert after["square"] == values[metric] < after["clean"] and list(after.values()) == sorted(after.values(), reverse=True)
    (warning,) = (one for one in attacked["warnings"] if "look like probabilities" in one)
    assert f"{recording.WARNING} {metric}: {warning}" in lines
    records = {record["set"]: record for record in evaluation.read_records(str(tmp_path / "measured.jsonl"))}
    assert {name: count / 20 for name, count in records[metric]["correct_after"].items()} == after


def test_data_in_memory_are_evaluated_as_a_whole_unless_a_split_is_chosen(softmax, tmp_path):
    clean = dataclasses.replace(CONFIG, evaluations=("clean",), subset=0)
    images = digits(clean).source("train")
    data = EvaluationData(DataConfig(data="arrays"), clean, images=images)
    done = evaluated(softmax, data, tmp_path)
    assert done.source is images and done.content["split"] == "all" == done.data.eval_config.evaluation_split
    assert done.content["rows"][0]["count"] == len(images) and data.eval_config.evaluation_split == "test"
    with pytest.raises(ValueError, match="evaluation_split=all"):
        evaluated(softmax, data, tmp_path, split_chosen=True)


def save_shift(path, shade):
    """Writes twenty gray digits, two of each class."""
    np.savez(path, x=np.full((20, 28, 28, 1), shade, np.uint8), y=np.arange(20) % 10)


def test_shifts_are_resumed_and_measured_again_if_their_images_change(softmax, tmp_path):
    config = evaluation.EvalConfig(evaluations=("clean",), subset=20, shifts=(f"npz:{tmp_path}/night.npz", f"npz:{tmp_path}/fog.npz"))

    def measured():
        lines: list[str] = []
        done = evaluated(softmax, digits(config), tmp_path, log=lines.append)
        assert [one["metric"] for one in done.content["rows"]] == ["clean", "shift/night", "shift/fog"]
        assert done.content["options"]["shifts"] == list(config.shifts)
        return [line.split()[0] for line in lines]

    save_shift(tmp_path / "night.npz", 10)
    save_shift(tmp_path / "fog.npz", 200)
    assert measured() == ["clean", "shift/night", "shift/fog"] and measured() == []
    save_shift(tmp_path / "fog.npz", 100)
    assert measured() == ["shift/fog"]


def test_two_models_are_compared_on_the_images_of_a_shift():
    def constant(answer):
        return lambda images: tf.one_hot(tf.fill([tf.shape(images)[0]], answer), 10)

    images = np.random.RandomState(0).randint(0, 256, (20, 28, 28, 1)).astype(np.uint8)
    shifts = {"night": (images, [3] * 15 + [4] * 5)}
    results = [
        api.evaluate(constant(answer), data="digits", evaluations="clean", subset=20, shifts=shifts, check_inputs=False)
        for answer in (3, 4)
    ]
    assert [result.values["shift/night"] for result in results] == [0.75, 0.25]
    first, second = ({**result.evaluation, "row": row, "measured_in": result.folder} for result, row in zip(results, "ab"))
    table = report.aggregate([first, second], baseline="a", per_image=evaluation.PerImage(lambda one: one["measured_in"]))
    entry = table["cells"]["b", "shift/night"]
    assert entry["difference"]["mean"] == -0.5 and entry["difference"]["images"]["p"] == pytest.approx(binomtest(5, 20).pvalue)
    other = api.evaluate(constant(3), data="digits", evaluations="clean", subset=20, shifts={"night": (images // 2, [3] * 20)})
    with pytest.raises(ValueError, match="'shift/night'.*shift.fingerprint"):
        report.aggregate([first, {**other.evaluation, "row": "c"}])


@pytest.mark.parametrize("outputs, classes", [(7, 7), (1, 2)])
def test_the_classes_of_a_model_that_does_not_state_them_are_those_of_its_outputs(outputs, classes):
    classify = loading.classifier_of(lambda images: tf.zeros([len(images), outputs]))
    assert model_evaluation.classes_of_outputs(classify, digits(CONFIG).source("test")) == classes
