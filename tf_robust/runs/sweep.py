"""Sweeps of hyperparameters: the best point on validation images is evaluated on the test set.

A sweep varies flags: each has a list of values, or a range from which values are sampled.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tf_robust.configs import DataConfig
from tf_robust.evaluation import EvalConfig, check_metrics, parse_metric
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.runs.run import Run
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import write_json

Point = dict[str, str]  # {flag: value as text}
_EXPECTED = "Expected --sweep='NAME=VALUE,VALUE;NAME=LOW..HIGH;NAME=log:LOW..HIGH', every name and value once."
# not axes: the validation images and their metrics stay as they are
_FIXED = {field.name for config in (DataConfig, EvalConfig) for field in dataclasses.fields(config)} - {"train_examples"}


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers of a flag from which points are sampled; `log`: the logarithm is sampled uniformly, not the number."""

    low: float
    high: float
    log: bool
    integer: bool

    def __str__(self) -> str:
        return f"{'log:' if self.log else ''}{self.low:g}..{self.high:g}"

    def text(self, value: float) -> str:
        """Returns a number as it is written on the command line, with four digits."""
        return str(round(value)) if self.integer else f"{value:.4g}"

    @property
    def middle(self) -> str:
        """The middle of the range, as text."""
        return self.text((self.low * self.high) ** 0.5 if self.log else (self.low + self.high) / 2)


Axis = tuple[str, ...] | Range


def axes_of(text: str, defaults: Mapping[str, object]) -> dict[str, Axis]:
    """Returns {flag: its values, or the range of its values} of 'NAME=VALUE,VALUE;NAME=LOW..HIGH;NAME=log:LOW..HIGH;...'.

    `defaults`: {flag: default} of all flags. Raises ValueError for invalid axes, and for flags on which the validation images or their
    metrics depend.
    """
    axes: dict[str, Axis] = {}
    for part in filter(None, text.split(";")):
        name, separator, values = (piece.strip() for piece in part.partition("="))
        if name not in defaults:
            raise unknown("flag to sweep", name, defaults)
        if isinstance(defaults[name], (tuple, list)):
            raise ValueError(f"Expected flags of one value in --sweep, as commas separate the values of a grid. Received: {name}")
        points = () if ".." in values else tuple(value.strip() for value in values.split(","))
        if not separator or name in axes or not all(points) or len(set(points)) < len(points):
            raise ValueError(f"{_EXPECTED} Received: {part!r}")
        axes[name] = points or _range(part, values, defaults[name])
    if not axes:
        raise ValueError(f"{_EXPECTED} Received: {text!r}")
    if fixed := [name for name in axes if name in _FIXED]:
        raise ValueError(
            f"Expected axes that leave the validation images and their metrics as they are. Received: {', '.join(fixed)}. "
            "Try: a folder with a flagfile for each value, and tf-robust suite"
        )
    return axes


def _range(part, values, default):
    low, _, high = values.removeprefix("log:").partition("..")
    log, integer = values.startswith("log:"), isinstance(default, int)
    if isinstance(default, bool) or not isinstance(default, (int, float)):
        raise ValueError(f"Expected numbers with a range in --sweep. Received: {part!r}, whose default is {default!r}")
    try:
        first, last = (int(low), int(high)) if integer else (float(low), float(high))
    except ValueError:
        raise ValueError(f"{_EXPECTED} Received: {part!r}, whose ends are no {'integers' if integer else 'numbers'}") from None
    if not (0 if log else -float("inf")) < first < last < float("inf"):
        raise ValueError(f"Expected LOW < HIGH{', both above 0 with log' if log else ''} in --sweep. Received: {part!r}")
    return Range(first, last, log, integer)


def grid(axes: Mapping[str, Axis]) -> list[Point]:
    """Returns the points of a grid, of which the last flag changes fastest; raises ValueError for a range."""
    if ranges := [name for name, axis in axes.items() if isinstance(axis, Range)]:
        raise ValueError(
            f"Expected lists of values with --sweep_engine=grid. Received: ranges of {', '.join(ranges)}. Try: --sweep_engine=optuna"
        )
    lists = [axis for axis in axes.values() if not isinstance(axis, Range)]
    return [dict(zip(axes, values)) for values in itertools.product(*lists)]


def middle(axes: Mapping[str, Axis]) -> Point:
    """Returns the point with the middle of each range and the first value of each list."""
    return {name: axis.middle if isinstance(axis, Range) else axis[0] for name, axis in axes.items()}


def name_of(point: Point) -> str:
    """Returns the row and folder name of a point: 'NAME=VALUE,NAME=VALUE', with _ for / in values."""
    return ",".join(f"{name}={value.replace('/', '_')}" for name, value in point.items())


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep; its workdir gets a folder per point and `test`."""

    axes: Mapping[str, Axis]
    metrics: Sequence[str]  # to choose by; empty: the first
    runs_at: Callable[[Point, str], list[Run]]  # (point, evaluation split) -> its runs, one for each seed
    workdir: str

    def folder_of(self, run: Run) -> str:
        return os.path.join(self.workdir, run.row, f"seed_{run.seed}")

    def runs(self, sampled: bool) -> list[Run]:
        """Returns the runs of all points of a grid; of a sampled sweep those of a point in the middle, as an example.

        Raises ValueError for runs without the metrics to choose by, or a range in a grid.
        """
        points = [middle(self.axes)] if sampled else grid(self.axes)
        runs = [run for point in points for run in self.runs_at(point, "validation")]
        for run in runs:
            check_metrics(self.metrics, run.config.evaluation, "--sweep_metric", run.config.data.label_fraction)
        return runs

    def test(self, points: Sequence[Point]) -> list[dict]:
        """Evaluates points on the test set, in `test`, with a subfolder for each seed."""
        evaluations = []
        for point in points:
            folder = os.path.join(self.workdir, "test", *([name_of(point)] if len(points) > 1 else []))
            for run in self.runs_at(point, "test"):
                saved_model = os.path.join(self.folder_of(run), "saved_model")
                if not os.path.isdir(saved_model):
                    continue  # a run that failed, which the report names
                to = os.path.join(folder, f"seed_{run.seed}")
                done = EvaluatedModel(saved_model, run.data(), run.shown_as).evaluate(to)
                evaluations.append({**done.content, "measured_in": to})
                write_json(os.path.join(to, "evaluation.json"), evaluations[-1])
        return evaluations


def best(evaluations: Iterable[Mapping], metrics: Sequence[str] = ()) -> tuple[list[str], str]:
    """Returns the rows with the best means over seeds, and a message about the choice; raises ValueError if an evaluation lacks a metric.

    With one metric (none: the first of the first evaluation) the best row is chosen, the first of equals, which the message names; with
    several all rows that no other surpasses in every metric. Rows with fewer seeds than others, whose runs failed, are not chosen.
    """
    measured = [(evaluation["row"], {row["metric"]: row["value"] for row in evaluation["rows"]}) for evaluation in evaluations]
    metrics = metrics or (next(iter(measured[0][1])),)
    by_row: dict[str, list[list[float]]] = {}
    for row, values in measured:
        for name in metrics:
            if name not in values:
                raise unknown("metric to choose by", name, values)
        by_row.setdefault(row, []).append([values[name] for name in metrics])
    seeds = max(map(len, by_row.values()))
    means = {row: np.mean(of_seeds, axis=0) for row, of_seeds in by_row.items() if len(of_seeds) == seeds}
    signs = [-1 if parse_metric(name).lower_is_better else 1 for name in metrics]
    signed = {row: signs * mean for row, mean in means.items()}
    front = [  # no other is at least as good in all metrics and better in one
        row for row, own in signed.items() if not any((other >= own).all() and (other > own).any() for other in signed.values())
    ]
    chosen = front if len(metrics) > 1 else front[:1]
    listed = "; ".join(f"{row} ({', '.join(f'{mean:.4f}' for mean in means[row])})" for row in chosen)
    level = f" Level with it: {', '.join(front[1:])}; the first is chosen." if len(front) > len(chosen) else ""
    failed = [row for row in by_row if row not in means]
    missing = f" Not considered, as runs failed: {', '.join(failed)}." if failed else ""
    several = f", means over {seeds} seeds" if seeds > 1 else ""
    return chosen, (
        f"Chosen of {len(means)} by {', '.join(metrics)} on validation images{several}: {listed}.{level} Its validation result is "
        f"optimistic, as the best of several; the test set was not used for the choice.{missing}"
    )
