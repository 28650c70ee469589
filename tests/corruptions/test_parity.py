"""Every corruption against its oracle, which is given the same draws; and the draws by their moments."""

import numpy as np
import pytest

from tests.corruptions import oracles
from tf_robust import corruptions

# (height, width, channels): set of constants, severities, number of images
CASES = {
    (32, 32, 3): ("cifar", (1, 2, 3, 4, 5), 8),
    (64, 64, 3): ("tiny_imagenet", (3,), 4),
    (224, 224, 3): ("imagenet", (3,), 2),
    (20, 28, 3): ("tiny_imagenet", (3,), 6),
    (32, 32, 1): ("cifar", (3,), 6),
}
SHARES = {"jpeg_compression": 0.97}
SWEEP = [(*shape, severity) for shape, (_, severities, _) in CASES.items() for severity in severities]


def test_every_corruption_has_an_oracle():
    assert set(oracles.ORACLES) == set(corruptions.CORRUPTIONS)


@pytest.mark.parametrize("height, width, channels, severity", SWEEP)
@pytest.mark.parametrize("name", oracles.ORACLES)
def test_pixels(name, height, width, channels, severity):
    which, _, count = CASES[height, width, channels]
    images = oracles.images(height, width, channels, count)
    share, mean, _ = oracles.summary(oracles.differences(corruptions.CORRUPTIONS[name], images, severity, which))
    assert share >= SHARES.get(name, 0.995)
    assert mean < 0.5


@pytest.mark.parametrize("name", oracles.ORACLES)
def test_the_images_given_stay_as_they_are(name):
    images = oracles.images(20, 28, 3, 2)
    corruptions.CORRUPTIONS[name](images, 3)
    np.testing.assert_array_equal(images, oracles.images(20, 28, 3, 2))


SIDE = 16
PIXELS, PLANE = (SIDE, SIDE, 3), (SIDE, SIDE)
# What is drawn for an image of 16x16x3: {name: (shape, low, high)}; low and high are None for the normal distribution
DRAWS = {
    "gaussian_noise": {"normal": (PIXELS, None, None)},
    "speckle_noise": {"normal": (PIXELS, None, None)},
    "shot_noise": {"uniform": (PIXELS, 0, 1)},
    "impulse_noise": {"uniform": (PIXELS, 0, 1)},
    "motion_blur": {"angle": ((), -45, 45)},
    "snow": {"normal": (PLANE, None, None), "angle": ((), -135, -45)},
    "frost": {"corner": ((2,), 0, 1)},
    "fog": {"noise": ((SIDE * SIDE,), -1, 1)},
    "elastic_transform": {"corners": ((3, 2), -1, 1), "displacement": ((2, *PLANE), -1, 1)},
    "spatter": {"normal": (PLANE, None, None)},
}
WHOLE_NUMBERS = {"frost", "glass_blur"}


def drawn(name, count, severity=3, which="cifar"):
    """What is drawn for images 0 to count - 1, of which only the shape matters."""
    corruption, sample_image = corruptions.CORRUPTIONS[name], np.zeros([1, *PIXELS], np.float32)
    numbers = corruption.constants(severity, PIXELS, which)
    values = corruption.drawn(sample_image, severity, 0, np.arange(count), numbers)
    return {key: np.asarray(value) for key, value in values.items()}


def test_every_other_corruption_draws_nothing():
    assert {name for name, corruption in corruptions.CORRUPTIONS.items() if corruption.draw} == {*DRAWS, *WHOLE_NUMBERS}


@pytest.mark.parametrize("name, key", [(name, key) for name, keys in DRAWS.items() for key in keys])
def test_draws_by_their_moments(name, key):
    shape, low, high = DRAWS[name][key]
    values = drawn(name, 10000 if len(shape) < 2 else 2000)[key]
    assert values.shape[1:] == shape
    middle, deviation = (0, 1) if low is None else ((low + high) / 2, (high - low) / np.sqrt(12))
    rows = values.reshape(len(values), -1).astype(float)
    assert abs(rows.mean() - middle) < 0.03 * deviation
    assert rows.std() == pytest.approx(deviation, rel=0.03)
    fourth = 3 if low is None else 1.8  # of the normal and of the uniform distribution
    assert np.mean(((rows - middle) / deviation)**4) == pytest.approx(fourth, rel=0.03)
    if low is not None:
        assert low <= values.min() < low + 0.03 * (high - low)
        assert high - 0.03 * (high - low) < values.max() < high
    assert abs(np.corrcoef(rows[:-1].ravel(), rows[1:].ravel())[0, 1]) < 0.03  # one image and the next


@pytest.mark.parametrize("severity, which", [(3, "cifar"), (2, "imagenet"), (5, "imagenet")])
def test_offsets_of_glass_blur_are_equally_frequent(severity, which):
    _, reach, iterations = corruptions.CORRUPTIONS["glass_blur"].constants(severity, PIXELS, which)
    offsets = drawn("glass_blur", 1000, severity, which)["offsets"]
    assert offsets.shape == (1000, iterations, (SIDE - 2 * reach)**2, 2)
    check_frequencies(offsets[..., 0], range(-reach, reach))
    check_frequencies(offsets[..., 1], range(-reach, reach))


def test_five_ice_images_are_equally_frequent():
    check_frequencies(drawn("frost", 100000)["texture"], range(5))


def check_frequencies(values, expected):
    found, counts = np.unique(values, return_counts=True)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(counts / counts.sum(), 1 / len(found), rtol=0.03)
