"""What many runs left behind -> one report, with the images of their data and training."""

import glob
import os

from tf_robust import evaluation, report
from tf_robust.experiments import figures


def read_evaluations(pattern):
    """The evaluations of all workdirs that a glob pattern matches, each with the folder of its records as "measured_in".

    Raises:
        FileNotFoundError: there is none.
    """
    paths = sorted(os.path.join(folder, "evaluation.json") for folder in glob.glob(pattern, recursive=True))
    found = [{**evaluation.read_evaluation(path), "measured_in": os.path.dirname(path)} for path in paths if os.path.exists(path)]
    if not found:
        raise FileNotFoundError(f"Expected --runs to match workdirs with an evaluation.json. Found none for {pattern!r}")
    return found


def write_report(folder, evaluations, *, title, command, run=None, suite=None):
    """Writes the report over evaluations, with the images of the data of `run`, and prints the table.

    Args:
        evaluations: as `evaluation.json`; "measured_in": the folder of its records, where it is not the run's own.
        suite: {"paper": {row: {measure: [mean, std]}}, "baseline": row, "notes": [...], "panels": {title: [rows]}}, all optional.
    """
    suite = suite or {}
    measured_rows = {found["row"] for found in evaluations}
    baseline = suite.get("baseline") if suite.get("baseline") in measured_rows else None  # a table's row run by itself
    images = os.path.join(folder, "figures")
    drawn = _of_data(images, run) if run else []
    folders, measured = {}, {}
    for found in evaluations:  # the first seed of each row
        folders.setdefault(found["row"], os.path.dirname(found["saved_model"]))
        measured.setdefault(found["row"], _records_in(found))
    histories = {row: os.path.join(path, "history.json") for row, path in folders.items()}
    drawn += [*figures.of_training(histories), *figures.of_models({row: (measured[row], folders[row]) for row in folders})]
    if any(row["measure"] == "aurra" for found in evaluations for row in found["rows"]):
        drawn += figures.of_calibration(measured)
    if any(row["measure"].startswith("boundary/") for found in evaluations for row in found["rows"]):
        sources = (run.source("train"), run.measured_source()) if run else ()
        drawn += figures.of_boundaries(images, measured, sources)
    if any(row["measure"].startswith(("robust/", "distance/")) for found in evaluations for row in found["rows"]):
        drawn += figures.of_attacks(measured, suite.get("panels"))
    commits = ", ".join(dict.fromkeys(found["commit"] for found in evaluations))
    table = report.write(
        folder,
        evaluations,
        title=title,
        command=command,
        commit=commits,
        paper=suite.get("paper"),
        baseline=baseline,
        figures=drawn,
        notes=suite.get("notes", ()),
        per_image=evaluation.PerImage(_records_in),
    )
    print("\n".join(["", report.to_text(table), "", report.verdict(table), *report.size_notes(evaluations), ""]))
    return table


def write_means(folder, means, evaluations, command):
    """Writes a report for each suite, below `folder`, and the report of the means over them, and prints the tables.

    Args:
        means: a `suite_means.SuiteMeans`. evaluations: of runs of its suites.
    """
    divided = means.divide(evaluations)
    for name, members in divided.items():
        print(f"\n{name}")
        write_report(os.path.join(folder, name), members, title=means.suites[name]["title"], command=command, suite=means.suites[name])
    evaluations, notes = means.means(divided)
    baseline = means.table.get("baseline")
    table = report.write(
        folder,
        evaluations,
        title=means.table["title"],
        command=command,
        paper=means.paper(divided),
        commit=", ".join(dict.fromkeys(one["commit"] for members in divided.values() for one in members)),
        baseline=baseline if any(one["row"] == baseline for one in evaluations) else None,
        notes=[*means.table.get("notes", ()), *notes],
        per_image=means.per_image(evaluation.PerImage(_records_in)),
    )
    print("\n".join([means.table["title"], "", report.to_text(table), "", report.verdict(table), *notes, ""]))
    print(f"Report:  {os.path.join(folder, 'report.html')}  (also report.md, results.json, and a folder for each suite)")


def _records_in(found):
    """The folder of an evaluation's records."""
    return found.get("measured_in", os.path.dirname(found["saved_model"]))


def _of_data(folder, run):
    training_source = run.source("train") if run.eval_config.needs_training_set else None
    return figures.of_data(folder, training_source, run.measured_source(), run.eval_config)
