"""Confidence fitted on validation images, and measured on clean, shifted and corrupted ones: scaling, abstention, conformal sets.

Scaling is fitted on all validation images, or on one half where a threshold or conformal sets are fitted too, for which the other half
remains. The halves are a fixed random division that depends on the number of images alone; the random number of a conformal set is a pure
function of its image's index.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import scipy.special
import tensorflow as tf

from tf_robust import data, metrics
from tf_robust.configs.evaluation import EvalConfig
from tf_robust.data.source import Source
from tf_robust.evaluation.evaluation_set import EvaluationSet
from tf_robust.evaluation.metric_table import METRICS
from tf_robust.evaluation.metric_value import MetricValue, parse_metric
from tf_robust.evaluation.scoring import collect, correctness, score_set
from tf_robust.ops import philox
from tf_robust.utils.files import decoded, encoded

SET = "confidence"  # name of the set that is fitted on
BINS = scipy.special.expit(np.linspace(-4, 16, 81))  # edges of confidences, for reliability and risk of many sets at once
_SEED = 30
_FIT, _MEASURE, _HALVES = range(3)  # purposes of draws


def fit_set(source: Source, eval_config: EvalConfig, batch_size: int) -> EvaluationSet:
    """Returns the validation images, whose record has what was fitted on them.

    Args:
        source: validation images.
        eval_config: names what is fitted.
        batch_size: images in a batch.
    """
    metric = functools.partial(_fit, eval_config=eval_config, positions=source.positions)
    return EvaluationSet(SET, lambda: data.evaluation_batches(source, batch_size), metric, source.class_mask)


def with_confidence(one: EvaluationSet, fitted: dict, eval_config: EvalConfig, positions: np.ndarray) -> EvaluationSet:
    """Returns an evaluation set whose record also has the metrics of fitted confidences.

    Args:
        one: any set; one that is not clean, shifted or corrupted is returned unchanged.
        fitted: the record of `fit_set`.
        eval_config: names what was fitted.
        positions: int [N], of its images in their data set.
    """
    if not applies_to(one.name):
        return one
    further = functools.partial(score, fitted=fitted, eval_config=eval_config, positions=positions, keep=parse_metric(one.name).is_clean)
    return dataclasses.replace(one, score=functools.partial(score_set, further=further))


def applies_to(name: str) -> bool:
    """Returns whether fitted confidences are measured on a set: clean, shifted, or corrupted."""
    return parse_metric(name).is_clean or parse_metric(name).family in ("shift", "corruptions")


def _fit(predict, evaluation_set, eval_config, positions):
    """The record of validation images: scale and bias of the logits, threshold, quantile."""
    logits, labels = collect(predict, evaluation_set)
    everything = np.arange(len(labels))
    halves = np.array_split(np.argsort(uniforms(everything, _HALVES), kind="stable"), 2)
    thresholds = bool(eval_config.abstain_accuracy or eval_config.conformal)
    scaling = halves[0] if thresholds else everything
    record: dict = {"kind": "confidence", "count": len(labels), "scale": 1.0, "bias": 0.0, "threshold": None, "quantile": None}
    if eval_config.calibrate == "temperature":
        record["scale"] = 1 / metrics.fit_temperature(logits[scaling], labels[scaling])
    if eval_config.calibrate == "vector":
        record["scale"], record["bias"] = (part.tolist() for part in metrics.fit_vector_scaling(logits[scaling], labels[scaling]))
    scaled = scale(logits, record)
    probabilities = scipy.special.softmax(scaled, axis=1)
    if eval_config.abstain_accuracy:
        outcomes = probabilities.max(axis=1), scaled.argmax(axis=1) == labels
        first, second = (tuple(part[half] for part in outcomes) for half in halves)
        threshold = metrics.accuracy_threshold(first, second, eval_config.abstain_accuracy)
        record |= {"threshold": threshold.value, "answered": threshold.answered, "correct": threshold.correct, "low": threshold.low}
    if eval_config.conformal:
        kept = everything if eval_config.calibrate == "none" else halves[1]
        scores = metrics.aps_scores(probabilities[kept], uniforms(positions[kept], _FIT))[np.arange(len(kept)), labels[kept]]
        record["quantile"] = metrics.conformal_quantile(scores, eval_config.conformal)
    return record


def score(
    logits: np.ndarray, labels: np.ndarray, *, fitted: dict, eval_config: EvalConfig, positions: np.ndarray, keep: bool = False
) -> dict:
    """Returns the entry `confidence` of a set's record.

    Args:
        logits: [N, C], as the model returns them.
        labels: int [N].
        fitted: the record of `fit_set`.
        eval_config: names what was fitted.
        positions: int [N], of the images in their data set.
        keep: include the confidence of each image.
    """
    scaled = scale(logits, fitted)
    probabilities, correct = scipy.special.softmax(scaled, axis=1), scaled.argmax(axis=1) == labels
    confidences = probabilities.max(axis=1)
    bins = np.clip(np.digitize(confidences, BINS) - 1, 0, len(BINS) - 2)
    histogram = [np.bincount(bins, weights, len(BINS) - 1) for weights in (None, correct, confidences)]
    found: dict = {"correct": int(correct.sum()), "bins": encoded(np.array(histogram, np.float64))}
    if eval_config.calibrate != "none":
        found |= {
            "rms": metrics.rms_calibration_error(confidences, correct),
            "ece": metrics.expected_calibration_error(confidences, correct),
            "brier": metrics.brier_score(probabilities, labels),
            "nll": metrics.negative_log_likelihood(np.maximum(scaled, -1e30), labels),
        }
    if fitted["threshold"] is not None:
        found["answered"], found["answered_correct"] = metrics.answered(confidences, correct, fitted["threshold"])
    if fitted["quantile"] is not None:
        scores = metrics.aps_scores(probabilities, uniforms(positions, _MEASURE))
        inside = scores <= fitted["quantile"]
        found |= {"covered": int(inside[np.arange(len(labels)), labels].sum()), "size": int(inside.sum())}
    if keep:
        found |= {"confidences": encoded(confidences.astype(np.float32)), "which": encoded(np.packbits(correct))}
    return {"confidence": found}


def scale(logits: np.ndarray, fitted: dict) -> np.ndarray:
    """Returns logits [N, C] * scale + bias, float64."""
    return np.asarray(logits, np.float64) * np.asarray(fitted["scale"]) + np.asarray(fitted["bias"])


def uniforms(indices: Sequence[int] | np.ndarray, purpose: int) -> np.ndarray:
    """Returns numbers [N] in [0, 1), each a pure function of the seed, an index and a purpose.

    Args:
        indices: int [N], >= 0.
        purpose: of the draw, int.
    """
    count = int(np.max(indices)) + 1  # draw i of a stream is the same however many are drawn
    return philox.uniform([count], tf.constant([_SEED, purpose], tf.int64)).numpy().astype(np.float64)[np.asarray(indices)]


def bins(record: dict) -> np.ndarray:
    """Returns [3, B]: number of images, of correct ones, and sum of confidences in each bin of `BINS`."""
    return decoded(record["confidence"]["bins"], np.float64).reshape(3, -1)


def outcomes(record: dict) -> tuple[np.ndarray, np.ndarray]:
    """Returns (confidences [N], correct [N]) of the clean set after scaling."""
    found = record["confidence"]
    return decoded(found["confidences"], np.float32), correctness({**record, "which": found["which"]})


def metric_values(records: Sequence[dict]) -> list[MetricValue]:
    """Returns the metrics of fitted confidences.

    `calibrated/GROUP/ece` (and rms, brier, nll; with `_before` without scaling), `abstention/GROUP/coverage` and `accuracy`,
    `conformal/GROUP/coverage` and `size`; GROUP is `severity_1` to `severity_5` or `shift/NAME`, and missing for clean images.

    Args:
        records: of all sets, among them that of the validation images.
    """
    fitted = next((record for record in records if record["kind"] == "confidence"), None)
    if fitted is None:
        return []
    found = []
    if isinstance(fitted["scale"], float) and any("ece" in record.get("confidence", {}) for record in records):
        found.append(MetricValue("calibrated", "temperature").with_value(1 / fitted["scale"], fitted["count"]))
    if fitted["threshold"] is not None:
        found.append(MetricValue("abstention", "threshold").with_value(fitted["threshold"], fitted["count"]))
    for group, members in groups(records).items():
        found += _group_metrics(f"{group}/" if group else "", members)
    return found


def groups(records: Sequence[dict]) -> dict[str, list[dict]]:
    """Returns {"" (clean), "severity_1" (over the 15 corruptions), ..., "shift/NAME": records with fitted confidences}."""
    found: dict[str, list[dict]] = {}
    for record in records:
        name = parse_metric(record["set"])
        if "confidence" not in record or (name.family == "corruptions" and name.name not in metrics.BENCHMARK):
            continue
        group = "" if name.is_clean else f"severity_{name.severity}" if name.family == "corruptions" else str(name)
        found.setdefault(group, []).append(record)
    return dict(sorted(found.items(), key=lambda entry: (entry[0] != "", entry[0].startswith("shift/"), entry[0])))


def _group_metrics(group, members):
    count, entries = members[0]["count"], [member["confidence"] for member in members]
    images = sum(member["count"] for member in members)

    def fraction(family, name, part, whole):
        named = MetricValue(family, group + name)
        return named.with_accuracy(part, whole) if len(members) == 1 else named.with_value(part / whole, count)  # sets share their images

    def total(field):
        return sum(entry[field] for entry in entries)

    found = []
    if "ece" in entries[0]:
        for name in ("rms", "ece", "brier", "nll"):
            unscaled = METRICS[f"calibration/{name}"].record_field
            for end, values in (("", [entry[name] for entry in entries]), ("_before", [member[unscaled] for member in members])):
                found.append(MetricValue("calibrated", f"{group}{name}{end}").with_value(float(np.mean(values)), count))
    if "answered" in entries[0]:
        found.append(fraction("abstention", "coverage", total("answered"), images))
        if total("answered"):
            found.append(fraction("abstention", "accuracy", total("answered_correct"), total("answered")))
    if "covered" in entries[0]:
        found.append(fraction("conformal", "coverage", total("covered"), images))
        found.append(MetricValue("conformal", f"{group}size").with_value(total("size") / images, count))
    return found
