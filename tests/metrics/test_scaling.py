"""Temperature and vector scaling against grids and the conditions of a minimum."""

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from tf_robust import metrics


def _overconfident(count=3000, classes=4, temperature=2.5, seed=0):
    """Logits whose softmax at a temperature are the probabilities that the labels were drawn from."""
    random = np.random.default_rng(seed)
    logits = random.normal(scale=2.0, size=(count, classes))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)  # softmax(logits)
    return temperature * logits, labels


def test_temperature_is_the_best_of_a_grid_and_recovers_the_true_one():
    logits, labels = _overconfident()
    grid = np.exp(np.linspace(np.log(0.5), np.log(20), 2000))
    best = grid[np.argmin([metrics.negative_log_likelihood(logits / one, labels) for one in grid])]
    fitted = metrics.fit_temperature(logits, labels)
    assert fitted == pytest.approx(best, rel=2e-3)
    assert fitted == pytest.approx(2.5, rel=0.1)


def test_temperature_ignores_classes_that_cannot_occur():
    logits, labels = _overconfident()
    masked = np.insert(logits, 2, -np.inf, axis=1)
    assert metrics.fit_temperature(masked, labels + (labels >= 2)) == pytest.approx(metrics.fit_temperature(logits, labels))
    scale, bias = metrics.fit_vector_scaling(masked, labels + (labels >= 2))
    assert (scale[2], bias[2]) == (1, 0)
    for one, other in zip((scale, bias), metrics.fit_vector_scaling(logits, labels)):
        np.testing.assert_allclose(np.delete(one, 2), other, atol=1e-6)


def test_random_predictions_have_the_highest_temperature():
    random = np.random.default_rng(1)
    assert metrics.fit_temperature(random.normal(size=(50, 3)), random.integers(3, size=50)) > 3
    assert metrics.fit_temperature(-100 * np.eye(3), np.arange(3)) == 100  # every prediction is wrong


def test_vector_scaling_recovers_scales_and_biases():
    calibrated, labels = _overconfident(count=20000, temperature=1.0)
    scale, bias = np.array([0.5, 1.0, 2.0, 4.0]), np.array([1.0, -2.0, 0.5, 0.5])
    fitted_scale, fitted_bias = metrics.fit_vector_scaling((calibrated - bias) / scale, labels)
    np.testing.assert_allclose(fitted_scale, scale, rtol=0.1)
    np.testing.assert_allclose(fitted_bias, bias, atol=0.15)


def test_vector_scaling_is_the_minimum_of_the_likelihood():
    logits, labels = _overconfident(count=400)
    scale, bias = metrics.fit_vector_scaling(logits, labels)

    def loss(parameters):
        return metrics.negative_log_likelihood(logits * parameters[:4] + parameters[4:], labels)

    gradient = scipy.optimize.approx_fprime(np.concatenate([scale, bias]), loss, 1e-6)
    np.testing.assert_allclose(gradient, 0, atol=1e-4)
    assert loss(np.concatenate([scale, bias])) <= metrics.negative_log_likelihood(logits / metrics.fit_temperature(logits, labels), labels)


def test_impossible_fits_are_refused():
    logits, labels = _overconfident(count=60)
    with pytest.raises(ValueError, match="at least two classes"):
        metrics.fit_temperature(logits, np.ones(60, int))
    with pytest.raises(ValueError, match="all correct"):
        metrics.fit_temperature(logits, logits.argmax(axis=1))
    kept = labels != 3
    with pytest.raises(ValueError, match="such as class 3"):
        metrics.fit_vector_scaling(logits[kept], labels[kept])
    with pytest.raises(ValueError, match=r"logits \[N, C\]"):
        metrics.fit_temperature(logits, labels[:-1])
