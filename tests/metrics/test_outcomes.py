"""Calibration, proper scores and response rates: metrics of confidences and outcomes."""

import itertools

import numpy as np
import pytest
import scipy.special
import sklearn.metrics

from tf_robust import metrics

RANDOM = np.random.RandomState(0)
CONFIDENCES = RANDOM.permutation(np.linspace(0.03, 0.98, 1037))  # no ties
CORRECT = RANDOM.rand(1037) < CONFIDENCES**2


def bins_by_loop(confidences, correct, size):
    """[(confidences, outcomes)] of each bin: sorted pairs, `size` at a time; the last bin also takes the remainder."""
    pairs, bins = sorted(zip(confidences, correct)), []
    while pairs:
        take = size if len(pairs) >= 2 * size else len(pairs)
        bins.append(tuple(zip(*pairs[:take])))
        pairs = pairs[take:]
    return bins


def rms_of(bins, count):
    return sum(len(c) / count * (sum(c) / len(c) - sum(r) / len(r)) ** 2 for c, r in bins) ** 0.5


# Calibration


def test_rms_error_equals_a_loop_over_bins():
    for size in (1, 7, 100, 500, 519, 1037, 2000):
        bins = bins_by_loop(CONFIDENCES, CORRECT, size)
        assert metrics.rms_calibration_error(CONFIDENCES, CORRECT, size) == pytest.approx(rms_of(bins, 1037), rel=1e-12)
        means, accuracies, counts = metrics.reliability_bins(CONFIDENCES, CORRECT, size)
        np.testing.assert_array_equal(counts, [len(confident) for confident, _ in bins])
        np.testing.assert_allclose(means, [np.mean(confident) for confident, _ in bins])
        np.testing.assert_allclose(accuracies, [np.mean(right) for _, right in bins])


def published_error(confidences, correct, size):
    """The published code as described: half-open index ranges, the last to the end, and a loop that stops early."""
    order = np.argsort(confidences)
    confidences, correct = confidences[order], correct[order]
    ranges = [[size * i, size * (i + 1)] for i in range(len(confidences) // size)]
    ranges[-1][1] = len(confidences)
    total = 0.0
    for index in range(len(ranges) - 1):
        inside = slice(*ranges[index])
        gap = confidences[inside].mean() - correct[inside].mean()
        total += len(confidences[inside]) / len(confidences) * gap**2
    return np.sqrt(total)


def test_compat_is_the_published_loop():
    for count in (100, 199, 200, 201, 999, 1000, 1037):
        confidences, correct = CONFIDENCES[:count], CORRECT[:count]
        expected = published_error(confidences, correct, 100)
        assert metrics.rms_calibration_error(confidences, correct, compat=True) == pytest.approx(expected, rel=1e-12)
        assert (expected == 0) == (count < 200)
        assert metrics.rms_calibration_error(confidences, correct) > expected
    with pytest.raises(ValueError, match="bin_size = 100 .*compat=True. Received: 99"):
        metrics.rms_calibration_error(CONFIDENCES[:99], CORRECT[:99], compat=True)


def test_equal_confidences_stay_in_order():
    confidences = RANDOM.randint(3, size=1000) / 4
    ranked = sorted(range(1000), key=confidences.__getitem__)  # a stable sort
    _, accuracies, _ = metrics.reliability_bins(confidences, CORRECT[:1000], bin_size=10)
    np.testing.assert_allclose(accuracies, CORRECT[ranked].reshape(100, 10).mean(axis=1))


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 40])
def test_expected_calibration_error_equals_a_loop_over_bins(bins):
    edges = [b / bins for b in range(bins + 1)]
    confidences = np.concatenate([CONFIDENCES, edges])  # each edge belongs to the bin below
    correct = np.concatenate([CORRECT, np.arange(bins + 1) % 3 == 0])
    total = 0.0
    for low, high in zip(edges, edges[1:]):
        inside = [i for i, c in enumerate(confidences) if low < c <= high or (low == 0.0 == c)]
        total += abs(sum(confidences[i] - correct[i] for i in inside)) / len(confidences)
    assert metrics.expected_calibration_error(confidences, correct, bins) == pytest.approx(total, rel=1e-10)


def test_expected_calibration_error_has_15_bins():
    # .06 and .07 lie on either side of 1/15 (but not of 1/14): their gaps cannot cancel
    assert metrics.expected_calibration_error([0.06, 0.07], [0, 1]) == pytest.approx((0.06 + 0.93) / 2)
    assert metrics.expected_calibration_error([0.067, 0.071], [0, 1]) == pytest.approx((0.929 - 0.067) / 2)


# Proper scores


def test_brier_score_equals_sklearn():
    probabilities, labels = RANDOM.dirichlet(np.ones(4), size=50), np.arange(50) % 4
    kept = probabilities.copy()
    expected = sklearn.metrics.brier_score_loss(labels, probabilities, labels=range(4), scale_by_half=False)
    assert metrics.brier_score(probabilities, labels) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_array_equal(probabilities, kept)


def test_negative_log_likelihood_equals_sklearn_and_large_logits_do_not_overflow():
    logits, labels = 3 * RANDOM.randn(50, 4), np.arange(50) % 4
    expected = sklearn.metrics.log_loss(labels, scipy.special.softmax(logits, axis=1), labels=range(4))
    assert metrics.negative_log_likelihood(logits, labels) == pytest.approx(expected, rel=1e-12)
    assert metrics.negative_log_likelihood(np.float32([[1e4, 0.0], [-1e4, -1e4]]), [1, 0]) == pytest.approx((1e4 + np.log(2)) / 2)


# Response rates


def test_aurra_equals_the_mean_of_top_k_accuracies():
    ranked = [right for _, right in sorted(zip(CONFIDENCES, CORRECT), reverse=True)]
    accuracies = [sum(ranked[:k]) / k for k in range(1, len(ranked) + 1)]
    assert metrics.aurra(CONFIDENCES, CORRECT) == pytest.approx(np.mean(accuracies), rel=1e-12)
    rates, curve = metrics.response_rate_curve(CONFIDENCES, CORRECT)
    np.testing.assert_allclose(curve, accuracies)
    np.testing.assert_allclose(rates, [k / 1037 for k in range(1, 1038)])


@pytest.mark.parametrize(
    "confidences, correct",
    [
        ([0.9, 0.9, 0.9, 0.5, 0.5, 0.1], [1, 0, 0, 1, 0, 1]),
        ([0.2, 0.8, 0.2, 0.8, 0.2, 0.2], [1, 1, 0, 0, 0, 1]),
        ([0.3] * 6, [0, 0, 1, 0, 1, 0]),
    ],
)
def test_ties_are_averaged_over_all_their_orders(confidences, correct):
    curves = []
    for order in itertools.permutations(range(6)):
        if all(confidences[a] >= confidences[b] for a, b in zip(order, order[1:])):
            ranked = np.array(correct)[list(order)]
            curves.append([ranked[:k].mean() for k in range(1, 7)])
            assert metrics.aurra(np.array(confidences)[list(order)], ranked) == metrics.aurra(confidences, correct)
    np.testing.assert_allclose(metrics.response_rate_curve(confidences, correct)[1], np.mean(curves, axis=0))
    assert metrics.aurra(confidences, correct) == pytest.approx(np.mean(curves))


# Arguments

OUTCOME_METRICS = [
    *(metrics.rms_calibration_error, metrics.expected_calibration_error),
    *(metrics.aurra, metrics.response_rate_curve, metrics.reliability_bins),
]


@pytest.mark.parametrize("metric", OUTCOME_METRICS)
def test_outcomes_are_confidences_and_bool_or_0_and_1(metric):
    for confidences, correct, message in (
        ([], [], "at least one"),
        ([0.5, 0.5], [True], r"\(2,\), \(1,\)"),
        ([[0.5]], [[True]], r"\(1, 1\)"),
        (0.5, True, r"\(\), \(\)"),
        ([0.5, np.nan], [0, 1], "finite confidences"),
        ([0.5, 70.0], [0, 1], r"confidences in \[0, 1\]"),
        ([-0.1, 0.5], [0, 1], "-0.1"),
        ([0.5, 0.5], [0, 2], r"bool, or 0 and 1. Received: \[2\]"),
        ([0.5, 0.5], [0, np.nan], "bool, or 0 and 1"),
        ([0.5, 0.5], [0.0, 0.5], r"Received: \[0.5\]"),
    ):
        with pytest.raises(ValueError, match=message):
            metric(confidences, correct)
    expected = metric(CONFIDENCES, CORRECT)
    for kind in (int, float, np.float32):
        result = metric(CONFIDENCES.tolist(), CORRECT.astype(kind))
        assert all(map(np.array_equal, np.atleast_1d(result), np.atleast_1d(expected)))


def test_rounding_errors_of_a_softmax_are_clipped():
    means, _, _ = metrics.reliability_bins(np.float32([1.0000001, 1.0]), [1, 1])
    assert means.tolist() == [1.0]
    assert metrics.aurra(np.float32([1.0000001, 1.0]), [1, 0]) == 0.5  # cut to a tie


def test_bad_numbers_of_bins_are_named():
    for size in (0, -1, 2.0, True, None):
        with pytest.raises(ValueError, match=f"bin_size.*{size}"):
            metrics.reliability_bins([0.5], [1], size)
        with pytest.raises(ValueError, match=f"bins.*{size}"):
            metrics.expected_calibration_error([0.5], [1], size)


def test_bad_scores_are_named():
    for scores, labels, message in (
        ([0.5, 0.5], [0], r"\(2,\), \(1,\)"),
        ([[0.5, 0.5]], [0, 1], r"\(1, 2\), \(2,\)"),
        ([[0.5, 0.5]], [[0.0, 1.0]], r"\(1, 2\), \(1, 2\)"),
        (np.zeros((0, 3)), np.zeros(0, int), r"\(0, 3\)"),
        ([[0.5, 0.5]], [1.0], "int labels"),
        ([[0.5, 0.5]], [2], r"labels in 0\.\.1"),
        ([[0.5, 0.5]], [-1], r"labels in 0\.\.1"),
        ([[0.5, 0.5], [0.5, np.nan]], [0, 1], "NaN or infinity for 1 of 2"),
        ([[0.5, np.inf]], [0], "NaN or infinity"),
    ):
        for metric in (metrics.brier_score, metrics.negative_log_likelihood):
            with pytest.raises(ValueError, match=message):
                metric(scores, labels)
    for probabilities, message in (([[-1.0, 2.0]], r"probabilities in \[0, 1\]"), ([[0.5, 0.7]], "sum to 1")):
        with pytest.raises(ValueError, match=message):
            metrics.brier_score(probabilities, [0])
