"""Scores of open sets against scikit-learn and brute force."""

import numpy as np
import pytest
import sklearn.metrics
import sklearn.neighbors

from tf_robust import metrics


def test_logit_scores_are_their_definitions():
    logits = np.random.default_rng(0).normal(size=(20, 4), scale=3)
    scores = metrics.logit_scores(logits)
    exponentials = np.exp(logits)
    np.testing.assert_allclose(scores["max_softmax"], (exponentials / exponentials.sum(1, keepdims=True)).max(1))
    np.testing.assert_allclose(scores["max_logit"], logits.max(1))
    np.testing.assert_allclose(scores["energy"], np.log(exponentials.sum(1)))
    assert np.isfinite(metrics.logit_scores(np.array([[2000.0, -np.inf]]))["energy"]).all()


@pytest.mark.parametrize("neighbors", [1, 7])
def test_neighbor_scores_are_those_of_brute_force(neighbors):
    random = np.random.default_rng(1)
    known, embeddings = random.normal(size=(80, 6)), random.normal(size=(1203, 6))

    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    brute_force = sklearn.neighbors.NearestNeighbors(n_neighbors=neighbors, algorithm="brute").fit(unit(known))
    distances, _ = brute_force.kneighbors(unit(embeddings))
    np.testing.assert_allclose(metrics.neighbor_scores(known, 3 * embeddings, neighbors), -distances[:, -1], atol=1e-7)
    with pytest.raises(ValueError, match="1..80"):
        metrics.neighbor_scores(known, embeddings, 81)


def test_auroc_is_the_fraction_of_ordered_pairs():
    random = np.random.default_rng(2)
    inside, outside = random.integers(3, 12, size=70), random.integers(0, 9, size=45)  # with ties
    pairs = (inside[:, None] > outside).mean() + 0.5 * (inside[:, None] == outside).mean()
    assert metrics.auroc(inside, outside) == pytest.approx(pairs)


def test_false_positive_rate_is_the_lowest_of_all_thresholds():
    random = np.random.default_rng(3)
    for inside, outside in (
        (random.normal(1, 1, 200), random.normal(size=150)),
        (random.integers(5, size=33), random.integers(4, size=20)),
    ):
        rates = [np.mean(outside >= t) for t in np.unique(inside) if np.mean(inside >= t) >= 0.95]
        assert metrics.false_positive_rate(inside, outside) == min(rates)
        labels = np.repeat([1, 0], [len(inside), len(outside)])
        false, true, _ = sklearn.metrics.roc_curve(labels, np.concatenate([inside, outside]), drop_intermediate=False)
        assert metrics.false_positive_rate(inside, outside) == pytest.approx(false[true >= 0.95].min())
