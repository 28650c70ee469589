"""Scores of images beside the prediction: confidence fitted on validation images, and scores that recognize other classes.

Confidence is measured on clean, shifted and corrupted images: scaling, abstention, conformal sets. Scaling is fitted on all validation
images, or on one half where a threshold or conformal sets are fitted too, for which the other half remains. The halves are a fixed random
division that depends on the number of images alone; the random number of a conformal set is a pure function of its image's index.
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
from tf_robust.data.subsets import stratified_subset
from tf_robust.evaluation import scoring
from tf_robust.evaluation.metric_value import parse_metric
from tf_robust.evaluation.scoring import EvaluationSet
from tf_robust.ops import philox
from tf_robust.saved_models.loading import Classifier
from tf_robust.utils.files import decoded, encoded

BINS = scipy.special.expit(np.linspace(-4, 16, 81))  # edges of confidences, for reliability and risk of many sets at once
_SEED = 30
_FIT, _MEASURE, _HALVES = range(3)  # purposes of draws
KNOWN = 10_000  # training images whose embeddings are known
NEIGHBORS = 0.001  # k as a fraction of them: 50 of 50,000 and 10 of 12,800 in Sun et al.
BASELINE_SCORE = "max_softmax"  # the score of `ood/NAME/auroc`


def validation_set(source: Source, eval_config: EvalConfig) -> EvaluationSet:
    """Returns the validation images, whose record has what was fitted on them."""
    score = functools.partial(_fit, eval_config=eval_config, positions=source.positions)
    return EvaluationSet("confidence", lambda: scoring.clean_batches(source), score, source.class_mask)


def with_confidence(one: EvaluationSet, fitted: dict, eval_config: EvalConfig, positions: np.ndarray) -> EvaluationSet:
    """Returns an evaluation set whose record also has the metrics of fitted confidences; others than `applies_to` unchanged.

    `fitted` is the record of `validation_set`; the positions, int [N], locate the images in their data set.
    """
    if not applies_to(one.name):
        return one
    keep = parse_metric(one.name).is_clean
    further = functools.partial(_score_confidence, fitted=fitted, eval_config=eval_config, positions=positions, keep=keep)
    return dataclasses.replace(one, score=functools.partial(scoring.score_set, further=further))


def applies_to(name: str) -> bool:
    """Returns whether fitted confidences are measured on a set: clean, shifted, or corrupted."""
    parsed = parse_metric(name)
    return parsed.is_clean or parsed.family in ("shift", "corruptions")


def _fit(predict, evaluation_set, eval_config, positions):
    """The record of validation images: scale and bias of the logits, threshold, quantile."""
    logits, labels = scoring.collect(predict, evaluation_set)
    everything = np.arange(len(labels))
    halves = np.array_split(np.argsort(uniforms(everything, _HALVES), kind="stable"), 2)
    scaling = halves[0] if eval_config.abstain_accuracy or eval_config.conformal else everything
    record: dict = {"kind": "confidence", "count": len(labels), "scale": 1.0, "bias": 0.0, "threshold": None, "quantile": None}
    if eval_config.calibrate == "temperature":
        record["scale"] = 1 / metrics.fit_temperature(logits[scaling], labels[scaling])
    if eval_config.calibrate == "vector":
        record["scale"], record["bias"] = (part.tolist() for part in metrics.fit_vector_scaling(logits[scaling], labels[scaling]))
    probabilities, confidences, correct, _ = _scaled_results(logits, labels, record)
    if eval_config.abstain_accuracy:
        first, second = ((confidences[half], correct[half]) for half in halves)
        threshold = metrics.accuracy_threshold(first, second, eval_config.abstain_accuracy)
        record |= {"threshold": threshold.value, "answered": threshold.answered, "correct": threshold.correct, "low": threshold.low}
    if eval_config.conformal:
        kept = everything if eval_config.calibrate == "none" else halves[1]
        scores = metrics.aps_scores(probabilities[kept], uniforms(positions[kept], _FIT))[np.arange(len(kept)), labels[kept]]
        record["quantile"] = metrics.conformal_quantile(scores, eval_config.conformal)
    return record


def _scaled_results(logits, labels, fitted):
    """(probabilities [N, C], confidences [N], correct [N], logits [N, C]) after scaling, float64."""
    scaled = np.asarray(logits, np.float64) * np.asarray(fitted["scale"]) + np.asarray(fitted["bias"])
    probabilities = scipy.special.softmax(scaled, axis=1)
    return probabilities, probabilities.max(axis=1), scaled.argmax(axis=1) == labels, scaled


def _score_confidence(logits, labels, *, fitted, eval_config, positions, keep):
    """The entry `confidence` of a set's record, with `keep` also the confidence of each image; logits as the model returns them."""
    probabilities, confidences, correct, scaled = _scaled_results(logits, labels, fitted)
    bins = np.clip(np.digitize(confidences, BINS) - 1, 0, len(BINS) - 2)
    histogram = [np.bincount(bins, weights, len(BINS) - 1) for weights in (None, correct, confidences)]
    entry: dict = {"correct": int(correct.sum()), "bins": encoded(np.array(histogram, np.float64))}
    if eval_config.calibrate != "none":
        entry |= {
            "rms": metrics.rms_calibration_error(confidences, correct),
            "ece": metrics.expected_calibration_error(confidences, correct),
            "brier": metrics.brier_score(probabilities, labels),
            "nll": metrics.negative_log_likelihood(np.maximum(scaled, -1e30), labels),
        }
    if fitted["threshold"] is not None:
        entry["answered"], entry["answered_correct"] = metrics.answered(confidences, correct, fitted["threshold"])
    if fitted["quantile"] is not None:
        inside = metrics.aps_scores(probabilities, uniforms(positions, _MEASURE)) <= fitted["quantile"]
        entry |= {"covered": int(inside[np.arange(len(labels)), labels].sum()), "size": int(inside.sum())}
    if keep:
        entry |= {"confidences": encoded(confidences.astype(np.float32)), "which": encoded(np.packbits(correct))}
    return {"confidence": entry}


def uniforms(indices: Sequence[int] | np.ndarray, purpose: int) -> np.ndarray:
    """Returns numbers [N] in [0, 1), each a pure function of the seed, an index >= 0 and the purpose of the draw."""
    count = int(np.max(indices)) + 1  # draw i of a stream is the same however many are drawn
    return philox.uniform([count], tf.constant([_SEED, purpose], tf.int64)).numpy().astype(np.float64)[np.asarray(indices)]


def bins(record: dict) -> np.ndarray:
    """Returns [3, B]: number of images, of correct ones, and sum of confidences in each bin of `BINS`."""
    return decoded(record["confidence"]["bins"], np.float64).reshape(3, -1)


def outcomes(record: dict) -> tuple[np.ndarray, np.ndarray]:
    """Returns (confidences [N], correct [N]) of the clean set after scaling."""
    entry = record["confidence"]
    return decoded(entry["confidences"], np.float32), scoring.correctness({**record, "which": entry["which"]})


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


@dataclasses.dataclass(frozen=True)
class OpenSets:
    """Data sets of other classes, and what scores of them need."""

    sources: dict[str, Source] = dataclasses.field(default_factory=dict)  # {name in metrics: images}; their labels are not used
    model: Classifier | None = None  # has an output `embedding`; None: there are no scores by nearest neighbors
    known: Source | None = None  # training images for nearest neighbors; None: there are none

    def card(self) -> dict:
        """Returns what the metrics depend on, for JSON."""
        known = self.known.fingerprint() if self.model and self.known else "none"
        sets = {name: {"num_images": len(one), "fingerprint": one.fingerprint()} for name, one in self.sources.items()}
        return {"neighbors_among": known, "neighbors": self.neighbors, "sets": sets}

    @property
    def neighbors(self) -> int:
        """k of the nearest neighbors; 0: there are no scores by nearest neighbors."""
        return max(1, round(NEIGHBORS * len(self.known))) if self.model and self.known else 0

    def evaluation_sets(self, source: Source) -> list[EvaluationSet]:
        """Returns the set `ood` of the model's own classes, from a source, and the sets `ood/NAME`; none if there are no others."""
        size, model = scoring.batch_size_of(source.image_shape), self.model if self.known else None

        @functools.cache
        def known_embeddings():
            return np.concatenate([model.outputs(images)["embedding"] for images, _ in data.evaluation_batches(self.known, size)])

        def score(predict, evaluation_set):
            parts: list[dict] = []
            for images, *_ in scoring.read_batches(evaluation_set):
                if model is None:
                    parts.append(metrics.logit_scores(np.asarray(predict(images))))
                    continue
                outputs = model.outputs(images)
                neighbors = metrics.neighbor_scores(known_embeddings(), np.asarray(outputs["embedding"]), self.neighbors)
                logits = scoring.masked_logits(outputs["logits"], evaluation_set.class_mask)
                parts.append({**metrics.logit_scores(np.asarray(logits)), "knn": neighbors})
            scores = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            encoded_scores = {name: encoded(one.astype(np.float32)) for name, one in scores.items()}
            return {"kind": "ood", "count": len(scores[BASELINE_SCORE]), "scores": encoded_scores}

        named = {"ood": source, **{f"ood/{name}": one for name, one in self.sources.items()}} if self.sources else {}
        return [
            EvaluationSet(name, functools.partial(data.evaluation_batches, one, size), score, source.class_mask)
            for name, one in named.items()
        ]


def known_images(training: Source) -> Source:
    """Returns the training images whose embeddings are known: all, a fixed stratified subset, or the first ones of a stream."""
    if len(training) <= KNOWN:
        return training
    return stratified_subset(training, KNOWN) if training.random_access else training.part(0, KNOWN)
