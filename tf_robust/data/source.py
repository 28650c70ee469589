"""One split of a data set: how many examples, which classes, and its batches in a fixed or in an epoch's own order."""

import contextlib
import dataclasses
import hashlib
import os

import numpy as np
import tensorflow as tf

from tf_robust.data.fitting import Fit
from tf_robust.ops import philox

PARALLEL_READS = max(2, os.cpu_count() or 2)  # images
_SUBSET_SEED = 20210101  # a fixed draw: every method sees the same subset


@dataclasses.dataclass(frozen=True)
class Source:
    """One split of a data set.

    Attributes:
        name: what was asked for. split: train, validation or test.
        class_names: a name per label. image_shape: (H, W, C), the same for all images.
        size: number of examples.
        fit: how images of other sizes become `image_shape`; None: they have that size, and are unchanged.
        varying_size: images come in many sizes, of which training takes random windows.
        cuts_windows: whether `epoch` can cut views' windows from images in their own size.
        positions: int [size], each example's place in the set that this is a subset of.
        label_set: name of a published set of classes that the labels are of, one of `label_columns.LABEL_SETS`; empty: not declared.
        class_mask: the columns of the logits that count, where labels name a few of a model's many classes; None: all.
    """
    name: str
    split: str
    class_names: tuple
    image_shape: tuple
    size: int
    kept: np.ndarray = dataclasses.field(default=None, kw_only=True)
    class_mask: tuple = dataclasses.field(default=None, kw_only=True)
    fit: Fit = dataclasses.field(default=None, kw_only=True)
    label_set: str = dataclasses.field(default="", kw_only=True)

    def __len__(self):
        return self.size

    @property
    def num_classes(self):
        return len(self.class_names)

    cuts_windows = False

    @property
    def varying_size(self):
        return self.fit is not None and self.fit.random_windows

    def resized(self, size, how):
        """The same source with images of `size`, (height, width): itself if they have it, or if `size` is empty."""
        if not size or tuple(size) == tuple(self.image_shape[:2]):
            return self
        return dataclasses.replace(self, image_shape=(*size, self.image_shape[2]), fit=Fit(*size, how))

    def _changed(self):
        """What a fingerprint says of `fit`: nothing of ImageNet's protocol, which is the usual one for images of many sizes."""
        return "" if self.fit is None or self.fit.random_windows else str(self.fit)

    @property
    def positions(self):
        return np.arange(self.size) if self.kept is None else self.kept

    def ordered(self, batch_size):
        """Dataset of (uint8 [B, H, W, C], int64 [B]) in the fixed order, the last batch as small as it is."""
        raise NotImplementedError

    def reading(self):
        """A context for whatever reads this source, in which an error names the file that cannot be read."""
        return contextlib.nullcontext()

    def fingerprint(self):
        """Text that is the same for the same examples in the same order, and differs for others."""
        raise NotImplementedError

    def epoch(self, seed, epoch, batch_size, skip_batches=0, windows=()):
        """Dataset of (uint8 [B, H, W, C], int64 [B], int64 [B]), the last each example's place in the fixed order, in the epoch's
        own order, whole batches only, without the first `skip_batches`. epoch, skip_batches: int, or int64 tensors.

        windows: of a source with `cuts_windows`, for each view the smallest share of an image's area that its own window may have:
        the images are [B, len(windows), H, W, C] then.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class ArraySource(Source):
    """All examples in memory."""
    images: np.ndarray = None
    labels: np.ndarray = None

    @classmethod
    def of(cls, name, split, images, labels, class_names):
        images, labels = np.asarray(images), np.asarray(labels, np.int64)
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(labels):
            raise ValueError(f"Expected uint8 images [N, H, W, C] in 0..255 and labels [N] in {name} ({split}). "
                             f"Received: {images.dtype} {images.shape}, labels {labels.shape}")
        class_names = tuple(class_names)
        check_labels(labels, len(class_names), f"{name} ({split})")
        return cls(name, split, class_names, images.shape[1:], len(images), images, labels)

    def ordered(self, batch_size):
        batches = tf.data.Dataset.from_tensor_slices((self.images, self.labels)).batch(batch_size)
        return batches if self.fit is None else batches.map(lambda images, labels: (self.fit.levels(images), labels))

    def epoch(self, seed, epoch, batch_size, skip_batches=0, windows=()):
        del windows  # images of one size, of which views cut them
        images, labels = tf.constant(self.images), tf.constant(self.labels)
        order = epoch_order(self.size, seed, epoch)
        batches = tf.data.Dataset.from_tensor_slices(order).skip(skip_batches * batch_size)
        change = tf.identity if self.fit is None else self.fit.levels
        return batches.batch(batch_size, drop_remainder=True).map(
            lambda i: (change(tf.gather(images, i)), tf.gather(labels, i), tf.cast(i, tf.int64)))

    def subset(self, indices):
        return dataclasses.replace(self, size=len(indices), kept=self.positions[indices], images=self.images[indices],
                                   labels=self.labels[indices])

    def fingerprint(self):
        return digest(self.images, self.labels, self._changed())


def digest(*parts):
    """The first 16 hexadecimal digits of the SHA-256 of arrays and texts."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).data)
    return found.hexdigest()[:16]


def epoch_order(size, seed, epoch):
    """The order of an epoch, int [size]: a pure function of (seed, epoch)."""
    return tf.random.experimental.stateless_shuffle(tf.range(size), tf.stack([tf.constant(seed, tf.int64), epoch]))


def example_seed(seed, epoch, position):
    """int [2] for one example's stateless draws in one epoch."""
    return philox.fold(tf.stack([tf.constant(seed, tf.int64), epoch]), tf.cast(position, tf.int64))


def check_labels(labels, num_classes, where):
    """Raises ValueError unless every label is in 0..num_classes - 1."""
    labels = np.asarray(labels)
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if bad.size:
        raise ValueError(f"Expected labels in 0..{num_classes - 1} in {where}. Received {labels[bad[0]]} "
                         f"at index {bad[0]} ({bad.size} labels out of range)")


def stratified_order(labels, seed=0):
    """An order in which every prefix holds each class in its share: subsets are stratified and nested.

    seed: int; each has an order of its own, the same for every method.
    """
    random = np.random.RandomState(_SUBSET_SEED + seed)
    position = np.empty(len(labels))
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        position[members] = (np.arange(len(members)) + random.rand()) / len(members)
    return np.argsort(position, kind="stable")


def stratified_subset(source, count):
    """Returns `count` examples of a source in its order; subsets of it are stratified and nested.

    Raises:
        ValueError: the source is read as a stream.
    """
    if not hasattr(source, "subset"):
        raise ValueError(f"Expected a data set that can be subset. Received: {source.name}, which is read as a stream, for {count} examples")
    return source.subset(np.sort(stratified_order(np.asarray(source.labels))[:count]))


def labelled_fraction(source, fraction, seed):
    """The part of a training set whose labels are known: stratified, and nested in that of a larger fraction.

    Args:
        fraction: in (0, 1], of the examples, rounded. seed: int, which part.

    Raises:
        ValueError: a class would be left without examples, or the set is read as a stream.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"Expected label_fraction in (0, 1]. Received: {fraction}")
    if fraction == 1:
        return source
    if not hasattr(source, "subset"):
        raise ValueError(f"{source.name} is read as a stream, which has no subsets. Received label_fraction={fraction}; use 1")
    labels, count = np.asarray(source.labels), round(fraction * len(source))
    kept = np.sort(stratified_order(labels, seed)[:count])
    missing = sorted(set(np.unique(labels)) - set(labels[kept]))
    if missing:
        raise ValueError(f"Expected a label_fraction that leaves examples of every class. Received: {fraction}, {count} examples, "
                         f"none of {len(missing)} classes, the first {source.class_names[missing[0]]!r}")
    return source.subset(kept)


def without_validation(source, split, share):
    """The training set without its validation share (split `train`), or that share (split `validation`)."""
    order = stratified_order(np.asarray(source.labels))
    held = round(share * len(order))
    if split == "validation" and not held:
        raise ValueError(f"{source.name} has no validation split. Expected validation_fraction > 0 (say 0.1), which holds "
                         f"out a part of the training set. Received: {share}")
    if held == len(order):
        raise ValueError(f"Expected a validation_fraction that leaves images to train on. Received: {share} of {held}")
    return source.subset(np.sort(order[:held] if split == "validation" else order[held:]))
