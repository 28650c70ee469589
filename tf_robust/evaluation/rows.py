"""Records of sets -> rows of measures, with 95 % intervals over pictures."""

import dataclasses
import importlib.resources
import json

import numpy as np
import scipy.stats

from tf_robust import metrics
from tf_robust.evaluation import adversarial, utility
from tf_robust.evaluation.scoring import correctness
from tf_robust.utils.files import read_json

_CALIBRATION = {"calibration/rms": "rms_calibration_error", "calibration/ece": "expected_calibration_error",
                "calibration/brier": "brier_score", "calibration/nll": "negative_log_likelihood", "aurra": "aurra"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One measure of one model.

    Attributes:
        measure: its name. value: a fraction, but for boundaries and utilities; lower is better for flips, calibration, corruption
            errors and boundaries.
        count: pictures it was taken on. low, high: 95 % interval over pictures: Wilson's for an accuracy, normal for a
            mean of accuracies over sets of the same pictures; None where there is none.
    """
    measure: str
    value: float
    count: int
    low: float = None
    high: float = None

    @classmethod
    def of(cls, measure, correct, count):
        interval = scipy.stats.binomtest(correct, count).proportion_ci(method="wilson")
        return cls(measure, correct / count, count, interval.low, interval.high)


def read_evaluation(path):
    """The content of an `evaluation.json`, as evaluation.schema.json says; ValueError if it is otherwise."""
    return read_json(path, json.loads(importlib.resources.files(__package__).joinpath("evaluation.schema.json").read_text("utf-8")))


def rows_of(records, measuring, imagenet=False):
    """The rows that a `Measuring` asks for.

    Args:
        records: as `scoring.records` yields. measuring: says which evaluations and which ten sequences.
        imagenet: the corrupted pictures are ImageNet's with ImageNet-C's constants: AlexNet's errors and flip
            probabilities normalize them (`corruptions/mce`, `flips/mfr`, `flips/rate/NAME`).
    """
    evaluations = measuring.evaluations
    plain = [r for r in records if "correct" in r and not r["set"].startswith("corruptions/")]
    rows = [Row.of(r["set"], r["correct"], r["count"]) for r in plain if _asked(r["set"], evaluations)]
    clean = next((r for r in plain if r["set"] in ("clean", "bal")), None)
    if "clean" in evaluations and "per_class" in clean:
        rows.append(Row("clean/per_class", clean["per_class"], clean["count"]))
    if "calibration" in evaluations:
        rows += [Row(measure, clean[name], clean["count"]) for measure, name in _CALIBRATION.items()]
    corrupted = [r for r in records if r["set"].startswith("corruptions/")]
    flips = [r for r in records if r["set"].startswith("flips/")]
    return (rows + _corruption_rows(corrupted, imagenet, clean) + _flip_rows(flips, measuring.sequences, imagenet)
            + _boundary_rows(records) + _utility_rows(records) + _attack_rows(records))


def _asked(name, evaluations):
    return "clean" in evaluations or name not in ("clean", "bal")


def _corruption_rows(records, imagenet, clean):
    """`corruptions/mean15` and the like, a row a corruption, a row a corruption and severity."""
    if not records:
        return []
    found = {}
    for record in records:
        name, severity = record["set"].split("/")[1:]
        found.setdefault(name, {})[int(severity)] = record
    complete = {name: [by[severity] for severity in sorted(by)] for name, by in found.items() if len(by) == 5}
    accuracies = {name: [r["correct"] / r["count"] for r in by] for name, by in complete.items()}
    members = {**metrics.MEANS, **{name: (name,) for name in complete}}
    rows = [_mean(f"corruptions/{mean}", [r for name in members[mean] for r in complete[name]])
            for mean in members if set(members[mean]) <= complete.keys()]
    if set(metrics.BENCHMARK) <= complete.keys():
        errors = {name: [1 - a for a in accuracies[name]] for name in metrics.BENCHMARK}
        bins = [r["rms_calibration_error"] for name in metrics.BENCHMARK for r in complete[name]]
        rows.append(Row("corruptions/calibration_rms", float(np.mean(bins)), records[0]["count"]))
        if imagenet:
            rows.append(Row("corruptions/mce", metrics.mean_corruption_error(errors) / 100, records[0]["count"]))
        if imagenet and clean:
            relative = metrics.relative_mean_corruption_error(errors, 1 - clean["correct"] / clean["count"])
            rows.append(Row("corruptions/relative_mce", relative / 100, records[0]["count"]))
    return rows + [Row.of(r["set"], r["correct"], r["count"]) for r in records]


def _mean(measure, records):
    """The mean of accuracies over sets of the same pictures; its interval is over pictures, which the sets share."""
    shares = np.mean([correctness(record) for record in records], axis=0)
    half = scipy.stats.norm.ppf(0.975) * shares.std(ddof=1) / np.sqrt(len(shares)) if len(shares) > 1 else np.inf
    value = float(shares.mean())
    return Row(measure, value, len(shares), max(0.0, value - half), min(1.0, value + half))


def _flip_rows(records, sequences, imagenet):
    """`flips/mean` and the like, a row a perturbation."""
    if not records:
        return []
    found = {r["set"].removeprefix("flips/"): r["flip_probability"] for r in records}
    count = records[0]["count"]
    ten = metrics.CIFAR_PERTURBATIONS if sequences == "cifar_p" else metrics.PERTURBATIONS
    rows = []
    if set(ten) <= found.keys():
        quiet = [found[name] for name in ten if "noise" not in name]
        rows = [Row("flips/mean", metrics.mean_flip_probability({name: found[name] for name in ten}, ten), count),
                Row("flips/mean_without_noise", float(np.mean(quiet)), count)]
        if imagenet and sequences != "cifar_p":
            rate = metrics.mean_flip_rate({name: found[name] for name in ten})
            rows += [Row("flips/mfr", rate["mean"] / 100, count), Row("flips/mfr_without_noise", rate["mean_without_noise"] / 100, count)]
            rows += [Row(f"flips/rate/{name}", percent / 100, count) for name, percent in rate["rates"].items()]
    return rows + [Row(f"flips/{name}", value, count) for name, value in found.items()]


def _boundary_rows(records):
    """`boundary/length` and, where there is a boundary, `boundary/gradient`."""
    return [Row(f"boundary/{name}", record[name], record["count"]) for record in records if record["set"] == "boundary"
            for name in ("length", "gradient") if record[name] is not None]


def _utility_rows(records):
    """`utility/corner_informative` and `utility/corner_uninformative`."""
    return [Row(f"utility/{name}", value, record["count"]) for record in records if record["set"] == "utility"
            for name, value in utility.ratios(record).items()]


def _attack_rows(records):
    """Median distances, with what the attacks' checks say: the accuracies, and how many are not in order."""
    rows = []
    for record in (r for r in records if r["set"].startswith("distance/")):
        median, low, high, count = adversarial.medians(record)
        if np.isfinite(median):
            rows.append(Row(record["set"], median, count, low, high if np.isfinite(high) else None))
    checks = [r for r in records if r["set"].startswith("checks/")]
    rows += [Row(f"{r['set']}/{name}", value, r["count"]) for r in checks for name, value in r["accuracies"].items()]
    return rows + [Row("checks/failed", sum(len(r["failed"]) for r in checks), checks[0]["count"])] if checks else rows
