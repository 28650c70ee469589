"""AutoAugment against Pillow, one image and one operation at a time, with the same draws."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.ops.test_pillow_ops import by_pillow
from tf_robust.data.autoaugment import POLICIES, SIGNED, amount, autoaugment, draw, operations
from tf_robust.ops.pillow_ops import OPERATIONS

SEED = tf.constant([3, 4], tf.int64)
policies = pytest.mark.parametrize("policy", POLICIES)
all_magnitudes = pytest.mark.parametrize("magnitudes", ["paper", "official"])


def sample_images(count, shape, seed=0):
    """Returns smooth images with some noise: integral values 0..255 as float32 [count, *shape]."""
    random = np.random.RandomState(seed)
    y, x = np.mgrid[: shape[0], : shape[1]] / 6
    waves = np.sin(x * random.uniform(0.5, 2, (count, 1, 1)) + y * random.uniform(-1, 1, (count, 1, 1)))[..., None]
    levels = 128 + random.uniform(30, 110, (count, 1, 1, shape[2])) * waves + random.randint(-8, 9, (count, *shape))
    return np.clip(np.round(levels), 0, 255).astype(np.float32)


@policies
@all_magnitudes
@pytest.mark.parametrize("shape", [(32, 32, 3), (21, 34, 3), (30, 20, 1)], ids=str)
def test_images_equal_pillow(policy, magnitudes, shape):
    levels = sample_images(150, shape)
    images = autoaugment(tf.constant(levels / 255), SEED, policy=policy, magnitudes=magnitudes).numpy()
    result = np.round(255 * images)
    np.testing.assert_allclose(images, result / 255, rtol=1e-6)
    chosen, amounts = (x.numpy() for x in draw(SEED, 150, policy, shape[:2], magnitudes))
    expected = levels.copy()
    for image, steps in zip(expected, zip(chosen, amounts)):
        for operation, value in zip(*steps):
            if operation >= 0:
                image[:] = by_pillow(operations(policy)[operation], image, value)
    assert (result == expected).all(axis=(1, 2, 3)).mean() > 0.93
    assert (np.abs(result - expected) <= 1).mean() > 0.998  # equalize after a rotation enlarges a difference of one level
    assert (expected != levels).any(axis=(1, 2, 3)).mean() > 0.6


@policies
def test_distribution_of_sub_policies_and_operations(policy):
    """Identifies every row of the table in the draws by its pair of operations, and compares frequencies with probabilities."""
    count, names = 60000, operations(policy)
    chosen, amounts = (x.numpy() for x in draw(SEED, count, policy, (32, 32)))
    expected = {}
    for sub_policy in POLICIES[policy]:
        for applied in np.ndindex(2, 2):
            total, key = 1 / 25, []
            for (name, probability, level), is_applied in zip(sub_policy, applied):
                total *= probability if is_applied else 1 - probability
                key.append((name, round(amount(name, level, (32, 32)), 3)) if is_applied else None)
            expected[tuple(key)] = expected.get(tuple(key), 0.0) + total
    observed = dict.fromkeys(expected, 0)
    for pair in zip(chosen, amounts):
        observed[tuple((names[p], round(abs(float(a)), 3)) if p >= 0 else None for p, a in zip(*pair))] += 1
    possible = [key for key, total in expected.items() if total > 0]
    assert all(observed[key] == 0 for key in expected if expected[key] == 0)
    counts = [observed[key] for key in possible]
    assert scipy.stats.chisquare(counts, [count * expected[key] for key in possible]).pvalue > 1e-3


@policies
def test_only_geometric_operations_have_random_signs(policy):
    chosen, amounts = (x.numpy() for x in draw(SEED, 20000, policy, (32, 32)))
    for position, name in enumerate(operations(policy)):
        values = amounts[chosen == position]
        if name in SIGNED:
            assert abs((values < 0).mean() - 0.5) < 3 * 0.5 / np.sqrt(len(values))
        else:
            assert (values >= 0).all()


def test_signs_of_both_operations_are_independent():
    chosen, amounts = (x.numpy() for x in draw(SEED, 60000, "cifar10", (32, 32)))
    both = amounts[(chosen == operations("cifar10").index("translate_y")).all(axis=1)]
    assert len(both) > 1000 and abs(np.corrcoef(np.sign(both).T)[0, 1]) < 0.1


def test_tables_have_25_sub_policies():
    for policy, table in POLICIES.items():
        assert len(table) == 25 and set(operations(policy)) <= set(OPERATIONS)
        for name, probability, level in (operation for sub_policy in table for operation in sub_policy):
            assert 0 <= probability <= 1 and level in range(10) and name in OPERATIONS
    assert len(set(POLICIES["cifar10"])) == 25 and len(set(POLICIES["imagenet"])) == 20  # the paper repeats five


def test_levels_span_the_papers_ranges():
    ends = {name: tuple(round(amount(name, level, (331, 331)), 9) for level in (0, 9)) for name in OPERATIONS}
    assert ends == {
        "autocontrast": (0, 0),
        "equalize": (0, 0),
        "invert": (0, 0),
        "shear_x": (0, 0.3),
        "shear_y": (0, 0.3),
        "translate_x": (0, 150),
        "translate_y": (0, 150),
        "rotate": (0, 30),
        "posterize": (8, 4),
        "solarize": (256, 0),
        **dict.fromkeys(("color", "contrast", "brightness", "sharpness"), (0.1, 1.9)),
    }
    assert [amount("posterize", level, (32, 32)) for level in range(10)] == [8, 8, 7, 7, 6, 6, 5, 5, 4, 4]
    assert amount("rotate", 3, (32, 32)) == pytest.approx(10) and amount("color", 5, (32, 32)) == pytest.approx(1.1)
    assert amount("translate_x", 9, (20, 40)) == 18 and amount("translate_y", 9, (20, 40)) == 9


def test_official_magnitudes_equal_the_authors_code():
    """The integer truncations of its CIFAR operations: pixels, degrees, bits and thresholds."""
    for level in range(10):
        amounts = {name: amount(name, level, (32, 32), "official") for name in OPERATIONS}
        assert amounts["translate_x"] == amounts["translate_y"] == level
        assert amounts["rotate"] == pytest.approx(3 * level) and amounts["shear_x"] == pytest.approx(0.03 * level)
        assert amounts["posterize"] == 4 - level * 4 // 10 and amounts["solarize"] == 256 - level * 256 // 10
        assert amounts["color"] == amounts["sharpness"] == pytest.approx(0.1 + 0.18 * level)


def test_unknown_names_are_rejected():
    images = tf.zeros([2, 8, 8, 3])
    for options in ({"policy": "svhn"}, {"magnitudes": "timm"}):
        with pytest.raises(ValueError, match=str(*options.values())):
            autoaugment(images, SEED, **options)
