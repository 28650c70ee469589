"""Reports over the evaluations of many runs, with figures of their data, training and models; and the comparison with a baseline's."""

import dataclasses
import glob
import itertools
import os
from collections.abc import Mapping, Sequence

import numpy as np

from tf_robust import corruptions, evaluation
from tf_robust.evaluation import PerImage, confidence, parse_metric, smoothing
from tf_robust.evaluation.adversarial import read_distances
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.evaluation.values import MIN_IMAGES
from tf_robust.report import curves, images, page
from tf_robust.report.chart import Chart
from tf_robust.report.charts import class_histogram, training_curves
from tf_robust.report.page import Additions, Image
from tf_robust.report.sections import interval, value
from tf_robust.report.summary import evaluation_notes, summary_lines
from tf_robust.report.tables import Table, aggregate, choose_metrics, difference_intervals, gain
from tf_robust.saved_models import loading
from tf_robust.training.callbacks import read_history

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
    figures, records = os.path.join(folder, "figures"), _own_records(evaluations)
    examples, folders = None, {row: (records_in(one), _run_folder(one)) for row, one in first.items()}
    if data and baseline and os.path.isdir(os.path.join(folders[baseline][1], "saved_model")):
        examples = _examples(figures, data, baseline, folders[baseline][1], records)
    drawn = data_figures(figures, data) if data else []
    drawn += [*training_charts(folders), *_sheets(folders)]
    measured = {parse_metric(row["metric"]).plain.family for one in evaluations for row in one["rows"]}
    if "aurra" in measured:
        drawn += calibration_charts(records)
    if measured & {"calibrated", "abstention", "conformal"}:
        drawn += _confidence_charts(records)
    if measured & {"robust", "attack_curves", "distance"}:
        drawn += _attack_charts(records, suite.get("panels"))
    if "certified" in measured:
        drawn += certified_charts(records)
    return page.write(
        folder,
        evaluations,
        title=title,
        command=command,
        commit=", ".join(dict.fromkeys(one["commit"] for one in evaluations)),
        paper=suite.get("paper"),
        baseline=baseline,
        examples=examples,
        figures=drawn,
        notes=notes,
        per_image=PerImage(records_in),
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
    print("\n".join(["", page.to_text(table), *notes, ""]))


def print_summary(table: Table) -> None:
    """Prints the summary of a table."""
    print("\n".join(["", *summary_lines(table)]))


def records_in(one: Mapping) -> str:
    """Returns the folder of the records of an evaluation."""
    return one.get("measured_in", os.path.dirname(one["saved_model"]))


def _run_folder(one):
    """The folder of the run that exported an evaluated model, with its learning curves and figures; of other models that of the records."""
    if os.path.exists(os.path.join(records_in(one), "flags.txt")):
        return records_in(one)
    folder, name = os.path.split(one["saved_model"])
    return folder if name == "saved_model" and os.path.exists(os.path.join(folder, "flags.txt")) else records_in(one)


def _own_records(evaluations):
    """{row: {set: record}} of the first seed of each row."""
    own: dict[str, dict[str, dict]] = {}
    for one in evaluations:
        if one["row"] not in own:
            read = evaluation.read_records(os.path.join(records_in(one), "measured.jsonl"))
            identified = "model_digest" in one  # not in the recorded results of version 0.1.0
            own[one["row"]] = evaluation.own_records(one, read) if identified else {record["set"]: record for record in read}
    return own


def _examples(folder, data, baseline, baseline_folder, own_records):
    source, config = data.evaluation_source(), data.eval_config
    records = {row: [*own.values()] for row, own in own_records.items()}
    sets = evaluation.evaluation_sets(source, data.noise_source(), config, data.config.data_dir or None)

    def load_baseline():
        return evaluation.masked(loading.load_classifier(os.path.join(baseline_folder, "saved_model")), source.class_mask)

    with source.reading():
        return images.draw_gains(folder, source, sets, records, baseline, load_baseline)


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


def calibration_charts(records: Records) -> list[Chart]:
    """Returns reliability diagram and response-rate curve on the clean images."""
    outcomes = {}
    for row, of_row in records.items():
        if clean := next((record for record in of_row.values() if "confidences" in record), None):
            outcomes[row] = evaluation.confidences(clean), evaluation.correctness(clean)
    return [curves.reliability_diagram(outcomes), curves.response_rate_curves(outcomes)] if outcomes else []


def certified_charts(records: Records) -> list[Chart]:
    """Returns the curves of certified radii, with the accuracies of the smoothed models under attack."""
    radii, attacked = {}, {}
    for row, of_row in records.items():
        if "certified" in of_row:
            radii[row] = smoothing.radii_of(of_row["certified"])
            own = {name: one["correct"] / one["count"] for name, one in of_row.items() if name.startswith("smoothed/")}
            attacked[row] = {0.0 if name == "smoothed/clean" else float(name.rpartition("_")[2]): value for name, value in own.items()}
    return [curves.certified_curves(radii, attacked)] if radii else []


def _confidence_charts(records: Records) -> list[Chart]:
    """Returns the reliability and the risk over coverage of fitted confidences, on clean, shifted and corrupted images."""
    outcomes, binned = {}, {}
    for row, of_row in records.items():
        groups = confidence.groups([one for one in of_row.values() if "confidence" in one])
        if "" in groups and "ece" in groups[""][-1]["confidence"]:
            clean = groups[""][-1]
            outcomes[f"{row}, before scaling"] = evaluation.confidences(clean), evaluation.correctness(clean)
            outcomes[f"{row}, after scaling"] = confidence.outcomes(clean)
        if groups:
            names = {group: group.replace("_", " ").removeprefix("shift/") or "clean" for group in groups}
            binned[row] = {names[group]: np.sum([confidence.bins(one) for one in members], axis=0) for group, members in groups.items()}
    diagram = [curves.reliability_diagram(outcomes, name="reliability_scaled")] if outcomes else []
    return [*diagram, curves.reliability_by_severity(binned), curves.risk_coverage(binned)] if binned else []


def _attack_charts(records: Records, panels: Mapping[str, Sequence[str]] | None) -> list[Chart]:
    """Returns attack curves of the measured distances; `panels`: {title: rows in each row of panels}, None: all rows in one."""
    by_row = {}
    for row, of_row in records.items():
        if distances := [record for record in of_row.values() if "distances" in record]:
            by_row[row] = {record["set"].partition("/")[2]: read_distances(record) for record in distances}
    return [curves.attack_curves(by_row, panels)] if by_row else []


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
    table = aggregate(evaluations, baseline="baseline", per_image=PerImage(records_in))
    intervals, outcomes = difference_intervals(table), []
    for entry in table["rows"]:
        if entry["metric"] in mains and entry["difference"]:
            one = intervals.get((entry["row"], entry["metric"]))
            ends = interval(one.low, one.high, "+") if one else ""
            outcome: evaluation.Outcome = {
                "metric": entry["metric"],
                "bound": f"not worse than {baseline['saved_model']}",
                "value": entry["mean"],
                "met": gain(entry) >= 0 or not (one and one.significant),
                "difference": f"{value(entry['difference']['mean'], '+')} {ends}".rstrip(),
            }
            outcomes.append(outcome)
    return outcomes


def _has_no_value(metric, measured):
    """Whether a metric has no value: the distance of an attack that fails, the accuracy of a model that always abstains."""
    name, options = parse_metric(metric), measured["options"]
    if name.family == "abstention":
        return str(dataclasses.replace(name, name="coverage")) in {row["metric"] for row in measured["rows"]}
    if name.family == "distance":
        return "attack_curves" in options["evaluations"] and name.name in options["curve_attacks"]
    return name.family == "utility" and "utility" in options["evaluations"]
