"""Random numbers equal TensorFlow's on a CPU, also under XLA."""

import numpy as np
import pytest
import tensorflow as tf

from tf_robust.ops import philox
from tf_robust.ops.draws import Draws

SEEDS = ([3, 5], [-3, 2**40], [2**62 + 7, -(2**61)])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 7, 5)])
def test_numbers_equal_tensorflow_on_a_cpu(shape, seed):
    np.testing.assert_array_equal(philox.uniform(shape, seed), tf.random.stateless_uniform(shape, seed))
    for dtype in (tf.int32, tf.int64, tf.uint64):
        expected = tf.random.stateless_uniform(shape, seed, None, None, dtype, alg="philox")
        np.testing.assert_array_equal(philox.uniform(shape, seed, None, None, dtype), expected)
        if dtype != tf.uint64:
            folded = philox.fold(tf.constant(seed, tf.int64), tf.constant(7, dtype))
            np.testing.assert_array_equal(folded, tf.random.experimental.stateless_fold_in(seed, tf.constant(7, dtype), alg="philox"))
    np.testing.assert_array_equal(philox.uniform(shape, seed, 2, 9, tf.int32), tf.random.stateless_uniform(shape, seed, 2, 9, tf.int32))
    np.testing.assert_allclose(philox.normal(shape, seed), tf.random.stateless_normal(shape, seed), atol=3e-6)
    for ours, expected in zip(
        philox.key_and_counter(tf.constant(seed, tf.int64)), tf.raw_ops.StatelessRandomGetKeyCounter(seed=tf.constant(seed, tf.int64))
    ):
        np.testing.assert_array_equal(ours, expected)


def test_xla_draws_the_same():
    def drawn(seed):
        draws = Draws(philox.fold(seed, tf.constant(5, tf.int64)), 4, "test")
        return (
            philox.uniform([5, 3], seed, 0.5, 2.0),
            philox.normal([5, 3], seed),
            philox.uniform([9], seed, 0, 100, tf.int64),
            draws.uniform([3]),
            draws.normal([2, 3], 0.5),
            draws.beta(0.5, 2.0),
            draws.integers([7], 0, 50),
        )

    by_xla = tf.function(drawn, jit_compile=True)
    for seed in SEEDS:
        seed = tf.constant(seed, tf.int64)
        for eager, compiled in zip(drawn(seed), by_xla(seed), strict=True):
            np.testing.assert_allclose(compiled, eager, atol=1e-6)
