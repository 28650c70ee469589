"""Values per example whose mean is a metric that is no mean, and whose standard error is that of the metric.

The values are the metric plus each example's influence on it (the infinitesimal jackknife, or delta method; Efron, 1982): they make
paired intervals of such metrics possible. Bins are those of all examples; a metric near its minimum, 0, is not linear, and its interval
is only approximate.
"""

import numpy as np
from numpy.typing import ArrayLike

from tf_robust.metrics import checks
from tf_robust.metrics.calibration import equal_width_bins, reliability_bins


def rms_calibration_values(confidences: ArrayLike, correct: ArrayLike, bin_size: int = 100) -> np.ndarray:
    """Returns float64 [N], values of which `rms_calibration_error` is the mean; arguments as there.

    Examples:
        >>> values = tfr.metrics.rms_calibration_values([0.9, 0.9, 0.6, 0.6], [1, 1, 1, 0], bin_size=2)
        >>> values.round(3), round(float(values.mean()), 3)
        (array([ 0.1,  0.1, -0.4,  0.6]), 0.1)
    """
    confidences, correct = checks.outcomes(confidences, correct)
    means, accuracies, counts = reliability_bins(confidences, correct, bin_size)
    gaps = np.empty(len(confidences))
    gaps[np.argsort(confidences, kind="stable")] = np.repeat(means - accuracies, counts)
    error = np.sqrt(np.mean(gaps**2))
    squares = 2 * gaps * (confidences - correct) - gaps**2  # of which the squared error is the mean
    return error + (squares - error**2) / (2 * error) if error else np.zeros(len(gaps))


def expected_calibration_values(confidences: ArrayLike, correct: ArrayLike, bins: int = 15) -> np.ndarray:
    """Returns float64 [N], values of which `expected_calibration_error` is the mean; arguments as there.

    Examples:
        >>> values = tfr.metrics.expected_calibration_values([0.9, 0.9, 0.6, 0.6], [1, 1, 1, 0], bins=10)
        >>> values.round(3), round(float(values.mean()), 3)
        (array([ 0.1,  0.1, -0.4,  0.6]), 0.1)
    """
    confidences, correct = checks.outcomes(confidences, correct)
    places = equal_width_bins(confidences, bins)
    gaps = np.bincount(places, weights=confidences - correct)
    return np.sign(gaps)[places] * (confidences - correct)


def aurra_values(confidences: ArrayLike, correct: ArrayLike) -> np.ndarray:
    """Returns float64 [N], values of which `aurra` is the mean: jackknife pseudovalues, shifted by their bias.

    Args:
        confidences: [N] in [0, 1]; examples of equal confidence count as in `aurra`, as their mean.
        correct: bool [N], or 0 and 1.

    Examples:
        >>> values = tfr.metrics.aurra_values([0.9, 0.8, 0.6, 0.4], [1, 1, 0, 1])
        >>> values.round(3), round(float(values.mean()), 3)
        (array([1.187, 1.187, 0.354, 0.688]), 0.854)
    """
    confidences, correct = checks.outcomes(confidences, correct)
    count, answered = len(confidences), np.arange(1, len(confidences) + 1)
    _, group, sizes = np.unique(-confidences, return_inverse=True, return_counts=True)  # of equal confidence, the most confident first
    ends = np.cumsum(sizes)
    starts, group_hits = ends - sizes, np.bincount(group, weights=correct)
    hits = np.cumsum(np.repeat(group_hits / sizes, sizes))
    accuracies = hits / answered
    # without one example of a group: the accuracies above it, those inside it with its other examples, and those below it
    above = _sums_before(accuracies)[starts]
    inverses = _sums_before(1 / answered)
    inside = inverses[ends - 1] - inverses[starts]
    below = _sums_before(np.append(hits[1:] / answered[:-1], 0.0))
    below = below[-1] - below[ends - 1]
    others = (group_hits[group] - correct) / np.maximum(sizes[group] - 1, 1)  # accuracy of the group's other examples
    rest = above[group] + (hits - np.repeat(group_hits / sizes, sizes))[starts][group] * inside[group]
    rest += others * (sizes - 1 - starts * inside)[group]
    rest += below[group] - correct * (inverses[count - 1] - inverses[ends - 1])[group]
    pseudovalues = np.sum(accuracies) - rest
    return pseudovalues - pseudovalues.mean() + np.mean(accuracies)


def _sums_before(values):
    """Returns the sums of the values before each position, and of all: [N] -> [N + 1]."""
    return np.append(0.0, np.cumsum(values))
