"""Sweeps of hyperparameters: the best point on validation images is evaluated on the test set."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tf_robust.configs import DataConfig
from tf_robust.evaluation import EvalConfig, check_metrics, parse_metric
from tf_robust.integrations.launchers import Launcher
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.runs import scheduler
from tf_robust.runs.run import Run
from tf_robust.runs.search_space import Axis, Point, Range, axes_of, grid, middle, name_of
from tf_robust.utils.errors import RunFailed, unknown
from tf_robust.utils.files import write_json

# not axes: the validation images and their metrics stay as they are
_FIXED = {field.name for config in (DataConfig, EvalConfig) for field in dataclasses.fields(config)} - {"train_examples"}


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep.

    Attributes:
        axes: what is varied.
        metric: metrics to choose by, with commas between them; empty: the first.
        runs_at: (point, evaluation split) -> its runs, one for each seed.
        workdir: gets a folder per point and `test`.
    """

    axes: Mapping[str, Axis]
    metric: str
    runs_at: Callable[[Point, str], list[Run]]
    workdir: str

    def folder_of(self, run: Run) -> str:
        """Returns the workdir of a run."""
        return os.path.join(self.workdir, run.row, f"seed_{run.seed}")

    def runs(self, sampled: bool) -> list[Run]:
        """Returns the runs of all points of a grid; of a sampled sweep those of a point in the middle, as an example.

        Raises:
            ValueError: runs without the metrics to choose by, or a range in a grid.
        """
        points = [middle(self.axes)] if sampled else grid(self.axes)
        runs = [run for point in points for run in self.runs_at(point, "validation")]
        for run in runs:
            check_metrics(_metrics(self.metric), run.config.evaluation, "--sweep_metric", run.config.data.label_fraction)
        return runs

    def complete(self, launcher: Launcher | None) -> tuple[list[Point], list[dict], list[str]]:
        """Completes all points of a grid, and returns them, their evaluations, and messages about runs that failed."""
        evaluations, notes = scheduler.run_all(self.runs(False), self.folder_of, launcher)
        if not evaluations:
            raise RunFailed("\n".join(["All runs failed.", *notes]))
        return grid(self.axes), evaluations, notes

    def sample(self, trials: int, storage: str, seeds: Sequence[int]) -> tuple[list[Point], list[dict], list[str]]:
        """Completes points that Optuna samples, and returns them, their evaluations, and messages about the trials.

        Args:
            trials: number of points.
            storage: URL of the database; empty: SQLite in the workdir.
            seeds: of the runs; the first is that of the sampler.
        """
        from tf_robust.runs.sampled_sweep import SampledSweep  # of an extra

        example = self.runs_at(middle(self.axes), "validation")[0]
        sweep = SampledSweep(
            axes=self.axes,
            metrics=_metrics(self.metric),
            runs_at=lambda point: self.runs_at(point, "validation"),
            folder_of=self.folder_of,
            trials=trials,
            seed=seeds[0],
            epochs=_longest(self.axes["epochs"]) if "epochs" in self.axes else example.config.train.epochs,
            flags={**{name: text for name, text in example.flags.items() if name not in self.axes}, "seeds": ",".join(map(str, seeds))},
        )
        os.makedirs(self.workdir, exist_ok=True)
        storage = storage or f"sqlite:///{os.path.join(os.path.abspath(self.workdir), 'study.db')}"
        points, evaluations, notes = sweep.complete(storage, os.path.basename(os.path.abspath(self.workdir)))
        if not evaluations:
            raise RunFailed("\n".join(["All runs failed.", *notes]))
        return points, evaluations, notes

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


def read_axes(text: str, defaults: Mapping[str, object]) -> dict[str, Axis]:
    """Returns what a sweep varies. Arguments as in `search_space.axes_of`.

    Raises:
        ValueError: also for axes on which the validation images or their metrics depend.
    """
    axes = axes_of(text, defaults)
    if fixed := [name for name in axes if name in _FIXED]:
        raise ValueError(
            f"Expected axes that leave the validation images and their metrics as they are. Received: {', '.join(fixed)}. "
            "Try: a folder with a flagfile for each value, and tf-robust suite"
        )
    return axes


def _longest(axis):
    return int(axis.high) if isinstance(axis, Range) else max(map(int, axis))


def _metrics(text):
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def best(evaluations: Iterable[Mapping], metric: str = "") -> tuple[list[str], str]:
    """Returns the rows with the best means over seeds, and a message about the choice.

    Args:
        evaluations: as in `evaluation.json`.
        metric: metrics by which rows are compared, with commas between them; empty: the first metric of the first evaluation. With one
            the best row is chosen, the first of equals, which the message names; with several all rows that no other surpasses in every
            metric. Rows with fewer seeds than others, whose runs failed, are not chosen.

    Raises:
        ValueError: an evaluation does not have a metric.
    """
    measured = [(evaluation["row"], {row["metric"]: row["value"] for row in evaluation["rows"]}) for evaluation in evaluations]
    metrics = _metrics(metric) or (next(iter(measured[0][1])),)
    for name in metrics:
        if not all(name in values for _, values in measured):
            raise unknown("metric to choose by", name, measured[0][1])
    by_row: dict[str, list[list[float]]] = {}
    for row, values in measured:
        by_row.setdefault(row, []).append([values[name] for name in metrics])
    signs = [-1 if parse_metric(name).lower_is_better else 1 for name in metrics]
    most = max(map(len, by_row.values()))
    incomplete = [row for row, of_seeds in by_row.items() if len(of_seeds) < most]
    means = {row: np.mean(of_seeds, axis=0) for row, of_seeds in by_row.items() if row not in incomplete}
    front = _front({row: signs * mean for row, mean in means.items()})
    chosen = front if len(metrics) > 1 else front[:1]
    level = f" Level with it: {', '.join(front[1:])}; the first is chosen." if len(front) > len(chosen) else ""
    seeds = f", means over {most} seeds" if most > 1 else ""
    missing = f" Not considered, as runs failed: {', '.join(incomplete)}." if incomplete else ""
    listed = "; ".join(f"{row} ({', '.join(f'{mean:.4f}' for mean in means[row])})" for row in chosen)
    return chosen, (
        f"Chosen of {len(means)} by {', '.join(metrics)} on validation images{seeds}: {listed}.{level} "
        f"{'Their validation results are' if len(chosen) > 1 else 'Its validation result is'} optimistic, as the best of several; the test "
        f"set was not used for the choice.{missing}"
    )


def _front(values: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the names that no other surpasses: at least as large in all values and larger in one."""
    return [name for name, own in values.items() if not any((other >= own).all() and (other > own).any() for other in values.values())]
