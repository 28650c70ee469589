"""Accuracy on slices of the clean images: classes, and groups that a column of `csv:FILE` names."""

import numpy as np

from tf_robust import metrics
from tf_robust.data.source import Source
from tf_robust.evaluation.metric_value import MetricValue

MIN_IMAGES = 10  # of a slice that may be the worst or the best: of 1,000 classes with one image each, the worst always has 0


def check(source: Source, column: str) -> None:
    """Checks that the slices of a source are known.

    Args:
        source: images to evaluate on.
        column: of the groups; empty: none.

    Raises:
        ValueError: it is read as a stream, or has no such column.
    """
    if source.labels is None:
        raise ValueError(f"Expected a data set that is not read as a stream for the evaluation slices. Received: {source.name}")
    if column and column not in (source.columns or {}):
        known = ", ".join(source.columns or {}) or "none"
        raise ValueError(f"Expected groups as a further column of data=csv:FILE. Received: {column!r} for {source.name}. Columns: {known}")


def metric_values(source: Source, correct: np.ndarray, column: str) -> list[MetricValue]:
    """Returns the accuracy on every slice, on the worst, and the gap between the best and the worst, with 95 % intervals.

    The worst and the best are those with at least 10 images; without any, neither is given. The interval of the worst is Wilson's for that
    slice alone, that of the gap Newcombe's, from 0.

    Args:
        source: the evaluated images.
        correct: bool [N], which images were classified correctly.
        column: of the groups; empty: classes alone.
    """
    found = _of("class", "classes", np.asarray(source.class_names, dtype=str)[np.asarray(source.labels)], correct)
    if column:
        found += _of("group", "groups", np.asarray(source.columns[column], dtype=str)[source.positions], correct)  # type: ignore[index]
    return found


def _of(one: str, all_of_them: str, names: np.ndarray, correct: np.ndarray) -> list[MetricValue]:
    slices = [
        MetricValue(one, name).with_accuracy(int(correct[names == name].sum()), int((names == name).sum())) for name in np.unique(names)
    ]
    compared = [one for one in slices if one.count >= MIN_IMAGES]
    if not compared:
        return slices
    worst, best = min(compared, key=_value), max(compared, key=_value)
    low, high = _newcombe(best, worst) if len(compared) > 1 else (None, None)
    return [
        MetricValue(all_of_them, "worst").with_value(_value(worst), worst.count, worst.low, worst.high),
        MetricValue(all_of_them, "gap").with_value(_value(best) - _value(worst), best.count + worst.count, low, high),
        *slices,
    ]


def _value(metric):
    return metric.value


def _newcombe(first, second):
    """Newcombe's interval of the difference of two accuracies, within [0, 1]."""
    low, high = metrics.newcombe_interval(*((one.value, one.low, one.high) for one in (first, second)))
    return max(0.0, low), min(1.0, high)
