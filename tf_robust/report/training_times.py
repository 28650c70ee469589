"""Training times of the rows of a report."""

from collections.abc import Iterable

import numpy as np

from tf_robust.report.table_types import Evaluation

_PRETRAINED = ("linear_probe", "finetune", "l2_sp", "similarity")  # methods whose training time is only that of the last stage
_SHORTEST = 30.0  # seconds of a training that is compared; in shorter ones building the graphs takes a large part of the time


def seconds(evaluations: Iterable[Evaluation]) -> dict[str, float]:
    """Returns {row: median training time of its runs}, without resumed runs that recorded less than a second.

    Args:
        evaluations: as in `aggregate`.
    """
    times: dict[str, list[float]] = {}
    for evaluation in evaluations:
        if (own := evaluation.get("training", {}).get("seconds", 0)) >= 1:
            times.setdefault(evaluation["row"], []).append(own)
    return {row: float(np.median(values)) for row, values in times.items()}


def ratios(evaluations: Iterable[Evaluation], baseline: str) -> dict[str, float]:
    """Returns {row: training time relative to the baseline's}, of rows that were trained from scratch for as many steps.

    It is empty if the baseline trained for less than 30 seconds, a large part of which is spent on building graphs.

    Args:
        evaluations: as in `aggregate`.
        baseline: name of the row.
    """
    evaluations = list(evaluations)
    times, steps = seconds(evaluations), dict[str, set]()
    for evaluation in evaluations:
        kind = "pretrained" if evaluation.get("method") in _PRETRAINED else evaluation.get("training", {}).get("steps")
        steps.setdefault(evaluation["row"], set()).add(kind)
    if times.get(baseline, 0.0) < _SHORTEST:
        return {}
    same = [row for row in times if steps[row] == steps[baseline] and "pretrained" not in steps[row]]
    return {row: times[row] / times[baseline] for row in same}
