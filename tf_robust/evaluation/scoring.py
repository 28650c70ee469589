"""Sets of images that a model is evaluated on, and records of its predictions: accuracy, flips of sequences, contextual utility.

The contextual utility is measured in the corners of FCL's corner digits (section 4.1 and Figure 4 of the FCL paper). A corner digit decides
the class for digits 0-4 in the center (classes 0-4 and 10-14), and is irrelevant for digits 5-9. A model that has learned this has utility
in the corners of the former only.
"""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Callable, Iterator, MutableMapping, Sequence

import numpy as np
import numpy.typing as npt
import scipy.special
import tensorflow as tf

from tf_robust import attribution, data, metrics
from tf_robust.attacks.attack import Predict
from tf_robust.data.corner_digits import CORNER_SIZE
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_order, stratified_subset
from tf_robust.evaluation.metric_table import METRICS
from tf_robust.evaluation.metric_value import parse_metric
from tf_robust.models.outputs import Model, checked_logits
from tf_robust.ops import image_ops
from tf_robust.utils import progress
from tf_robust.utils.files import decoded, encoded

BATCH = 500
KEPT_BYTES = 2**28  # 1,780 images of 224 pixels
SEED = 15  # of all noise, corruptions and attacks: the same for every model and training seed
_DIGITS = 10
_INFORMATIVE = 5  # digits 0 to 4 in the center, for which a corner digit decides the class


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Images to evaluate a model on.

    `batches` returns a Dataset of (float32 [B, H, W, C] in [0, 1], int64 [B]); for flips [B, frames, H, W, C]. It is called only when the
    images are needed: a set that was measured before costs nothing. In `parts` a long evaluation writes results, text by name, as soon as
    it has them, and finds the results of an interrupted one; `log` is called with lines of progress.
    """

    name: str  # of the metric whose images these are, such as `corruptions/fog/3`, or `utility`, `certified`, `confidence`, `ood`
    batches: Callable[[], tf.data.Dataset]
    score: ScoreSet | None = None  # computes the record of a model on this set, a dictionary for JSON; None: `score_set`
    class_mask: Sequence[int] | None = None  # the columns of the model's output that count; None: all
    parts: MutableMapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    log: Callable[[str], object] = dataclasses.field(default=progress.print_line, compare=False)
    rank: int = 0  # sets of a lower rank are measured first
    source: Source | None = None  # of the images, in the order of the set; None: the set cannot be evaluated in shards
    part_batches: Callable[[int, int], tf.data.Dataset] | None = None  # (first, last) -> as `batches`, without reading other images
    origin: Callable[[], Source] | None = None  # returns the source that has the positions and paths of the images; None: `source`


ScoreSet = Callable[[Predict, EvaluationSet], dict]


def read_batches(evaluation_set: EvaluationSet, size: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray, slice]]:
    """Yields the images, labels and place in the set of each batch, of `size` images or as the set is batched, and shows the progress.

    Images are float32 [B, H, W, C] in [0, 1], labels int64 [B]. A set without images raises ValueError.
    """
    start, batches = 0, evaluation_set.batches()
    for images, labels in progress.batches(batches.unbatch().batch(size) if size else batches, evaluation_set.name):
        images = image_ops.check_images(images)
        yield images, labels.numpy(), slice(start, start + len(images))
        start += len(images)
    if not start:
        raise ValueError(f"Expected images to evaluate {evaluation_set.name!r} on. Received: none")


def read_chosen(evaluation_set: EvaluationSet, chosen: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields the images, labels and places in the set, int [B], of the images that are `chosen`, bool [N], in batches of up to `size`."""
    held: list[np.ndarray] = []
    for images, labels, place in read_batches(evaluation_set):
        rows = np.flatnonzero(chosen[place])
        found = [images[rows], labels[rows], rows + place.start]
        held = [np.concatenate(pair) for pair in zip(held, found)] if held else found
        while len(held[2]) >= size:
            yield tuple(part[:size] for part in held)
            held = [part[size:] for part in held]
    if len(held[2]):
        yield tuple(held)


def clean_batches(source: Source) -> tf.data.Dataset:
    """Returns the batches of all images of a source, as `EvaluationSet.batches`; decoded files are kept if they fit `KEPT_BYTES`."""
    keep = not source.in_memory and len(source) * int(np.prod(source.image_shape)) <= KEPT_BYTES
    return data.evaluation_batches(source, batch_size_of(source.image_shape), keep=keep)


def batch_size_of(image_shape: Sequence[int]) -> int:
    """Returns the number of images per batch: 500 of 32 pixels, fewer of larger ones."""
    return max(1, min(BATCH, BATCH * 48 * 48 * 3 // int(np.prod(image_shape))))


def first_images(source: Source, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first `count` images of a source, of all classes: float32 [N, H, W, C] in [0, 1] and int64 [N]."""
    if source.sorted_by_class:
        source = source.subset(stratified_order(source.labels)[:count])
    size = min(count, BATCH)
    batches = data.evaluation_batches(source, size).as_numpy_iterator()
    images, labels = zip(*itertools.islice(batches, -(-count // size)))
    return np.concatenate(images)[:count], np.concatenate(labels)[:count]


def stratified_images(source: Source, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most `count` images of a source as `first_images`, stratified where it has random access: arrays are often sorted."""
    count = min(count, len(source))
    return first_images(stratified_subset(source, count) if source.random_access else source, count)


def stratified_groups(source: Source, count: int, column: str) -> np.ndarray:
    """Returns the text in a column of the table of a source for each of its `stratified_images`: [N]."""
    columns = source.columns or {}
    if column not in columns:
        raise ValueError(f"Expected groups as a further column of data=csv:FILE. Received: {column!r} for {source.name}")
    part = stratified_subset(source, min(count, len(source)))
    part = part.subset(stratified_order(part.labels)) if part.sorted_by_class else part
    return np.asarray(columns[column], dtype=str)[part.positions]


def score_set(predict: Predict, evaluation_set: EvaluationSet, further: Callable[[np.ndarray, np.ndarray], dict] | None = None) -> dict:
    """Returns the record of a labeled set, with the entries that `further` computes from all logits [N, C] and labels [N]."""
    entries = {}
    if further:
        logits, labels = collect(predict, evaluation_set)
        results, entries = image_results(logits, labels), further(logits, labels)
    else:
        results = results_of(predict, evaluation_set)
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
    for images, labels, _ in read_batches(evaluation_set):
        yield checked_logits(predict(images), labels, repr(evaluation_set.name)), labels


def record_of(results: ImageResults, keep: bool = False) -> dict:
    """Returns accuracy and calibration, as a dictionary for JSON.

    With `keep` also the confidence and the proper scores of each image and, where classes have different sizes, the mean of the accuracies
    per class.
    """
    correct = results.prediction == results.label
    record = accuracy_record(correct)
    for metric in METRICS.values():
        if metric.compute:
            record[metric.record_field] = metric.compute(results.confidence, correct)
        elif metric.record_field:
            record[metric.record_field] = float(getattr(results, metric.record_field).mean())
    if keep:
        counts, hits = (np.bincount(results.label, weights=weights) for weights in (None, correct))
        present = counts > 0
        if np.ptp(counts[present]):
            record["per_class"] = float(np.mean(hits[present] / counts[present]))
        for name in ("confidence", "brier_score", "negative_log_likelihood"):
            record[f"{name}s"] = encoded(getattr(results, name).astype(np.float32))
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
    for frames, labels in progress.batches(evaluation_set.batches(), name):
        count, length, *shape = frames.shape
        images = image_ops.check_images(frames.numpy().reshape(-1, *shape))
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
    """Returns a model, images -> logits [N, C], whose logits are as `masked_logits` returns them."""
    return (lambda images: masked_logits(predict(images), columns)) if columns else predict


def masked_logits(logits: tf.Tensor, columns: Sequence[int] | None) -> tf.Tensor:
    """Returns logits [N, C] that are -infinity except in some columns; None or empty: unchanged."""
    if not columns:
        return logits
    logits = tf.convert_to_tensor(logits)
    return tf.where(np.isin(np.arange(logits.shape[1]), columns)[None], logits, -np.inf)


def corners(height: int, width: int) -> np.ndarray:
    """Returns the locations of corner digits: bool [height, width]."""
    rows, columns = (np.minimum(np.arange(size), np.arange(size)[::-1]) < CORNER_SIZE for size in (height, width))
    return rows[:, None] & columns


def score_utility(predict: Predict, evaluation_set: EvaluationSet) -> dict:
    """Returns the record of the contextual utility: {"corner": [10], "center": [10]}, for each digit in the center.

    They are means over images, locations and channels of the corners and of the rest; None for a digit without images.
    """
    sums, counts = np.zeros((2, _DIGITS)), np.zeros(_DIGITS, int)
    for images, labels in evaluation_set.batches():
        utilities = attribution.contextual_utility(predict, images, labels).numpy().mean(axis=-1)
        inside = corners(*utilities.shape[1:])
        digits = labels.numpy() % _DIGITS
        counts += np.bincount(digits, minlength=_DIGITS)
        for total, region in zip(sums, (inside, ~inside)):
            total += np.bincount(digits, utilities[:, region].mean(axis=1, dtype=np.float64), _DIGITS)
    corner, center = ([float(total / count) if count else None for total, count in zip(part, counts)] for part in sums)
    return {"kind": "utility", "count": int(counts.sum()), "corner": corner, "center": center}


def score_sensitivity(predict: Predict, evaluation_set: EvaluationSet, encoder: Model | None) -> dict:
    """Returns the record of the rank correlation of contextual sensitivity (FCL paper, eq. 2) and utility (eq. 1) of each image.

    `encoder` returns "embedding", [N, E], of float32 images [N, H, W, C] in [0, 1]. The correlations of each batch are stored in the
    `parts` of the evaluation set: an interrupted evaluation resumes there.
    """
    if encoder is None:
        raise ValueError("Expected a model with an output 'embedding' for the evaluation sensitivity. Received: one without")
    for images, labels, place in read_batches(evaluation_set):
        part = str(place.start)
        if part not in evaluation_set.parts:
            utilities = attribution.contextual_utility(predict, images, labels)
            correlations = metrics.rank_correlations(attribution.contextual_sensitivity(encoder, images), utilities)
            evaluation_set.parts[part] = encoded(correlations.astype(np.float32))
    values = np.concatenate([decoded(text, np.float32) for _, text in sorted(evaluation_set.parts.items(), key=lambda one: int(one[0]))])
    return {"kind": "sensitivity", "count": len(values), "correlations": encoded(values)}


def utility_ratios(record: dict) -> dict[str, float]:
    """Returns the mean utility of the corners divided by the one of the center, of a record of `score_utility`, for digits 0-4
    (`corner_informative`) and 5-9 (`corner_uninformative`); without those that have no images or no utility."""
    values = {}
    for name, digits in (("corner_informative", slice(_INFORMATIVE)), ("corner_uninformative", slice(_INFORMATIVE, _DIGITS))):
        corner, center = ([value for value in record[part][digits] if value is not None] for part in ("corner", "center"))
        if sum(center) > 0:
            values[name] = float(sum(corner) / sum(center))
    return values
