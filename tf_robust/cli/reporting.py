"""Completes runs and reports on them: files, tables, and the next commands on standard output."""

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from tf_robust.cli.command_line import command
from tf_robust.configs import PATH_FLAGS
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.integrations import tracking
from tf_robust.integrations.launchers import Launcher
from tf_robust.report import comparison
from tf_robust.runs import scheduler
from tf_robust.runs.run import Run
from tf_robust.runs.workdir import folder_name
from tf_robust.utils.errors import RunFailed
from tf_robust.utils.hyperparameters import text_of

_LISTED = 6  # models after a report


# flags on which the evaluated images and labels depend
DATA_FLAGS = (
    "data",
    "data_range",
    "data_dir",
    "download",
    "label_map",
    "label_set",
    "classes",
    "image_size",
    "image_fit",
    "validation_fraction",
    "evaluation_split",
    "subset",
)
LOCATION_FLAGS = tuple(name for name in PATH_FLAGS if name != "data_service")  # not in the flags.txt of a workdir


def print_commands(commands: Mapping[str, str]) -> None:
    """Prints the next commands, {purpose: command}, each command on a line of its own."""
    for number, (purpose, line) in enumerate(commands.items()):
        print(f"{'' if number else 'Next:':<9}{purpose}:\n           {line}")


def flags_of(run: Run, names: Iterable[str]) -> list[str]:
    """Returns arguments for those flags of a run, among `names`, that differ from their defaults."""
    values = {**vars(run.config.evaluation), **vars(run.config.data), **vars(run.config.train)}
    defaults = run.config.parameters
    return [
        f"--{name}={text_of(values[name])}"
        for name in names
        if name in defaults and name in values and values[name] != defaults[name].default
    ]


def complete_and_report(
    workdir: str,
    runs: Sequence[Run],
    folder_of: Callable[[Run], str],
    table: Mapping,
    argv: Sequence[str],
    launcher: Launcher | None = None,
) -> None:
    """Completes runs and reports on them.

    Args:
        workdir: of the report.
        runs: of one table.
        folder_of: run -> its workdir.
        table: as in `report`.
        argv: arguments of the command line.
        launcher: as in `scheduler.run_all`.

    Raises:
        ValueError: a run failed; the message names all failures. The others are reported first.
    """

    def show(complete: Sequence[dict]) -> None:
        notes = [*table.get("notes", ()), f"{len(complete)} of {len(runs)} runs are complete. Reload this page when others are."]
        given = {**table, "notes": notes}
        comparison.write_report(workdir, complete, title=table["title"], command=command(*argv), data=None, suite=given)

    evaluations, failures = scheduler.run_all(runs, folder_of, launcher, show)
    if not runs[0].chief:
        print("Done. The chief worker writes checkpoints and runs the evaluation.")
    if evaluations:
        first_workdir = os.path.dirname(evaluations[0]["saved_model"])
        flags = flags_of(runs[0], LOCATION_FLAGS)
        evaluate_more = command("evaluate", first_workdir, *flags, "--evaluations=clean,corruptions,adversarial")
        report(
            workdir,
            evaluations,
            runs[0].data(),
            {**table, "notes": [*table.get("notes", ()), *failures]},
            {"evaluate more of a model": evaluate_more, "see the training": shlex.join(["tensorboard", f"--logdir={workdir}"])},
            argv,
        )
        with tracking.tracked(runs[0].config.train.tracker, workdir, f"report of {table['title']}", "reports", {}) as tracked:
            tracked.files("report", workdir, ("report.html", "report.md", "results.json", "figures"))
    if failures:
        raise RunFailed("\n".join([f"{len(failures)} of {len(runs)} runs failed.", *failures]))


def report(
    workdir: str,
    evaluations: Sequence[dict],
    data: EvaluationData | None,
    table: Mapping,
    next_commands: Mapping[str, str],
    argv: Sequence[str],
) -> None:
    """Writes and prints a report, its summary last.

    Args:
        workdir: of the report.
        evaluations: as in `evaluation.json`.
        data: provides images for the figures; None: no such figures.
        table: "title", and optional fields of `suite.json`.
        next_commands: {purpose: command}.
        argv: arguments of the command line.
    """
    written = comparison.write_report(workdir, evaluations, title=table["title"], command=command(*argv), data=data, suite=table)
    comparison.print_table(written, evaluations)
    print(f"Report:  {os.path.join(workdir, 'report.html')}  (also report.md, results.json)")
    print(f"Figures: {os.path.join(workdir, 'figures')}{os.sep}")
    present = [evaluation for evaluation in evaluations if os.path.exists(evaluation["saved_model"])]  # records may be copied without it
    for evaluation in present[:_LISTED]:
        print(f"Model:   {evaluation['saved_model']}  ({evaluation['row']}, seed {evaluation['seed']})")
    if len(present) > _LISTED:
        print(f"         and {len(present) - _LISTED} more")
    print_commands(next_commands)
    comparison.print_summary(written)


def report_by_data(
    workdir: str, evaluations: Sequence[dict], table: Mapping, next_commands: Mapping[str, str], argv: Sequence[str]
) -> None:
    """Writes and prints a report for each data set and split, in subfolders of the workdir if there are several.

    Args:
        workdir: of the reports.
        evaluations: as in `evaluation.json`.
        table: as in `report`.
        next_commands: as in `report`.
        argv: arguments of the command line.
    """
    by_data: dict[tuple[str, str], list[dict]] = {}
    for evaluation in evaluations:
        by_data.setdefault((evaluation["data"], evaluation["split"]), []).append(evaluation)
    if len(by_data) == 1:
        return report(workdir, evaluations, None, table, next_commands, argv)
    for (name, split), members in by_data.items():
        rows = ", ".join(dict.fromkeys(one["row"] for one in members))
        print(f"{name}, {split}: {rows}")
    splits = [split for name, split in by_data]
    if len({name for name, _ in by_data}) < len(splits):
        print(
            "Models on different images are not compared, so each line has a report of its own. Try: evaluate each model with "
            f"--evaluation_split={min(splits, key=('test', 'validation', 'all').index)}."
        )
    for (name, split), members in by_data.items():
        folder = os.path.join(workdir, folder_name(f"{name}-{split}"))
        report(folder, members, None, {**table, "title": f"{table['title']}: {name}, {split}"}, next_commands, argv)
