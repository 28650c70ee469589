"""Per-image results of evaluations, for paired tests: read from the records next to `evaluation.json`."""

import os
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas

from tf_robust import metrics
from tf_robust.configs.evaluation import ALL_SEVERITIES, parse_curve, parse_threat
from tf_robust.evaluation import adversarial, card, smoothing
from tf_robust.evaluation.metric_value import CORRUPTION_FAMILIES, parse_metric
from tf_robust.evaluation.recording import per_image_folder, read_records, record_key, shards_module
from tf_robust.evaluation.scoring import confidences, correctness
from tf_robust.utils.arrays import decoded

MIN_FOR_RMS = 500  # images, five bins of the RMS calibration error: with fewer it has no interval
OTHER_ORDER = " in another order"  # end of a digest of images


class PerImage:
    """Reads the per-image results of evaluations.

    A record is used only if it has the model, interface, data and settings of the evaluation. Evaluations by older versions, which do
    not name these, and folders without `measured.jsonl` have no per-image results.

    Args:
        folder_of: evaluation -> the folder of its `measured.jsonl`.
    """

    def __init__(self, folder_of: Callable[[Mapping], str]):
        self._folder_of = folder_of
        self._files: dict[str, list[dict]] = {}  # by path
        self._own: dict[tuple[str, str], dict[str, dict]] = {}  # by path and evaluation

    def __call__(self, evaluation: Mapping, metric: str) -> tuple[str, np.ndarray] | None:
        """Returns the values whose mean is a metric.

        Args:
            evaluation: content of an `evaluation.json`.
            metric: the name of one of its metrics.

        Returns:
            (digest of the images and their processing, array [N]: bool for an accuracy on one set, else float64), or None if the metric
            is not a mean over images or its records are missing. The digest ends in `OTHER_ORDER` where the images are those of the
            clean set in another order.
        """
        name = parse_metric(metric).plain
        weights = _weights(name, evaluation)
        if not weights or not evaluation.get("card") or "model_digest" not in evaluation:
            return None
        own = self._records(evaluation)
        if name.entry.metric.per_image:
            return self._of_clean(evaluation, own, name)
        if name.family == "certified":
            return self._certified(evaluation, own, name)
        if name.family == "attack_curves":
            return self._minimum_norm(evaluation, own, name)
        values = [_values(own[name]) for name in weights if name in own]
        per_set = [value for value in values if value is not None]
        if len(per_set) < len(weights):
            return None
        images = record_key(card.dependencies(None, None, evaluation["card"], str(name)))
        if any(own[name].get("order") for name in weights):
            images += OTHER_ORDER
        if len(per_set) == 1 and per_set[0].dtype == bool:
            return images, per_set[0]
        return images, sum(weight * value for weight, value in zip(weights.values(), per_set))

    def _of_clean(self, evaluation, own, name):
        """The values of a metric of the clean images; None for records of older versions, which have no scores of each image."""
        record = next((record for one, record in own.items() if parse_metric(one).is_clean), None)
        if record is None or "brier_scores" not in record:
            return None
        if str(name) == "calibration/rms" and len(correctness(record)) < MIN_FOR_RMS:
            return None
        values = name.entry.metric.per_image
        if isinstance(values, str):
            values = decoded(record[values], np.float32).astype(np.float64)
        else:
            values = values(confidences(record), correctness(record))
        return record_key(card.dependencies(None, None, evaluation["card"], str(name))), values

    def _certified(self, evaluation, own, name):
        """The values of a metric of the certified radii."""
        if "certified" not in own:
            return None
        record, (norm, _, radius) = own["certified"], name.name.partition("_")
        certified = smoothing.radii_of(record) if name.name == "mean_radius" else None
        if norm == "l2":
            certified = smoothing.certified_correct(record, float(radius))
        if certified is None:
            return None
        return record_key(card.dependencies(None, None, evaluation["card"], str(name))), certified

    def _minimum_norm(self, evaluation, own, name):
        """The values of an accuracy under the attacks that search for the smallest perturbation."""
        norm, radius = parse_threat(name.name)
        attacks = [attack for attack in evaluation["card"]["attack_curves"]["attacks"] if parse_curve(attack)[1] == norm]
        if any(f"distance/{attack}" not in own for attack in attacks):
            return None
        correct = adversarial.correct_at([own[f"distance/{attack}"] for attack in attacks], radius)
        return record_key(card.dependencies(None, None, evaluation["card"], str(name))), correct

    def _records(self, evaluation):
        """Returns {set: record} for the records of this evaluation."""
        path = os.path.join(self._folder_of(evaluation), "measured.jsonl")
        key = path, record_key(_origin(evaluation))
        if key not in self._own:
            if path not in self._files:
                self._files[path] = read_records(path)
            self._own[key] = own_records(evaluation, self._files[path])
        return self._own[key]


def own_records(evaluation: Mapping, records: Iterable[dict]) -> dict[str, dict]:
    """Returns {set: record} of the records that have the model, interface, data and settings of an evaluation.

    Args:
        evaluation: content of an `evaluation.json`.
        records: as `read_records` returns them.
    """
    model, interface, settings = _origin(evaluation)
    return {
        record["set"]: record
        for record in records
        if record["depends"] == record_key(card.dependencies(model, interface, settings, record["set"]))
    }


def images_of(evaluation: Mapping, folder: str, name: str) -> pandas.DataFrame | None:
    """Returns the results of each image of a set that was evaluated with `per_image`, or None if there are none of this evaluation.

    Args:
        evaluation: content of an `evaluation.json`.
        folder: of its records.
        name: of the set.

    Raises:
        ImportError: the extra `[parquet]` is not installed.
    """
    model, interface, settings = _origin(evaluation)
    depends = record_key(card.dependencies(model, interface, settings, name))
    return shards_module().read(per_image_folder(folder, name), depends)


def _origin(evaluation):
    return evaluation["model_digest"], evaluation["interface"], evaluation["card"]


def _values(record):
    if record["kind"] == "accuracy":
        return correctness(record)
    if record["kind"] == "flips":
        return decoded(record["flips"], np.uint16) / (record["frames"] - 1)
    return None


def _weights(name, evaluation):
    """Returns {set: weight} where the metric is the weighted sum of the sets' means."""
    if name.family in CORRUPTION_FAMILIES:
        means_over = evaluation.get("card", {}).get("corruption_means", {}).get("means_over_severities", ALL_SEVERITIES)
        severities = means_over if name.severity is None else (name.severity,)
        means = metrics.MEANS
        if name.family == "corruptions_bar":
            means = {"mean": metrics.BAR.get(evaluation.get("card", {}).get("corruptions_bar", {}).get("set"), ())}
        sets = [f"{name.family}/{member}/{severity}" for member in means.get(name.name, (name.name,)) for severity in severities]
        return dict.fromkeys(sets, 1 / len(sets))
    if name.family == "flips":
        sequences = evaluation.get("card", {}).get("flips", {}).get("sequences")
        ten = metrics.CIFAR_PERTURBATIONS if sequences == "cifar_p" else metrics.PERTURBATIONS
        without_noise = [member for member in ten if "noise" not in member]
        means = {"mean": ten, "mfr": ten, "mean_without_noise": without_noise, "mfr_without_noise": without_noise}
        members = means.get(name.name, (name.name.removeprefix("rate/"),))
        return {
            f"flips/{member}": (metrics.flip_rate(1.0, member) / 100 if name.is_flip_rate else 1.0) / len(members) for member in members
        }
    return {str(name): 1.0}
