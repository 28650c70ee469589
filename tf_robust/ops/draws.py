"""Stateless random numbers, a row an image: row i depends on (seed, purpose, indices[i]) alone, not on its batch.

Numbers have 16 bits: two come out of each draw of 32, and a normal number is its quantile read from a table, which takes
two thirds of the time of drawing one.
"""

import functools
import zlib

import numpy as np
import scipy.special
import tensorflow as tf

from tf_robust.ops import philox

_BLOCK = 4  # numbers of 32 bits that one step of the generator's counter gives
_LEVELS = 2**16


class Draws:
    """The random numbers of some images for one purpose. Every call is a stream of its own, in the order of the calls.

    A row begins at a multiple of its image's index in one long stream, so consecutive indices are drawn in one piece.

    Args:
        seed: int, or int [2].
        indices: int [N], positions in the data set; or a number N, for 0..N-1, which is drawn in one piece without a look.
        purpose: words and numbers that set these numbers apart from others of the same seed.
    """

    def __init__(self, seed, indices, *purpose):
        indices = tf.cast(indices, tf.int64)
        self._in_one_piece = indices.shape.rank == 0
        self.indices = tf.range(indices) if self._in_one_piece else indices
        seed = tf.cast(seed, tf.int64)
        self._seed = seed if seed.shape.rank == 0 else philox.uniform([], seed, None, None, tf.int64)
        self._purpose = "/".join(map(str, purpose))
        self._calls = 0

    def uniform(self, shape=(), low=0.0, high=1.0):
        """float32 [N, *shape] in (low, high): the middles of 65,536 equal parts."""
        step = (high - low) / _LEVELS
        return tf.cast(self._bits(shape), tf.float32) * step + (low + step / 2)

    def normal(self, shape=(), spared=0.0):
        """float32 [N, *shape], mean 0 and deviation 1: the quantiles at the middles of 65,536 equal parts, within +-4.3.

        Args:
            spared: share of the numbers that are 0 instead.
        """
        return tf.gather(tf.constant(_normal_quantiles(spared)), tf.cast(self._bits(shape), tf.int32))

    def gamma(self, alpha, shape=()):
        """float32 [N, *shape], Gamma(alpha, 1): the quantiles at the middles of 65,536 equal parts."""
        return tf.gather(tf.constant(_gamma_quantiles(alpha)), tf.cast(self._bits(shape), tf.int32))

    def beta(self, alpha, beta, shape=()):
        """float32 [N, *shape], Beta(alpha, beta): the quantiles at the middles of 65,536 equal parts."""
        return tf.gather(tf.constant(_beta_quantiles(alpha, beta)), tf.cast(self._bits(shape), tf.int32))

    def integers(self, shape, low, high):
        """int32 [N, *shape] in low..high - 1, of at most 32,767 values."""
        return low + tf.bitwise.right_shift(tf.cast(self._bits(shape), tf.int32) * (high - low), 16)

    def _bits(self, shape):
        """uint16 [N, *shape]"""
        self._calls += 1
        stream = zlib.crc32(f"{self._purpose}/{self._calls}".encode())
        key, counter = philox.key_and_counter(tf.stack([self._seed, tf.constant(stream, tf.int64)]))
        values = int(np.prod(shape))
        blocks = -(-values // (2 * _BLOCK))

        def rows(first, count):
            start = counter + tf.stack([tf.cast(first * blocks, tf.uint64), tf.zeros([], tf.uint64)])
            words = philox.full_range(tf.stack([count, blocks * _BLOCK]), key, start)
            return tf.reshape(tf.bitcast(words, tf.uint16), [count, 2 * blocks * _BLOCK])
        count = tf.shape(self.indices)[0]
        if self._in_one_piece:
            return self._shaped(rows(tf.constant(0, tf.int64), count), count, shape)
        consecutive = tf.reduce_all(self.indices[1:] == self.indices[:-1] + 1)
        drawn = tf.cond(consecutive & (count > 0), lambda: rows(self.indices[0], count), lambda: tf.map_fn(
            lambda index: rows(index, 1)[0], self.indices,
            fn_output_signature=tf.TensorSpec([2 * blocks * _BLOCK], tf.uint16)))
        return self._shaped(drawn, count, shape)

    @staticmethod
    def _shaped(drawn, count, shape):
        values = int(np.prod(shape))
        return tf.reshape(drawn if drawn.shape[1] == values else drawn[:, :values], [count, *shape])


_MIDDLES = (np.arange(_LEVELS) + 0.5) / _LEVELS


@functools.lru_cache(maxsize=4)
def _normal_quantiles(spared=0.0):
    quantiles = np.zeros(_LEVELS, np.float32)
    drawn = _LEVELS - round(spared * _LEVELS)
    quantiles[_LEVELS - drawn:] = scipy.special.ndtri((np.arange(drawn) + 0.5) / drawn)
    return quantiles


@functools.lru_cache(maxsize=4)
def _gamma_quantiles(alpha):
    return np.maximum(scipy.special.gammaincinv(alpha, _MIDDLES), 1e-30).astype(np.float32)


@functools.lru_cache(maxsize=4)
def _beta_quantiles(alpha, beta):
    return scipy.special.betaincinv(alpha, beta, _MIDDLES).astype(np.float32)
