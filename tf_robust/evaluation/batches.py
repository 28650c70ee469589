"""Batches of the images of a source, for evaluation."""

import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_robust import data
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_order, stratified_subset

BATCH = 500
SEED = 15  # of all noise, corruptions and attacks: the same for every model and training seed


def clean_batches(source: Source) -> tf.data.Dataset:
    """Returns batches of all images of a source: (float32 [B, H, W, C] in [0, 1], int64 [B])."""
    return data.evaluation_batches(source, batch_size_of(source.image_shape))


def batch_size_of(image_shape: Sequence[int]) -> int:
    """Returns the number of images per batch: 500 of 32 pixels, fewer of larger ones."""
    return max(1, min(BATCH, BATCH * 48 * 48 * 3 // int(np.prod(image_shape))))


def first_images(source: Source, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first images of a source, of all classes: float32 [N, H, W, C] in [0, 1] and int64 [N].

    Args:
        source: any source.
        count: number of images.
    """
    if source.sorted_by_class:
        source = source.subset(stratified_order(source.labels)[:count])
    batches = data.evaluation_batches(source, min(count, BATCH)).as_numpy_iterator()
    first = list(itertools.islice(batches, -(-count // min(count, BATCH))))
    return np.concatenate([b[0] for b in first])[:count], np.concatenate([b[1] for b in first])[:count]


def stratified_images(source: Source, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most `count` images of a source as `first_images`, stratified where it has random access: arrays are often sorted."""
    count = min(count, len(source))
    return first_images(stratified_subset(source, count) if source.random_access else source, count)
