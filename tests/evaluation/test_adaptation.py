"""Evaluations with test-time adaptation: batches, cards, and accuracies against the adapted model called directly."""

import keras
import numpy as np
import pytest

import tf_robust as tfr
from tf_robust import data, evaluation, report
from tf_robust.evaluation.card import adaptation_part
from tf_robust.evaluation.sets import adaptation_batches, order_for_adaptation
from tf_robust.saved_models import loading
from tf_robust.saved_models.loading import with_batch_statistics


@pytest.fixture(scope="module")
def labelled():
    random = np.random.RandomState(0)
    return random.randint(0, 256, [61, 8, 8, 1], np.uint8), np.arange(61) % 3


@pytest.fixture(scope="module")
def source(labelled):
    return data.ArraySource.of("tiny", "test", *labelled, map(str, range(3)))


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), keras.layers.ReLU(), keras.layers.Flatten()]
    return keras.Sequential([keras.Input([8, 8, 1]), *layers, keras.layers.Dense(3)])


def test_batches_have_equal_sizes():
    for count, size, expected in [(10, 4, [5, 5]), (11, 4, [6, 5]), (3, 4, [3]), (12, 4, [4, 4, 4]), (2, 2, [2])]:
        assert adaptation_batches(count, size) == expected


def adapted(size=20, order="shuffled"):
    return evaluation.EvalConfig(("clean",), adaptation="batch_norm", adaptation_batch_size=size, adaptation_order=order)


def test_the_card_has_the_balance_of_the_batches(source):
    mixed, sorted_ = (adaptation_part(source, adapted(order=order)) for order in ("shuffled", "by_class"))
    assert mixed["batch_sizes"] == [20, 21] and mixed["classes_per_batch"] == 3.0 and mixed["largest_class_fraction"] < 0.6
    assert sorted_["classes_per_batch"] == sorted_["largest_class_fraction"] == 1.0
    assert order_for_adaptation(source, "by_class").labels.tolist() == sorted(source.labels)


@pytest.mark.parametrize("order", ("shuffled", "by_class"))
def test_accuracy_is_that_of_the_adapted_batches(labelled, model, order):
    images, labels = labelled
    options = {"adaptation": "batch_norm", "adaptation_batch_size": 20, "adaptation_order": order}
    result = tfr.evaluate(model, data=labelled, evaluations="clean", **options)
    indices = np.random.RandomState(evaluation.SEED).permutation(61) if order == "shuffled" else np.argsort(labels, kind="stable")
    classify = with_batch_statistics(loading.classifier_of(model))
    batches = np.split(indices, np.cumsum([21, 20]))
    right = [np.argmax(classify(images[part] / np.float32(255)), axis=1) == labels[part] for part in batches]
    assert result.values["adapted/clean"] == pytest.approx(np.concatenate(right).mean()) and "clean" not in result.values
    assert result.evaluation["card"]["adaptation"]["order"] == order
    (note,) = report.evaluation_notes([result.evaluation])
    assert "batches of 20 to 21 test images" in note and order in note


def test_the_report_of_an_adapted_model_has_the_charts_of_its_confidences(labelled, model, tmp_path, monkeypatch):
    monkeypatch.setattr(report.page, "library", lambda: "")  # the program that draws them

    def figures(**options):
        result = tfr.evaluate(model, data=labelled, evaluations="clean,calibration", **options)
        result.report(str(tmp_path / "report.html"))
        return (tmp_path / "report.html").read_text("utf-8").count("<figure")

    assert figures() == figures(adaptation="batch_norm", adaptation_batch_size=20) > 0


def test_cards_of_other_batches_differ_and_records_are_not_shared(source):
    cards = [evaluation.card_of(source, config, None) for config in (adapted(10), adapted(20), evaluation.EvalConfig(("clean",)))]
    differing = [field for field, *_ in evaluation.difference("adapted/clean", cards[0], cards[1])]
    assert "adaptation.batch_sizes" in differing
    keys = {evaluation.record_key(evaluation.dependencies("m", {}, card, "clean")) for card in cards}
    assert len(keys) == 3


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"evaluations": ("clean", "adversarial")}, "evaluations=adversarial"),
        ({"evaluations": ("certified",)}, "evaluations=certified"),
        ({"adaptation_batch_size": 1}, "adaptation_batch_size"),
    ],
)
def test_bad_configurations_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        evaluation.EvalConfig(**{"adaptation": "batch_norm", "evaluations": ("clean",), **settings})
