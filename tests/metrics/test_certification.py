"""Certificates of randomized smoothing: radii against the closed form."""

import numpy as np
import pytest
import scipy.stats

from tf_robust import metrics

ALPHA = 0.001


def test_radii_are_quantiles_of_the_bounds_and_nan_where_the_classifier_abstains():
    hits = np.array([1, 50, 60, 66, 99, 100])
    expected = 0.25 * scipy.stats.norm.ppf(scipy.stats.beta.ppf(ALPHA, hits, 101 - hits))
    expected[expected <= 0] = np.nan
    assert 0 < np.isnan(expected).sum() < len(hits)
    np.testing.assert_allclose(metrics.certified_radii(hits, 100, 0.25, ALPHA), expected, rtol=1e-9)
    assert np.isnan(metrics.certified_radii([0], 100, 0.25, ALPHA))


def test_radii_converge_to_the_distance_from_a_hyperplane():
    sigma, distance = 0.5, 0.4
    probability = scipy.stats.norm.cdf(distance / sigma)  # of the class of a linear classifier, at this distance from its boundary
    radii = [metrics.certified_radii([round(probability * n)], n, sigma, ALPHA)[0] for n in (100, 10_000, 1_000_000)]
    assert radii[0] < radii[1] < radii[2] < distance and radii[2] > 0.99 * distance


@pytest.mark.parametrize("sigma, radius", [(0.25, 0.25), (0.25, 0.5), (1.0, 3.0), (0.25, 0.0)])
def test_the_samples_needed_for_a_radius_are_the_fewest(sigma, radius):
    samples = metrics.samples_needed(radius, sigma, ALPHA)
    assert metrics.largest_radius(samples, sigma, ALPHA) >= radius
    fewer = metrics.largest_radius(samples - 1, sigma, ALPHA)
    assert np.isnan(fewer) or fewer < radius
    assert metrics.samples_needed(100.0, sigma, ALPHA) == np.inf
