"""Completes runs and reports on them: files, tables, and the next commands on standard output."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence

from tf_robust.experiments import comparison, completion, tracking
from tf_robust.experiments.commands import command
from tf_robust.experiments.evaluation_data import EvaluationData
from tf_robust.experiments.launchers import Launcher
from tf_robust.experiments.locations import folder_name
from tf_robust.experiments.run import Run
from tf_robust.experiments.suggestions import LOCATION_FLAGS, flags_of, print_commands
from tf_robust.utils.errors import RunFailed

_LISTED = 6  # models after a report


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
        launcher: as in `completion.run_all`.

    Raises:
        ValueError: a run failed; the message names all failures. The others are reported first.
    """

    def show(complete: Sequence[dict]) -> None:
        notes = [*table.get("notes", ()), f"{len(complete)} of {len(runs)} runs are complete. Reload this page when others are."]
        given = {**table, "notes": notes}
        comparison.write_report(workdir, complete, title=table["title"], command=command(*argv), data=None, suite=given)

    evaluations, failures = completion.run_all(runs, folder_of, launcher, show)
    if not runs[0].chief:
        print("Done. The chief worker writes checkpoints and runs the evaluation.")
    if evaluations:
        first_workdir = os.path.dirname(evaluations[0]["saved_model"])
        flags = flags_of(runs[0], LOCATION_FLAGS)
        measure_more = command("evaluate", first_workdir, *flags, "--evaluations=clean,corruptions,adversarial")
        report(
            workdir,
            evaluations,
            runs[0].data(),
            {**table, "notes": [*table.get("notes", ()), *failures]},
            {"measure more of a model": measure_more, "see the training": shlex.join(["tensorboard", f"--logdir={workdir}"])},
            argv,
        )
        with tracking.tracked(runs[0].config.tracker, workdir, f"report of {table['title']}", "reports", {}) as tracked:
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
