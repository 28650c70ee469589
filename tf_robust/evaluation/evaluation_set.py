"""Sets of images that a model is evaluated on: their batches, and their order with test-time adaptation, where it matters."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, MutableMapping, Sequence

import numpy as np
import tensorflow as tf

from tf_robust import data
from tf_robust.attacks.attack import Predict
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_order, stratified_subset
from tf_robust.ops import image_ops
from tf_robust.utils import progress

BATCH = 500
SEED = 15  # of all noise, corruptions and attacks: the same for every model and training seed


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Images to evaluate a model on.

    Attributes:
        name: `clean`, `bal`, `shift/NAME`, `un`, `nun`, `nun/floor_0.1`, `corruptions/NAME/SEVERITY`, `flips/NAME`,
            `bal/rare`, `utility`, `robust/NORM_RADIUS`, `robust/pgd/NORM_RADIUS`, `robust/transfer/NORM_RADIUS`, `fgsm/NORM_RADIUS`,
            `checks/NORM`, `distance/ATTACK_NORM`, `certified`, `smoothed/clean`, `smoothed/pgd/l2_RADIUS`, `confidence`, `ood` or
            `ood/NAME`.
        open: returns a Dataset of (float32 [B, H, W, C] in [0, 1], int64 [B]); for flips [B, frames, H, W, C]. Called only when the
            images are needed: a set that was measured before costs nothing.
        score: computes the record of a model on this set, a dictionary for JSON; None: `scoring.score_set`.
        class_mask: the columns of the model's output that count; None: all.
        parts: results of parts of a long evaluation, text by name, which are written as soon as they are set: an interrupted evaluation
            finds there what it set before.
        images: the source of the images, in the order of the set; None: the set cannot be evaluated in shards.
        open_range: (first, last) -> as `open`, for the images `first`..`last` - 1, without reading the others; None as for `images`.
        origin: returns the source that has the positions and paths of the images; None: `images`.
    """

    name: str
    open: Callable[[], tf.data.Dataset]
    score: ScoreSet | None = None
    class_mask: Sequence[int] | None = None
    parts: MutableMapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    images: Source | None = None
    open_range: Callable[[int, int], tf.data.Dataset] | None = None
    origin: Callable[[], Source] | None = None


ScoreSet = Callable[[Predict, EvaluationSet], dict]


def read_batches(evaluation_set: EvaluationSet, size: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray, slice]]:
    """Yields the images, labels and place in the set of each batch, of `size` images or as the set is batched, and shows the progress.

    Images are float32 [B, H, W, C] in [0, 1], labels int64 [B]. A set without images raises ValueError.
    """
    start, opened = 0, evaluation_set.open()
    for images, labels in progress.batches(opened.unbatch().batch(size) if size else opened, evaluation_set.name):
        images = image_ops.check_images(images)
        yield images, labels.numpy(), slice(start, start + len(images))
        start += len(images)
    if not start:
        raise ValueError(f"Expected images to evaluate {evaluation_set.name!r} on. Received: none")


def clean_batches(source: Source) -> tf.data.Dataset:
    """Returns batches of all images of a source: (float32 [B, H, W, C] in [0, 1], int64 [B])."""
    return data.evaluation_batches(source, batch_size_of(source.image_shape))


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


def order_for_adaptation(source: Source, order: str) -> Source:
    """Returns the images of a source in another fixed order: shuffled, or by_class (as few classes per batch as possible)."""
    shuffled = np.random.RandomState(SEED).permutation(len(source))
    return source.subset(shuffled if order == "shuffled" else np.argsort(np.asarray(source.labels), kind="stable"))


def adaptation_batches(count: int, batch_size: int) -> list[int]:
    """Returns the sizes of the batches: equal up to one image, and none smaller than `batch_size` unless there are fewer images."""
    batches = max(1, count // batch_size)
    return [count // batches + (number < count % batches) for number in range(batches)]
