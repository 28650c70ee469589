"""Sweeps of hyperparameters: the best point on validation images is evaluated on the test set."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from absl.flags import FlagValues

from tf_robust.configs import DataConfig
from tf_robust.evaluation import EvalConfig, check_measures, parse_measure
from tf_robust.experiments import completion, costs, flags, model_evaluation
from tf_robust.experiments.commands import command
from tf_robust.experiments.launchers import launcher_of
from tf_robust.experiments.reporting import report
from tf_robust.experiments.run import Run
from tf_robust.experiments.runs import runs_of, warn_of_unused_flags
from tf_robust.experiments.search_space import Point, Range, axes_of, grid, middle, name_of
from tf_robust.utils.errors import RunFailed, unknown
from tf_robust.utils.files import write_json

_SWEEP_FLAGS = (
    *("mode", "sweep", "sweep_metric", "sweep_engine", "sweep_storage", "trials"),
    *("launcher", "launcher_options", "workdir", "seeds"),
)

_FIXED = {field.name for config in (DataConfig, EvalConfig) for field in dataclasses.fields(config)} - {"train_examples"}  # not axes


def run_sweep(values: FlagValues, workdir: str, title: str, argv: Sequence[str]) -> None:
    """Trains points of hyperparameters, chooses the best on validation images, and evaluates it on the test set.

    With several measures to choose by, all points are chosen that no other surpasses in every measure (the Pareto front).

    Args:
        values: parsed flags, with --sweep.
        workdir: gets a folder per point and `test`.
        title: of the report.
        argv: the arguments from which the flags were parsed.

    Raises:
        ValueError: an invalid sweep, or all runs failed.
    """
    axes = axes_of(values.sweep, {name: values[name].default for name in flags.flag_names()})
    if fixed := [name for name in axes if name in (*_FIXED, *_SWEEP_FLAGS)]:
        raise ValueError(
            f"Expected axes that leave the validation images and their measures as they are. Received: {', '.join(fixed)}. "
            "Try: a folder with a flagfile for each value, and tf-robust suite"
        )
    sampled = values.sweep_engine == "optuna"
    points = [middle(axes)] if sampled else grid(axes)  # of a sampled sweep an example
    runs = [run for point in points for run in _runs_at(values, point, "validation")]
    for run in runs:
        check_measures(_measures(values.sweep_metric), run.eval_config, "--sweep_metric", run.data_config.label_fraction)
    warn_of_unused_flags(values, runs)
    if values.dry_run:
        if sampled:
            print(f"One of {values.trials} trials, in the middle of the ranges:")
        return costs.print_costs(runs)

    def folder_of(run):
        return os.path.join(workdir, run.row, f"seed_{run.seed}")

    if sampled:
        points, evaluations, notes = _sample(values, axes, workdir, folder_of)
    else:
        launcher = launcher_of(values.launcher, values.launcher_options, workdir)
        evaluations, notes = completion.run_all(runs, folder_of, launcher)
    if not evaluations:
        raise RunFailed("\n".join(["All runs failed.", *notes]))
    report(workdir, evaluations, runs[0].data(), {"title": f"{title}: {values.sweep}", "notes": notes}, {}, argv)
    chosen, message = best(evaluations, values.sweep_metric)
    points = [point for point in points if name_of(point) in chosen]
    folder = os.path.join(workdir, "test")
    evaluations = []
    for point in points:
        evaluations += _tested(values, point, folder_of, os.path.join(folder, name_of(point)) if len(points) > 1 else folder)
    report(
        folder,
        evaluations,
        None,
        {"title": f"{'; '.join(chosen)}, chosen on validation, on the test set", "notes": [message]},
        {"train it with more seeds": _command_with_more_seeds(values, points[0], f"{workdir}/chosen")},
        argv,
    )
    print("\n".join([message, *(notes if sampled else ())]))
    if notes and not sampled:
        raise RunFailed("\n".join([f"{len(notes)} of {len(runs)} runs failed.", *notes]))


def _sample(values, axes, workdir, folder_of):
    """Points, evaluations and messages of a sweep by Optuna."""
    from tf_robust.experiments.sampled_sweep import SampledSweep  # of an extra

    example = _runs_at(values, middle(axes), "validation")[0]
    sweep = SampledSweep(
        axes=axes,
        measures=_measures(values.sweep_metric),
        runs_at=lambda point: _runs_at(values, point, "validation"),
        folder_of=folder_of,
        trials=values.trials,
        seed=values.seeds[0],
        epochs=_longest(axes["epochs"]) if "epochs" in axes else values.epochs,
        flags={**{name: text for name, text in example.flags.items() if name not in axes}, "seeds": flags.text_of(values.seeds)},
    )
    os.makedirs(workdir, exist_ok=True)
    storage = values.sweep_storage or f"sqlite:///{os.path.join(os.path.abspath(workdir), 'study.db')}"
    return sweep.complete(storage, os.path.basename(os.path.abspath(workdir)))


def _longest(axis):
    return int(axis.high) if isinstance(axis, Range) else max(map(int, axis))


def _tested(values, point, folder_of, folder):
    """Evaluations of a point on the test set, in a subfolder for each seed."""
    evaluations = []
    for run in _runs_at(values, point, "test"):
        if not os.path.isdir(os.path.join(folder_of(run), "saved_model")):
            continue  # a run that failed, which the report names
        to = os.path.join(folder, f"seed_{run.seed}")
        measured = model_evaluation.evaluate_file(os.path.join(folder_of(run), "saved_model"), run.data(), to, row=run.shown_as)
        evaluations.append({**measured.content, "measured_in": to})
        write_json(os.path.join(to, "evaluation.json"), evaluations[-1])
    return evaluations


def _runs_at(values: FlagValues, point: Point, split: str) -> list[Run]:
    return runs_of(flags.with_values(values, {**point, "evaluation_split": split}), name_of(point))


def _command_with_more_seeds(values, point, workdir):
    given = {name: value for name, value in flags.given_values(values).items() if name not in _SWEEP_FLAGS and name not in point}
    return command(
        "train",
        *(f"--{name}={flags.text_of(value)}" for name, value in given.items()),
        *(f"--{name}={text}" for name, text in point.items()),
        "--seeds=0,1,2",
        f"--workdir={workdir}",
    )


def _measures(text):
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def best(evaluations: Iterable[Mapping], metric: str = "") -> tuple[list[str], str]:
    """Returns the rows with the best means over seeds, and a message about the choice.

    Args:
        evaluations: as in `evaluation.json`.
        metric: measures by which rows are compared, with commas between them; empty: the first measure of the first evaluation. With one
            the best row is chosen, the first of equals, which the message names; with several all rows that no other surpasses in every
            measure. Rows with fewer seeds than others, whose runs failed, are not chosen.

    Raises:
        ValueError: an evaluation does not have a measure.
    """
    measured = [(evaluation["row"], {row["measure"]: row["value"] for row in evaluation["rows"]}) for evaluation in evaluations]
    measures = _measures(metric) or (next(iter(measured[0][1])),)
    for name in measures:
        if not all(name in values for _, values in measured):
            raise unknown("measure to choose by", name, measured[0][1])
    by_row: dict[str, list[list[float]]] = {}
    for row, values in measured:
        by_row.setdefault(row, []).append([values[name] for name in measures])
    signs = [-1 if parse_measure(name).lower_is_better else 1 for name in measures]
    most = max(map(len, by_row.values()))
    incomplete = [row for row, of_seeds in by_row.items() if len(of_seeds) < most]
    means = {row: np.mean(of_seeds, axis=0) for row, of_seeds in by_row.items() if row not in incomplete}
    front = _front({row: signs * mean for row, mean in means.items()})
    chosen = front if len(measures) > 1 else front[:1]
    level = f" Level with it: {', '.join(front[1:])}; the first is chosen." if len(front) > len(chosen) else ""
    seeds = f", means over {most} seeds" if most > 1 else ""
    missing = f" Not considered, as runs failed: {', '.join(incomplete)}." if incomplete else ""
    listed = "; ".join(f"{row} ({', '.join(f'{mean:.4f}' for mean in means[row])})" for row in chosen)
    return chosen, (
        f"Chosen of {len(means)} by {', '.join(measures)} on validation images{seeds}: {listed}.{level} "
        f"{'Their validation results are' if len(chosen) > 1 else 'Its validation result is'} optimistic, as the best of several; the test "
        f"set was not used for the choice.{missing}"
    )


def _front(values: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the names that no other surpasses: at least as large in all values and larger in one."""
    return [name for name, own in values.items() if not any((other >= own).all() and (other > own).any() for other in values.values())]
