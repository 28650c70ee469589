"""Argument checks of the metrics."""

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike

_ROUNDING = 1e-5  # a float32 softmax may exceed 1 by a few units in the last place


def fractions(values: ArrayLike, name: str) -> np.ndarray:
    """Returns numbers in [0, 1] of any shape as float64; rounding errors beyond the ends are clipped."""
    array = np.asarray(values, np.float64)
    if not array.size:
        raise ValueError(f"Expected at least one value of {name}. Received: none")
    if not np.isfinite(array).all():
        raise ValueError(f"Expected finite {name}. Received: NaN or infinity in {np.sum(~np.isfinite(array))} of {array.size} values")
    if array.min() < -_ROUNDING or array.max() > 1 + _ROUNDING:
        raise ValueError(f"Expected {name} in [0, 1]. Received: values in [{array.min():g}, {array.max():g}]")
    return np.clip(array, 0.0, 1.0)


def outcomes(confidences: ArrayLike, correct: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns confidences [N] in [0, 1] and whether each prediction is correct [N], bool or 0 and 1, as float64."""
    confidences = fractions(confidences, "confidences")
    correct = np.asarray(correct)
    if confidences.ndim != 1 or correct.shape != confidences.shape:
        raise ValueError(f"Expected confidences and correct of one shape [N]. Received shapes: {confidences.shape}, {correct.shape}")
    if not np.isin(correct, (0, 1)).all():
        raise ValueError(f"Expected correct as bool, or 0 and 1. Received: {np.setdiff1d(correct, (0, 1))[:5]}")
    return confidences, correct.astype(np.float64)


def labelled(scores: ArrayLike, labels: ArrayLike, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores [N, C] as float64 and int labels [N] in [0, C - 1]."""
    scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
    if scores.ndim != 2 or not scores.size or labels.shape != scores.shape[:1]:
        raise ValueError(f"Expected {name} [N, C] and labels [N]. Received shapes: {scores.shape}, {labels.shape}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"Expected int labels. Received dtype: {labels.dtype}")
    if not np.isfinite(scores).all():
        raise ValueError(
            f"Expected finite {name}. Received: NaN or infinity for {np.sum(~np.isfinite(scores).all(1))} of {len(scores)} examples"
        )
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise ValueError(f"Expected labels in 0..{scores.shape[1] - 1}. Received: {labels.min()}..{labels.max()}")
    return scores, labels


def positive_integer(value: int, name: str) -> int:
    """Returns an integer >= 1; a bool is rejected."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"Expected {name} as an integer >= 1. Received: {value!r}")
    return int(value)


def exactly(names: Collection[str], expected: Collection[str], kind: str) -> None:
    """Raises a ValueError unless `names` are `expected`, in any order."""
    if set(names) != set(expected):
        missing = [name for name in expected if name not in names]
        others = [name for name in names if name not in expected]
        raise ValueError(
            f"Expected {kind} of exactly these {len(expected)}: {', '.join(expected)}. "
            f"Received: {len(names)}; missing: {missing}, not among them: {others}"
        )
