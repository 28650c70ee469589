"""Values per example against the metrics, and their standard errors against those over many samples."""

import numpy as np
import pytest

from tf_robust import metrics

MEASURES = {
    metrics.rms_calibration_values: metrics.rms_calibration_error,
    metrics.expected_calibration_values: metrics.expected_calibration_error,
    metrics.aurra_values: metrics.aurra,
}
each_metric = pytest.mark.parametrize("values_of", MEASURES, ids=lambda function: function.__name__)


def sample(seed, count, accuracy=0.0):
    """Returns confidences and correctness of a model whose confidence is off by -accuracy."""
    random = np.random.default_rng(seed)
    confidences = random.beta(4, 2, count)
    return confidences, random.random(count) < np.clip(confidences + accuracy, 0, 1)


@each_metric
@pytest.mark.parametrize("count", (1, 2, 37, 100, 250, 1000))
def test_the_mean_is_the_metric(values_of, count):
    for seed in range(3):
        outcomes = sample(seed, count, -0.2)
        values = values_of(*outcomes)
        assert values.shape == (count,) and values.mean() == pytest.approx(MEASURES[values_of](*outcomes), abs=1e-12)


@each_metric
def test_a_perfect_model_has_no_variance(values_of):
    values = values_of(np.ones(300), np.ones(300, bool))
    np.testing.assert_allclose(values, values[0], rtol=1e-12)


@each_metric
def test_the_standard_error_is_that_over_samples(values_of):
    measured, errors = [], []
    for seed in range(400):
        outcomes = sample(seed, 1500, -0.15)
        measured.append(MEASURES[values_of](*outcomes))
        errors.append(values_of(*outcomes).std(ddof=1) / np.sqrt(1500))
    assert np.mean(errors) == pytest.approx(np.std(measured, ddof=1), rel=0.12)


@pytest.mark.parametrize("levels", [None, 4, 1])
def test_aurra_values_are_the_jackknife(levels):
    confidences, correct = sample(5, 40)
    confidences = np.ceil(confidences * levels) / levels if levels else confidences  # equal ones count as their mean, in any order
    values, order = metrics.aurra_values(confidences, correct), np.random.RandomState(0).permutation(40)
    np.testing.assert_allclose(metrics.aurra_values(confidences[order], correct[order]), values[order])
    full = metrics.aurra(confidences, correct)
    without = np.array([metrics.aurra(np.delete(confidences, i), np.delete(correct, i)) for i in range(40)])
    pseudovalues = 40 * full - 39 * without
    np.testing.assert_allclose(values, pseudovalues - pseudovalues.mean() + full, rtol=1e-10, atol=1e-12)


@each_metric
def test_intervals_of_paired_differences_cover_the_true_one(values_of):
    """Two models on the same images, of which one is overconfident by more: the difference of a large sample is the true one."""

    def both(seed, count):
        random = np.random.default_rng(seed)
        confidences, luck = random.beta(4, 2, count), random.random(count)
        return [(confidences, luck < confidences - gap) for gap in (0.1, 0.2)]

    first, second = both(0, 200_000)
    large = {"bin_size": 2000} if values_of is metrics.rms_calibration_values else {}
    true = MEASURES[values_of](*first, **large) - MEASURES[values_of](*second, **large)
    covered = 0
    for seed in range(1, 201):
        one, other = both(seed, 2000)
        interval = metrics.paired_difference(values_of(*one), values_of(*other))
        covered += interval["low"] <= true <= interval["high"]
    assert covered >= 0.88 * 200
