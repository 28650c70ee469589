"""Reports over the evaluations of many runs, with figures of their data, training and models; and the comparison with a baseline's."""

import dataclasses
import glob
import itertools
import os
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tf_robust import corruptions, evaluation
from tf_robust.evaluation import PerImage, confidence, parse_metric, smoothing
from tf_robust.evaluation.adversarial import read_distances
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.evaluation.values import MIN_IMAGES, records_in
from tf_robust.report import curves, images, page
from tf_robust.report.chart import Chart
from tf_robust.report.charts import class_histogram, training_curves
from tf_robust.report.images import Image
from tf_robust.report.page import Additions
from tf_robust.report.sections import group_name, interval, value
from tf_robust.report.summary import evaluation_notes, summary_lines
from tf_robust.report.tables import Table, aggregate, choose_metrics
from tf_robust.saved_models import loading
from tf_robust.training.callbacks import read_history
from tf_robust.utils.progress import print_line

_CORNER_DIGITS = {"Classes 0-4": range(0, 5), "Classes 5-9": range(5, 10), "Classes 10-14": range(10, 15)}
_SHEETS = {
    "utility": "mean image and mean utility per class modulo 10, and the mean utility of the corners over that of the center.",
    "maps": "where the loss (utility) and the logits (sensitivity) depend on the pixels.",
    "worst": "images that are classified correctly when clean and misclassified at the middle severity, with the predictions.",
    "attacked": "the smallest perturbations that PGD found, with the predictions and their sizes.",
}  # images that runs drew of their models
Records = Mapping[str, Mapping[str, dict]]  # {row: {set: record}} of the first seed of each row


def read_evaluations(patterns: Sequence[str]) -> list[dict]:
    """Returns the evaluations of all workdirs that match any of some glob patterns, with the folders of their records as "measured_in".

    A pattern may be the path of a recorded table, a JSON file {"evaluations": [...]}.
    """
    evaluations: dict[str, list[dict]] = {}
    for pattern in patterns:
        if pattern.endswith(".json") and os.path.isfile(pattern):
            recorded = evaluation.read_table(pattern)
            evaluations[pattern] = [{**one, "measured_in": os.path.splitext(pattern)[0]} for one in recorded]
            continue
        matches = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
        folders = [folder for folder in sorted(matches) if os.path.exists(os.path.join(folder, "evaluation.json"))]
        if not folders:
            below = glob.glob(os.path.join(pattern, "**", "evaluation.json"), recursive=True)
            advice = f"{os.path.join(pattern, '**')!r}, which matches {len(below)}" if below else f"tf-robust evaluate {pattern}, first"
            raise FileNotFoundError(f"Expected workdirs with an evaluation.json. Received: {pattern!r}, which has none. Try: {advice}")
        for folder in map(os.path.normpath, folders):
            evaluations[folder] = [{**evaluation.read_evaluation(os.path.join(folder, "evaluation.json")), "measured_in": folder}]
    return [one for several in evaluations.values() for one in several]


def write_report(
    folder: str,
    evaluations: Sequence[dict],
    *,
    title: str,
    command: str,
    data: EvaluationData | None = None,
    suite: Mapping | None = None,
    additions: Additions = Additions(),
) -> Table:
    """Writes the report over evaluations and returns its table.

    Evaluations are as in `evaluation.json`, with the folder of the records as "measured_in" if it is not that of the run. `data` provides
    images for figures. `suite`: {"paper": {row: {metric: [mean, std]}}, "baseline": row, "notes": [...], "panels": {title: [rows]}}, all
    optional.
    """
    suite = suite or {}
    first: dict[str, dict] = {}
    for one in evaluations:
        first.setdefault(one["row"], one)  # the first seed of each row
    baseline = suite.get("baseline") if suite.get("baseline") in first else None  # missing for a single row of a table
    notes = list(suite.get("notes", ()))
    if suite.get("baseline") and baseline is None and len(first) > 1:
        notes.append(f"The baseline {suite['baseline']} is missing: it has no evaluation here.")
    figures, records = os.path.join(folder, "figures"), {row: _own_records(one) for row, one in first.items()}
    folders = {row: (records_in(one), _run_folder(one)) for row, one in first.items()}
    measured = {parse_metric(row["metric"]).plain.family for one in evaluations for row in one["rows"]}
    drawn = data_figures(figures, data) if data else []
    drawn += [*training_charts(folders), *_sheets(folders), *record_charts(records, measured, suite.get("panels"))]
    return page.write(
        folder,
        evaluations,
        title=title,
        command=command,
        commit=", ".join(dict.fromkeys(one["commit"] for one in evaluations)),
        paper=suite.get("paper"),
        baseline=baseline,
        examples=_examples(figures, data, baseline, folders[baseline][1], records) if data and baseline else (),
        figures=drawn,
        notes=notes,
        per_image=PerImage(),
        additions=additions,
    )


def print_table(table: Table, evaluations: Sequence[dict]) -> None:
    """Prints the table of a report, and notes on the sizes of its images and on its worst classes and groups."""
    notes = evaluation_notes(evaluations)
    for one, family in itertools.product(evaluations, ("class", "group")):
        rows = [row for row in one["rows"] if parse_metric(row["metric"]).family == family and row["count"] >= MIN_IMAGES]
        if rows:
            worst = min(rows, key=lambda row: row["value"])
            name, ends = parse_metric(worst["metric"]).name, f"[{worst['low']:.3f}, {worst['high']:.3f}]"
            notes.append(f"Lowest accuracy of a {family} ({one['row']}): {name}, {worst['value']:.3f} {ends} on {worst['count']} images.")
    print_line("\n".join(["", page.to_text(table), *notes, ""]))


def print_summary(table: Table) -> None:
    """Prints the summary of a table."""
    print_line("\n".join(["", *summary_lines(table)]))


def _run_folder(one: Mapping) -> str:
    """Returns the folder of the run that exported an evaluated model, with its learning curves; of other models that of the records."""
    folder, name = os.path.split(one["saved_model"])
    runs = [records_in(one), *([folder] if name == "saved_model" else [])]
    return next((run for run in runs if os.path.exists(os.path.join(run, "flags.txt"))), records_in(one))


def _own_records(one: Mapping) -> dict[str, dict]:
    """Returns {set: record} of an evaluation."""
    read = evaluation.read_records(os.path.join(records_in(one), "measured.jsonl"))
    identified = "model_digest" in one  # not in the recorded results of version 0.1.0
    return evaluation.own_records(one, read) if identified else {record["set"]: record for record in read}


def _examples(folder: str, data: EvaluationData, baseline: str, baseline_folder: str, records: Records) -> list[Image]:
    """Draws images on which the rows differ, if the baseline has a SavedModel."""
    path = os.path.join(baseline_folder, "saved_model")
    if not os.path.isdir(path):
        return []
    source = data.evaluation_source()
    sets = evaluation.evaluation_sets(source, data.noise_source(), data.eval_config, data.config.data_dir or None)
    of_rows = {row: [*own.values()] for row, own in records.items()}
    with source.reading():
        drawn = images.draw_gains(
            folder, source, sets, of_rows, baseline, lambda: evaluation.masked(loading.load_classifier(path), source.class_mask)
        )
    return [drawn] if drawn else []


def data_figures(folder: str, data: EvaluationData) -> list[Chart | Image]:
    """Returns samples and, with training images, the class histogram and the two noises (Figures 1 to 3 of the FCL paper)."""
    training, test = data.noise_source(), data.evaluation_source()
    clean, labels = evaluation.first_images(test, 300)
    corner_digits = test.num_classes == 15 and test.name.startswith("synthetic_")
    classes_of = _CORNER_DIGITS if corner_digits else {"Examples": range(test.num_classes)}
    lines = [(caption, clean[np.isin(labels, list(classes))][:8], None) for caption, classes in classes_of.items()]
    samples = images.captioned_images(os.path.join(folder, "samples.png"), lines)
    drawn: list[Chart | Image] = [(samples, f"Evaluated images: {test.name}.")]
    if training is None:
        return drawn
    if training.random_access:
        counts = {source.split: np.bincount(source.labels, minlength=source.num_classes) for source in (training, test)}
        drawn.append(class_histogram(counts, training.class_names))
    clean, rate, probabilities = clean[:6], corruptions.RATE, evaluation.noise_probabilities(training, data.eval_config)
    noised = {
        "UN": corruptions.uniform_noise(clean, seed=evaluation.SEED).numpy(),
        "NUN": corruptions.nonuniform_noise(clean, probabilities, seed=evaluation.SEED).numpy(),
    }
    maps = {"UN": np.full_like(probabilities, rate), "NUN": probabilities}
    path = images.noise_samples(os.path.join(folder, "noise.png"), clean, noised, maps)
    caption = f"The noise sets replace {rate:.0%} of the locations: UN uniformly, NUN mostly where training images vary little."
    return [*drawn, (path, caption)]


def training_charts(folders: Mapping[str, Sequence[str]]) -> list[Chart]:
    """Returns training curves from the history.json of {row: folders to search, in this order}. Long runs are validated at some epochs."""
    histories = {}
    for row, candidates in folders.items():
        paths = (os.path.join(candidate, "history.json") for candidate in candidates)
        if path := next(filter(os.path.exists, paths), None):
            epochs = read_history(path)
            names = dict.fromkeys(name for epoch in epochs for name in epoch if name != "epoch")
            histories[row] = {name: [epoch.get(name) for epoch in epochs] for name in names}
    return [training_curves(histories)] if histories else []


def _sheets(folders: Mapping[str, Sequence[str]]) -> list[Image]:
    """Returns the images that runs drew of their models, of {row: folders to search, in this order}."""
    drawn: list[Image] = []
    for (kind, text), (row, candidates) in itertools.product(_SHEETS.items(), folders.items()):
        paths = [os.path.join(candidate, "figures", f"{kind}.png") for candidate in candidates]
        drawn += [(path, f"{row}: {text}") for path in paths if os.path.exists(path)][:1]
    return drawn


def record_charts(records: Records, measured: Collection[str], panels: Mapping[str, Sequence[str]] | None = None) -> list[Chart]:
    """Returns the charts of results per image, of those families of metrics that were measured.

    `panels`: {title: rows in each row of panels of attack curves}, None: all rows in one.
    """
    outcomes: dict[str, tuple] = {}
    scaled: dict[str, tuple] = {}
    binned: dict[str, dict] = {}
    distances: dict[str, dict] = {}
    radii: dict[str, np.ndarray] = {}
    attacked: dict[str, dict] = {}
    for row, of_row in records.items():
        every = [*of_row.values()]
        if "aurra" in measured and (clean := next((one for one in every if "confidences" in one), None)):
            outcomes[row] = evaluation.confidences(clean), evaluation.correctness(clean)
        if {"calibrated", "abstention", "conformal"} & {*measured} and (fitted := [one for one in every if "confidence" in one]):
            groups = confidence.groups(fitted)
            binned[row] = {group_name(group): np.sum([confidence.bins(one) for one in own], axis=0) for group, own in groups.items()}
            if "" in groups and "ece" in (clean := groups[""][-1])["confidence"]:
                scaled[f"{row}, before scaling"] = evaluation.confidences(clean), evaluation.correctness(clean)
                scaled[f"{row}, after scaling"] = confidence.outcomes(clean)
        if {"robust", "attack_curves", "distance"} & {*measured}:
            if own := {one["set"].partition("/")[2]: read_distances(one) for one in every if "distances" in one}:
                distances[row] = own
        if "certified" in measured and "certified" in of_row:
            radii[row] = smoothing.radii_of(of_row["certified"])
            smoothed = {name.rpartition("_")[2]: one for name, one in of_row.items() if name.startswith("smoothed/")}
            attacked[row] = {
                0.0 if radius == "smoothed/clean" else float(radius): one["correct"] / one["count"] for radius, one in smoothed.items()
            }
    charts = [curves.reliability_diagram(outcomes), curves.response_rate_curves(outcomes)] if outcomes else []
    charts += [curves.reliability_diagram(scaled, name="reliability_scaled")] if scaled else []
    charts += [curves.reliability_by_severity(binned), curves.risk_coverage(binned)] if binned else []
    charts += [curves.attack_curves(distances, panels)] if distances else []
    return charts + ([curves.certified_curves(radii, attacked)] if radii else [])


def read_baseline(path: str) -> dict:
    """Returns the evaluation of a file `evaluation.json`, with the folder of its records as "measured_in"; both must exist."""
    folder = os.path.dirname(os.path.abspath(path))
    for file in (path, os.path.join(folder, "measured.jsonl")):
        if not os.path.isfile(file):
            raise FileNotFoundError(
                "Expected --require_not_worse_than=DIR/evaluation.json with the records per image, measured.jsonl, next to it. "
                f"Not found: {file}. Try: tf-robust evaluate BASELINE_MODEL --workdir=DIR"
            )
    return {**evaluation.read_evaluation(path), "measured_in": folder}


def main_metrics(one: Mapping) -> list[str]:
    """Returns the metrics of an evaluation by which another model is compared with its model; not size and latency of a file."""
    return choose_metrics(row["metric"] for row in one["rows"] if parse_metric(row["metric"]).family != "deployed")[2]


def not_worse(measured: Mapping, baseline: Mapping) -> list[evaluation.Outcome]:
    """Returns the outcome of every main metric of a baseline: it is not met if the model is significantly worse on the same images.

    Both evaluations have "measured_in". Raises ValueError if the model lacks a main metric, or if they were evaluated on different images
    or in different ways.
    """
    mains, own = main_metrics(baseline), {row["metric"] for row in measured["rows"]}
    missing = [metric for metric in mains if metric not in own and not _has_no_value(metric, measured)]
    if missing or not mains:
        lacking = f"the model lacks {', '.join(missing)}" if mains else "the baseline has none"
        raise ValueError(
            f"Expected the main metrics of {baseline['saved_model']} of the model too, to compare them. Received: {lacking}. "
            "Try: the same evaluations for both"
        )
    evaluations = [{**one, "row": row, "seed": 0} for row, one in (("baseline", baseline), ("model", measured))]
    table = aggregate(evaluations, baseline="baseline", per_image=PerImage())
    return [
        {
            "metric": metric,
            "bound": f"not worse than {baseline['saved_model']}",
            "value": table["cells"][row, metric]["mean"],
            "met": one.gain >= 0 or not one.significant,
            "difference": f"{value(one.mean, '+')} {interval(one.low, one.high, '+')}".rstrip(),
        }
        for (row, metric), one in table["differences"].items()
        if metric in mains
    ]


def _has_no_value(metric, measured):
    """Whether a metric has no value: the distance of an attack that fails, the accuracy of a model that always abstains."""
    name, options = parse_metric(metric), measured["options"]
    if name.family == "abstention":
        return str(dataclasses.replace(name, name="coverage")) in {row["metric"] for row in measured["rows"]}
    if name.family == "distance":
        return "attack_curves" in options["evaluations"] and name.name in options["curve_attacks"]
    return name.family == "utility" and "utility" in options["evaluations"]
