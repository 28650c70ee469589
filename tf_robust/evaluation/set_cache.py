"""Small evaluation sets, kept in memory for the next model: tracing the graph of a corruption takes longer than applying it."""

from collections.abc import Callable, Hashable

import tensorflow as tf

from tf_robust.data.source import Arrays, collect

SET_BYTES = 8 * 2**20  # larger sets are computed again
TOTAL_BYTES = 512 * 2**20
_sets: dict[Hashable, Arrays] = {}


def cached(key: Hashable, num_bytes: int, batch_size: int, compute: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
    """Returns the batches of an evaluation set, which is computed at most once in this process if it is small.

    Args:
        key: everything that the images and labels depend on.
        num_bytes: size of the images.
        batch_size: number of images per batch.
        compute: returns the set, a Dataset of (images, labels) in batches of this size.
    """
    if num_bytes > SET_BYTES:
        return compute()
    if key not in _sets:
        if sum(images.nbytes for images, _ in _sets.values()) + num_bytes > TOTAL_BYTES:
            _sets.clear()
        _sets[key] = collect(compute())
    return tf.data.Dataset.from_tensor_slices(_sets[key]).batch(batch_size)
