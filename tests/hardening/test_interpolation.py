import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_robust.hardening.training import average, greedy_soup, interpolate


def _weights(seed):
    random = np.random.default_rng(seed)
    return [random.normal(size=(3, 2)).astype(np.float32), random.normal(size=4).astype(np.float32), np.array(seed, np.int64)]


@pytest.mark.parametrize("coefficient", (0.0, 0.3, 1.0))
def test_interpolation_is_linear_and_keeps_integers_of_the_start(coefficient):
    start, end = _weights(1), _weights(2)
    result = interpolate(start, end, coefficient)
    for value, first, second in zip(result[:2], start, end):
        np.testing.assert_allclose(value, first + coefficient * (second - first), rtol=1e-5, atol=1e-6)
        assert value.dtype == np.float32
    assert result[2] == 1 and result[2].dtype == np.int64


def test_the_mean_of_models():
    models = [_weights(seed) for seed in range(3)]
    for position in range(2):
        np.testing.assert_allclose(average(models)[position], np.mean([one[position] for one in models], axis=0), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_weights_of_any_precision_are_averaged(dtype):
    dtype = tf.as_dtype(dtype).as_numpy_dtype
    start, end = ([np.array(values, dtype)] for values in ([1.0, -2.0], [3.0, 4.0]))
    (half,), (mean,) = interpolate(start, end, 0.5), average([start, end, end, end])
    for found, expected in ((half, [2.0, 1.0]), (mean, [2.5, 2.5])):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.astype(np.float64), expected)
    members, (soup,) = greedy_soup([start, end], lambda weights: float(weights[0][1]), -2.0)
    assert members == [0, 1] and soup.tolist() == half.tolist()


def test_the_greedy_soup_adds_a_model_unless_the_score_falls():
    target = np.array([1.0, -0.5, 2.0])

    def score(weights):
        return -float(np.square(weights[0] - target).sum())

    for seed in range(20):
        random = np.random.default_rng(seed)
        models = sorted(([target + random.normal(size=3)] for _ in range(4)), key=score, reverse=True)
        members, soup = greedy_soup(models, score, score(models[0]))
        best = score(soup)
        expected = [0]  # by brute force
        for i in range(1, 4):
            if score([np.mean([models[j][0] for j in (*expected, i)], axis=0)]) >= score(
                [np.mean([models[j][0] for j in expected], axis=0)]
            ):
                expected.append(i)
        assert members == expected
        np.testing.assert_allclose(soup[0], np.mean([models[i][0] for i in members], axis=0))
        assert best >= score(models[0])
        assert (
            best
            <= max(
                score([np.mean([models[i][0] for i in group], axis=0)])
                for n in range(1, 5)
                for group in itertools.combinations(range(4), n)
            )
            + 1e-12
        )
