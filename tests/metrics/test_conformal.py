"""Adaptive prediction sets against a loop, and their coverage in simulation."""

import numpy as np
import pytest
import scipy.stats

from tf_robust import metrics


def _model(count, seed, classes=5):
    random = np.random.default_rng(seed)
    probabilities, others = random.dirichlet(np.full(classes, 0.4), size=(2, count))
    labels = (np.cumsum(0.4 * others + 0.6 * probabilities, axis=1) < random.random((count, 1))).sum(1)
    return probabilities, np.minimum(labels, classes - 1), random.random(count)


def test_scores_are_those_of_a_loop():
    probabilities, _, uniforms = _model(40, 0)
    probabilities[0] = 0.2  # ties
    for row, uniform, scores in zip(probabilities, uniforms, metrics.aps_scores(probabilities, uniforms)):
        total = 0.0
        for label in sorted(range(5), key=lambda label: (-row[label], label)):
            assert scores[label] == pytest.approx(total + uniform * row[label])
            total += row[label]


def test_quantile_is_the_rank_of_the_finite_sample():
    assert metrics.conformal_quantile(np.arange(9)[::-1] / 10, 0.9) == pytest.approx(0.8)  # rank 9 of 9
    assert metrics.conformal_quantile(np.arange(99) / 100, 0.9) == pytest.approx(0.89)  # rank 90
    with pytest.raises(ValueError, match="at least 9 .* Received: 8"):
        metrics.conformal_quantile(np.arange(8) / 10, 0.9)
    with pytest.raises(ValueError, match=r"coverage in \(0, 1\)"):
        metrics.conformal_quantile(np.arange(8) / 10, 1.0)


def test_marginal_coverage_is_exact_in_simulation():
    covered = []
    for seed in range(300):
        probabilities, labels, uniforms = _model(60, seed)
        scores = metrics.aps_scores(probabilities, uniforms)[np.arange(60), labels]
        quantile = metrics.conformal_quantile(scores[:29], 0.8)  # rank 24 of 29: coverage 24 / 30
        covered.append(np.mean(scores[29:] <= quantile))
    half = scipy.stats.norm.ppf(0.9995) * np.std(covered) / np.sqrt(len(covered))
    assert abs(np.mean(covered) - 0.8) < half
