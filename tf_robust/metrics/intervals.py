"""Binomial confidence intervals of fractions of images."""

import numpy as np
import scipy.special
import scipy.stats
from numpy.typing import ArrayLike


def wilson_interval(correct: int, count: int) -> tuple[float, float]:
    """Returns the lower and upper end of the 95 % interval of a probability (Wilson, 1927).

    Args:
        correct: successes.
        count: trials, > 0.

    Examples:
        >>> low, high = tfr.metrics.wilson_interval(90, 100)
        >>> round(low, 3), round(high, 3)
        (0.826, 0.945)
    """
    low, high = scipy.stats.binomtest(int(correct), int(count)).proportion_ci(method="wilson")
    return float(low), float(high)


def clopper_pearson_lower(correct: ArrayLike, count: ArrayLike, confidence: float = 0.95) -> np.ndarray:
    """Returns the one-sided lower bounds of probabilities, float64 [...] (Clopper and Pearson, 1934); 0 without successes.

    It is the bound of `scipy.stats.binomtest(..., alternative="greater").proportion_ci(confidence)`, for arrays.

    Args:
        correct: successes [...], integers.
        count: trials [...], integers.
        confidence: of each bound, in (0, 1).

    Examples:
        >>> tfr.metrics.clopper_pearson_lower([0, 50, 100], 100).round(3)
        array([0.   , 0.414, 0.97 ])
    """
    correct, count = np.asarray(correct, np.float64), np.asarray(count, np.float64)
    return np.where(correct > 0, scipy.special.betaincinv(np.maximum(correct, 1), count - correct + 1, 1 - confidence), 0.0)
