"""Fitted confidences of an evaluation: what is fitted on which images, and metrics against NumPy."""

import dataclasses

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.evaluation.shared import values_of
from tf_robust import corruptions, data, evaluation, metrics
from tf_robust.evaluation import confidence

CLASSES = 4


def _logits(images):
    """Overconfident logits, which the first pixels of an image hold."""
    return 12.0 * tf.reshape(tf.convert_to_tensor(images)[:, 0, :CLASSES, 0], [-1, CLASSES])


def _source(count, seed, split="test"):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, size=(count, 8, 8, 1)).astype(np.uint8)
    logits = 4.0 * images[:, 0, :CLASSES, 0] / 255
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    return data.ArraySource.of("drawn", split, images, labels, map(str, range(CLASSES)))


def _evaluate(validation=None, evaluations=("clean",), shifts=(), **options):
    validation = _source(600, 1, "validation") if validation is None else validation
    config = evaluation.EvalConfig(evaluations, **options)
    return evaluation.evaluate(_logits, _source(500, 0), None, config, log=lambda _: None, validation=validation, shifts=shifts)


@pytest.fixture(scope="module")
def done():
    def darkened(images, name, severity, *_, **__):  # quicker than the corruptions, and another change for each
        return images * (1 - 0.1 * severity - 0.01 * [*corruptions.CORRUPTIONS].index(name))

    evaluations = ("clean", "calibration", "corruptions")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(corruptions, "corrupt", darkened)
        return _evaluate(None, evaluations, severities=(1, 5), calibrate="temperature", abstain_accuracy=0.45, conformal=0.8)


def test_temperature_is_fitted_on_half_of_the_validation_images(done):
    validation, values = _source(600, 1), values_of(done.metrics)
    half = np.argsort(confidence.uniforms(np.arange(600), 2), kind="stable")[:300]
    expected = metrics.fit_temperature(_logits(validation.images / 255).numpy()[half], validation.labels[half])
    assert values["calibrated/temperature"] == pytest.approx(expected, rel=1e-5)
    assert values["calibrated/temperature"] == pytest.approx(3, rel=0.25)  # 12 / 4
    assert values["calibrated/ece_before"] == values["calibration/ece"] > 2 * values["calibrated/ece"]


def test_measures_are_those_of_numpy(done):
    source, fitted, values = _source(500, 0), done.fitted, values_of(done.metrics)
    scaled = _logits(source.images / 255).numpy().astype(np.float64) * fitted["scale"]
    probabilities = scipy.special.softmax(scaled, axis=1)
    confidences, correct = probabilities.max(axis=1), scaled.argmax(axis=1) == source.labels
    answered = confidences >= fitted["threshold"]
    assert values["abstention/coverage"] == answered.mean()
    assert values["abstention/accuracy"] == correct[answered].mean()
    assert fitted["low"] >= 0.45
    scores = metrics.aps_scores(probabilities, confidence.uniforms(np.arange(500), 1))
    assert values["conformal/coverage"] == pytest.approx(np.mean(scores[np.arange(500), source.labels] <= fitted["quantile"]))
    assert values["conformal/size"] == pytest.approx(np.mean((scores <= fitted["quantile"]).sum(axis=1)))
    assert values["conformal/coverage"] == pytest.approx(0.8, abs=0.1)
    assert values["calibrated/nll"] == pytest.approx(metrics.negative_log_likelihood(scaled, source.labels))


def test_a_severity_is_the_mean_over_the_15_corruptions(done):
    members = [one for one in done.records if one["set"].endswith("/5") and one["set"].split("/")[1] in metrics.BENCHMARK]
    assert len(members) == 15
    values = values_of(done.metrics)
    assert values["abstention/severity_5/coverage"] == pytest.approx(np.mean([one["confidence"]["answered"] / 500 for one in members]))
    assert values["calibrated/severity_5/ece_before"] == pytest.approx(np.mean([one["expected_calibration_error"] for one in members]))
    assert values["conformal/severity_5/size"] == pytest.approx(np.mean([one["confidence"]["size"] / 500 for one in members]))
    assert list(confidence.groups(done.records)) == ["", "severity_1", "severity_5"]
    bins = confidence.bins(members[0])
    assert bins[0].sum() == 500
    assert bins[1].sum() == members[0]["confidence"]["correct"]


def test_draws_depend_on_seed_index_and_purpose_alone():
    some, all_of_them = confidence.uniforms([3, 700, 5], 1), confidence.uniforms(np.arange(1000), 1)
    np.testing.assert_array_equal(some, all_of_them[[3, 700, 5]])
    assert abs(np.corrcoef(all_of_them, confidence.uniforms(np.arange(1000), 0))[0, 1]) < 0.1
    assert all_of_them.min() >= 0 and all_of_them.max() < 1
    assert all_of_them.mean() == pytest.approx(0.5, abs=0.03)


def test_nothing_is_measured_without_the_flags():
    assert values_of(_evaluate(_source(20, 3)).metrics).keys() == {"clean", "clean/per_class"}


def test_vector_scaling_with_shifted_data():
    source = _source(300, 5)
    shift = data.sources.matched(dataclasses.replace(source, name="others"), _source(500, 0), name="others")
    done = _evaluate(calibrate="vector", shifts=[shift])
    assert len(done.fitted["scale"]) == CLASSES
    names = values_of(done.metrics).keys()
    assert {"calibrated/ece", "calibrated/shift/others/ece"} <= names and "calibrated/temperature" not in names


@pytest.mark.parametrize(
    "validation, options, message",
    [
        (_source(80, 2), {"abstain_accuracy": 0.95}, "at least 118 validation images .* Received: 80"),
        (None, {"abstain_accuracy": 0.95}, "the highest that is met is"),
        (_source(5, 2), {"conformal": 0.9}, "at least 9 validation images"),
        (_source(80, 2).subset(np.flatnonzero(_source(80, 2).labels == 1)), {"calibrate": "temperature"}, "at least two classes"),
        (None, {"abstain_accuracy": 1.0}, r"abstain_accuracy in \(0, 1\)"),
        (None, {"abstain_accuracy": 95.0}, "abstain_accuracy=0.95$"),
        (None, {"conformal": 0.9, "evaluation_split": "validation"}, "evaluation_split=test"),
    ],
)
def test_bad_input_is_named(validation, options, message):
    with pytest.raises(ValueError, match=message):
        _evaluate(validation, **options)
