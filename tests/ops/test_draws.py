"""Random numbers of an image do not depend on its batch and follow their distributions."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tf_robust.ops.draws import Draws


def all_kinds(seed, indices, shape, *purpose):
    draws = Draws(seed, indices, *purpose)
    return [
        draws.uniform(shape),
        draws.normal(shape),
        draws.integers(shape, -2, 3),
        draws.uniform(shape, -45.0, 45.0),
        draws.exact_normal(shape),
    ]


@pytest.mark.parametrize("shape", [(), (4, 5, 3)])
def test_a_row_depends_on_its_index_alone(shape):
    all_rows = [kind.numpy() for kind in all_kinds(1, np.arange(5, 15), shape)]
    for indices in ([9], [14, 5, 9], [5, 9, 14], [6, 6, 7], [7, 8, 9]):
        for expected, part in zip(all_rows, all_kinds(1, indices, shape)):
            np.testing.assert_array_equal(part, expected[np.array(indices) - 5])
    graph = tf.function(lambda i: all_kinds(1, i, shape))
    for expected, part in zip(all_rows, graph(tf.range(5, 15))):
        np.testing.assert_array_equal(part, expected)
    assert all(kind.shape == (10, *shape) for kind in all_rows)


def test_streams_differ_by_seed_purpose_call_and_index():
    draws = Draws(1, [0, 1], "fog", 3)
    streams = [*draws.uniform([50]).numpy(), *draws.uniform([50]).numpy()]
    streams += [Draws(seed, [0], *purpose).uniform([50]).numpy()[0] for seed, purpose in ((2, ("fog", 3)), (1, ("fog", 4)), (1, ()))]
    for i, stream in enumerate(streams):
        assert all(abs(np.corrcoef(stream, other)[0, 1]) < 0.6 for other in streams[:i])
    np.testing.assert_array_equal(streams[0], Draws(1, [0], "fog", 3).uniform([50])[0])


def test_distributions():
    uniform, normal, integers, angles, exact = (kind.numpy().ravel() for kind in all_kinds(3, np.arange(50), (2000,)))
    assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-3 and scipy.stats.kstest(normal, "norm").pvalue > 1e-3
    assert 0 < uniform.min() and uniform.max() < 1 and np.abs(angles).max() < 45
    assert scipy.stats.kstest(exact, "norm").pvalue > 1e-3 and len(np.unique(exact)) > 0.99 * len(exact)
    counts = np.bincount(integers + 2)
    assert len(counts) == 5 and scipy.stats.chisquare(counts).pvalue > 1e-3
    np.testing.assert_allclose([normal.mean(), normal.var(), scipy.stats.kurtosis(normal)], [0, 1, 0], atol=0.03)
    for values in (uniform, normal, exact):  # neighbors, also the two halves of one 32-bit draw
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.015
        assert abs(np.corrcoef(values[::2], values[1::2])[0, 1]) < 0.02


def test_very_large_indices():
    far = 2**40
    np.testing.assert_array_equal(Draws(0, [far, far + 1]).uniform([7])[1], Draws(0, [far + 1]).uniform([7])[0])


def test_zero_fraction_of_normal_numbers():
    values = Draws(1, np.arange(20)).normal((2000,), zero_fraction=0.65).numpy().ravel()
    assert np.mean(values == 0) == pytest.approx(0.65, abs=0.01)
    assert scipy.stats.kstest(values[values != 0], "norm").pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5])
def test_gamma_and_beta_distributions(alpha):
    gamma = Draws(1, np.arange(20)).gamma(alpha, (1000,)).numpy().ravel()
    beta, skewed = (Draws(1, np.arange(20)).beta(alpha, other, (1000,)).numpy().ravel() for other in (alpha, 5.0))
    assert scipy.stats.kstest(gamma, "gamma", (alpha,)).pvalue > 1e-3 and gamma.min() > 0
    assert scipy.stats.kstest(beta, "beta", (alpha, alpha)).pvalue > 1e-3
    assert scipy.stats.kstest(skewed, "beta", (alpha, 5.0)).pvalue > 1e-3


def test_a_pair_as_seed_gives_its_own_stream():
    one, other = (Draws(np.array(seed), np.arange(3)).uniform((50,)).numpy() for seed in ([1, 2], [1, 3]))
    assert not np.isclose(one, other).any()
    np.testing.assert_array_equal(one, Draws(np.array([1, 2]), np.arange(3)).uniform((50,)))


def test_a_count_stands_for_indices_from_zero():
    for shape in ((), (3,), (5, 7)):
        np.testing.assert_array_equal(Draws(2, tf.constant(6), "x").uniform(shape), Draws(2, np.arange(6), "x").uniform(shape))
    for no_images in (0, np.zeros([0], np.int64)):
        assert Draws(2, no_images).normal((4, 4)).shape == (0, 4, 4)


def test_exact_normal_numbers_have_the_tails_of_the_normal_distribution():
    values = Draws(5, 1000, "tails").exact_normal([10_000]).numpy().ravel()
    for limit in (3.0, 4.0, 4.3):
        expected = len(values) * scipy.stats.norm.sf(limit)
        for count in (np.sum(values > limit), np.sum(values < -limit)):
            assert abs(count - expected) < 4 * np.sqrt(expected)
    np.testing.assert_array_equal(Draws(5, [998, 999], "tails").exact_normal([10_000]).numpy().ravel(), values[-20_000:])
