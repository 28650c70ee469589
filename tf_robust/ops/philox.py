"""Stateless random numbers that are equal on every device and under XLA, where TensorFlow's own functions differ.

Bits come from the Philox generator and become numbers as in TensorFlow's CPU kernels; normal numbers agree up to their last
digits.
"""

import math
from collections.abc import Sequence

import tensorflow as tf


def fold(seed: tf.Tensor, data: tf.Tensor | int) -> tf.Tensor:
    """Returns a seed [2] of a seed [2] and a number, as `tf.random.experimental.stateless_fold_in` with fewer operations."""
    data = tf.convert_to_tensor(data)
    return tf.stack([_integers([], seed, data.dtype), data])


def uniform(
    shape: Sequence[int] | tf.Tensor,
    seed: tf.Tensor,
    minval: float | int | None = 0.0,
    maxval: float | int | None = 1.0,
    dtype: tf.DType = tf.float32,
) -> tf.Tensor:
    """Returns numbers in [minval, maxval), as `tf.random.stateless_uniform`: float32, or integers; of None, None: in their full range."""
    if dtype != tf.float32 and minval is None:
        return _integers(shape, seed, dtype)
    if dtype != tf.float32:
        return tf.random.stateless_uniform(shape, seed, minval, maxval, dtype, alg="philox")
    return _fractions(shape, seed) * (maxval - minval) + minval  # type: ignore[operator]  # None only with integer dtypes


def normal(shape: Sequence[int] | tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns standard normal float32 by the Box-Muller transform; `tf.random.stateless_normal` up to the last digits."""
    count = tf.reduce_prod(tf.cast(shape, tf.int32))
    pairs = _fractions([(count + 1) // 2, 2], seed)
    radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(pairs[:, 0], 1e-7)))
    angle = 2.0 * math.pi * pairs[:, 1]
    both = tf.stack([radius * tf.sin(angle), radius * tf.cos(angle)], axis=1)
    return tf.reshape(tf.reshape(both, [-1])[:count], shape)


def key_and_counter(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns key uint64 [1] and counter uint64 [2] of a seed int64 [2], as `StatelessRandomGetKeyCounter` on a CPU."""
    mixed = full_range([4], tf.constant([0x02461E293EC8F720], tf.uint64), tf.cast(seed, tf.uint64))
    key, second = tf.split(tf.bitcast(tf.reshape(mixed, [2, 2]), tf.uint64), 2)
    return key, tf.concat([tf.zeros([1], tf.uint64), second], axis=0)


def full_range(shape: tf.Tensor, key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
    """Returns uint32 of a shape: the generator's numbers from a counter on, four for each step of the counter."""
    return tf.raw_ops.StatelessRandomUniformFullIntV2(shape=shape, key=key, counter=counter, alg=1, dtype=tf.uint32)


def normal_from(shape: tf.Tensor, key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
    """Returns standard normal float32 of a shape from a counter on, four for each step of the counter, by TensorFlow's own kernel."""
    return tf.raw_ops.StatelessRandomNormalV2(shape=shape, key=key, counter=counter, alg=1, dtype=tf.float32)


def _integers(shape, seed, dtype):
    """Returns integers in the full range of their dtype. Most graphs draw often: TensorFlow's function builds twice the operations."""
    key, counter = key_and_counter(seed)
    shape = tf.cast(shape, tf.int32) if tf.is_tensor(shape) or len(shape) else tf.constant([], tf.int32)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(shape=shape, key=key, counter=counter, alg=1, dtype=dtype)


def _fractions(shape, seed):
    """Returns float32 in [0, 1): the mantissa's 23 bits are the last of 32."""
    bits = _integers(shape, seed, tf.uint32)
    one = tf.constant(0x3F800000, tf.uint32)
    return tf.bitcast(tf.bitwise.bitwise_or(tf.bitwise.bitwise_and(bits, tf.constant(0x7FFFFF, tf.uint32)), one), tf.float32) - 1.0
