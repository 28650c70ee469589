"""Per-image results of a measurement, from the records beside its `evaluation.json`: what paired tests compare."""

import os

import numpy as np

from tf_robust import metrics
from tf_robust.evaluation import card
from tf_robust.evaluation.measure import parse_measure
from tf_robust.evaluation.scoring import correctness, decoded, read_records, record_key


class PerImage:
    """Reads the per-image results of evaluations.

    A record counts only if it is of the model, the interface, the data and the settings that the evaluation names. Evaluations that
    do not name them (written by an older version), and folders without `measured.jsonl`, give None.

    Args:
        folder_of: evaluation -> the folder of its `measured.jsonl`.
    """

    def __init__(self, folder_of):
        self._folder_of, self._read, self._own = folder_of, {}, {}

    def __call__(self, evaluation, measure):
        """The values whose mean is a measure.

        Args:
            evaluation: content of an `evaluation.json`. measure: the name of one of its measures.

        Returns:
            (digest of the images and of what was done to them, array [N]: bool for an accuracy on one set, else float64), or None: the
            measure is no mean over images, or its records are not there
        """
        name = parse_measure(measure).plain
        weights = _weights(name, evaluation)
        if not weights or not evaluation.get("card") or "model_digest" not in evaluation:
            return None
        records = [self._records(evaluation).get(name) for name in weights]
        values = [None if record is None else _values(record) for record in records]
        if any(value is None for value in values):
            return None
        same = card.dependencies(None, None, evaluation["card"], str(name))
        values = (
            values[0]
            if len(values) == 1 and values[0].dtype == bool
            else sum(weight * value for weight, value in zip(weights.values(), values))
        )
        return record_key(same), values

    def _records(self, evaluation):
        """{set: record} of the records that are this evaluation's."""
        path = os.path.join(self._folder_of(evaluation), "measured.jsonl")
        told = evaluation["model_digest"], evaluation["interface"], evaluation["card"]
        key = path, record_key(told)
        if key not in self._own:
            if path not in self._read:
                self._read[path] = read_records(path)
            self._own[key] = {
                record["set"]: record
                for record in self._read[path]
                if record["depends"] == record_key(card.dependencies(*told, record["set"]))
            }
        return self._own[key]


def _values(record):
    if record["kind"] == "accuracy":
        return correctness(record)
    if record["kind"] == "flips":
        return decoded(record["flips"], np.uint16) / (record["frames"] - 1)
    return None


def _weights(name, evaluation):
    """Returns {set: weight}: the measure is the weighted sum of the sets' means; empty if it is no such sum."""
    if name.family == "corruptions":
        severities = range(1, 6) if name.severity is None else (name.severity,)
        sets = [f"corruptions/{member}/{severity}" for member in metrics.MEANS.get(name.name, (name.name,)) for severity in severities]
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
