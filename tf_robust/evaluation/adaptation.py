"""Batches of evaluations with test-time adaptation, where a prediction depends on the batch that an image is in."""

import dataclasses

import numpy as np

from tf_robust.data.source import Source
from tf_robust.evaluation.batches import SEED
from tf_robust.evaluation.evaluation_set import EvaluationSet


def ordered(source: Source, order: str) -> Source:
    """Returns the images of a source in another fixed order.

    Args:
        source: allows subsets.
        order: shuffled (a fixed random order, so that batches are mixed) or by_class (as few classes per batch as possible).

    Raises:
        ValueError: the source is read as a stream.
    """
    shuffled = np.random.RandomState(SEED).permutation(len(source))
    return source.subset(shuffled if order == "shuffled" else np.argsort(np.asarray(source.labels), kind="stable"))


def batch_sizes(count: int, batch_size: int) -> list[int]:
    """Returns the sizes of the batches: equal up to one image, and none smaller than `batch_size` unless there are fewer images."""
    batches = max(1, count // batch_size)
    return [count // batches + (number < count % batches) for number in range(batches)]


def in_batches(evaluation_set: EvaluationSet, count: int, batch_size: int) -> EvaluationSet:
    """Returns a set of `count` images in batches of the sizes `batch_sizes`."""
    return dataclasses.replace(evaluation_set, open=lambda: evaluation_set.open().rebatch(batch_sizes(count, batch_size)))


def card_part(source: Source, adaptation: str, batch_size: int, order: str) -> dict:
    """Returns the part of a card: what is adapted, to which batches, and how many classes these contain.

    Args:
        source: the images in the order of `ordered`.
        adaptation: kind of adaptation.
        batch_size: as in `batch_sizes`.
        order: as in `ordered`.
    """
    sizes = batch_sizes(len(source), batch_size)
    batches = np.split(np.asarray(source.labels), np.cumsum(sizes)[:-1])
    counts = [np.unique(labels, return_counts=True)[1] for labels in batches]
    return {
        "statistics": adaptation,
        "batch_sizes": sorted({*sizes}),
        "order": order,
        "classes_per_batch": float(np.mean([len(of_batch) for of_batch in counts])),
        "largest_class_fraction": float(np.mean([of_batch.max() / of_batch.sum() for of_batch in counts])),
    }
