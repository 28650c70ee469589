"""Paired tests against SciPy, enumeration and simulation."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from tf_robust import metrics


@pytest.mark.parametrize("only_first, only_second", [(0, 0), (0, 5), (1, 5), (3, 9), (7, 7), (40, 20)])
def test_mcnemar_is_the_sum_over_all_outcomes_no_more_likely(only_first, only_second):
    first = np.array([1] * only_first + [0] * only_second + [1, 1, 0], bool)
    second = np.array([0] * only_first + [1] * only_second + [1, 1, 0], bool)
    discordant = only_first + only_second
    chances = [math.comb(discordant, k) / 2**discordant for k in range(discordant + 1)]
    expected = sum(chance for chance in chances if chance <= chances[only_first] * (1 + 1e-9))
    assert metrics.mcnemar(first, second) == pytest.approx(expected)
    assert metrics.mcnemar(second, first) == pytest.approx(expected)


def test_mcnemar_is_the_sign_flip_test_of_the_difference():
    random = np.random.RandomState(0)
    first, second = random.rand(12) < 0.8, random.rand(12) < 0.4
    differences = first.astype(int) - second.astype(int)
    totals = [abs(np.dot(signs, differences)) for signs in itertools.product((-1, 1), repeat=12)]
    assert metrics.mcnemar(first, second) == pytest.approx(np.mean(np.array(totals) >= abs(differences.sum())))


def test_a_mean_over_sets_has_the_paired_t_interval():
    random = np.random.RandomState(1)
    first, second = random.binomial(75, 0.6, 40) / 75, random.binomial(75, 0.55, 40) / 75
    result, expected = metrics.paired_difference(first, second), scipy.stats.ttest_rel(first, second)
    assert (result["test"], result["count"]) == ("paired t", 40)
    np.testing.assert_allclose([result["p"], result["low"], result["high"]], [expected.pvalue, *expected.confidence_interval()])
    np.testing.assert_allclose(result["mean"], np.mean(first) - np.mean(second))


def test_correctness_has_the_p_of_mcnemar_and_an_interval_that_covers():
    random, inside = np.random.RandomState(2), 0
    for _ in range(400):
        ability = random.rand(300)  # the same images are hard for both
        first, second = random.rand(300) < 0.3 + 0.6 * ability, random.rand(300) < 0.2 + 0.6 * ability
        result = metrics.paired_difference(first, second)
        assert result["test"] == "McNemar" and result["p"] == metrics.mcnemar(first, second)
        inside += result["low"] <= 0.1 <= result["high"]
    assert 0.92 < inside / 400 < 0.98


def test_one_image_has_no_interval():
    for pair in (([True], [False]), ([0.75], [0.5])):
        result = metrics.paired_difference(*pair)
        assert (result["low"], result["high"], result["p"], result["count"]) == (None, None, 1.0, 1)


def test_equal_and_bad_input():
    assert metrics.paired_difference([0.5, 0.5], [0.5, 0.5])["p"] == 1.0
    assert metrics.paired_difference([0.5, 0.5], [0.25, 0.25])["p"] == 0.0
    for bad in ([[True]], [True, False], []):
        with pytest.raises(ValueError, match="one value per image"):
            metrics.paired_difference([True], bad)
