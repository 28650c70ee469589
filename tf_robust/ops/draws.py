"""Stateless random numbers, one row per image: row i depends on (seed, purpose, indices[i]) alone, not on its batch.

Numbers have 16 bits, except for `exact_normal`: each 32-bit draw gives two. Normal numbers are quantiles read from a table, in two
thirds of the time of drawing them directly.
"""

import functools
import zlib
from collections.abc import Sequence

import numpy as np
import scipy.special
import tensorflow as tf

from tf_robust.ops import philox
from tf_robust.ops.lookup import lookup

_BLOCK = 4  # 32-bit numbers for each step of the generator's counter
_LEVELS = 2**16


class Draws:
    """Random numbers of some images for one purpose. Every call reads a stream of its own, in the order of the calls.

    A row begins at a multiple of its image's index in one long stream, so consecutive indices are drawn in one piece.

    Args:
        seed: int, or int [2].
        indices: int [N], positions in the data set; or a number N, which stands for 0..N-1 and needs no check whether the
            indices are consecutive.
        *purpose: strings and numbers that separate these numbers from others of the same seed.
    """

    def __init__(self, seed: int | tf.Tensor | np.ndarray, indices: int | tf.Tensor | np.ndarray, *purpose: object) -> None:
        indices = tf.cast(indices, tf.int64)
        self._consecutive = indices.shape.rank == 0
        self.indices = tf.range(indices) if self._consecutive else indices
        seed = tf.cast(seed, tf.int64)
        self._seed = seed if seed.shape.rank == 0 else philox.uniform([], seed, None, None, tf.int64)
        self._purpose = "/".join(map(str, purpose))
        self._calls = 0

    def uniform(self, shape: Sequence[int] = (), low: float = 0.0, high: float = 1.0) -> tf.Tensor:
        """Returns float32 [N, *shape] in (low, high): the midpoints of 65,536 equal intervals."""
        step = (high - low) / _LEVELS
        return tf.cast(self._bits(shape), tf.float32) * step + (low + step / 2)

    def normal(self, shape: Sequence[int] = (), zero_fraction: float = 0.0) -> tf.Tensor:
        """Returns standard normal float32 [N, *shape]: the quantiles at the midpoints of 65,536 equal intervals, within +-4.3.

        A fraction `zero_fraction` of the numbers is 0 instead.
        """
        return lookup(tf.constant(_normal_quantiles(zero_fraction)), tf.cast(self._bits(shape), tf.int32))

    def exact_normal(self, shape: Sequence[int] = ()) -> tf.Tensor:
        """Returns standard normal float32 [N, *shape] by the Box-Muller transform of 32-bit numbers, without limits at +-4.3.

        For guarantees that assume normal noise; `normal` is faster.
        """
        rows = self._rows(-(-int(np.prod(shape)) // _BLOCK), philox.normal_from, tf.float32)
        return self._reshape(rows, tf.shape(rows)[0], shape)

    def gamma(self, alpha: float, shape: Sequence[int] = ()) -> tf.Tensor:
        """Returns float32 [N, *shape], Gamma(alpha, 1): the quantiles at the midpoints of 65,536 equal intervals."""
        return lookup(tf.constant(_gamma_quantiles(alpha)), tf.cast(self._bits(shape), tf.int32))

    def beta(self, alpha: float, beta: float, shape: Sequence[int] = ()) -> tf.Tensor:
        """Returns float32 [N, *shape], Beta(alpha, beta): the quantiles at the midpoints of 65,536 equal intervals."""
        return lookup(tf.constant(_beta_quantiles(alpha, beta)), tf.cast(self._bits(shape), tf.int32))

    def integers(self, shape: Sequence[int], low: int, high: int) -> tf.Tensor:
        """Returns int32 [N, *shape] in low..high - 1, at most 32,767 different values."""
        return low + tf.bitwise.right_shift(tf.cast(self._bits(shape), tf.int32) * (high - low), 16)

    def _bits(self, shape):
        """Returns uint16 [N, *shape]."""
        blocks = -(-int(np.prod(shape)) // (2 * _BLOCK))
        rows = self._rows(blocks, philox.full_range, tf.uint32)
        count = tf.shape(rows)[0]
        return self._reshape(tf.reshape(tf.bitcast(rows, tf.uint16), [count, 2 * blocks * _BLOCK]), count, shape)

    def _rows(self, blocks, draw, dtype):
        """Returns [N, _BLOCK * blocks] of draw(shape, key, counter)."""
        self._calls += 1
        stream = zlib.crc32(f"{self._purpose}/{self._calls}".encode())
        key, counter = philox.key_and_counter(tf.stack([self._seed, tf.constant(stream, tf.int64)]))

        def rows(first, count):
            return _rows_from(first, count, key, counter, blocks, draw)

        count = tf.shape(self.indices)[0]
        if self._consecutive:
            return rows(tf.constant(0, tf.int64), count)
        scattered = functools.partial(_scattered_rows, blocks=blocks, draw=draw, dtype=dtype)
        if tf.executing_eagerly():
            scattered = _graph_of_scattered_rows(blocks, draw, dtype)
        consecutive = tf.reduce_all(self.indices[1:] == self.indices[:-1] + 1)
        return tf.cond(
            consecutive & (count > 0),
            lambda: rows(self.indices[0], count),
            lambda: scattered(self.indices, key, counter),
        )

    @staticmethod
    def _reshape(drawn, count, shape):
        values = int(np.prod(shape))
        return tf.reshape(drawn if drawn.shape[1] == values else drawn[:, :values], [count, *shape])


def _rows_from(first, count, key, counter, blocks, draw):
    """Returns [count, _BLOCK * blocks] of a stream, from its row `first` on."""
    start = counter + tf.stack([tf.cast(first * blocks, tf.uint64), tf.zeros([], tf.uint64)])
    return tf.ensure_shape(draw(tf.stack([count, blocks * _BLOCK]), key, start), [None, blocks * _BLOCK])


def _scattered_rows(indices, key, counter, blocks, draw, dtype):
    """Returns [N, _BLOCK * blocks] of a stream, its rows of indices that are not consecutive."""
    spec = tf.TensorSpec([blocks * _BLOCK], dtype)
    return tf.map_fn(lambda index: _rows_from(index, 1, key, counter, blocks, draw)[0], indices, fn_output_signature=spec)


@functools.lru_cache(maxsize=256)
def _graph_of_scattered_rows(blocks, draw, dtype):
    """`_scattered_rows` as a graph: outside of one, Python would draw row by row."""
    specs = tf.TensorSpec([None], tf.int64), tf.TensorSpec([1], tf.uint64), tf.TensorSpec([2], tf.uint64)
    function = functools.partial(_scattered_rows, blocks=blocks, draw=draw, dtype=dtype)
    return tf.function(lambda indices, key, counter: function(indices, key, counter), autograph=False, input_signature=specs)


_MIDPOINTS = (np.arange(_LEVELS) + 0.5) / _LEVELS


@functools.lru_cache(maxsize=4)
def _normal_quantiles(zero_fraction=0.0):
    quantiles = np.zeros(_LEVELS, np.float32)
    drawn = _LEVELS - round(zero_fraction * _LEVELS)
    quantiles[_LEVELS - drawn :] = scipy.special.ndtri((np.arange(drawn) + 0.5) / drawn)
    return quantiles


@functools.lru_cache(maxsize=4)
def _gamma_quantiles(alpha):
    return np.maximum(scipy.special.gammaincinv(alpha, _MIDPOINTS), 1e-30).astype(np.float32)


@functools.lru_cache(maxsize=4)
def _beta_quantiles(alpha, beta):
    return scipy.special.betaincinv(alpha, beta, _MIDPOINTS).astype(np.float32)
