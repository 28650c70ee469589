"""Any `images -> logits` callable -> rows of measures, with binomial intervals. Images are float32 in [0, 1], NHWC."""

import dataclasses
import itertools

import numpy as np
import scipy.stats
import tensorflow as tf

from tf_robust import corruptions, data
from tf_robust.data import image_ops
from tf_robust.data.source import stratified_order
from tf_robust.errors import unknown

EVALUATIONS = ("clean", "noise", "noise_floor")
USUAL = ("clean", "noise")
NOISE_FLOORS = (0.02, 0.05, 0.1, 0.2, 0.5)
NOISE_SEED = 15  # one fixed draw, so that every model and every seed sees the same noise
DEVIATION_PICTURES = 50_000
BATCH = 500


@dataclasses.dataclass(frozen=True)
class Row:
    """One measure: an accuracy as a fraction, the pictures it was taken on, and its 95 % Wilson interval."""
    measure: str
    value: float
    count: int
    low: float
    high: float

    @classmethod
    def of(cls, measure, correct, count):
        interval = scipy.stats.binomtest(correct, count).proportion_ci(method="wilson")
        return cls(measure, correct / count, count, interval.low, interval.high)


def evaluation_sets(source, training_source, evaluations=USUAL):
    """The sets that the papers measure on: {measure: Dataset of (float32 [B, H, W, C], int64 [B])}.

    Args:
        source: what to evaluate on. training_source: gives NUN its deviation per location.
        evaluations: from `EVALUATIONS`: `clean` (called `bal` on the balanced corner-digit sets), `noise` (`un`, `nun`),
            `noise_floor` (NUN again with other floors: `nun/floor_0.02` and so on).
    """
    for name in evaluations:
        if name not in EVALUATIONS:
            raise unknown("evaluation", name, EVALUATIONS)
    batches = data.evaluation_batches(source, BATCH)
    sets = {}
    if "clean" in evaluations:
        sets["bal" if source.name.startswith("synthetic_") else "clean"] = batches
    if "noise" in evaluations:
        sets["un"] = _noised(batches, lambda x, i: corruptions.uniform_noise(x, seed=NOISE_SEED, indices=i))
        sets["nun"] = _nonuniform(batches, noise_probabilities(training_source))
    if "noise_floor" in evaluations:
        deviation = _deviation(training_source)
        for floor in NOISE_FLOORS:
            probabilities = corruptions.nonuniform_probabilities(deviation, floor=floor)
            sets[f"nun/floor_{floor:g}"] = _nonuniform(batches, probabilities)
    return sets


def noise_probabilities(training_source):
    """NUN's chance per location [H, W], from (at most 50,000) training pictures."""
    return corruptions.nonuniform_probabilities(_deviation(training_source))


def _deviation(training_source):
    if isinstance(training_source, data.FileSource) and len(training_source) > DEVIATION_PICTURES:  # sorted by class
        training_source = training_source.subset(stratified_order(training_source.labels)[:DEVIATION_PICTURES])
    pictures = data.evaluation_batches(training_source, BATCH).take(DEVIATION_PICTURES // BATCH)
    return corruptions.location_deviation(images for images, _ in pictures)


def _nonuniform(batches, probabilities):
    return _noised(batches, lambda x, i: corruptions.nonuniform_noise(x, probabilities, seed=NOISE_SEED, indices=i))


def _noised(batches, noise):
    def apply(batch, example):
        images, labels = example
        first = batch * BATCH
        return noise(images, first + tf.range(tf.shape(images, tf.int64)[0], dtype=tf.int64)), labels
    return batches.enumerate().map(apply, num_parallel_calls=2, deterministic=True).prefetch(2)


def evaluate(predict, sets):
    """Yields a `Row` for every set.

    Args:
        predict: float32 [N, H, W, C] in [0, 1] -> logits [N, C] (any scores: the largest wins).
        sets: {measure: Dataset of (images, labels)}, as `evaluation_sets` gives.

    Raises:
        ValueError: pictures that are not finite or not in [0, 1], logits of the wrong shape or not finite, labels that
            the logits have no column for, an empty set.
    """
    for measure, batches in sets.items():
        correct = count = 0
        for images, labels in batches:
            logits = _checked(predict(image_ops.check_images(images)), labels, measure)
            correct += int((logits.argmax(axis=1) == labels.numpy()).sum())
            count += len(labels)
        if not count:
            raise ValueError(f"Expected pictures to evaluate {measure!r} on. Received none")
        yield Row.of(measure, correct, count)


def _checked(logits, labels, measure):
    logits = np.asarray(logits)
    if logits.ndim != 2 or len(logits) != len(labels):
        raise ValueError(f"Expected logits [{len(labels)}, classes] in {measure!r}. Received shape: {logits.shape}")
    if not np.isfinite(logits).all():
        raise ValueError(f"Expected finite logits in {measure!r}. Received NaN or infinity")
    data.check_labels(labels, logits.shape[1], f"{measure!r}, by the columns of the logits")
    return logits


def first_pictures(source, count):
    """The first `count` pictures of a source, of all classes: (float32 [N, H, W, C], int64 [N]) arrays."""
    if isinstance(source, data.FileSource):  # sorted by class
        source = source.subset(stratified_order(source.labels)[:count])
    batches = data.evaluation_batches(source, min(count, BATCH)).as_numpy_iterator()
    taken = list(itertools.islice(batches, -(-count // min(count, BATCH))))
    return np.concatenate([b[0] for b in taken])[:count], np.concatenate([b[1] for b in taken])[:count]
