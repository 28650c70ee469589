"""Paired comparison of two models on the same images."""

import typing

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

DRAWS = 40_000  # of `selected_difference`


class PairedDifference(typing.TypedDict):
    """Comparison of two models on the same images.

    Attributes:
        mean: of the differences.
        low: lower end of the 95 % t interval; None with one image.
        high: its upper end; None with one image.
        p: p value.
        count: number of images.
        test: "McNemar", "paired t", or "paired t, max-t" if it allows for a selection.
    """

    mean: float
    low: float | None
    high: float | None
    p: float
    count: int
    test: str


def mcnemar(first: ArrayLike, second: ArrayLike) -> float:
    """Returns the two-sided p value of McNemar's exact test that two models are equally accurate on the same images.

    Under the null hypothesis, each model has half of the images that only one of them classifies correctly: a binomial test.

    Args:
        first: bool [N], which images the first model classifies correctly.
        second: the same of the second model.

    Returns:
        float in [0, 1]; 1 if the models are correct on the same images.

    Raises:
        ValueError: shapes that differ or are not [N].

    Examples:
        >>> first, second = np.arange(20) < 18, np.arange(20) < 12  # correct on 18 and on 12 of 20 images
        >>> round(tfr.metrics.mcnemar(first, second), 3)
        0.031
    """
    first, second = (np.asarray(values, bool) for values in (first, second))
    _check(first, second)
    only_first, only_second = int(np.sum(first & ~second)), int(np.sum(second & ~first))
    if not only_first + only_second:
        return 1.0
    return float(scipy.stats.binomtest(only_first, only_first + only_second, 0.5).pvalue)


def paired_difference(first: ArrayLike, second: ArrayLike) -> PairedDifference:
    """Returns the mean difference first - second over the same images, its 95 % t interval and p value.

    Args:
        first: [N], a value per image: bool (correct or not; p value of `mcnemar`), or numbers such as the fraction of corrupted
            versions that is classified correctly (p value of the paired t-test).
        second: the same of the second model.

    Raises:
        ValueError: shapes that differ or are not [N].

    Examples:
        >>> first, second = np.arange(20) < 18, np.arange(20) < 12  # correct on 18 and on 12 of 20 images
        >>> difference = tfr.metrics.paired_difference(first, second)
        >>> [round(difference[name], 3) for name in ("mean", "low", "high", "p")], difference["test"]
        ([0.3, 0.08, 0.52, 0.031], 'McNemar')
    """
    first, second = np.asarray(first), np.asarray(second)
    _check(first, second)
    differences = first.astype(np.float64) - second.astype(np.float64)
    mean, count = float(differences.mean()), len(differences)
    error = float(differences.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0
    if first.dtype == second.dtype == bool:
        test, p = "McNemar", mcnemar(first, second)
    else:
        test, p = "paired t", 1.0
        if count > 1 and mean:
            p = float(2 * scipy.stats.t.sf(abs(mean) / error, count - 1)) if error else 0.0
    half = float(scipy.stats.t.ppf(0.975, count - 1) * error) if count > 1 else None
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return {"mean": mean, "low": low, "high": high, "p": p, "count": count, "test": test}


def selected_difference(first: ArrayLike, second: ArrayLike, compared: ArrayLike) -> PairedDifference:
    """Returns `paired_difference` of a model that was selected on these same images, with an interval that allows for the selection.

    The largest of many differences is large by chance. The interval is that of simultaneous intervals for all compared models
    (single-step max-t; Hothorn et al., 2008): as many standard errors wide as the largest of the models' t statistics reaches in 2.5 % of
    draws, if no model differs from the second one. The statistics are drawn with the correlations that the models have over the images,
    so models that are nearly equal count as nearly one. The p value is adjusted alike, and at least 2 / `DRAWS`.

    Args:
        first: [N], of the selected model.
        second: [N], of the model that it is compared with.
        compared: [K, N], of all models among which the first one was selected; those equal to the second one do not count.

    Raises:
        ValueError: shapes that differ or are not [N].

    Examples:
        >>> first, second, third = (np.arange(20) < count for count in (18, 12, 15))
        >>> difference = tfr.metrics.selected_difference(first, second, [first, third])
        >>> [round(difference[name], 2) for name in ("mean", "low", "high")], difference["test"]
        ([0.3, 0.05, 0.55], 'paired t, max-t')
    """
    result = paired_difference(first, second)
    second, compared = np.asarray(second, np.float64), np.asarray(compared, np.float64)
    if compared.ndim != 2 or compared.shape[1:] != second.shape:
        raise ValueError(f"Expected compared models [K, {len(second)}], one value per image. Received shape: {compared.shape}")
    differences = compared - second
    differences -= differences.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(differences, axis=1)
    differences = differences[lengths > 0] / lengths[lengths > 0, None]
    if len(differences) < 2 or result["low"] is None:
        return result
    maxima = _largest_t(differences @ differences.T, result["count"] - 1)
    mean, before = result["mean"], float(scipy.stats.t.ppf(0.975, result["count"] - 1))
    error = (mean - result["low"]) / before
    half = error * max(before, float(np.quantile(maxima, 0.975)))
    p = float(2 * np.mean(maxima >= abs(mean) / error)) if error else result["p"]
    p = min(1.0, max(result["p"], p, 2 / DRAWS))
    return {**result, "low": mean - half, "high": mean + half, "p": p, "test": "paired t, max-t"}


def _largest_t(correlations, degrees):
    """Draws the largest of t statistics [K] with these correlations [K, K] and degrees of freedom."""
    values, vectors = np.linalg.eigh(correlations)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))).T
    random = np.random.default_rng(0)
    normal = np.concatenate([np.max(random.standard_normal((DRAWS // 20, len(root))) @ root, axis=1) for _ in range(20)])
    return normal / np.sqrt(random.chisquare(degrees, DRAWS) / degrees)


def newcombe_interval(first: typing.Sequence[float], second: typing.Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the difference first - second of two accuracies on separate images (Newcombe, 1998, method 10).

    Args:
        first: (accuracy, low, high), with the ends of its Wilson interval.
        second: the same of the other accuracy.

    Examples:
        >>> first, second = ((correct / 100, *tfr.metrics.wilson_interval(correct, 100)) for correct in (90, 75))
        >>> low, high = tfr.metrics.newcombe_interval(first, second)
        >>> round(low, 3), round(high, 3)
        (0.045, 0.253)
    """
    (mean, low, high), (other, other_low, other_high) = first, second
    below, above = np.hypot(mean - low, other_high - other), np.hypot(high - mean, other - other_low)
    return float(mean - other - below), float(mean - other + above)


def _check(first: np.ndarray, second: np.ndarray) -> None:
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise ValueError(f"Expected two arrays [N], one value per image. Received shapes: {first.shape}, {second.shape}")
