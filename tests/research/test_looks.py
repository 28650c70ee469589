import numpy as np
import pytest
import scipy.stats

from research.looks.__main__ import interval


def test_one_look_is_the_t_interval():
    differences = np.array([0.02, 0.01, 0.04, 0.03, 0.0])
    mean, low, high = interval(differences)
    expected = scipy.stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert (mean, low, high) == pytest.approx((0.02, *expected))


@pytest.mark.parametrize("looks, rate", [(1, 0.086), (2, 0.05)])
def test_false_positive_rate_of_looks_at_three_and_at_five_seeds(looks, rate):
    seeds = np.random.default_rng(0).standard_normal([4000, 5])
    excluded = np.zeros(len(seeds), bool)
    for count in (3, 5):
        _, low, high = np.transpose([interval(differences[:count], looks) for differences in seeds])
        excluded |= (low > 0) | (high < 0)
    assert excluded.mean() == pytest.approx(rate, abs=3 * np.sqrt(rate / 4000))
