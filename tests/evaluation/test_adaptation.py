"""Evaluations with test-time adaptation: batches, cards, names of metrics, and accuracies against the adapted model called directly."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_robust as tfr
from tf_robust import data, evaluation, report
from tf_robust.evaluation import sets
from tf_robust.evaluation.card import adaptation_part
from tf_robust.evaluation.sets import adaptation_batches, order_for_adaptation
from tf_robust.saved_models import loading
from tf_robust.saved_models.loading import with_batch_statistics


@pytest.fixture(scope="module")
def labelled():
    random = np.random.RandomState(0)
    return random.randint(0, 256, [61, 8, 8, 1], np.uint8), np.arange(61) % 3


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), keras.layers.ReLU(), keras.layers.Flatten()]
    return keras.Sequential([keras.Input([8, 8, 1]), *layers, keras.layers.Dense(3)])


@pytest.mark.parametrize("count, size, expected", [(10, 4, [5, 5]), (11, 4, [6, 5]), (3, 4, [3]), (12, 4, [4, 4, 4]), (2, 2, [2])])
def test_batches_have_equal_sizes(count, size, expected):
    assert adaptation_batches(count, size) == expected


def test_sets_are_read_in_these_batches(labelled):
    images, labels = labelled
    batches = tf.data.Dataset.from_tensor_slices((images / np.float32(255), labels)).batch(7)
    one = sets.in_batches(evaluation.EvaluationSet("clean", lambda: batches), 61, 20)
    parts = list(one.batches())
    assert [len(part) for part, _ in parts] == [21, 20, 20]
    np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), labels)


def test_the_card_has_the_balance_of_the_batches(labelled):
    images, labels = labelled
    source = data.ArraySource.of("tiny", "test", images, labels, map(str, range(3)))
    mixed, sorted_ = (
        adaptation_part(
            source,
            evaluation.EvalConfig(evaluations=("clean",), adaptation="batch_norm", adaptation_batch_size=20, adaptation_order=order),
        )
        for order in ("shuffled", "by_class")
    )
    assert mixed["batch_sizes"] == [20, 21] and mixed["classes_per_batch"] == 3.0 and mixed["largest_class_fraction"] < 0.6
    assert sorted_["classes_per_batch"] == sorted_["largest_class_fraction"] == 1.0
    assert order_for_adaptation(source, "by_class").labels.tolist() == sorted(labels)


@pytest.mark.parametrize("order", ("shuffled", "by_class"))
def test_accuracy_is_that_of_the_adapted_batches(labelled, model, order):
    images, labels = labelled
    result = tfr.evaluate(
        model, data=(images, labels), evaluations="clean", adaptation="batch_norm", adaptation_batch_size=20, adaptation_order=order
    )
    indices = np.random.RandomState(evaluation.SEED).permutation(61) if order == "shuffled" else np.argsort(labels, kind="stable")
    adapted = with_batch_statistics(loading.classifier_of(model))
    batches = np.split(indices, np.cumsum([21, 20]))
    right = [np.argmax(adapted(images[part] / np.float32(255)), axis=1) == labels[part] for part in batches]
    assert result.values["adapted/clean"] == pytest.approx(np.concatenate(right).mean()) and "clean" not in result.values
    assert result.evaluation["card"]["adaptation"]["order"] == order
    (note,) = report.evaluation_notes([result.evaluation])
    assert "batches of 20 to 21 test images" in note and order in note


def test_the_report_of_an_adapted_model_has_the_charts_of_its_confidences(labelled, model, tmp_path):
    options = {"evaluations": "clean,calibration", "adaptation_batch_size": 20}
    found = {}
    for adaptation_ in ("none", "batch_norm"):
        chosen = options if adaptation_ == "batch_norm" else {"evaluations": options["evaluations"]}
        result = tfr.evaluate(model, data=labelled, adaptation=adaptation_, **chosen)
        with open(result.report(str(tmp_path / f"{adaptation_}.html")), encoding="utf-8") as file:
            found[adaptation_] = file.read().count("<figure")
    assert found["none"] == found["batch_norm"] > 0


def test_cards_of_other_batches_differ_and_records_are_not_shared(labelled):
    images, labels = labelled
    source = data.ArraySource.of("tiny", "test", images, labels, map(str, range(3)))
    configs = [evaluation.EvalConfig(evaluations=("clean",), adaptation="batch_norm", adaptation_batch_size=size) for size in (10, 20)]
    cards = [evaluation.card_of(source, config, None) for config in (*configs, evaluation.EvalConfig(evaluations=("clean",)))]
    differing = [field for field, *_ in evaluation.difference("adapted/clean", cards[0], cards[1])]
    assert "adaptation.batch_sizes" in differing
    keys = {evaluation.record_key(evaluation.dependencies("m", {}, card, "clean")) for card in cards}
    assert len(keys) == 3


def test_names_are_parsed_and_described():
    metric = evaluation.parse_metric("label_fraction_0.1/adapted/corruptions/fog/3")
    assert metric.adapted and metric.severity == 3 and str(metric) == "label_fraction_0.1/adapted/corruptions/fog/3"
    assert str(metric.plain) == "corruptions/fog/3" and evaluation.parse_metric("adapted/clean").is_clean


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"evaluations": ("clean", "adversarial")}, "Expected adaptation=none with evaluations=adversarial, which"),
        ({"evaluations": ("certified",)}, "evaluations=certified"),
        ({"adaptation_batch_size": 1}, "adaptation_batch_size >= 2"),
    ],
)
def test_bad_configurations_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        evaluation.EvalConfig(**{"adaptation": "batch_norm", "evaluations": ("clean",), **settings})
