"""Metrics with 95 % intervals over images, and their values of each image for paired tests, from the records of evaluation sets."""

import importlib.resources
import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import scipy.stats

from tf_robust import metrics
from tf_robust.configs.evaluation import ALL_SEVERITIES, EvalConfig, parse_curve, parse_threat
from tf_robust.data.source import Source
from tf_robust.evaluation import adversarial, card, confidence, smoothing
from tf_robust.evaluation.metric_table import METRICS
from tf_robust.evaluation.metric_value import CORRUPTION_FAMILIES, MetricValue, parse_metric
from tf_robust.evaluation.recording import own_records, read_records, record_key
from tf_robust.evaluation.scoring import confidences, correctness, utility_ratios
from tf_robust.utils.files import decoded, read_json

MIN_IMAGES = 10  # of a slice that may be the worst or the best: of 1,000 classes with one image each, the worst always has 0
MIN_FOR_RMS = 500  # images, five bins of the RMS calibration error: with fewer it has no interval
OTHER_ORDER = " in another order"  # end of a digest of images


def read_evaluation(path: str) -> dict:
    """Returns the content of an `evaluation.json`, which must follow evaluation.schema.json.

    Examples:
        >>> import json, pathlib
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=20)
        >>> _ = pathlib.Path("evaluation.json").write_text(json.dumps(result.evaluation))
        >>> evaluation = tfr.evaluation.read_evaluation("evaluation.json")
        >>> evaluation["row"], evaluation["rows"][0]["value"]
        ('lenet_augmix', 1.0)
    """
    return read_json(path, _schema())


def read_table(path: str) -> list[dict]:
    """Returns the evaluations of a recorded table, {"evaluations": [...]}, as in `evaluation.json`."""
    schema = {"type": "object", "required": ["evaluations"], "properties": {"evaluations": {"type": "array", "items": _schema()}}}
    return read_json(path, schema)["evaluations"]


def _schema():
    return json.loads(importlib.resources.files(__package__).joinpath("evaluation.schema.json").read_text("utf-8"))


def metrics_of(records: list[dict], eval_config: EvalConfig, imagenet: bool = False) -> list[MetricValue]:
    """Returns the metrics that an `EvalConfig` selects, from records of all sets as `recording.records` returns them.

    `imagenet`: the corrupted images are ImageNet's with ImageNet-C's constants; AlexNet's errors and flip probabilities normalize them
    (`corruptions/mce`, `flips/mfr`, `flips/rate/NAME`).
    """
    by_kind: dict[str, list[tuple[MetricValue, dict]]] = {}
    for record in records:
        by_kind.setdefault(record["kind"], []).append((parse_metric(record["set"]), record))
    accuracies = by_kind.get("accuracy", [])
    clean = next((record for name, record in accuracies if name.is_clean), {})
    values = [
        name.with_accuracy(record["correct"], record["count"])
        for name, record in accuracies
        if name.family not in CORRUPTION_FAMILIES and ("clean" in eval_config.evaluations or not name.is_clean)
    ]
    if "clean" in eval_config.evaluations and "per_class" in clean:
        values.append(MetricValue("clean", "per_class", value=clean["per_class"], count=clean["count"]))
    if "calibration" in eval_config.evaluations:
        values += [
            parse_metric(name).with_value(clean[metric.record_field], clean["count"])
            for name, metric in METRICS.items()
            if metric.record_field in clean  # records of earlier versions may lack a field
        ]
    for family, means in zip(CORRUPTION_FAMILIES, (metrics.MEANS.items(), [("mean", names) for names in metrics.BAR.values()])):
        if corrupted := [(name, record) for name, record in accuracies if name.family == family]:
            values += _corruption_metrics(family, corrupted, means, eval_config.severities, imagenet, clean)
    if sequences := by_kind.get("flips"):
        values += _flip_metrics(sequences, eval_config.sequences, imagenet)
    for _, record in by_kind.get("utility", []):
        values += [MetricValue("utility", name, value=value, count=record["count"]) for name, value in utility_ratios(record).items()]
    for _, record in by_kind.get("sensitivity", []):
        correlations = decoded(record["correlations"], np.float32)
        values.append(_with_normal_interval(MetricValue("sensitivity", "utility_correlation"), correlations, -1.0))
    for _, record in by_kind.get("certified", []):
        correct = {f"l2_{radius:g}": smoothing.certified_correct(record, radius).sum() for radius in eval_config.certified_radii}
        values += [MetricValue("certified", name).with_accuracy(int(number), record["count"]) for name, number in correct.items()]
        values.append(MetricValue("certified", "mean_radius", value=float(smoothing.radii_of(record).mean()), count=record["count"]))
        values.append(MetricValue("certified", "abstained").with_accuracy(record["abstained"], record["count"]))
    distances = by_kind.get("distances", [])
    for threat in eval_config.attack_radii if distances else ():
        norm, radius = parse_threat(threat)
        if own := [record for name, record in distances if parse_curve(name.name)[1] == norm]:
            at_radius = adversarial.correct_at(own, radius)
            values.append(MetricValue("attack_curves", threat).with_accuracy(int(at_radius.sum()), len(at_radius)))
    for name, record in distances:
        median, low, high, count = adversarial.median_interval(record)
        if np.isfinite(median):
            values.append(name.with_value(median, count, low, high if np.isfinite(high) else None))
    checks = by_kind.get("checks", [])
    for name, record in checks:
        for attack, value in record["accuracies"].items():
            values.append(MetricValue("checks", f"{name.name}/{attack}", value=value, count=record["count"]))
    if checks:
        failed = sum(len(record["failed"]) for _, record in checks)
        values.append(MetricValue("checks", "failed", value=failed, count=checks[0][1]["count"]))
    return values


def _corruption_metrics(family, corrupted, means, severities, imagenet, clean):
    """Means over corruptions, one metric per corruption, one per corruption and severity; of the 15 corruptions also ratios of errors."""
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
        count = corrupted[0][1]["count"]
        errors = {name: [1 - r["correct"] / r["count"] for r in complete[name]] for name in metrics.BENCHMARK}
        ratios = {"calibration_rms": float(np.mean([r["rms_calibration_error"] for name in metrics.BENCHMARK for r in complete[name]]))}
        if imagenet and severities == ALL_SEVERITIES:
            ratios["mce"] = metrics.mean_corruption_error(errors) / 100
            if clean:
                ratios["relative_mce"] = metrics.relative_mean_corruption_error(errors, 1 - clean["correct"] / clean["count"]) / 100
        values += [MetricValue(family, name, value=value, count=count) for name, value in ratios.items()]
    return values + [name.with_accuracy(record["correct"], record["count"]) for name, record in corrupted]


def _mean(name, records):
    """The mean of accuracies over sets of the same images; its interval is over images, which the sets share."""
    return _with_normal_interval(name, np.mean([correctness(record) for record in records], axis=0))


def _with_normal_interval(name, values, lowest=0.0):
    """A metric with the mean of values of each image, [N], from `lowest` to 1."""
    half = scipy.stats.norm.ppf(0.975) * values.std(ddof=1, dtype=np.float64) / np.sqrt(len(values)) if len(values) > 1 else np.inf
    value = float(values.mean(dtype=np.float64))
    return name.with_value(value, len(values), max(lowest, value - half), min(1.0, value + half))


def _members_of_flips(sequences):
    """{"mean": the ten perturbations, "mean_without_noise": eight of them}."""
    ten = metrics.CIFAR_PERTURBATIONS if sequences == "cifar_p" else metrics.PERTURBATIONS
    return {"mean": ten, "mean_without_noise": [name for name in ten if "noise" not in name]}


def _flip_metrics(sequences_and_records, sequences, imagenet):
    probabilities = {name.name: record["flip_probability"] for name, record in sequences_and_records}
    members, values = _members_of_flips(sequences), {}
    ten = members["mean"]
    if {*ten} <= probabilities.keys():
        values["mean"] = metrics.mean_flip_probability({name: probabilities[name] for name in ten}, ten)
        values["mean_without_noise"] = float(np.mean([probabilities[name] for name in members["mean_without_noise"]]))
        if imagenet and sequences != "cifar_p":
            rate = metrics.mean_flip_rate({name: probabilities[name] for name in ten})
            values |= {"mfr": rate["mean"] / 100, "mfr_without_noise": rate["mean_without_noise"] / 100}
            values |= {f"rate/{name}": percent / 100 for name, percent in rate["rates"].items()}
    count = sequences_and_records[0][1]["count"]
    return [MetricValue("flips", name, value=value, count=count) for name, value in {**values, **probabilities}.items()]


def slice_values(source: Source, correct: np.ndarray, column: str) -> list[MetricValue]:
    """Returns the accuracy on every class and every group of a column (empty: none), on the worst, and the gap between best and worst.

    `correct`, bool [N], are the clean images that are classified correctly. Worst and best are chosen among slices with at least 10 images;
    without any, neither is given. The 95 % interval of the worst is Wilson's for that slice alone, the one of the gap Newcombe's, from 0.
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
    """Returns the metrics of fitted confidences, from the records of all sets, among them the one of the validation images.

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
    values = []

    def add_fraction(family, name, part, total):
        named = MetricValue(family, group + name)  # without an interval over several sets, which share their images
        values.append(named.with_accuracy(part, total) if len(members) == 1 else named.with_value(part / total, count))

    def total(field):
        return sum(entry[field] for entry in entries)

    if "ece" in entries[0]:
        for name in ("rms", "ece", "brier", "nll"):
            unscaled = METRICS[f"calibration/{name}"].record_field
            for end, of_sets in (("", [entry[name] for entry in entries]), ("_before", [member[unscaled] for member in members])):
                values.append(MetricValue("calibrated", f"{group}{name}{end}").with_value(float(np.mean(of_sets)), count))
    if "answered" in entries[0]:
        add_fraction("abstention", "coverage", total("answered"), images)
        if total("answered"):
            add_fraction("abstention", "accuracy", total("answered_correct"), total("answered"))
    if "covered" in entries[0]:
        add_fraction("conformal", "coverage", total("covered"), images)
        values.append(MetricValue("conformal", f"{group}size").with_value(total("size") / images, count))
    return values


def open_set_values(records: Sequence[dict]) -> list[MetricValue]:
    """Returns `ood/NAME/auroc` and `ood/NAME/fpr95` by the largest probability, and `ood/NAME/SCORE/auroc` and `fpr95` by other scores."""
    by_name = {parse_metric(record["set"]).name: record for record in records if record["kind"] == "ood"}
    own, values = by_name.pop("", {}), []
    for name, record in by_name.items() if own else ():
        count = own["count"] + record["count"]
        for score, text in record["scores"].items():
            inside, outside = (decoded(one, np.float32) for one in (own["scores"][score], text))
            prefix = name if score == confidence.BASELINE_SCORE else f"{name}/{score}"
            values.append(MetricValue("ood", f"{prefix}/auroc", value=metrics.auroc(inside, outside), count=count))
            values.append(MetricValue("ood", f"{prefix}/fpr95", value=metrics.false_positive_rate(inside, outside), count=count))
    return values


def records_in(evaluation: Mapping) -> str:
    """Returns the folder of the records of an evaluation."""
    return evaluation.get("measured_in", os.path.dirname(evaluation["saved_model"]))


class PerImage:
    """Reads the per-image results of evaluations.

    A record is used only if it has the model, interface, data and settings of the evaluation. Evaluations by older versions, which do
    not name these, and folders without `measured.jsonl` have no per-image results. `folder_of` returns that of an evaluation.

    Examples:
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> per_image = tfr.evaluation.PerImage(lambda evaluation: result.folder)
        >>> _, correct = per_image(result.evaluation, "clean")
        >>> correct.dtype, int(correct.sum())
        (dtype('bool'), 97)
    """

    def __init__(self, folder_of: Callable[[Mapping], str] = records_in):
        self._folder_of = folder_of
        self._own: dict[tuple[str, str], dict[str, dict]] = {}  # by path and evaluation

    def __call__(self, evaluation: Mapping, metric: str) -> tuple[str, np.ndarray] | None:
        """Returns (digest of the images and their processing, values [N] whose mean is a metric), from the content of an `evaluation.json`.

        The values are bool for an accuracy on one set, else float64. None: it is not a mean over images, or its records are missing.
        The digest ends in `OTHER_ORDER` where the images of the clean set are in another order.
        """
        settings = evaluation.get("card")
        if not settings or "model_digest" not in evaluation:
            return None
        path = os.path.join(self._folder_of(evaluation), "measured.jsonl")
        key = path, record_key([evaluation[part] for part in ("model_digest", "interface", "card")])
        if key not in self._own:
            self._own[key] = own_records(evaluation, read_records(path))
        own, name, order = self._own[key], parse_metric(metric).plain, ""
        if name.entry.metric.per_image:
            values = _clean_values(own, name)
        elif name.family == "certified":
            values = _certified_values(own, name.name)
        elif name.family == "sensitivity":
            values = decoded(own["sensitivity"]["correlations"], np.float32).astype(np.float64) if "sensitivity" in own else None
        elif name.family == "attack_curves":
            norm, radius = parse_threat(name.name)
            sets = [f"distance/{attack}" for attack in settings["attack_curves"]["attacks"] if parse_curve(attack)[1] == norm]
            values = adversarial.correct_at([own[one] for one in sets], radius) if {*sets} <= own.keys() else None
        else:
            weights = _weights(name, settings)
            values = _weighted_values(own, weights)
            order = OTHER_ORDER if values is not None and any(own[one].get("order") for one in weights) else ""
        if values is None:
            return None
        return record_key(card.dependencies(None, None, settings, str(name))) + order, values


def _clean_values(own, name):
    """The values of a metric of the clean images; None for records of older versions, which have no scores of each image."""
    record = next((record for one, record in own.items() if parse_metric(one).is_clean), {})
    if "brier_scores" not in record or (str(name) == "calibration/rms" and record["count"] < MIN_FOR_RMS):
        return None
    values = name.entry.metric.per_image
    if isinstance(values, str):
        return decoded(record[values], np.float32).astype(np.float64)
    return values(confidences(record), correctness(record))


def _certified_values(own, name):
    """The values of a metric `certified/NAME`."""
    if "certified" not in own:
        return None
    if name == "mean_radius":
        return smoothing.radii_of(own["certified"])
    norm, _, radius = name.partition("_")
    return smoothing.certified_correct(own["certified"], float(radius)) if norm == "l2" else None


def _weighted_values(own, weights):
    """The weighted sum of the values of sets, {set: weight}; of one set of accuracies bool."""
    per_set = []
    for name in weights:
        record = own.get(name, {"kind": "missing"})
        if record["kind"] == "accuracy":
            per_set.append(correctness(record))
        elif record["kind"] == "flips":
            per_set.append(decoded(record["flips"], np.uint16) / (record["frames"] - 1))
        else:
            return None
    if len(per_set) == 1 and per_set[0].dtype == bool:
        return per_set[0]
    return sum(weight * values for weight, values in zip(weights.values(), per_set)) if per_set else None


def _weights(name, settings):
    """{set: weight} where the metric is the weighted sum of the sets' means, {} if it is unknown; settings: the card of the evaluation."""
    if name.family in CORRUPTION_FAMILIES:
        means_over = settings.get("corruption_means", {}).get("means_over_severities", ALL_SEVERITIES)
        severities = means_over if name.severity is None else (name.severity,)
        means = metrics.MEANS
        if name.family == "corruptions_bar":
            means = {"mean": metrics.BAR.get(settings.get("corruptions_bar", {}).get("set"), ())}
        sets = [f"{name.family}/{member}/{severity}" for member in means.get(name.name, (name.name,)) for severity in severities]
        return {one: 1 / len(sets) for one in sets}
    if name.family == "flips":
        is_rate = name.card_family == "flip_rates"
        mean = name.name.replace("mfr", "mean")
        members = _members_of_flips(settings.get("flips", {}).get("sequences")).get(mean, (name.name.removeprefix("rate/"),))
        return {f"flips/{member}": (metrics.flip_rate(1.0, member) / 100 if is_rate else 1.0) / len(members) for member in members}
    return {str(name): 1.0}
