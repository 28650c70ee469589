"""FCL's selection of values and its perturbations against NumPy."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tf_robust.methods import fcl

SHAPE = (6, 5, 3)
SIZE = int(np.prod(SHAPE))
SEED = tf.constant([1, 2], tf.int64)


def bottom(scores, k):
    """Returns bool [N, D] by a stable sort: of equal scores those at lower indices."""
    selected = np.zeros(scores.shape, bool)
    np.put_along_axis(selected, np.argsort(scores, axis=1, kind="stable")[:, :k], True, axis=1)
    return selected


SCORES = {
    "distinct": np.random.RandomState(0).rand(4, SIZE),
    "tied": np.random.RandomState(0).randint(0, 4, size=(4, SIZE)),
    "equal": np.ones([4, SIZE]),
    "zero but one": np.eye(4, SIZE),
    "tied in one row": np.concatenate([np.random.RandomState(0).rand(3, SIZE), np.zeros([1, SIZE])]),
}
each_scores = pytest.mark.parametrize("scores", [s.astype(np.float32) for s in SCORES.values()], ids=SCORES)
each_k = pytest.mark.parametrize("k", [1, 2, SIZE // 2, SIZE // 2 + 7, SIZE - 1, SIZE])


def test_zeros_of_both_signs_are_equal_in_graphs_too():
    scores = tf.constant([[0.0, -0.0, 0.0, -0.0]])
    for make, compiled in ((lambda f: f, False), (tf.function, False), (lambda f: tf.function(f, jit_compile=True), True)):
        assert make(lambda x, compiled=compiled: fcl.lowest(x, 2, compiled))(scores).numpy().tolist() == [[True, True, False, False]]


def noise_of(scores, k, sigma=0.5, seed=SEED):
    """Returns the noise of the positive and of the negative, [N, D] each, on images of zeros."""
    images = tf.zeros([len(scores), *SHAPE])
    low, high = fcl.perturb(images, tf.reshape(scores, images.shape), k, sigma, seed)
    return low.numpy().reshape(scores.shape), high.numpy().reshape(scores.shape)


@each_scores
@each_k
@pytest.mark.parametrize("compiled", [False, True])
def test_lowest_equals_a_stable_sort(scores, k, compiled):
    for signed in (scores, -scores):
        np.testing.assert_array_equal(fcl.lowest(tf.constant(signed), k, compiled), bottom(signed, k))


@each_scores
@each_k
def test_perturb_changes_exactly_the_k_lowest_and_the_k_highest(scores, k):
    images = tf.random.stateless_uniform([len(scores), *SHAPE], [0, 0])
    low, high = fcl.perturb(images, tf.reshape(scores, images.shape), k, 0.5, SEED)
    np.testing.assert_array_equal((low != images).numpy().reshape(scores.shape), bottom(scores, k))
    np.testing.assert_array_equal((high != images).numpy().reshape(scores.shape), bottom(-scores, k))


def test_noise_is_normal_with_std_sigma():
    scores = np.random.RandomState(3).rand(60, SIZE).astype(np.float32)
    for noise in noise_of(scores, 40, sigma=0.2):
        assert scipy.stats.kstest(noise[noise != 0], "norm", (0.0, 0.2)).pvalue > 1e-3


def test_noise_depends_on_the_seed():
    first, again, other = (noise_of(SCORES["equal"], SIZE, seed=SEED + shift)[0] for shift in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()
