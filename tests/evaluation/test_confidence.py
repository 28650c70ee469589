"""Fitted confidences of an evaluation: what is fitted on which images, and metrics against NumPy."""

import dataclasses

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tf_robust import data, evaluation, metrics
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


def _evaluate(eval_config, validation=None, **options):
    validation = _source(600, 1, "validation") if validation is None else validation
    return evaluation.evaluate(_logits, _source(500, 0), None, eval_config, log=lambda _: None, validation=validation, **options)


@pytest.fixture(scope="module")
def done():
    config = evaluation.EvalConfig(
        ("clean", "calibration", "corruptions"), severities=(1, 5), calibrate="temperature", abstain_accuracy=0.45, conformal=0.8
    )
    return _evaluate(config)


def test_temperature_is_fitted_on_half_of_the_validation_images(done):
    validation = _source(600, 1)
    images = validation.images / 255
    half = np.argsort(confidence.uniforms(np.arange(600), 2), kind="stable")[:300]
    expected = metrics.fit_temperature(_logits(images)[:, :].numpy()[half], validation.labels[half])
    values = {str(one): one.value for one in done.metrics}
    assert values["calibrated/temperature"] == pytest.approx(expected, rel=1e-5)
    assert values["calibrated/temperature"] == pytest.approx(3, rel=0.25)  # 12 / 4
    assert values["calibrated/ece_before"] == values["calibration/ece"] > 2 * values["calibrated/ece"]


def test_measures_are_those_of_numpy(done):
    source, fitted = _source(500, 0), done.fitted
    scaled = _logits(source.images / 255).numpy().astype(np.float64) * fitted["scale"]
    probabilities = scipy.special.softmax(scaled, axis=1)
    confidences, correct = probabilities.max(axis=1), scaled.argmax(axis=1) == source.labels
    values = {str(one): one.value for one in done.metrics}
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
    values = {str(one): one.value for one in done.metrics}
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
    done = _evaluate(evaluation.EvalConfig(("clean",)), validation=_source(20, 3))
    without = evaluation.evaluate(_logits, _source(500, 0), None, evaluation.EvalConfig(("clean",)), log=lambda _: None)
    assert [str(one) for one in without.metrics] == ["clean", "clean/per_class"] and without.fitted is None
    assert {str(one) for one in done.metrics} == {"clean", "clean/per_class"}  # the fields of EvalConfig decide


def test_vector_scaling_with_shifted_data():
    source = _source(300, 5)
    shift = data.sources.matched(dataclasses.replace(source, name="others"), _source(500, 0), name="others")
    done = _evaluate(evaluation.EvalConfig(("clean",), calibrate="vector"), shifts=[shift])
    values = {str(one): one.value for one in done.metrics}
    assert len(done.fitted["scale"]) == CLASSES
    assert {"calibrated/ece", "calibrated/shift/others/ece"} <= set(values)
    assert "calibrated/temperature" not in values


def test_bad_input_is_named():
    config = evaluation.EvalConfig(("clean",), abstain_accuracy=0.95)
    with pytest.raises(ValueError, match="at least 118 validation images .* Received: 80"):
        _evaluate(config, _source(80, 2))
    with pytest.raises(ValueError, match="the highest that is met is"):
        _evaluate(config)
    with pytest.raises(ValueError, match="at least 9 validation images"):
        _evaluate(evaluation.EvalConfig(("clean",), conformal=0.9), _source(5, 2))
    one_class = _source(80, 2)
    one_class = one_class.subset(np.flatnonzero(np.asarray(one_class.labels) == 1))
    with pytest.raises(ValueError, match="at least two classes"):
        _evaluate(evaluation.EvalConfig(("clean",), calibrate="temperature"), one_class)
    with pytest.raises(ValueError, match=r"abstain_accuracy in \(0, 1\)"):
        evaluation.EvalConfig(abstain_accuracy=1.0)
    with pytest.raises(ValueError, match="Received: 95. Try: abstain_accuracy=0.95$"):
        evaluation.EvalConfig(abstain_accuracy=95.0)
    with pytest.raises(ValueError, match="Expected evaluation_split=test"):
        evaluation.EvalConfig(conformal=0.9, evaluation_split="validation")
