"""Parts of a source: stratified, nested, the same for every method. And two sources in one common order."""

import dataclasses
import typing
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_robust.data.source import Source, digest

SUBSET_SEED = 20210101  # fixed: every method sees the same subset


def stratified_order(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Returns an order, int [N], in which every prefix has the class frequencies of labels [N]: subsets are stratified and nested.

    `seed` selects one of many such orders; each is the same for every method.
    """
    random = np.random.RandomState(SUBSET_SEED + seed)
    position = np.empty(len(labels))
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        position[members] = (np.arange(len(members)) + random.rand()) / len(members)
    return np.argsort(position, kind="stable")


def stratified_parts(labels: np.ndarray, count: int) -> list[np.ndarray]:
    """Returns sorted positions of labels [N] in `count` parts of equal size: of every class each has as many, one more or one less."""
    random = np.random.RandomState(SUBSET_SEED)
    by_class = np.lexsort([random.permutation(len(labels)), labels])  # class by class, each in a random order
    return [np.sort(by_class[first::count]) for first in range(count)]


def stratified_subset(source: Source, count: int) -> Source:
    """Returns `count` examples of a source in its order, or all of at most as many; such subsets are stratified and nested."""
    if count >= len(source):
        return source
    source.check_random_access("all examples (0)", count)
    return source.subset(np.sort(stratified_order(np.asarray(source.labels))[:count]))


def labelled_fraction(source: Source, fraction: float, seed: int) -> Source:
    """Returns the part of a training set whose labels are known: stratified, and nested in the part of a larger fraction.

    fraction: in (0, 1], of the examples, rounded; every class must keep some. seed: int, selects the part.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"Expected label_fraction in (0, 1]. Received: {fraction}")
    if fraction == 1:
        return source
    source.check_random_access("label_fraction=1", fraction)
    labels, count = np.asarray(source.labels), round(fraction * len(source))
    kept = np.sort(stratified_order(labels, seed)[:count])
    missing = np.setdiff1d(labels, labels[kept])
    if missing.size:
        raise ValueError(
            f"Expected a label_fraction that leaves examples of every class. Received: {fraction}, {count} examples, "
            f"none of {missing.size} classes, the first {source.class_names[missing[0]]!r}"
        )
    return source.subset(kept)


def balanced(source: Source) -> Source:
    """Returns a training set of which an epoch draws every class equally often; an epoch has as many examples as before."""
    source.check_random_access("sampling=shuffled", "balanced", ". Try: class_weights=balanced")
    return dataclasses.replace(source, balanced=True)


def class_weights(text: str, source: Source) -> tuple[float, ...] | None:
    """Returns the weight of each class, or None for empty text.

    text: numbers W,W,... for the classes in their order; or balanced: N / (C n_c), as in scikit-learn, for n_c of N examples in one of the
    C classes that occur.
    """
    if not text:
        return None
    if text == "balanced":
        counts = np.bincount(source.read_labels(), minlength=source.num_classes)
        return tuple(float(n and counts.sum() / ((counts > 0).sum() * n)) for n in counts)
    try:
        weights = tuple(float(number) for number in text.split(","))
    except ValueError:
        weights = ()
    if len(weights) != source.num_classes or not all(0 <= weight < np.inf for weight in weights):
        raise ValueError(f"Expected class_weights=balanced, or {source.num_classes} numbers >= 0, one per class. Received: {text!r}")
    return weights


def split_train_val_test(source: Source, split: str, fraction: float) -> Source:
    """Returns a split of a data set without splits: `fraction` of the images for test and as many for validation, the rest for training.

    split: `test`, `validation`, `train`, or `all`: the images that are not in `validation`.
    """
    order = stratified_order(np.asarray(source.labels))
    count = max(1, round(fraction * len(order)))
    if 2 * count >= len(order):
        raise ValueError(
            f"Expected a validation_fraction (used twice) that leaves images to train on. Received: {fraction} of {len(order)}"
        )
    part = {"test": order[:count], "validation": order[count : 2 * count], "train": order[2 * count :]}
    part["all"] = np.concatenate([part["test"], part["train"]])
    return dataclasses.replace(source.subset(np.sort(part[split])), split=split)


def without_validation(source: Source, split: str, fraction: float) -> Source:
    """Returns a training set without its validation fraction (split `train`), or that fraction (split `validation`)."""
    return source.subset(held_out_positions(np.asarray(source.labels), split, fraction, source.name))


def held_out_positions(labels: np.ndarray, split: str, fraction: float, name: str) -> np.ndarray:
    """Returns the positions of `without_validation` in a training set with these labels, sorted int [M]. name: for messages."""
    order = stratified_order(labels)
    count = round(fraction * len(order))
    if split == "validation" and not count:
        raise ValueError(f"{name} has no validation split. Expected validation_fraction > 0, of the training set. Received: {fraction}")
    if count == len(order):
        raise ValueError(f"Expected a validation_fraction that leaves images to train on. Received: {fraction} of {count}")
    return np.sort(order[:count] if split == "validation" else order[count:])


@dataclasses.dataclass(frozen=True)
class JoinedSource(Source):
    """The images of one source, then of another of the same image shape; an epoch draws both in one random order, as a stream.

    Attributes:
        first: has the classes.
        second: further images.
        second_labels: class of `first` for each class of `second`.
    """

    first: Source
    second: Source
    second_labels: tuple[int, ...]

    @classmethod
    def of(cls, first: Source, second: Source, second_labels: Sequence[int]) -> typing.Self:
        """Returns the joined source, with the split, classes and columns of `first`."""
        name, size, mask = f"{first.name} and {second.name}", len(first) + len(second), first.class_mask
        joined = cls(name, first.split, first.class_names, first.image_shape, size, first, second, tuple(second_labels))
        mask = mask and tuple(sorted({*mask, *second_labels}))
        return dataclasses.replace(joined, class_mask=mask, label_columns=first.label_columns, label_set=first.label_set)

    @property
    def cuts_windows(self) -> bool:
        return self.first.cuts_windows and self.second.cuts_windows

    def ordered(self, batch_size: int) -> tf.data.Dataset:
        second = self.second.ordered(batch_size).map(lambda images, labels: (images, self._map(labels)))
        return self.first.ordered(batch_size).concatenate(second).unbatch().batch(batch_size)

    def _map(self, labels):
        return tf.gather(tf.constant(self.second_labels, tf.int64), labels)

    def epoch(
        self, seed: int, epoch: int | tf.Tensor, batch_size: int, skip_batches: int | tf.Tensor = 0, windows: Sequence[float] = ()
    ) -> tf.data.Dataset:
        def renumber(images, labels, positions):
            return images, self._map(labels), positions + len(self.first)

        first = self.first.epoch(seed, epoch, 1, 0, windows).unbatch()
        second = self.second.epoch(seed, epoch, 1, 0, windows).map(renumber).unbatch()
        is_second = tf.cast(self.epoch_order(seed, epoch) >= len(self.first), tf.int64)
        chosen = tf.data.Dataset.choose_from_datasets([first, second], tf.data.Dataset.from_tensor_slices(is_second))
        return chosen.batch(batch_size, drop_remainder=True).skip(tf.cast(skip_batches, tf.int64))

    def read_labels(self) -> np.ndarray:
        return np.concatenate([self.first.read_labels(), np.take(self.second_labels, self.second.read_labels())])

    def fingerprint(self) -> str:
        return digest(self.first.fingerprint(), self.second.fingerprint(), str(self.second_labels))
