"""Reports over the evaluations of many runs, with figures of their data, training and models."""

import glob
import os
from collections.abc import Mapping, Sequence

from tf_robust import evaluation, report
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.evaluation.values import MIN_IMAGES
from tf_robust.report import gains, model_figures
from tf_robust.report.table_types import Table
from tf_robust.saved_models import loading


def read_evaluations(patterns: Sequence[str]) -> list[dict]:
    """Returns the evaluations of all workdirs that match any of some patterns, each with the folder of its records as "measured_in".

    Args:
        patterns: paths of workdirs, glob patterns, or paths of recorded tables: JSON files {"evaluations": [...]}.

    Raises:
        FileNotFoundError: a pattern matches no workdir.
        ValueError: an evaluation does not follow `evaluation.schema.json`.
    """
    evaluations: dict[str, list[dict]] = {}
    for pattern in patterns:
        if pattern.endswith(".json") and os.path.isfile(pattern):
            recorded = evaluation.read_table(pattern)
            evaluations[pattern] = [{**one, "measured_in": os.path.splitext(pattern)[0]} for one in recorded]
            continue
        folders = [folder for folder in sorted(_matches(pattern)) if os.path.exists(os.path.join(folder, "evaluation.json"))]
        if not folders:
            raise FileNotFoundError(_no_evaluation(pattern))
        for folder in map(os.path.normpath, folders):
            evaluations[folder] = [{**evaluation.read_evaluation(os.path.join(folder, "evaluation.json")), "measured_in": folder}]
    return [one for several in evaluations.values() for one in several]


def _matches(pattern):
    return [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)


def _no_evaluation(pattern):
    """The message for a pattern without evaluations, with the subfolders that have some."""
    below = glob.glob(os.path.join(pattern, "**", "evaluation.json"), recursive=True)
    advice = f" Try: {os.path.join(pattern, '**')!r}, which matches {len(below)}" if below else ""
    if os.path.exists(pattern) and not below:
        return f"Expected workdirs with an evaluation.json. Received: {pattern!r}, which has none. Try: tf-robust evaluate {pattern}, first"
    return f"Expected workdirs with an evaluation.json. Received: {pattern!r}, which matches none.{advice}"


def write_report(
    folder: str,
    evaluations: Sequence[dict],
    *,
    title: str,
    command: str,
    data: EvaluationData | None = None,
    suite: Mapping | None = None,
    additions: report.Additions = report.Additions(),
) -> Table:
    """Writes the report over evaluations and returns its table.

    Args:
        folder: of the report.
        evaluations: as in `evaluation.json`; "measured_in": the folder of the records, if it is not that of the run.
        title: of the report.
        command: by which the report was made.
        data: provides images for the figures; None: no such figures.
        suite: {"paper": {row: {metric: [mean, std]}}, "baseline": row, "notes": [...], "panels": {title: [rows]}}, all optional.
        additions: to the HTML.
    """
    suite = suite or {}
    rows = {evaluation["row"] for evaluation in evaluations}
    baseline = suite.get("baseline") if suite.get("baseline") in rows else None  # missing for a single row of a table
    notes = list(suite.get("notes", ()))
    if suite.get("baseline") and baseline is None and len(rows) > 1:
        notes.append(f"The baseline {suite['baseline']} is missing: it has no evaluation here.")
    images = os.path.join(folder, "figures")
    folders: dict[str, str] = {}
    record_folders: dict[str, str] = {}
    for one in evaluations:  # the first seed of each row
        folders.setdefault(one["row"], _run_folder(one))
        record_folders.setdefault(one["row"], records_in(one))
    examples, own_records = None, _own_records(evaluations)
    if data and baseline and os.path.isdir(os.path.join(folders[baseline], "saved_model")):
        examples = _examples(images, data, baseline, folders[baseline], own_records)
    drawn = _of_data(images, data) if data else []
    both = {row: (record_folders[row], folders[row]) for row in folders}
    drawn += [*model_figures.of_training(both), *model_figures.of_models(both)]
    measured = {evaluation.parse_metric(row["metric"]).plain.family for one in evaluations for row in one["rows"]}
    if "aurra" in measured:
        drawn += model_figures.of_calibration(own_records)
    if measured & {"calibrated", "abstention", "conformal"}:
        drawn += model_figures.of_confidence(own_records)
    if measured & {"robust", "attack_curves", "distance"}:
        drawn += model_figures.of_attacks(own_records, suite.get("panels"))
    if "certified" in measured:
        drawn += model_figures.of_certified(own_records)
    commits = ", ".join(dict.fromkeys(one["commit"] for one in evaluations))
    table = report.write(
        folder,
        evaluations,
        title=title,
        command=command,
        commit=commits,
        paper=suite.get("paper"),
        baseline=baseline,
        examples=examples,
        figures=drawn,
        notes=notes,
        per_image=evaluation.PerImage(records_in),
        additions=additions,
    )
    return table


def print_table(table: Table, evaluations: Sequence[dict]) -> None:
    """Prints the table of a report, and notes on the sizes of its images."""
    notes = (*report.evaluation_notes(evaluations), *_worst_slices(evaluations))
    print("\n".join(["", report.to_text(table), *notes, ""]))


def _worst_slices(evaluations):
    """Lines that name the class and the group with the lowest accuracy of each evaluation."""
    for one in evaluations:
        for family in ("class", "group"):
            slices = {
                name.name: row
                for row in one["rows"]
                if (name := evaluation.parse_metric(row["metric"]).plain).family == family and row["count"] >= MIN_IMAGES
            }
            if slices:
                name, worst = min(slices.items(), key=lambda item: item[1]["value"])
                interval = f"[{worst['low']:.3f}, {worst['high']:.3f}]"
                yield f"Lowest accuracy of a {family} ({one['row']}): {name}, {worst['value']:.3f} {interval} on {worst['count']} images."


def print_summary(table: Table) -> None:
    """Prints the summary of a table."""
    print("\n".join(["", *report.summary_lines(table)]))


def records_in(evaluation):
    """The folder of the records of an evaluation."""
    return evaluation.get("measured_in", os.path.dirname(evaluation["saved_model"]))


def _run_folder(one):
    """The folder of the run that exported an evaluated model, with its learning curves and figures; of other models that of the records."""
    if os.path.exists(os.path.join(records_in(one), "flags.txt")):
        return records_in(one)
    folder, name = os.path.split(one["saved_model"])
    return folder if name == "saved_model" and os.path.exists(os.path.join(folder, "flags.txt")) else records_in(one)


def _own_records(evaluations):
    """{row: {set: record}} of the first seed of each row."""
    first: dict[str, dict] = {}
    for one in evaluations:
        first.setdefault(one["row"], one)
    read = {row: evaluation.read_records(os.path.join(records_in(one), "measured.jsonl")) for row, one in first.items()}
    return {
        row: evaluation.own_records(one, read[row]) if "model_digest" in one else {record["set"]: record for record in read[row]}
        for row, one in first.items()  # evaluations of version 0.1.0 do not identify the model
    }


def _examples(folder, data, baseline, baseline_folder, own_records):
    source, config, records = data.evaluation_source(), data.eval_config, {row: [*own.values()] for row, own in own_records.items()}
    sets = evaluation.evaluation_sets(source, data.noise_source(), config, data.config.data_dir or None)

    def load_baseline():
        return evaluation.masked(loading.load_classifier(os.path.join(baseline_folder, "saved_model")), source.class_mask)

    with source.reading():
        return gains.draw_gains(folder, source, sets, records, baseline, load_baseline)


def _of_data(folder, data):
    return model_figures.of_data(folder, data.noise_source(), data.evaluation_source(), data.eval_config)
