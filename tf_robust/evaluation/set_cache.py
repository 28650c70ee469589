"""Small evaluation sets, kept in memory for the next model."""

from collections.abc import Callable, Hashable

import tensorflow as tf

SET_BYTES = 8 * 2**20  # larger sets are computed again
TOTAL_BYTES = 512 * 2**20
_sets: dict[Hashable, tuple[int, tf.data.Dataset]] = {}  # {key: (size in bytes, batches)}


def cached(key: Hashable, num_bytes: int, compute: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
    """Returns the batches of an evaluation set, which is computed at most once in this process.

    Args:
        key: everything that the batches depend on.
        num_bytes: size of the images, at most `SET_BYTES`.
        compute: returns the set, in memory.
    """
    if key not in _sets:
        if sum(size for size, _ in _sets.values()) + num_bytes > TOTAL_BYTES:
            _sets.clear()
        _sets[key] = num_bytes, compute()
    return _sets[key][1]
