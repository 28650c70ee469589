"""Records of a model's predictions on one evaluation set: accuracy, flips of sequences."""

import typing
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import scipy.special
import tensorflow as tf

from tf_robust import metrics
from tf_robust.attacks.attack import Predict
from tf_robust.evaluation.evaluation_set import EvaluationSet
from tf_robust.evaluation.metric_table import METRICS
from tf_robust.evaluation.metric_value import parse_metric
from tf_robust.models.outputs import checked_logits
from tf_robust.ops import image_ops
from tf_robust.utils import progress
from tf_robust.utils.files import decoded, encoded


def score_set(predict: Predict, evaluation_set: EvaluationSet, further: Callable[[np.ndarray, np.ndarray], dict] | None = None) -> dict:
    """Returns the record of a labeled set.

    Args:
        predict: float32 [N, H, W, C] in [0, 1] -> logits [N, C].
        evaluation_set: labeled images.
        further: (logits, labels) -> further entries; None: there are none.

    Raises:
        ValueError: as in `recording.records`.
    """
    if further:
        logits, labels = collect(predict, evaluation_set)
        results, entries = image_results(logits, labels), further(logits, labels)
    else:
        results, entries = results_of(predict, evaluation_set), {}
    return {**record_of(results, keep=parse_metric(evaluation_set.name).is_clean), **entries}


class ImageResults(typing.NamedTuple):
    """Results of each image: what a record is computed from, whatever the size of the logits.

    Attributes:
        label: int64 [N].
        prediction: int64 [N], the class of the largest logit.
        confidence: float64 [N], the largest softmax probability.
        brier_score: float64 [N].
        negative_log_likelihood: float64 [N].
    """

    label: np.ndarray
    prediction: np.ndarray
    confidence: np.ndarray
    brier_score: np.ndarray
    negative_log_likelihood: np.ndarray

    @classmethod
    def joined(cls, parts: Iterable[typing.Self]) -> typing.Self:
        """Returns the results of all images of some parts."""
        return cls(*map(np.concatenate, zip(*parts)))


def results_of(predict: Predict, evaluation_set: EvaluationSet) -> ImageResults:
    """Returns the results of each image of a labeled set, without keeping the logits. Arguments and errors as in `score_set`."""
    return ImageResults.joined([image_results(*batch) for batch in _predictions(predict, evaluation_set)])


def image_results(logits: np.ndarray, labels: np.ndarray) -> ImageResults:
    """Returns the results of each image from its logits [N, C] and label, int [N]."""
    probabilities = scipy.special.softmax(logits.astype(np.float64), axis=1)
    return ImageResults(
        labels.astype(np.int64),
        logits.argmax(axis=1),
        probabilities.max(axis=1),
        metrics.brier_scores(probabilities, labels),
        metrics.negative_log_likelihoods(np.maximum(logits, -1e30), labels),
    )


def collect(predict: Predict, evaluation_set: EvaluationSet) -> tuple[np.ndarray, np.ndarray]:
    """Returns (logits [N, C], labels [N]) of a labeled set. Arguments as in `score_set`."""
    logits, labels = zip(*_predictions(predict, evaluation_set))
    return np.concatenate(logits), np.concatenate(labels)


def _predictions(predict, evaluation_set):
    """Yields the logits [B, C] and the labels [B] of each batch."""
    name, empty = evaluation_set.name, True
    for images, labels in progress.batches(evaluation_set.open(), name):
        yield checked_logits(predict(image_ops.check_images(images)), labels, repr(name)), labels.numpy()
        empty = False
    if empty:
        raise ValueError(f"Expected images to evaluate {name!r} on. Received: none")


def record_of(results: ImageResults, keep: bool = False) -> dict:
    """Returns accuracy and calibration, as a dictionary for JSON.

    Args:
        results: of each image.
        keep: include the confidence and the proper scores of each image and, where classes have different sizes, the mean of the
            accuracies per class.
    """
    labels, _, confidences, brier, likelihoods = results
    correct = results.prediction == labels
    kept = {"confidences": confidences, "brier_scores": brier, "negative_log_likelihoods": likelihoods}
    return {
        "kind": "accuracy",
        "count": len(labels),
        "correct": int(correct.sum()),
        **{
            metric.record_field: metric.compute(confidences, correct)
            if metric.compute
            else float(getattr(results, metric.record_field).mean())
            for metric in METRICS.values()
            if metric.record_field
        },
        **({**_per_class(correct, labels), **{name: encoded(of.astype(np.float32)) for name, of in kept.items()}} if keep else {}),
        "which": encoded(np.packbits(correct)),
    }


def _per_class(correct, labels):
    """Returns the mean of the accuracies per class; empty if all classes have the same size."""
    counts, hits = (np.bincount(labels, weights=weights) for weights in (None, correct))
    present = counts > 0
    return {"per_class": float(np.mean(hits[present] / counts[present]))} if np.ptp(counts[present]) else {}


def correctness(record: dict) -> np.ndarray:
    """Returns bool [N]: which images of a set were classified correctly."""
    return np.unpackbits(decoded(record["which"], np.uint8), count=record["count"]).astype(bool)


def confidences(record: dict) -> np.ndarray:
    """Returns float32 [N]: the largest softmax probability of each image of the clean set."""
    return decoded(record["confidences"], np.float32)


def score_sequences(predict: Predict, evaluation_set: EvaluationSet) -> dict:
    """Returns the record of a set of sequences: its flip probability, and the flips of each sequence.

    Args:
        predict: float32 [N, H, W, C] in [0, 1] -> logits [N, C].
        evaluation_set: sequences [B, frames, H, W, C].
    """
    name = evaluation_set.name
    batches = []
    for frames, labels in progress.batches(evaluation_set.open(), name):
        frames = frames.numpy()
        count, length = frames.shape[:2]
        images = image_ops.check_images(frames.reshape(-1, *frames.shape[2:]))
        logits = checked_logits(predict(images), np.repeat(labels, length), repr(name))
        batches.append(logits.argmax(axis=1).reshape(count, length))
    if not batches:
        raise ValueError(f"Expected images to evaluate {name!r} on. Received: none")
    predictions = np.concatenate(batches)
    noise = "noise" in name
    flips = [metrics.flip_probability(sequence[None], noise) * (len(sequence) - 1) for sequence in predictions]
    return {
        "kind": "flips",
        "count": len(predictions),
        "frames": predictions.shape[1],
        "flip_probability": metrics.flip_probability(predictions, noise),
        "flips": encoded(np.round(flips).astype(np.uint16)),
    }


def masked(predict: Predict, columns: Sequence[int] | None) -> Predict:
    """Returns a model whose logits are -infinity except in some columns.

    Args:
        predict: images -> logits [N, C].
        columns: of the classes that occur; None or empty: `predict` is returned.
    """
    return (lambda images: masked_logits(predict(images), columns)) if columns else predict


def masked_logits(logits: tf.Tensor, columns: Sequence[int] | None) -> tf.Tensor:
    """Returns logits [N, C] that are -infinity except in some columns; None or empty: unchanged."""
    if not columns:
        return logits
    logits = tf.convert_to_tensor(logits)
    occurs = tf.reduce_any(tf.range(logits.shape[1])[:, None] == tf.constant(columns)[None], axis=1)
    return tf.where(occurs[None], logits, -np.inf)
