"""Values per example whose mean is a measure that is no mean, and whose standard error is that of the measure.

The values are the measure plus each example's influence on it (the infinitesimal jackknife, or delta method; Efron, 1982): they make
paired intervals of such measures possible. Bins are those of all examples; a measure near its minimum, 0, is not linear, and its interval
is only approximate.
"""

import numpy as np
from numpy.typing import ArrayLike

from tf_robust.metrics import checks
from tf_robust.metrics.calibration import equal_width_bins, reliability_bins


def rms_calibration_values(confidences: ArrayLike, correct: ArrayLike, bin_size: int = 100) -> np.ndarray:
    """Returns float64 [N], values of which `rms_calibration_error` is the mean; arguments as there."""
    confidences, correct = checks.outcomes(confidences, correct)
    means, accuracies, counts = reliability_bins(confidences, correct, bin_size)
    gaps = np.empty(len(confidences))
    gaps[np.argsort(confidences, kind="stable")] = np.repeat(means - accuracies, counts)
    error = np.sqrt(np.mean(gaps**2))
    squares = 2 * gaps * (confidences - correct) - gaps**2  # of which the squared error is the mean
    return error + (squares - error**2) / (2 * error) if error else np.zeros(len(gaps))


def expected_calibration_values(confidences: ArrayLike, correct: ArrayLike, bins: int = 15) -> np.ndarray:
    """Returns float64 [N], values of which `expected_calibration_error` is the mean; arguments as there."""
    confidences, correct = checks.outcomes(confidences, correct)
    places = equal_width_bins(confidences, bins)
    gaps = np.bincount(places, weights=confidences - correct)
    return np.sign(gaps)[places] * (confidences - correct)


def aurra_values(confidences: ArrayLike, correct: ArrayLike) -> np.ndarray:
    """Returns float64 [N], values of which `aurra` is the mean: jackknife pseudovalues, shifted by their bias.

    Args:
        confidences: [N] in [0, 1]; examples of equal confidence keep their order.
        correct: bool [N], or 0 and 1.
    """
    confidences, correct = checks.outcomes(confidences, correct)
    count, order = len(confidences), np.argsort(-confidences, kind="stable")
    hits, answered = np.cumsum(correct[order]), np.arange(1, count + 1)
    before = np.concatenate([[0.0], np.cumsum(hits / answered)[:-1]])  # sum of the accuracies above each example
    after = _sums_from(hits[1:] / answered[:-1])  # below it, where one fewer is answered
    lost = correct[order] * _sums_from(1 / answered[:-1])
    pseudovalues = np.empty(count)
    pseudovalues[order] = np.sum(hits / answered) - (before + after - lost)
    return pseudovalues - pseudovalues.mean() + np.mean(hits / answered)


def _sums_from(values):
    """Returns the sum from each position on, and 0 at the end: [N - 1] -> [N]."""
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)
