"""Stateless random numbers, a row a picture: row i depends on (seed, purpose, indices[i]) alone, not on its batch."""

import zlib

import tensorflow as tf

_PHILOX = 1
_BLOCK = 4  # float32 values that one step of the generator's counter gives


class Draws:
    """The random numbers of some pictures for one purpose. Every call is a stream of its own, in the order of the calls.

    A row begins at a multiple of its picture's index in one long stream, so consecutive indices are drawn in one piece.

    Args:
        seed: int. indices: int [N], positions in the data set.
        purpose: words and numbers that set these numbers apart from others of the same seed.
    """

    def __init__(self, seed, indices, *purpose):
        self.indices = tf.cast(indices, tf.int64)
        self._seed = tf.cast(seed, tf.int64)
        self._purpose = "/".join(map(str, purpose))
        self._calls = 0

    def uniform(self, shape=(), low=0.0, high=1.0):
        """float32 [N, *shape] in [low, high)."""
        values = self._rows(tf.raw_ops.StatelessRandomUniformV2, shape)
        return values if (low, high) == (0.0, 1.0) else low + (high - low) * values

    def normal(self, shape=()):
        """float32 [N, *shape], mean 0 and deviation 1."""
        return self._rows(tf.raw_ops.StatelessRandomNormalV2, shape)

    def integers(self, shape, low, high):
        """int32 [N, *shape] in low..high - 1."""
        return low + tf.minimum(tf.cast(self.uniform(shape) * (high - low), tf.int32), high - low - 1)

    def _rows(self, draw, shape):
        self._calls += 1
        stream = zlib.crc32(f"{self._purpose}/{self._calls}".encode())
        key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=tf.stack([self._seed, tf.constant(stream, tf.int64)]))
        values = 1
        for side in shape:
            values *= side
        blocks = -(-values // _BLOCK)

        def rows(first, count):
            start = counter + tf.stack([tf.cast(first * blocks, tf.uint64), tf.zeros([], tf.uint64)])
            return draw(shape=tf.stack([count, blocks * _BLOCK]), key=key, counter=start, alg=_PHILOX)
        count = tf.shape(self.indices)[0]
        consecutive = tf.reduce_all(self.indices[1:] == self.indices[:-1] + 1)
        drawn = tf.cond(consecutive & (count > 0), lambda: rows(self.indices[0], count), lambda: tf.map_fn(
            lambda index: rows(index, 1)[0], self.indices, fn_output_signature=tf.TensorSpec([blocks * _BLOCK])))
        drawn = drawn if blocks * _BLOCK == values else drawn[:, :values]
        return tf.reshape(drawn, [count, *shape])
