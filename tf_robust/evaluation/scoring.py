"""Records of a model's predictions on one evaluation set: accuracy, flips of sequences, contextual utility.

The contextual utility is that of the corners of FCL's corner digits (section 4.1 and Figure 4 of the FCL paper). Whether a corner digit
matters depends on the digit in the center: it decides between classes 0-4 and 10-14, and is irrelevant for classes 5-9. A model that has
learned this has utility in the corners of the former only.
"""

import typing
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import scipy.special
import tensorflow as tf

from tf_robust import attribution, metrics
from tf_robust.attacks.attack import Predict
from tf_robust.data.corner_digits import CORNER_SIZE
from tf_robust.evaluation.evaluation_set import EvaluationSet, read_batches
from tf_robust.evaluation.metric_table import METRICS
from tf_robust.evaluation.metric_value import parse_metric
from tf_robust.models.outputs import checked_logits
from tf_robust.ops import image_ops
from tf_robust.utils import progress
from tf_robust.utils.files import decoded, encoded

_DIGITS = 10
_INFORMATIVE = 5  # digits 0 to 4 in the center, for which a corner digit decides the class


def score_set(predict: Predict, evaluation_set: EvaluationSet, further: Callable[[np.ndarray, np.ndarray], dict] | None = None) -> dict:
    """Returns the record of a labeled set, with the entries that `further` computes from all logits [N, C] and labels [N]."""
    if further:
        logits, labels = collect(predict, evaluation_set)
        results, entries = image_results(logits, labels), further(logits, labels)
    else:
        results, entries = results_of(predict, evaluation_set), {}
    return {**record_of(results, keep=parse_metric(evaluation_set.name).is_clean), **entries}


class ImageResults(typing.NamedTuple):
    """Results of each image, [N]: what a record is computed from, whatever the size of the logits."""

    label: np.ndarray  # int64
    prediction: np.ndarray  # int64, the class of the largest logit
    confidence: np.ndarray  # float64, the largest softmax probability
    brier_score: np.ndarray  # float64
    negative_log_likelihood: np.ndarray  # float64


def results_of(predict: Predict, evaluation_set: EvaluationSet) -> ImageResults:
    """Returns the results of each image of a labeled set, without keeping the logits."""
    parts = [image_results(logits, labels) for logits, labels in _predictions(predict, evaluation_set)]
    return ImageResults(*map(np.concatenate, zip(*parts)))


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
    """Returns (logits [N, C], labels [N]) of a labeled set."""
    logits, labels = zip(*_predictions(predict, evaluation_set))
    return np.concatenate(logits), np.concatenate(labels)


def _predictions(predict, evaluation_set):
    """Yields the logits [B, C] and the labels [B] of each batch."""
    for images, labels, _ in read_batches(evaluation_set):
        yield checked_logits(predict(images), labels, repr(evaluation_set.name)), labels


def record_of(results: ImageResults, keep: bool = False) -> dict:
    """Returns accuracy and calibration, as a dictionary for JSON.

    With `keep` also the confidence and the proper scores of each image and, where classes have different sizes, the mean of the accuracies
    per class.
    """
    labels, _, confidences, brier, likelihoods = results
    correct = results.prediction == labels
    record = accuracy_record(correct)
    for metric in METRICS.values():
        if metric.compute:
            record[metric.record_field] = metric.compute(confidences, correct)
        elif metric.record_field:
            record[metric.record_field] = float(getattr(results, metric.record_field).mean())
    if keep:
        counts, hits = (np.bincount(labels, weights=weights) for weights in (None, correct))
        present = counts > 0
        if np.ptp(counts[present]):
            record["per_class"] = float(np.mean(hits[present] / counts[present]))
        kept = {"confidences": confidences, "brier_scores": brier, "negative_log_likelihoods": likelihoods}
        record |= {name: encoded(values.astype(np.float32)) for name, values in kept.items()}
    return record


def accuracy_record(correct: npt.ArrayLike) -> dict:
    """Returns the record of which images are classified correctly, bool [N]."""
    correct = np.asarray(correct)
    return {"kind": "accuracy", "count": len(correct), "correct": int(correct.sum()), "which": encoded(np.packbits(correct))}


def is_correct(predict: Predict, images: np.ndarray | tf.Tensor, labels: np.ndarray, name: str) -> np.ndarray:
    """Returns bool [N]: which images [N, H, W, C] of a set, named in messages, are classified correctly."""
    return checked_logits(predict(tf.convert_to_tensor(images)), labels, repr(name)).argmax(axis=1) == labels


def correctness(record: dict) -> np.ndarray:
    """Returns bool [N]: which images of a set were classified correctly."""
    return np.unpackbits(decoded(record["which"], np.uint8), count=record["count"]).astype(bool)


def confidences(record: dict) -> np.ndarray:
    """Returns float32 [N]: the largest softmax probability of each image of the clean set."""
    return decoded(record["confidences"], np.float32)


def score_sequences(predict: Predict, evaluation_set: EvaluationSet) -> dict:
    """Returns the record of a set of sequences [B, frames, H, W, C]: its flip probability, and the flips of each sequence."""
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


def corners(height: int, width: int) -> np.ndarray:
    """Returns the locations of corner digits: bool [height, width]."""

    def ends(size):
        return np.minimum(np.arange(size), np.arange(size)[::-1]) < CORNER_SIZE

    return ends(height)[:, None] & ends(width)


def score_utility(predict: Predict, evaluation_set: EvaluationSet) -> dict:
    """Returns the record of the contextual utility: {"corner": [10], "center": [10]}, for each digit in the center.

    They are means over images, locations and channels of the corners and of the rest; None for a digit without images.
    """
    sums, counts = np.zeros((2, _DIGITS)), np.zeros(_DIGITS, int)
    for images, labels in evaluation_set.open():
        utilities = attribution.contextual_utility(predict, images, labels).numpy().mean(axis=-1)
        inside = corners(*utilities.shape[1:])
        digits = labels.numpy() % _DIGITS
        counts += np.bincount(digits, minlength=_DIGITS)
        for total, region in zip(sums, (inside, ~inside)):
            total += np.bincount(digits, utilities[:, region].mean(axis=1, dtype=np.float64), _DIGITS)
    corner, center = ([float(total / count) if count else None for total, count in zip(part, counts)] for part in sums)
    return {"kind": "utility", "count": int(counts.sum()), "corner": corner, "center": center}


def utility_ratios(record: dict) -> dict[str, float]:
    """Returns the mean utility of the corners divided by that of the center, of a record of `score_utility`.

    {"corner_informative": for digits 0-4, "corner_uninformative": for digits 5-9}, without those that have no images or no utility.
    """
    values = {}
    for name, digits in (("corner_informative", slice(_INFORMATIVE)), ("corner_uninformative", slice(_INFORMATIVE, _DIGITS))):
        corner, center = ([value for value in record[part][digits] if value is not None] for part in ("corner", "center"))
        if sum(center) > 0:
            values[name] = float(sum(corner) / sum(center))
    return values
