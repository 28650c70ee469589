"""Metrics, with 95 % intervals over images, from the records of evaluation sets."""

import importlib.resources
import json
import operator
from collections.abc import Sequence

import numpy as np
import scipy.stats

from tf_robust import metrics
from tf_robust.configs.evaluation import ALL_SEVERITIES, EvalConfig, parse_curve, parse_threat
from tf_robust.data.source import Source
from tf_robust.evaluation import adversarial, confidence, smoothing
from tf_robust.evaluation.metric_table import METRICS
from tf_robust.evaluation.metric_value import CORRUPTION_FAMILIES, MetricValue, parse_metric
from tf_robust.evaluation.scoring import correctness, utility_ratios
from tf_robust.utils.files import decoded, read_json

MIN_IMAGES = 10  # of a slice that may be the worst or the best: of 1,000 classes with one image each, the worst always has 0


def read_evaluation(path: str) -> dict:
    """Returns the content of an `evaluation.json`, which must follow evaluation.schema.json."""
    return read_json(path, _schema())


def read_table(path: str) -> list[dict]:
    """Returns the evaluations of a recorded table, {"evaluations": [...]}, as in `evaluation.json`."""
    schema = {"type": "object", "required": ["evaluations"], "properties": {"evaluations": {"type": "array", "items": _schema()}}}
    return read_json(path, schema)["evaluations"]


def _schema():
    return json.loads(importlib.resources.files(__package__).joinpath("evaluation.schema.json").read_text("utf-8"))


def metrics_of(records: list[dict], eval_config: EvalConfig, imagenet: bool = False) -> list[MetricValue]:
    """Returns the metrics that an `EvalConfig` selects, from records as `recording.records` returns them.

    Args:
        records: of all sets.
        eval_config: names the evaluations and the ten perturbation sequences.
        imagenet: the corrupted images are ImageNet's with ImageNet-C's constants; AlexNet's errors and flip probabilities normalize
            them (`corruptions/mce`, `flips/mfr`, `flips/rate/NAME`).
    """
    by_kind: dict[str, list[tuple[MetricValue, dict]]] = {}
    for record in records:
        by_kind.setdefault(record["kind"], []).append((parse_metric(record["set"]), record))
    accuracies = by_kind.get("accuracy", [])
    clean = next((record for name, record in accuracies if name.is_clean), None)
    values = _accuracy_metrics(accuracies, clean, eval_config.evaluations)
    for family, means in zip(CORRUPTION_FAMILIES, (metrics.MEANS.items(), [("mean", names) for names in metrics.BAR.values()])):
        corrupted = [(name, record) for name, record in accuracies if name.family == family]
        values += _corruption_metrics(corrupted, means, eval_config.severities, imagenet, clean)
    values += _flip_metrics(by_kind.get("flips", []), eval_config.sequences, imagenet)
    values += [
        MetricValue("utility", name, value=value, count=record["count"])
        for _, record in by_kind.get("utility", [])
        for name, value in utility_ratios(record).items()
    ]
    for _, record in by_kind.get("certified", []):
        values += _certified_metrics(record, eval_config.certified_radii)
    values += _distance_metrics(by_kind.get("distances", []), eval_config.attack_radii)
    checks = by_kind.get("checks", [])
    values += [
        MetricValue("checks", f"{name.name}/{attack}", value=value, count=record["count"])
        for name, record in checks
        for attack, value in record["accuracies"].items()
    ]
    if checks:
        failed = sum(len(record["failed"]) for _, record in checks)
        values.append(MetricValue("checks", "failed", value=failed, count=checks[0][1]["count"]))
    return values


def _accuracy_metrics(accuracies, clean, evaluations):
    """Accuracies on sets, and the accuracy per class and calibration on the clean set."""
    values = [
        name.with_accuracy(record["correct"], record["count"])
        for name, record in accuracies
        if name.family not in CORRUPTION_FAMILIES and ("clean" in evaluations or not name.is_clean)
    ]
    if "clean" in evaluations and "per_class" in clean:
        values.append(MetricValue("clean", "per_class", value=clean["per_class"], count=clean["count"]))
    if "calibration" in evaluations:
        values += [
            parse_metric(name).with_value(clean[metric.record_field], clean["count"])
            for name, metric in METRICS.items()
            if metric.record_field and metric.record_field in clean  # records of earlier versions may lack a field
        ]
    return values


def _corruption_metrics(corrupted, means, severities, imagenet, clean):
    """Means over corruptions, one metric per corruption, one per corruption and severity; of the 15 corruptions also ratios of errors."""
    if not corrupted:
        return []
    family, count = corrupted[0][0].family, corrupted[0][1]["count"]
    by_name: dict[str, dict[int, dict]] = {}
    for name, record in corrupted:
        by_name.setdefault(name.name, {})[name.severity] = record
    complete = {name: [records[severity] for severity in severities] for name, records in by_name.items() if {*severities} <= {*records}}
    values = [
        _mean(MetricValue(family, mean), [record for name in names for record in complete[name]])
        for mean, names in [*means, *((name, (name,)) for name in complete)]
        if {*names} <= complete.keys()
    ]
    if {*metrics.BENCHMARK} <= complete.keys():
        errors = {name: [1 - r["correct"] / r["count"] for r in complete[name]] for name in metrics.BENCHMARK}
        calibration = [r["rms_calibration_error"] for name in metrics.BENCHMARK for r in complete[name]]
        values.append(MetricValue(family, "calibration_rms", value=float(np.mean(calibration)), count=count))
        if imagenet and severities == ALL_SEVERITIES:
            values.append(MetricValue(family, "mce", value=metrics.mean_corruption_error(errors) / 100, count=count))
        if imagenet and severities == ALL_SEVERITIES and clean:
            relative = metrics.relative_mean_corruption_error(errors, 1 - clean["correct"] / clean["count"])
            values.append(MetricValue(family, "relative_mce", value=relative / 100, count=count))
    return values + [name.with_accuracy(record["correct"], record["count"]) for name, record in corrupted]


def _mean(name, records):
    """The mean of accuracies over sets of the same images; its interval is over images, which the sets share."""
    fractions = np.mean([correctness(record) for record in records], axis=0)
    half = scipy.stats.norm.ppf(0.975) * fractions.std(ddof=1) / np.sqrt(len(fractions)) if len(fractions) > 1 else np.inf
    value = float(fractions.mean())
    return name.with_value(value, len(fractions), max(0.0, value - half), min(1.0, value + half))


def _flip_metrics(sequences_and_records, sequences, imagenet):
    """`flips/mean` and other means, one metric per perturbation."""
    if not sequences_and_records:
        return []
    probabilities = {name.name: record["flip_probability"] for name, record in sequences_and_records}
    count = sequences_and_records[0][1]["count"]

    def of_name(name, value):
        return MetricValue("flips", name, value=value, count=count)

    ten = metrics.CIFAR_PERTURBATIONS if sequences == "cifar_p" else metrics.PERTURBATIONS
    values = []
    if set(ten) <= probabilities.keys():
        without_noise = [probabilities[name] for name in ten if "noise" not in name]
        values = [
            of_name("mean", metrics.mean_flip_probability({name: probabilities[name] for name in ten}, ten)),
            of_name("mean_without_noise", float(np.mean(without_noise))),
        ]
        if imagenet and sequences != "cifar_p":
            rate = metrics.mean_flip_rate({name: probabilities[name] for name in ten})
            values += [of_name("mfr", rate["mean"] / 100), of_name("mfr_without_noise", rate["mean_without_noise"] / 100)]
            values += [of_name(f"rate/{name}", percent / 100) for name, percent in rate["rates"].items()]
    return values + [of_name(name, value) for name, value in probabilities.items()]


def _distance_metrics(distances, threats):
    """Accuracies under all attacks that search for the smallest perturbation in the norm of a threat.

    Then the median sizes of these perturbations, where at least half of the images have one.
    """
    values = []
    for threat in threats:
        norm, radius = parse_threat(threat)
        if own := [record for name, record in distances if parse_curve(name.name)[1] == norm]:
            correct = adversarial.correct_at(own, radius)
            values.append(MetricValue("attack_curves", threat).with_accuracy(int(correct.sum()), len(correct)))
    for name, record in distances:
        median, low, high, count = adversarial.median_interval(record)
        if np.isfinite(median):
            values.append(name.with_value(median, count, low, high if np.isfinite(high) else None))
    return values


def _certified_metrics(record, radii):
    """Certified accuracies at some radii, the mean certified radius, and the fraction of images without a decision."""
    return [
        *(
            MetricValue("certified", f"l2_{radius:g}").with_accuracy(
                int(smoothing.certified_correct(record, radius).sum()), record["count"]
            )
            for radius in radii
        ),
        MetricValue("certified", "mean_radius", value=float(smoothing.radii_of(record).mean()), count=record["count"]),
        MetricValue("certified", "abstained").with_accuracy(record["abstained"], record["count"]),
    ]


def slice_values(source: Source, correct: np.ndarray, column: str) -> list[MetricValue]:
    """Returns the accuracy on every class and every group of a column (empty: none), on the worst, and the gap between best and worst.

    Of the clean images, `correct`, bool [N], are classified correctly. The worst and the best are those with at least 10 images; without
    any, neither is given. The 95 % interval of the worst is Wilson's for that slice alone, that of the gap Newcombe's, from 0.
    """
    values = _slice_metrics("class", "classes", np.asarray(source.class_names, dtype=str)[np.asarray(source.labels)], correct)
    if column:
        names = np.asarray(source.columns[column], dtype=str)[source.positions]  # type: ignore[index]
        values += _slice_metrics("group", "groups", names, correct)
    return values


def _slice_metrics(family, family_of_all, names, correct):
    slices = [
        MetricValue(family, name).with_accuracy(int(correct[names == name].sum()), int((names == name).sum())) for name in np.unique(names)
    ]
    compared = [one for one in slices if one.count >= MIN_IMAGES]
    if not compared:
        return slices
    worst, best = (choose(compared, key=operator.attrgetter("value")) for choose in (min, max))
    interval = (None, None)
    if len(compared) > 1:
        low, high = metrics.newcombe_interval(*((one.value, one.low, one.high) for one in (best, worst)))
        interval = max(0.0, low), min(1.0, high)
    return [
        MetricValue(family_of_all, "worst").with_value(worst.value, worst.count, worst.low, worst.high),
        MetricValue(family_of_all, "gap").with_value(best.value - worst.value, best.count + worst.count, *interval),
        *slices,
    ]


def confidence_values(records: Sequence[dict]) -> list[MetricValue]:
    """Returns the metrics of fitted confidences, from the records of all sets, among them that of the validation images.

    `calibrated/GROUP/ece` (and rms, brier, nll; with `_before` without scaling), `abstention/GROUP/coverage` and `accuracy`,
    `conformal/GROUP/coverage` and `size`; GROUP is `severity_1` to `severity_5` or `shift/NAME`, and missing for clean images.
    """
    fitted = next((record for record in records if record["kind"] == "confidence"), None)
    if fitted is None:
        return []
    values = []
    if isinstance(fitted["scale"], float) and any("ece" in record.get("confidence", {}) for record in records):
        values.append(MetricValue("calibrated", "temperature").with_value(1 / fitted["scale"], fitted["count"]))
    if fitted["threshold"] is not None:
        values.append(MetricValue("abstention", "threshold").with_value(fitted["threshold"], fitted["count"]))
    for group, members in confidence.groups(records).items():
        values += _group_metrics(f"{group}/" if group else "", members)
    return values


def _group_metrics(group, members):
    count, entries = members[0]["count"], [member["confidence"] for member in members]
    images = sum(member["count"] for member in members)

    def fraction(family, name, part, whole):
        named = MetricValue(family, group + name)
        return named.with_accuracy(part, whole) if len(members) == 1 else named.with_value(part / whole, count)  # sets share their images

    def total(field):
        return sum(entry[field] for entry in entries)

    values = []
    if "ece" in entries[0]:
        for name in ("rms", "ece", "brier", "nll"):
            unscaled = METRICS[f"calibration/{name}"].record_field
            for end, of_sets in (("", [entry[name] for entry in entries]), ("_before", [member[unscaled] for member in members])):
                values.append(MetricValue("calibrated", f"{group}{name}{end}").with_value(float(np.mean(of_sets)), count))
    if "answered" in entries[0]:
        values.append(fraction("abstention", "coverage", total("answered"), images))
        if total("answered"):
            values.append(fraction("abstention", "accuracy", total("answered_correct"), total("answered")))
    if "covered" in entries[0]:
        values.append(fraction("conformal", "coverage", total("covered"), images))
        values.append(MetricValue("conformal", f"{group}size").with_value(total("size") / images, count))
    return values


def open_set_values(records: Sequence[dict]) -> list[MetricValue]:
    """Returns `ood/NAME/auroc` and `ood/NAME/fpr95` by the largest probability, and `ood/NAME/SCORE/auroc` and `fpr95` by other scores."""
    by_name = {parse_metric(record["set"]).name: record for record in records if record["kind"] == "ood"}
    if "" not in by_name:
        return []
    own, values = by_name.pop(""), []
    for name, record in by_name.items():
        for score, text in record["scores"].items():
            inside, outside = (decoded(one, np.float32) for one in (own["scores"][score], text))
            prefix = name if score == confidence.BASELINE_SCORE else f"{name}/{score}"
            count = own["count"] + record["count"]
            values.append(MetricValue("ood", f"{prefix}/auroc", value=metrics.auroc(inside, outside), count=count))
            values.append(MetricValue("ood", f"{prefix}/fpr95", value=metrics.false_positive_rate(inside, outside), count=count))
    return values
