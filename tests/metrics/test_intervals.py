"""Binomial intervals against SciPy's binomial test, the closed form, and the probabilities of all outcomes."""

import numpy as np
import pytest
import scipy.stats

from tf_robust import metrics


@pytest.mark.parametrize("correct, count", [(0, 5), (3, 5), (5, 5), (970, 1000)])
def test_wilson_is_the_closed_form(correct, count):
    z, p = scipy.stats.norm.ppf(0.975), correct / count
    center, half = p + z**2 / (2 * count), z * np.sqrt(p * (1 - p) / count + z**2 / (4 * count**2))
    expected = (center - half) / (1 + z**2 / count), (center + half) / (1 + z**2 / count)
    assert metrics.wilson_interval(correct, count) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("count", [1, 7, 100, 1000])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_clopper_pearson_is_the_bound_of_the_binomial_test(count, confidence):
    correct = np.unique(np.linspace(0, count, 12).astype(int))
    expected = [scipy.stats.binomtest(int(k), count, alternative="greater").proportion_ci(confidence, method="exact").low for k in correct]
    np.testing.assert_allclose(metrics.clopper_pearson_lower(correct, count, confidence), expected, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("probability", [0.55, 0.8, 0.9])
def test_bounds_are_too_high_with_at_most_the_probability_of_an_error(probability):
    count, confidence = 100, 0.95
    exact = scipy.stats.binom.pmf(np.arange(count + 1), count, probability)
    too_high = metrics.clopper_pearson_lower(np.arange(count + 1), count, confidence) > probability
    assert 0 < exact[too_high].sum() <= 1 - confidence
