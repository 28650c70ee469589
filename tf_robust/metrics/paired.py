"""Paired comparison of two models on the same images."""

import typing

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike


class PairedDifference(typing.TypedDict):
    """Comparison of two models on the same images.

    Attributes:
        mean: of the differences.
        low: lower end of the 95 % t interval; None with one image.
        high: its upper end; None with one image.
        p: p value.
        count: number of images.
        test: "McNemar" or "paired t".
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


def newcombe_interval(first: typing.Sequence[float], second: typing.Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the difference first - second of two accuracies on separate images (Newcombe, 1998, method 10).

    Args:
        first: (accuracy, low, high), with the ends of its Wilson interval.
        second: the same of the other accuracy.
    """
    (mean, low, high), (other, other_low, other_high) = first, second
    below, above = np.hypot(mean - low, other_high - other), np.hypot(high - mean, other - other_low)
    return float(mean - other - below), float(mean - other + above)


def _check(first: np.ndarray, second: np.ndarray) -> None:
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise ValueError(f"Expected two arrays [N], one value per image. Received shapes: {first.shape}, {second.shape}")
