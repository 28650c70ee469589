"""Per-image results of a measurement, from the records beside its `evaluation.json`: what paired tests compare."""

import os

import numpy as np

from tf_robust import metrics
from tf_robust.evaluation import card
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
        weights = _weights(card.plain(measure), evaluation)
        if not weights or not evaluation.get("card") or "model_digest" not in evaluation:
            return None
        records = [self._records(evaluation).get(name) for name in weights]
        values = [None if record is None else _values(record) for record in records]
        if any(value is None for value in values):
            return None
        same = card.dependencies(None, None, evaluation["card"], card.plain(measure))
        values = values[0] if len(values) == 1 and values[0].dtype == bool else sum(
            weight * value for weight, value in zip(weights.values(), values))
        return record_key(same), values

    def _records(self, evaluation):
        """{set: record} of the records that are this evaluation's."""
        path = os.path.join(self._folder_of(evaluation), "measured.jsonl")
        told = evaluation["model_digest"], evaluation["interface"], evaluation["card"]
        key = path, record_key(told)
        if key not in self._own:
            if path not in self._read:
                self._read[path] = read_records(path)
            self._own[key] = {record["set"]: record for record in self._read[path]
                              if record["depends"] == record_key(card.dependencies(*told, record["set"]))}
        return self._own[key]


def _values(record):
    if "which" in record:
        return correctness(record)
    if "flips" in record:
        return decoded(record["flips"], np.uint16) / (record["frames"] - 1)
    return None


def _weights(measure, evaluation):
    """{set: weight}: the measure is the weighted sum of the sets' means; empty if it is none."""
    first, *rest = measure.split("/")
    if first == "corruptions":
        names = metrics.MEANS.get(rest[0], rest[:1])
        sets = [f"corruptions/{name}/{severity}" for name in names for severity in (rest[1:] or range(1, 6))]
        return dict.fromkeys(sets, 1 / len(sets))
    if first == "flips":
        told = evaluation.get("card", {}).get("flips", {})
        ten = metrics.CIFAR_PERTURBATIONS if told.get("sequences") == "cifar_p" else metrics.PERTURBATIONS
        names = {"mean": ten, "mean_without_noise": [name for name in ten if "noise" not in name]}
        names = {**names, "mfr": names["mean"], "mfr_without_noise": names["mean_without_noise"]}.get(rest[0], rest[-1:])
        rates = rest[0] in ("mfr", "mfr_without_noise", "rate")
        return {f"flips/{name}": (metrics.flip_rate(1.0, name) / 100 if rates else 1.0) / len(names) for name in names}
    return {measure: 1.0}
