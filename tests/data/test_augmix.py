"""AugMix against Pillow, one image at a time, and its draws against the distributions of the paper."""

import functools
import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.ops.test_pillow_ops import ENHANCERS, TABLES, by_pillow, sample_images
from tf_robust.data.augmix import NAMES, augmix, draw

SIGNED = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
NINE = {"autocontrast", "equalize", "posterize", "solarize", *SIGNED}
COUNT = 4000  # images for tests of draws: nine times as many operations
SIDES = (32, 48, 3)  # rows and columns move by different amounts
DRAWS = ("operation", "amount", "depth", "weights", "lam")
severities = pytest.mark.parametrize("severity", [1, 3, 10])


@functools.lru_cache
def drawn(count=COUNT, seed=5, shape=SIDES, **options):
    draws = draw(seed, tf.range(count, dtype=tf.int64), shape, **options)
    return {name: np.asarray(values) for name, values in draws.items()}


def images_of(shape, count=36):
    """Returns images with values between gray levels, too."""
    random = np.random.RandomState(6)
    levels = np.concatenate([sample_images(shape, seed) for seed in range(-(-count // 12))])[:count]
    return np.clip((levels + random.uniform(-0.45, 0.45, size=levels.shape)) / 255, 0, 1).astype(np.float32)


def mixed_by_pillow(image, operation, amount, depth, weights, lam):
    """Algorithm of the paper for one image, float64, with the given draws."""
    mix = np.zeros(image.shape)
    for chain in range(len(weights)):
        levels = np.round(255 * image)
        for step in range(depth[chain]):
            levels = by_pillow(NAMES[operation[chain, step]], levels, amount[chain, step])
        mix += float(weights[chain]) * levels / 255
    return (1 - float(lam)) * image + float(lam) * mix


def assert_uniform(values, low, high):
    """Checks for integers low..high - 1, equally often."""
    counts = np.bincount(np.ravel(values) - low, minlength=high - low)
    assert np.min(values) >= low and len(counts) == high - low and scipy.stats.chisquare(counts).pvalue > 1e-3


def assert_distributed(values, distribution, *parameters):
    assert scipy.stats.kstest(np.ravel(values).astype(float), distribution, args=parameters).pvalue > 1e-3


# The mix


@pytest.mark.parametrize(
    "options",
    [{}, {"severity": 10, "all_ops": True}, {"severity": 1, "depth": 3}, {"width": 1, "depth": 1}, {"width": 5, "alpha": 0.3}],
    ids=str,
)
@pytest.mark.parametrize("shape", [(32, 32, 3), (17, 23, 1), (23, 17, 3)], ids=str)
def test_equals_a_mix_by_pillow(shape, options):
    images, indices = images_of(shape), np.arange(100, 136)
    result = augmix(images, seed=3, indices=indices, **options).numpy()
    draws = draw(3, indices, shape, **options)
    expected = [mixed_by_pillow(image, *rows) for image, *rows in zip(images, *(draws[name].numpy() for name in DRAWS))]
    assert result.dtype == np.float32 and result.min() >= 0 and result.max() <= 1
    difference = np.abs(result - expected)
    assert (difference <= 1.5 / 255).mean() >= 0.99 and difference.mean() < 0.1 / 255


def test_exact_operations_are_mixed_without_rounding():
    """If operations are exact, no tolerance hides a rounding of the mix, or of the image in it."""
    shape = (17, 23, 1)
    images, options = images_of(shape, 60), {"width": 2, "depth": 1}
    draws = {name: values.numpy() for name, values in draw(0, np.arange(60), shape, **options).items()}
    exact = np.isin(np.array(NAMES)[draws["operation"][:, :, 0]], TABLES).all(axis=1)
    assert exact.sum() >= 5
    result = augmix(images, **options).numpy()
    for i in np.flatnonzero(exact):
        expected = mixed_by_pillow(images[i], *(draws[name][i] for name in DRAWS))
        np.testing.assert_allclose(result[i], expected, atol=2e-6)


def test_an_image_depends_on_the_seed_and_its_index_alone():
    images, indices, options = images_of((16, 20, 3), 3), np.array([2**40, 3, 7]), {"all_ops": True, "severity": 10}
    expected = augmix(images, seed=4, indices=indices, **options).numpy()
    backwards = augmix(images[::-1], seed=4, indices=indices[::-1], **options).numpy()[::-1]
    single = [augmix(images[i : i + 1], seed=4, indices=indices[i : i + 1], **options).numpy()[0] for i in range(3)]
    np.testing.assert_array_equal(backwards, expected)
    np.testing.assert_array_equal(single, expected)


def test_graphs_and_datasets_equal_eager():
    shape, short = (17, 23, 1), functools.partial(augmix, width=1, depth=1)
    images, indices = images_of(shape), np.arange(36, dtype=np.int64)
    eager = short(images, seed=9, indices=indices)
    specs = [tf.TensorSpec([None, *shape]), tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64)]
    traced = tf.function(short, input_signature=specs, autograph=False)
    dataset = tf.data.Dataset.from_tensor_slices((images, indices)).batch(10)
    dataset = dataset.concatenate(tf.data.Dataset.from_tensors((images[:0], indices[:0])))
    *mapped, empty = dataset.map(lambda x, i: traced(x, tf.constant(9, tf.int64), i), num_parallel_calls=2)
    np.testing.assert_allclose(tf.concat(mapped, 0), eager, atol=1e-6)
    np.testing.assert_array_equal(empty, images[:0])


def test_images_and_all_draws_differ_by_seed_and_index():
    image = np.repeat(images_of((32, 32, 3), 1), 20, axis=0)
    results = np.concatenate([augmix(image, seed=seed).numpy() for seed in (0, 1)]).reshape(40, -1)
    assert len(np.unique(results.round(4), axis=0)) == 40
    assert all((drawn()[name] != drawn(seed=6)[name]).any() for name in DRAWS)


# The draws


def test_names():
    assert len(NAMES) == 13 and set(NAMES[:9]) == NINE and set(NAMES[9:]) == set(ENHANCERS)


@pytest.mark.parametrize("all_ops, number", [(False, 9), (True, 13)])
def test_operations_are_equally_likely_and_independent(all_ops, number):
    operation = drawn(all_ops=all_ops)["operation"]
    for chain, step in np.ndindex(3, 3):
        assert_uniform(operation[:, chain, step], 0, number)
    columns = operation.reshape(COUNT, 9)
    for first, second in itertools.combinations(range(9), 2):
        assert_uniform(columns[:, first] * number + columns[:, second], 0, number**2)
    assert_uniform(columns[1:] * number + columns[:-1], 0, number**2)  # adjacent images


def amounts(name, **options):
    draws = drawn(all_ops=name in ENHANCERS, **options)
    return draws["amount"][draws["operation"] == NAMES.index(name)].astype(float)


def integer_probabilities(maximum, severity):
    """Returns the probabilities of int(l * maximum / 10) = 0, 1, ... for l ~ U(0.1, severity)."""
    edges = np.clip(np.arange(maximum * severity / 10 + 1) * 10 / maximum, 0.1, severity)
    return np.diff([*edges, severity])


@severities
@pytest.mark.parametrize(
    "name, maximum", [("rotate", 30), ("translate_x", SIDES[1] / 3), ("translate_y", SIDES[0] / 3), ("posterize", 4), ("solarize", 256)]
)
def test_integral_amounts_are_truncated(name, maximum, severity):
    values = amounts(name, severity=severity)
    assert (values == np.round(values)).all()
    sizes = np.abs(values) if name in SIGNED else {"posterize": 4, "solarize": 256}[name] - values
    probabilities = integer_probabilities(maximum, severity)
    counts = np.bincount(sizes.astype(int), minlength=len(probabilities))
    assert not counts[len(probabilities) :].any() and not counts[: len(probabilities)][probabilities < 1e-9].any()
    counts, probabilities = counts[: len(probabilities)][probabilities >= 1e-9], probabilities[probabilities >= 1e-9]
    assert len(counts) == 1 or scipy.stats.chisquare(counts, probabilities / probabilities.sum() * counts.sum()).pvalue > 1e-3


@severities
@pytest.mark.parametrize("name", ["shear_x", "shear_y", *ENHANCERS])
def test_shears_and_factors_are_uniform(name, severity):
    values, lowest, slope = amounts(name, severity=severity), *((0.118, 0.18) if name in ENHANCERS else (0.003, 0.03))
    assert_distributed(np.abs(values) if name in SIGNED else values, "uniform", lowest, slope * (severity - 0.1))


@pytest.mark.parametrize("name", SIGNED)
def test_half_of_the_amounts_are_negative(name):
    values = amounts(name, severity=10)
    negative = (values[values != 0] < 0).astype(int)
    assert_uniform(negative, 0, 2)
    assert abs(np.corrcoef(negative, np.abs(values[values != 0]))[0, 1]) < 0.1


def test_amounts_at_the_papers_severity():
    """Numbers of the reference notes: severity 3 at 32 pixels, and severity 1."""
    at_32 = functools.partial(amounts, shape=(32, 32, 3))
    assert set(np.abs(at_32("rotate"))) == set(range(9)) and set(at_32("posterize")) == {3, 4}
    np.testing.assert_allclose((at_32("posterize") == 4).mean(), 0.83, atol=0.02)
    assert 180 <= at_32("solarize").min() <= 182 and 252 <= at_32("solarize").max() <= 254
    assert set(at_32("translate_x")) == set(at_32("translate_y")) == set(range(-3, 4))
    np.testing.assert_allclose((at_32("translate_x") == 0).mean(), 0.29, atol=0.03)
    assert set(at_32("posterize", severity=1)) == {4} and set(np.abs(at_32("rotate", severity=1))) == {0, 1, 2}
    np.testing.assert_allclose((at_32("translate_y", severity=1) == 0).mean(), 0.93, atol=0.03)
    assert np.abs(amounts("translate_x", shape=(224, 224, 3))).max() == 22


@severities
def test_levels_are_equally_likely_in_every_position(severity):
    """Each operation has its own level, not one per chain or image."""
    draws = drawn(severity=severity)
    for chain, step in np.ndindex(3, 3):
        sheared = draws["operation"][:, chain, step] == NAMES.index("shear_x")
        values = np.abs(draws["amount"][sheared, chain, step])
        assert_distributed(values, "uniform", 0.003, 0.03 * severity - 0.003)
    both = (draws["operation"][:, :, :2] == NAMES.index("shear_x")).all(axis=2)
    pairs = np.abs(draws["amount"][:, :, :2][both])
    assert len(pairs) > 100 and abs(np.corrcoef(pairs.T)[0, 1]) < 0.3


def test_depths_are_equally_likely_and_independent():
    depth = drawn()["depth"]
    assert_uniform(9 * depth[:, 0] + 3 * depth[:, 1] + depth[:, 2], 13, 40)


def test_depth_and_one_chain():
    for depth in (1, 2, 3):
        assert (drawn(50, depth=depth)["depth"] == depth).all()
    for alpha in (0.1, 5.0):
        np.testing.assert_array_equal(drawn(50, width=1, alpha=alpha)["weights"], 1)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("width", [2, 3])
def test_distributions_of_weights_and_mixing_coefficient(width, alpha):
    draws = drawn(width=width, alpha=alpha)
    weights, lam = draws["weights"].astype(float), draws["lam"]
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    for column in weights.T:
        assert_distributed(column, "beta", alpha, (width - 1) * alpha)
    assert_distributed(lam, "beta", alpha, alpha)
    if width == 3:  # neutral: the division of the rest does not depend on the first
        rest = weights[:, 1] / np.maximum(weights[:, 1:].sum(axis=1), 1e-30)
        assert_distributed(rest[weights[:, 0] < 0.999], "beta", alpha, alpha)
        assert abs(scipy.stats.spearmanr(weights[:, 0], rest).statistic) < 0.06
    for column in weights.T:
        assert abs(scipy.stats.spearmanr(column, lam).statistic) < 0.06


@pytest.mark.parametrize("alpha", [1e-3, 0.02, 1e4])
def test_extreme_alphas_give_weights(alpha):
    draws = drawn(alpha=alpha)
    assert all(np.isfinite(draws[name]).all() and draws[name].min() >= 0 for name in ("weights", "lam"))
    np.testing.assert_allclose(draws["weights"].sum(axis=1), 1, atol=1e-5)
    assert draws["lam"].max() <= 1
    np.testing.assert_allclose(draws["lam"].mean(), 0.5, atol=0.03)
    np.testing.assert_allclose(draws["weights"].mean(axis=0), 1 / 3, atol=0.03)


def test_invalid_arguments_are_rejected():
    nan = float("nan")
    refused = {"severity": (0.1, 0, -1, 10.01, 11, nan), "width": (0, -1), "depth": (0, 4, -2), "alpha": (0, -0.5, nan)}
    for name, value in [(name, value) for name, values in refused.items() for value in values]:
        with pytest.raises(ValueError, match=f"Expected .*{name}(.|\n)*Received"):
            augmix(images_of((16, 16, 3), 2), **{name: value})
    for shape in ((16, 16, 3), (16, 16), (1, 2, 16, 16, 3)):
        with pytest.raises(ValueError, match="Expected (.|\n)*Received"):
            augmix(np.zeros(shape, np.float32))
    assert np.isfinite(augmix(images_of((16, 16, 3), 2), severity=0.11)).all()
