"""Paired comparison of two models on the same images."""

import numpy as np
import scipy.stats


def mcnemar(first, second):
    """Two-sided p value of McNemar's exact test: whether two models are right equally often on the same images.

    Of the images on which only one of the two is right, under the null hypothesis each model has half: a binomial test.

    Args:
        first, second: bool [N], which images each model classifies correctly.

    Returns:
        float in [0, 1]; 1 if the models are right on the same images.

    Raises:
        ValueError: other shapes or lengths.
    """
    first, second = (np.asarray(values, bool) for values in (first, second))
    _check(first, second)
    only_first, only_second = int(np.sum(first & ~second)), int(np.sum(second & ~first))
    if not only_first + only_second:
        return 1.0
    return float(scipy.stats.binomtest(only_first, only_first + only_second, 0.5).pvalue)


def paired_difference(first, second):
    """Mean difference first - second over the same images, its 95 % t interval and p value.

    Args:
        first, second: [N], a value per image: bool (correct or not; p is of `mcnemar`), or numbers such as the fraction of corrupted
            versions that is classified correctly (p is of the paired t-test).

    Returns:
        {"mean", "low" and "high" (None with one image), "p", "count": N, "test": "McNemar" or "paired t"}

    Raises:
        ValueError: other shapes or lengths.
    """
    first, second = np.asarray(first), np.asarray(second)
    _check(first, second)
    differences = first.astype(np.float64) - second.astype(np.float64)
    mean, count = float(differences.mean()), len(differences)
    error = float(differences.std(ddof=1) / np.sqrt(count)) if count > 1 else None
    half = float(scipy.stats.t.ppf(0.975, count - 1) * error) if count > 1 else None
    if first.dtype == second.dtype == bool:
        test, p = "McNemar", mcnemar(first, second)
    else:
        test, p = "paired t", 1.0
        if count > 1 and mean:
            p = float(2 * scipy.stats.t.sf(abs(mean) / error, count - 1)) if error else 0.0
    low, high = (mean - half, mean + half) if count > 1 else (None, None)
    return {"mean": mean, "low": low, "high": high, "p": p, "count": count, "test": test}


def _check(first, second):
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise ValueError(f"Expected two arrays [N], a value per image. Received shapes: {first.shape}, {second.shape}")
