"""What the measures demand of their arguments."""

import numpy as np

_ROUNDING = 1e-5  # a float32 softmax may exceed 1 by a few units in the last place


def fractions(values, what):
    """Numbers in [0, 1] of any shape -> float64; rounding errors beyond the ends are cut off."""
    values = np.asarray(values, np.float64)
    if not values.size:
        raise ValueError(f"Expected at least one value of {what}. Received none")
    if not np.isfinite(values).all():
        raise ValueError(f"Expected finite {what}. Received NaN or infinity in {np.sum(~np.isfinite(values))} of "
                         f"{values.size} values")
    if values.min() < -_ROUNDING or values.max() > 1 + _ROUNDING:
        raise ValueError(f"Expected {what} in [0, 1]. Received values in [{values.min():g}, {values.max():g}]")
    return np.clip(values, 0.0, 1.0)


def outcomes(confidences, correct):
    """Confidences [N] in [0, 1] and whether each prediction was right [N], bool or 0 and 1 -> float64 [N], [N]."""
    confidences = fractions(confidences, "confidences")
    correct = np.asarray(correct)
    if confidences.ndim != 1 or correct.shape != confidences.shape:
        raise ValueError("Expected confidences and correct of one shape [N]. Received shapes: "
                         f"{confidences.shape}, {correct.shape}")
    if not np.isin(correct, (0, 1)).all():
        raise ValueError(f"Expected correct as bool, or 0 and 1. Received: {np.setdiff1d(correct, (0, 1))[:5]}")
    return confidences, correct.astype(np.float64)


def labelled(scores, labels, what):
    """Scores [N, C] and int labels [N] in [0, C - 1] -> both as arrays, the scores in float64."""
    scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
    if scores.ndim != 2 or not scores.size or labels.shape != scores.shape[:1]:
        raise ValueError(f"Expected {what} [N, C] and labels [N]. Received shapes: {scores.shape}, {labels.shape}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"Expected int labels. Received dtype: {labels.dtype}")
    if not np.isfinite(scores).all():
        raise ValueError(f"Expected finite {what}. Received NaN or infinity for {np.sum(~np.isfinite(scores).all(1))} "
                         f"of {len(scores)} examples")
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise ValueError(f"Expected labels in 0..{scores.shape[1] - 1}. Received: {labels.min()}..{labels.max()}")
    return scores, labels


def whole_number(value, what):
    """An int >= 1, and not a bool."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"Expected {what} as a whole number >= 1. Received: {value!r}")
    return int(value)


def exactly(names, expected, what):
    """Raises unless `names` are `expected`, in any order."""
    if set(names) != set(expected):
        missing = [name for name in expected if name not in names]
        others = [name for name in names if name not in expected]
        raise ValueError(f"Expected {what} of exactly these {len(expected)}: {', '.join(expected)}. "
                         f"Received {len(names)}; missing: {missing}, not among them: {others}")
