"""Every corruption against its oracle with the same draws; and the moments of the draws."""

import numpy as np
import pytest

from tests.corruptions import oracles
from tf_robust import corruptions, metrics

# (height, width, channels): set of constants, severities, number of images
CASES = {
    (32, 32, 3): ("cifar", (1, 2, 3, 4, 5), 4),
    (64, 64, 3): ("tiny_imagenet", (3,), 2),
    (224, 224, 3): ("imagenet", (3,), 1),
    (20, 28, 3): ("tiny_imagenet", (3,), 3),
    (32, 32, 1): ("cifar", (3,), 3),
}
MIN_FRACTIONS = {"jpeg_compression": 0.97}


def test_every_published_corruption_has_an_oracle():
    assert set(oracles.ORACLES) == {*metrics.MEANS["mean19"], *metrics.BAR["cifar"], *metrics.BAR["imagenet"]}


@pytest.mark.parametrize("name", oracles.ORACLES)
def test_corruption_equals_its_oracle(name):
    for (height, width, channels), (constants_set, severities, count) in CASES.items():
        images = oracles.sample_images(height, width, channels, count)
        kept = images.copy()
        for severity in severities:
            fraction, mean, _ = oracles.summary(oracles.differences(corruptions.CORRUPTIONS[name], images, severity, constants_set))
            assert fraction >= MIN_FRACTIONS.get(name, 0.995) and mean < 0.5, (images.shape, severity)
        np.testing.assert_array_equal(images, kept)


SIDE, TURN = 16, 2 * np.pi
PIXELS, PLANE = (SIDE, SIDE, 3), (SIDE, SIDE)
# Random inputs for an image of 16x16x3: {name: (shape, low, high)}; low and high are None for the normal distribution
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
    "blue_noise_sample": {"phases": ((1, SIDE * SIDE // 2), 0, TURN)},
    "brownish_noise": {"phases": ((3, SIDE * SIDE // 2), 0, TURN)},
    "checkerboard_cutout": {"angle": ((), 0, TURN), "scale": ((), 0.1, 0.25), "cells": ((1024,), 0, 1)},
    "inverse_sparkles": {"center": ((2,), 0.25, 0.75), "lengths": ((199,), None, None)},
    "sparkles": {"centers": ((5, 2), 0, 1), "lengths": ((5, 199), None, None)},
    "lines": {"middles": ((2, 2), 0, 1), "angle": ((), 0, TURN), "variation": ((), 0.1, 1), "turns": ((2,), -0.5, 0.5)},
    "ripple": {"wavelengths": ((2,), 0.1, 0.3), "phases": ((2,), 0, TURN)},
    "transverse_chromatic_aberration": {"order": ((3,), 0, 1)},
    "caustic_refraction": {"time": ((), 0.5, 2), "size": ((), 0.75, 1.25)},
    "concentric_sine_waves": {"center": ((2,), 0, 1), "petals": ((), 0, 10), "amplitude": ((), 0, 0.1), "width": ((), 0, 0.1)},
    "perlin_noise": {"gradients": ((256, 2), -1, 1), "order": ((256,), 0, 1)},
    "plasma_noise": {"time": ((), 0, 3 * TURN), "sharpness": ((), 0.5, 1), "scale": ((), 0.075, 0.2)},
    "single_frequency_grayscale": {"frequencies": ((2,), -1, 1), "order": ((), 0, 1), "phase": ((), 0, TURN)},
}
INTEGER_DRAWS = {"frost", "glass_blur", "pinch_and_twirl"}


def drawn(name, count, severity=3, constants_set="cifar"):
    """Returns the random inputs of images 0 to count - 1; they depend on the images' shape only."""
    corruption, sample_image = corruptions.CORRUPTIONS[name], np.zeros([1, *PIXELS], np.float32)
    numbers = corruption.constants(severity, PIXELS, constants_set)
    values = corruption.drawn(sample_image, severity, 0, np.arange(count), numbers)
    return {key: np.asarray(value) for key, value in values.items()}


def test_other_corruptions_draw_nothing():
    assert {name for name in oracles.ORACLES if corruptions.CORRUPTIONS[name].draw} == {*DRAWS, *INTEGER_DRAWS}


@pytest.mark.parametrize("name, key", [(name, key) for name, keys in DRAWS.items() for key in keys])
def test_moments_of_draws(name, key):
    shape, low, high = DRAWS[name][key]
    values = drawn(name, 10000 if np.prod(shape) < 100 else 2000)[key]
    assert values.shape[1:] == shape
    midpoint, std = (0, 1) if low is None else ((low + high) / 2, (high - low) / np.sqrt(12))
    rows = values.reshape(len(values), -1).astype(float)
    assert abs(rows.mean() - midpoint) < 0.03 * std
    assert rows.std() == pytest.approx(std, rel=0.03)
    fourth = 3 if low is None else 1.8  # moment of the normal and of the uniform distribution
    assert np.mean(((rows - midpoint) / std) ** 4) == pytest.approx(fourth, rel=0.03)
    if low is not None:
        assert low <= values.min() < low + 0.03 * (high - low)
        assert high - 0.03 * (high - low) < values.max() < high
    assert abs(np.corrcoef(rows[:-1].ravel(), rows[1:].ravel())[0, 1]) < 0.03  # adjacent images


@pytest.mark.parametrize("severity, constants_set", [(3, "cifar"), (2, "imagenet"), (5, "imagenet")])
def test_offsets_of_glass_blur_are_equally_frequent(severity, constants_set):
    _, reach, iterations = corruptions.CORRUPTIONS["glass_blur"].constants(severity, PIXELS, constants_set)
    offsets = drawn("glass_blur", 1000, severity, constants_set)["offsets"]
    assert offsets.shape == (1000, iterations, (SIDE - 2 * reach) ** 2, 2)
    check_frequencies(offsets[..., 0], range(-reach, reach))
    check_frequencies(offsets[..., 1], range(-reach, reach))


@pytest.mark.parametrize(
    "name, count, key, expected",
    [
        ("frost", 100000, "texture", range(5)),
        ("pinch_and_twirl", 20000, "signs", range(2)),
        ("plasma_noise", 20000, "iterations", range(4, 7)),
        ("sparkles", 20000, "rays", range(50, 200)),
        ("inverse_sparkles", 20000, "rays", range(50, 200)),
    ],
)
def test_integers_are_equally_frequent(name, count, key, expected):
    check_frequencies(drawn(name, count)[key], expected, 0.03 if len(expected) < 10 else 0.4)


def check_frequencies(values, expected, tolerance=0.03):
    unique, counts = np.unique(values, return_counts=True)
    np.testing.assert_array_equal(unique, expected)
    np.testing.assert_allclose(counts / counts.sum(), 1 / len(unique), rtol=tolerance)
