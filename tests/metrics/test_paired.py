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


def test_the_best_of_independent_models_has_the_interval_of_the_largest():
    """With independent differences the largest of K t statistics is known; at many images it is the normal quantile of 0.975^(1/K)."""
    random, images, models = np.random.default_rng(0), 3000, 12
    second, compared = np.zeros(images), random.normal(size=(models, images))
    plain, result = metrics.paired_difference(compared[3], second), metrics.selected_difference(compared[3], second, compared)
    error = compared[3].std(ddof=1) / np.sqrt(images)
    assert (result["high"] - result["mean"]) / error == pytest.approx(scipy.stats.norm.ppf(0.975 ** (1 / models)), abs=0.04)
    assert result["mean"] == plain["mean"] == pytest.approx((result["low"] + result["high"]) / 2)
    assert result["p"] == pytest.approx(min(1, 2 * (1 - (1 - plain["p"] / 2) ** models)), abs=0.02)


def test_the_best_of_correlated_models_is_that_of_a_multivariate_t():
    """The chance that all t statistics stay below the width, by SciPy's integral; few images."""
    random, images = np.random.default_rng(1), 9
    compared = random.normal(size=(3, images)) + 2 * random.normal(size=images)
    result = metrics.selected_difference(compared[0], np.zeros(images), compared)
    width = (result["high"] - result["mean"]) / (compared[0].std(ddof=1) / np.sqrt(images))
    chance = scipy.stats.multivariate_t(shape=np.corrcoef(compared), df=images - 1, seed=0).cdf([width] * 3)
    assert chance == pytest.approx(0.975, abs=0.003)


def test_models_that_are_equal_are_one_and_one_alone_has_the_plain_interval():
    first, second = np.random.default_rng(2).random((2, 50)).round(1)
    plain = metrics.paired_difference(first, second)
    for compared in ([first], [first, second]):
        assert metrics.selected_difference(first, second, compared) == plain
    equal = metrics.selected_difference(first, second, [first] * 5)
    assert equal["low"] == pytest.approx(plain["low"], abs=0.003) and equal["p"] >= plain["p"]
    with pytest.raises(ValueError, match=r"Expected compared models \[K, 50\]"):
        metrics.selected_difference(first, second, [first[1:]])


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
