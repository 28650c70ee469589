"""Grids of hyperparameters: the best point on validation images is evaluated on the test set."""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from absl.flags import FlagValues

from tf_robust.evaluation import parse_measure
from tf_robust.experiments import costs, flags, model_evaluation, suites
from tf_robust.experiments.commands import command
from tf_robust.experiments.compatibility import RENAMED_FLAGS
from tf_robust.experiments.reporting import report
from tf_robust.experiments.run import Run
from tf_robust.experiments.runs import runs_of, warn_of_ignored_flags
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import write_json

Point = dict[str, str]  # {flag: value as text}


def run_sweep(values: FlagValues, workdir: str, title: str, argv: Sequence[str]) -> None:
    """Trains a grid of hyperparameters, selects the best point on validation images, and evaluates it on the test set.

    Args:
        values: parsed flags, with --sweep.
        workdir: gets a folder per point and `test`.
        title: of the report.
        argv: the arguments from which the flags were parsed.

    Raises:
        ValueError: an invalid grid, or all runs failed.
    """
    points = {name_of(point): point for point in grid(values.sweep, {name: values[name].default for name in flags.flag_names()})}

    def folder_of(run):
        return os.path.join(workdir, run.row, f"seed_{run.seed}")

    runs = [run for point in points.values() for run in _runs_at(values, point, "validation")]
    warn_of_ignored_flags(runs)
    if values.dry_run:
        return costs.print_costs(runs)
    evaluations, failures = suites.run_all(runs, folder_of)
    if not evaluations:
        raise ValueError("\n".join(["All runs failed.", *failures]))
    report(workdir, evaluations, runs[0].data(), {"title": f"{title}: {values.sweep}", "notes": failures}, {}, argv)
    name, message = best(evaluations, values.sweep_metric)
    test_evaluations = []
    for run in _runs_at(values, points[name], "test"):
        folder = os.path.join(workdir, "test", f"seed_{run.seed}")
        measured = model_evaluation.evaluate_file(os.path.join(folder_of(run), "saved_model"), run.data(), folder, row=run.shown_as)
        evaluation = {**measured.content, "measured_in": folder}
        write_json(os.path.join(folder, "evaluation.json"), evaluation)
        test_evaluations.append(evaluation)
    report(
        os.path.join(workdir, "test"),
        test_evaluations,
        None,
        {"title": f"{name}, chosen on validation, on the test set", "notes": [message]},
        {"train it with more seeds": _command_with_more_seeds(values, points[name], f"{workdir}/chosen")},
        argv,
    )
    print("\n".join([message, *failures]))


def _runs_at(values: FlagValues, point: Point, split: str) -> list[Run]:
    return runs_of(flags.with_values(values, {**point, "evaluation_split": split}), name_of(point))


def _command_with_more_seeds(values, point, workdir):
    given = {
        name: value
        for name, value in flags.given_values(values).items()
        if name not in ("mode", "sweep", "sweep_metric", "workdir", "seeds")
    }
    return command(
        "train",
        *(f"--{name}={flags.text_of(value)}" for name, value in given.items()),
        *(f"--{name}={text}" for name, text in point.items()),
        "--seeds=0,1,2",
        f"--workdir={workdir}",
    )


def grid(text: str, defaults: Mapping[str, object]) -> list[Point]:
    """Returns the points of a grid; the last flag changes fastest.

    Args:
        text: 'NAME=VALUE,VALUE;NAME=VALUE,...'.
        defaults: {flag: default} of all flags.

    Raises:
        ValueError: unknown flag, a flag of several values, a value or name twice, an empty grid.
    """
    axes: dict[str, list[str]] = {}
    for part in filter(None, text.split(";")):
        name, separator, values_text = (piece.strip() for piece in part.partition("="))
        values = [value.strip() for value in values_text.split(",")]
        name = RENAMED_FLAGS.get(name, name)
        if name not in defaults:
            raise unknown("flag to sweep", name, defaults)
        if isinstance(defaults[name], (tuple, list)):
            raise ValueError(f"Expected flags of one value in --sweep, as commas separate the values of a grid. Received: {name}")
        if not separator or not all(values) or len(set(values)) < len(values) or name in axes:
            raise ValueError(f"Expected --sweep='NAME=VALUE,VALUE;...', every name and value once. Received: {part!r}")
        axes[name] = values
    if not axes:
        raise ValueError(f"Expected --sweep='NAME=VALUE,VALUE;...'. Received: {text!r}")
    return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def name_of(point: Point) -> str:
    """Returns the row and folder name of a point: 'NAME=VALUE,NAME=VALUE', with _ for / in values."""
    return ",".join(f"{name}={value.replace('/', '_')}" for name, value in point.items())


def best(evaluations: Iterable[Mapping], measure: str = "") -> tuple[str, str]:
    """Returns the row with the best mean over seeds, the first of equals, and a message about the choice.

    Args:
        evaluations: as in `evaluation.json`.
        measure: by which rows are compared; empty: the first measure of the first evaluation.

    Raises:
        ValueError: an evaluation does not have the measure.
    """
    measured = [(evaluation["row"], {row["measure"]: row["value"] for row in evaluation["rows"]}) for evaluation in evaluations]
    measure = measure or next(iter(measured[0][1]))
    if not all(measure in values for _, values in measured):
        raise unknown("measure to choose by", measure, measured[0][1])
    by_row: dict[str, list[float]] = {}
    for row, values in measured:
        by_row.setdefault(row, []).append(values[measure])
    means = {row: float(np.mean(values)) for row, values in by_row.items()}
    selected = (min if parse_measure(measure).lower_is_better else max)(means, key=lambda row: means[row])
    return selected, (
        f"Chosen of {len(means)} by {measure} on validation images ({means[selected]:.4f}): {selected}. Its "
        f"validation result is optimistic, as the best of several; the test set was not used for the choice."
    )
