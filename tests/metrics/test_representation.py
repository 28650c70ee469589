"""Metrics of embeddings, against loops and closed forms."""

import numpy as np
import pytest
import scipy.stats

from tf_robust import metrics


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("neighbours", [1, 7, 1000])
def test_neighbours_vote_with_weights_by_similarity(neighbours):
    random = np.random.RandomState(0)
    known, embeddings = random.randn(60, 5), random.randn(300, 5)
    known_labels, labels = random.randint(4, size=60), random.randint(4, size=300)
    right = 0
    for vector, label in zip(embeddings, labels):
        similarities = sorted(((unit(k) @ unit(vector), c) for k, c in zip(known, known_labels)), reverse=True)[:neighbours]
        votes = {c: sum(np.exp(s / 0.1) for s, label_ in similarities if label_ == c) for c in range(4)}
        right += max(votes, key=votes.get) == label
    accuracy = metrics.nearest_neighbour_accuracy(known, known_labels, 3 * embeddings, labels, neighbours=neighbours)
    assert accuracy == pytest.approx(right / 300)


def test_alignment_and_uniformity_have_closed_forms():
    one, other = np.array([[1.0, 0.0]] * 4), np.array([[0.0, 2.0]] * 4)
    assert metrics.alignment(one, 5 * one) == 0.0 and metrics.alignment(one, other) == pytest.approx(2.0)
    assert metrics.alignment(one, -one) == pytest.approx(4.0) and metrics.alignment(one, 1e-6 * one) == pytest.approx(0.0)
    assert metrics.uniformity(one) == 0.0
    assert metrics.uniformity([[1.0, 0.0], [-3.0, 0.0]]) == pytest.approx(-8.0)
    vectors = np.random.RandomState(0).randn(7, 3)
    distances = [np.sum((unit(a) - unit(b)) ** 2) for i, a in enumerate(vectors) for b in vectors[:i]]
    assert metrics.uniformity(vectors) == pytest.approx(np.log(np.mean(np.exp(-2 * np.array(distances)))))


def test_invalid_arguments_are_refused():
    good = np.ones([2, 3])
    for call, message in (
        (lambda: metrics.uniformity(good[:1]), "at least 2"),
        (lambda: metrics.uniformity(good[0]), r"\[N, E\]"),
        (lambda: metrics.alignment(good * np.nan, good), "finite embeddings"),
        (lambda: metrics.nearest_neighbour_accuracy(good, [0, 1], good, [0, 1], neighbours=0), "neighbours >= 1"),
        (lambda: metrics.nearest_neighbour_accuracy(good, [0, 1], good, [0, 1], temperature=0), "temperature > 0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_rank_correlations_equal_scipy_with_ties_and_are_0_of_equal_values():
    random = np.random.RandomState(2)
    first, second = random.randint(5, size=(6, 4, 4, 1)), random.normal(size=(6, 4, 4, 1))
    second[0] = 0.5
    expected = [0.0, *(scipy.stats.spearmanr(a.ravel(), b.ravel()).statistic for a, b in zip(first[1:], second[1:]))]
    np.testing.assert_allclose(metrics.rank_correlations(first, second), expected, atol=1e-12)
