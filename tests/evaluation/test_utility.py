"""The evaluations `utility` and `sensitivity`, for a softmax regression whose contextual utility is known."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

from tests.evaluation.shared import by_name
from tf_robust import data, evaluation
from tf_robust.data.corner_digits import CANVAS, CORNER_SIZE
from tf_robust.data.subsets import stratified_subset
from tf_robust.report import images as figures

CONFIG = evaluation.EvalConfig(evaluations=("clean", "utility"))
WEIGHTS = np.random.RandomState(0).normal(size=(CANVAS * CANVAS, 15)) * np.linspace(0.1, 2, 15)
EDGES = np.r_[:CORNER_SIZE, CANVAS - CORNER_SIZE : CANVAS]
CORNERS = np.zeros((CANVAS, CANVAS), bool)
CORNERS[np.ix_(EDGES, EDGES)] = True


@pytest.fixture(scope="module")
def digits():
    return data.open_source("synthetic_digits", "test")


def predict(images):
    return tf.reshape(images, [-1, CANVAS * CANVAS]) @ tf.constant(WEIGHTS, tf.float32)


def expected_utilities(images, labels):
    """Returns |sum over classes of (p_c - y_c) W_c|: [N, 28, 28]."""
    probabilities = scipy.special.softmax(images.reshape(-1, CANVAS * CANVAS) @ WEIGHTS, axis=1)
    return np.abs((probabilities - np.eye(15)[labels]) @ WEIGHTS.T).reshape(-1, CANVAS, CANVAS)


def test_measures_equal_numpy(digits):
    metrics = by_name(evaluation.evaluate(predict, digits, None, CONFIG, log=lambda _: None).metrics)
    images, labels = digits.images / 255.0, digits.labels
    predictions = np.argmax(images.reshape(len(images), -1) @ WEIGHTS, axis=1)
    rare = labels >= 10
    assert metrics["bal/rare"].count == rare.sum() == 500
    assert metrics["bal/rare"].value == pytest.approx(np.mean(predictions[rare] == labels[rare]), abs=2e-3)
    assert metrics["bal"].value == pytest.approx(np.mean(predictions == labels), abs=2e-3)
    utilities = expected_utilities(images, labels)
    for name, in_center in (("informative", range(5)), ("uninformative", range(5, 10))):
        parts = [utilities[labels % 10 == digit] for digit in in_center]
        expected = np.mean([part[:, CORNERS].mean() for part in parts]) / np.mean([part[:, ~CORNERS].mean() for part in parts])
        assert metrics[f"utility/corner_{name}"].value == pytest.approx(expected, rel=1e-4)


def test_digits_without_images_or_utility_are_left_out(digits):
    of_digit_3 = digits.subset(np.flatnonzero(digits.labels == 3))
    record = evaluation.scoring.score_utility(predict, evaluation.EvaluationSet("utility", lambda: data.evaluation_batches(of_digit_3)))
    assert record["count"] == 100 and [value is not None for value in record["corner"]] == [digit == 3 for digit in range(10)]
    expected = expected_utilities(of_digit_3.images / 255.0, of_digit_3.labels)
    assert evaluation.scoring.utility_ratios(record) == {
        "corner_informative": pytest.approx(expected[:, CORNERS].mean() / expected[:, ~CORNERS].mean(), rel=1e-4)
    }
    assert evaluation.scoring.utility_ratios({"corner": [0.0] * 10, "center": [0.0] * 10}) == {}


def test_the_numbers_of_figure_4_equal_the_metric(digits, monkeypatch):
    captions_drawn = []
    monkeypatch.setattr(figures, "utility_by_class", lambda path, images, utilities, captions: captions_drawn.append(captions))
    figures.draw_utility("folder", predict, digits)
    images, labels = evaluation.first_images(digits, figures.UTILITY_IMAGES)
    utilities = expected_utilities(images.astype(np.float64), labels)
    for digit, caption in enumerate(captions_drawn[0]):
        of_digit = utilities[labels % 10 == digit]
        assert caption == f"class {digit}: corners {of_digit[:, CORNERS].mean() / of_digit[:, ~CORNERS].mean():.2f}"


def test_sensitivity_and_utility_correlate_as_by_scipy(digits):
    encoder_weights = np.random.RandomState(1).normal(size=(CANVAS * CANVAS, 5)) * WEIGHTS.std(axis=1, keepdims=True)

    def encoder(images):
        return {"embedding": tf.reshape(images, [-1, CANVAS * CANVAS]) @ tf.constant(encoder_weights, tf.float32)}

    config = evaluation.EvalConfig(evaluations=("sensitivity",), attack_subset=30)
    result = evaluation.evaluate(predict, digits, None, config, log=lambda _: None, encoder=encoder)
    few = stratified_subset(digits, 30)
    utilities = expected_utilities(few.images / 255.0, few.labels).reshape(30, -1)
    sensitivity = np.linalg.norm(encoder_weights, axis=1)
    expected = [scipy.stats.spearmanr(sensitivity, utility).statistic for utility in utilities]
    (value,) = result.metrics
    assert (str(value), value.count) == ("sensitivity/utility_correlation", 30)
    assert value.value == pytest.approx(np.mean(expected), abs=1e-4) and value.value > 0.1
    assert value.high - value.value == pytest.approx(1.96 * scipy.stats.sem(expected), rel=1e-3)


def test_without_an_embedding_there_is_no_sensitivity(source):
    config = evaluation.EvalConfig(evaluations=("sensitivity",))
    with pytest.raises(ValueError, match="'embedding'"):
        evaluation.evaluate(lambda images: tf.reshape(images, [len(images), -1])[:, :3], source(), None, config, log=lambda _: None)


def test_other_images_raise(source):
    with pytest.raises(ValueError, match="corner digits .* tiny"):
        evaluation.evaluation_sets(source(), None, CONFIG)
