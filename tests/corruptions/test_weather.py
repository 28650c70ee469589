"""Snow, fog and brightness, pixel by pixel, against slow oracles with the same draws; common properties of all weather."""

import colorsys
import itertools
import math

import numpy as np
import pytest
import scipy.ndimage
import tensorflow as tf

from tests.corruptions.weather_draws import COLOR, GRAY, LUMA, RANDOM, both, check_normal, check_uniform, drawn, every
from tf_robust.corruptions import severities, weather

# All five


@every
def test_one_channel_is_the_luma_of_three_equal_channels(corruption):
    for severity, constants_set in itertools.product((1, 3, 5), severities.SETS):
        constants, draws = drawn(corruption, GRAY, severity, constants_set)
        single, triple = (
            np.clip(corruption.apply(tf.constant(images), *constants, **draws), 0, 1) for images in (GRAY, np.repeat(GRAY, 3, axis=-1))
        )
        np.testing.assert_allclose(single[..., 0], triple @ LUMA, atol=1e-5)


@every
@pytest.mark.parametrize("shape", [(1, 9, 3), (9, 1, 1), (2, 2, 3), (5, 70, 3), (130, 40, 1)])
def test_any_size(corruption, shape):
    images = tf.constant(RANDOM.rand(2, *shape), tf.float32)
    for severity in (2, 5):
        result = corruption(images, severity, seed=1).numpy()
        assert result.shape == images.shape and np.isfinite(result).all() and result.min() >= 0 and result.max() <= 1


# Snow


def zoomed(plane, factor):
    """The central 1 / factor of the plane, enlarged to its size."""
    cropped = [math.ceil(side / factor) for side in plane.shape]
    first = [(side - crop) // 2 for side, crop in zip(plane.shape, cropped)]
    window = plane[first[0] : first[0] + cropped[0], first[1] : first[1] + cropped[1]]
    # nearest: by default SciPy can take the last pixel to lie outside, by a rounding error
    large = scipy.ndimage.zoom(window, factor, order=1, mode="nearest")
    first = [(large.shape[i] - plane.shape[i]) // 2 for i in range(2)]
    return large[first[0] : first[0] + plane.shape[0], first[1] : first[1] + plane.shape[1]]


def blown(plane, radius, sigma, angle):
    """Motion blur by ImageMagick's rule: half a Gaussian of taps on one side, the border's pixel beyond the border."""
    taps = np.arange(2 * radius + 1)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    total = np.zeros_like(plane)
    for tap, weight in zip(taps, weights / weights.sum()):
        rows = np.arange(plane.shape[0]) + math.ceil(tap * math.sin(math.radians(angle)) - 0.5)
        columns = np.arange(plane.shape[1]) + math.ceil(tap * math.cos(math.radians(angle)) - 0.5)
        total += weight * plane[np.clip(rows, 0, plane.shape[0] - 1)][:, np.clip(columns, 0, plane.shape[1] - 1)]
    return total


@both
@pytest.mark.parametrize("severity", [1, 3, 4, 5])
def test_snow(images, severity):
    constants, draws = drawn(weather.snow, images, severity)
    mean, std, zoom, threshold, radius, sigma, mix = constants
    result = weather.snow.apply(tf.constant(images), *constants, **draws)
    for image, normal, angle, ours in zip(images.astype(float), draws["normal"], draws["angle"], result):
        layer = zoomed(mean + std * normal.astype(float), zoom)
        layer[layer < threshold] = 0
        layer = blown(np.clip(layer, 0, 1), radius, sigma, float(angle))
        gray = (image @ LUMA if image.shape[-1] == 3 else image[..., 0])[..., None]
        expected = mix * image + (1 - mix) * np.maximum(image, 1.5 * gray + 0.5)
        np.testing.assert_allclose(ours, expected + (layer + np.rot90(layer, 2))[..., None], atol=2e-5)


def test_draws_of_snow():
    _, draws = drawn(weather.snow, np.zeros([3000, 8, 6, 3], np.float32), 3)
    assert draws["normal"].shape == (3000, 8, 6) and draws["angle"].shape == (3000,)
    check_normal(draws["normal"])
    check_uniform(draws["angle"], -135, -45)


# Fog


def slow_plasma(noise, decay):
    side = len(noise)
    plane, wibble, step = np.zeros([side, side]), 100.0, side

    def fill(row, column, neighbors):
        near = [plane[(row + down) % side, (column + right) % side] for down, right in neighbors]
        plane[row, column] = np.mean(near) + wibble**2 * noise[row, column]

    while step >= 2:
        half = step // 2
        corners = [(-half, -half), (-half, half), (half, -half), (half, half)]
        beside = [(-half, 0), (half, 0), (0, -half), (0, half)]
        for row, column in itertools.product(range(half, side, step), repeat=2):
            fill(row, column, corners)
        for row, column in itertools.product(range(0, side, step), range(half, side, step)):
            fill(row, column, beside)
            fill(column, row, beside)
        step, wibble = half, wibble / decay
    plane -= plane.min()
    return plane / plane.max()


@pytest.mark.parametrize("side, decay", [(2, 3.0), (4, 2.0), (32, 3.0), (64, 1.4)])
def test_plasma(side, decay):
    noise = RANDOM.uniform(-1, 1, (3, side, side)).astype(np.float32)
    result = weather.plasma(tf.constant(noise.reshape(3, -1)), side, decay)
    for plane, ours in zip(noise.astype(float), result):
        np.testing.assert_allclose(ours, slow_plasma(plane, decay), atol=1e-5)


@both
def test_fog(images):
    constants, draws = drawn(weather.fog, images, 4)
    result = weather.fog.apply(tf.constant(images), *constants, **draws)
    for image, noise, ours in zip(images.astype(float), draws["noise"], result):
        plane = slow_plasma(noise.reshape(32, 32).astype(float), constants[1])
        foggy = image + constants[0] * plane[: image.shape[0], : image.shape[1], None]
        np.testing.assert_allclose(ours, foggy * image.max() / (image.max() + constants[0]), atol=1e-5)


def test_draws_of_fog():
    sizes = {(32, 32): 32, (33, 5): 64, (9, 64): 64, (224, 100): 256, (1, 1): 1}
    assert [weather.fog_side(*size) for size in sizes] == list(sizes.values())
    _, draws = drawn(weather.fog, np.zeros([3000, 5, 8, 3], np.float32), 3)
    assert draws["noise"].shape == (3000, 64)
    check_uniform(draws["noise"], -1, 1)


# Brightness


@pytest.mark.parametrize("amount", [0.1, 0.5, -0.2])
def test_brightness_is_hsv_value(amount):
    images = COLOR.copy()
    images[0, 0, :5] = [[0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1e-3, 0], [0.2, 0.2, 0.2]]
    result = weather.brightness.apply(tf.constant(images), amount).numpy()
    for pixel, ours in zip(images.reshape(-1, 3)[::3], result.reshape(-1, 3)[::3]):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel.astype(float))
        expected = colorsys.hsv_to_rgb(hue, saturation, np.clip(value + amount, 0, 1))
        np.testing.assert_allclose(ours, expected, atol=2e-6)
    np.testing.assert_allclose(result[0, 0, 0], max(amount, 0), atol=1e-6)


def test_brightness_of_very_dark_pixels_is_finite():
    dark = np.float32([0, 1e-45, 1e-39, 1e-20, 1e-7, 1e-6])[None, None, :, None] * np.float32([1, 0.5, 0])
    result = weather.brightness(tf.constant(dark), 3).numpy()
    assert np.isfinite(result).all() and (result >= 0).all()
    np.testing.assert_allclose(result.max(axis=-1), 0.15, atol=1e-5)
