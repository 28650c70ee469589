import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tf_robust import corruptions
from tf_robust.corruptions import noise_sets

GRAY = np.full([200, 12, 10, 3], 0.5, np.float32)
IMAGES = np.random.RandomState(0).rand(8, 12, 10, 3).astype(np.float32)
PROBABILITIES = np.random.RandomState(1).uniform(0.0, 0.6, size=(12, 10))  # different for rows and columns

NOISES = {
    "uniform": corruptions.uniform_noise,
    "nonuniform": lambda images, **options: corruptions.nonuniform_noise(images, PROBABILITIES, **options),
}
noises = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)


def test_apply_equals_a_loop():
    random = np.random.RandomState(3)
    choice, gray = random.rand(2, *IMAGES.shape[:3]).astype(np.float32)
    expected = np.array(IMAGES)
    for index in np.ndindex(*choice.shape):
        if choice[index] < PROBABILITIES[index[1:]]:
            expected[index] = gray[index]
    np.testing.assert_array_equal(noise_sets.apply(IMAGES, PROBABILITIES, choice, gray), expected)


def replaced(before, after):
    """bool [N, H, W]: where any channel differs."""
    return (np.asarray(after) != before).any(axis=-1)


@pytest.mark.parametrize("name, probabilities", [("uniform", np.full([12, 10], 0.15)), ("nonuniform", PROBABILITIES)])
def test_each_location_is_replaced_with_its_probability(name, probabilities):
    counts = replaced(GRAY, NOISES[name](GRAY, seed=1)).sum(axis=0)
    excess = (counts - 200 * probabilities) / np.sqrt(200 * probabilities * (1 - probabilities))
    assert scipy.stats.chi2.sf((excess**2).sum(), df=excess.size) > 1e-3
    assert scipy.stats.binomtest(int(counts.sum()), 200 * counts.size, probabilities.mean()).pvalue > 1e-3


def test_the_rate_is_an_argument():
    assert not replaced(IMAGES, corruptions.uniform_noise(IMAGES, seed=0, rate=0.0)).any()
    assert replaced(IMAGES, corruptions.uniform_noise(IMAGES, seed=0, rate=1.0)).all()


@noises
def test_a_location_becomes_one_gray_value_in_all_channels(noise):
    after = noise(GRAY, seed=2).numpy()
    grays = after[replaced(GRAY, after)]
    np.testing.assert_array_equal(grays, np.repeat(grays[:, :1], 3, axis=1))
    assert scipy.stats.kstest(grays[:, 0], "uniform").pvalue > 1e-3


@noises
def test_the_noise_depends_on_seed_and_index_alone(noise):
    indices = np.array([5, 0, 7, 3, 1, 2, 6, 4])
    expected = noise(IMAGES, seed=3, indices=indices)
    single = [noise(IMAGES[i : i + 1], seed=3, indices=indices[i : i + 1])[0] for i in range(8)]
    batches = tf.data.Dataset.from_tensor_slices((IMAGES, indices)).batch(3)
    mapped = batches.map(lambda images, i: noise(images, seed=3, indices=i)).unbatch()
    np.testing.assert_array_equal(expected, single)
    np.testing.assert_array_equal(expected, list(mapped))
    np.testing.assert_array_equal(expected, tf.function(noise)(IMAGES, seed=3, indices=indices))
    np.testing.assert_array_equal(noise(IMAGES, seed=3), noise(IMAGES, seed=3, indices=list(range(8))))


@noises
def test_noise_differs_by_seed_and_index(noise):
    same = np.repeat(IMAGES[:1], 2, axis=0)
    first = noise(same, seed=4)
    assert (replaced(same, first)[0] != replaced(same, first)[1]).any()
    assert (replaced(same, first) != replaced(same, noise(same, seed=5))).any()


@pytest.mark.parametrize("floor", [0.1, 0.001])
def test_nonuniform_probabilities_decrease_with_the_std(floor):
    std = np.random.RandomState(2).uniform(0.05, 0.4, size=(28, 28))
    std[:2] = 0.0
    probabilities = corruptions.nonuniform_probabilities(std, floor=floor)
    products = (probabilities * (std + floor))[probabilities < 1]
    np.testing.assert_allclose(probabilities.mean(), 0.15, rtol=1e-9)
    np.testing.assert_allclose(products, products[0])
    assert (probabilities == 1).sum() == (56 if floor == 0.001 else 0)
    assert (products[0] >= (std + floor)[probabilities == 1]).all()


def test_probabilities_are_inversely_proportional_to_the_std_without_constant_locations():
    std = np.random.RandomState(2).uniform(0.2, 0.28, size=(32, 32))  # as in CIFAR-10
    expected = 0.15 / std / np.mean(1 / std)
    np.testing.assert_allclose(corruptions.nonuniform_probabilities(std), expected, rtol=1e-9)
    std[0, 0] = 0.0
    np.testing.assert_array_equal(corruptions.nonuniform_probabilities(std), corruptions.nonuniform_probabilities(std, floor=0.1))


@pytest.mark.parametrize("constant", [1, 10, 15, 40])  # of 100 locations, a rate of 0.15
def test_floor_0_is_the_limit_of_small_floors(constant):
    std = np.random.RandomState(2).uniform(0.2, 0.28, size=(10, 10))
    std.flat[:constant] = 0.0
    probabilities = corruptions.nonuniform_probabilities(std, floor=0.0)
    np.testing.assert_allclose(probabilities, corruptions.nonuniform_probabilities(std, floor=1e-9), atol=1e-6)
    np.testing.assert_allclose(probabilities.mean(), 0.15, rtol=1e-9)


def test_nonuniform_probabilities_have_any_mean():
    std = np.random.RandomState(3).rand(5, 5)
    for rate in (1e-3, 0.5, 1.0):
        np.testing.assert_allclose(corruptions.nonuniform_probabilities(std, rate=rate).mean(), rate, rtol=1e-6)


@pytest.mark.parametrize("options", [{"rate": 0.0}, {"rate": 1.5}, {"floor": -0.1}, {"floor": np.nan}, {"floor": np.inf}])
def test_invalid_rate_or_floor_is_rejected(options):
    with pytest.raises(ValueError, match="rate in .* floor"):
        corruptions.nonuniform_probabilities(np.ones([2, 2]), **options)


def test_location_std_equals_numpy():
    batches = [IMAGES[:3], IMAGES[3:7], IMAGES[7:]]
    np.testing.assert_allclose(corruptions.location_std(batches), IMAGES.std(axis=0, dtype=float).mean(axis=-1))
    np.testing.assert_allclose(corruptions.location_std([GRAY]), 0.0, atol=1e-7)
