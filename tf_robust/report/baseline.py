"""Compares an evaluation with that of a baseline on the same images, metric by metric."""

import dataclasses
import os
from collections.abc import Mapping

from tf_robust.evaluation import Outcome, PerImage, parse_metric, read_evaluation
from tf_robust.report import comparison
from tf_robust.report.formatting import interval, value
from tf_robust.report.metric_order import by_family, headlines_of, without_members
from tf_robust.report.tables import aggregate, difference_intervals, gain


def read_baseline(path: str) -> dict:
    """Returns the evaluation of a file `evaluation.json`, and the folder of its records as "measured_in".

    Raises:
        FileNotFoundError: the file or its records are missing.
        ValueError: it is no evaluation.
    """
    folder = os.path.dirname(os.path.abspath(path))
    for file in (path, os.path.join(folder, "measured.jsonl")):
        if not os.path.isfile(file):
            raise FileNotFoundError(
                "Expected --require_not_worse_than=DIR/evaluation.json with the records per image, measured.jsonl, next to it. "
                f"Not found: {file}. Try: tf-robust evaluate BASELINE_MODEL --workdir=DIR"
            )
    return {**read_evaluation(path), "measured_in": folder}


def main_metrics(evaluation: Mapping) -> list[str]:
    """Returns the metrics of an evaluation by which another model is compared with its model; not size and latency of a file."""
    metrics = by_family(row["metric"] for row in evaluation["rows"] if parse_metric(row["metric"]).family != "deployed")
    return headlines_of(without_members(metrics), set())


def not_worse(measured: Mapping, baseline: Mapping) -> list[Outcome]:
    """Returns the outcome of every main metric of a baseline: it is not met if the model is significantly worse on the same images.

    Args:
        measured: evaluation of the model, with "measured_in".
        baseline: evaluation of the baseline, with "measured_in".

    Raises:
        ValueError: the model lacks a main metric, or they were evaluated on different images or in different ways.
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
    table = aggregate(evaluations, baseline="baseline", per_image=PerImage(comparison.records_in))
    intervals = difference_intervals(table)
    compared = [
        (entry, entry["difference"]["mean"], intervals.get((entry["row"], entry["metric"])))
        for entry in table["rows"]
        if entry["metric"] in mains and entry["difference"]
    ]
    return [
        {
            "metric": entry["metric"],
            "bound": f"not worse than {baseline['saved_model']}",
            "value": entry["mean"],
            "met": gain(entry) >= 0 or not (one and one.significant),
            "difference": f"{value(mean, '+')} {interval(one.low, one.high, '+') if one else ''}".rstrip(),
        }
        for entry, mean, one in compared
    ]


def _has_no_value(metric, measured):
    """Whether a metric has no value: the distance of an attack that fails, the accuracy of a model that always abstains."""
    name, options = parse_metric(metric), measured["options"]
    if name.family == "abstention":
        return str(dataclasses.replace(name, name="coverage")) in {row["metric"] for row in measured["rows"]}
    if name.family == "distance":
        return "attack_curves" in options["evaluations"] and name.name in options["curve_attacks"]
    return name.family == "utility" and "utility" in options["evaluations"]
