"""Snow, fog and brightness against their oracles with the same draws; any size of all weather."""

import numpy as np
import pytest
import tensorflow as tf

from tests.corruptions import oracles
from tests.corruptions.weather_oracles import COLOR, GRAY, plasma
from tf_robust.corruptions import weather

RANDOM = np.random.RandomState(0)


@pytest.mark.parametrize("name", ["snow", "frost", "fog", "spatter", "brightness"])
def test_any_size(name):
    for shape in ((1, 9, 3), (9, 1, 1), (2, 2, 3), (5, 70, 3), (130, 40, 1)):
        images = tf.constant(RANDOM.rand(2, *shape), tf.float32)
        for severity in (2, 5):
            result = getattr(weather, name)(images, severity, seed=1).numpy()
            assert result.shape == images.shape and np.isfinite(result).all() and result.min() >= 0 and result.max() <= 1


@pytest.mark.parametrize("images", [COLOR, GRAY], ids=["color", "gray"])
def test_snow_and_fog_equal_their_oracles(images):
    for severity in (1, 3, 4, 5):
        ours, expected = np.clip(oracles.apply_drawn(weather.snow, images, severity), 0, 1)
        np.testing.assert_allclose(ours, expected, atol=2e-5)
    np.testing.assert_allclose(*oracles.apply_drawn(weather.fog, images, 4), atol=1e-5)


@pytest.mark.parametrize("side, decay", [(2, 3.0), (4, 2.0), (32, 3.0), (64, 1.4)])
def test_plasma(side, decay):
    noise = RANDOM.uniform(-1, 1, (3, side, side)).astype(np.float32)
    result = weather.plasma(tf.constant(noise.reshape(3, -1)), side, decay)
    np.testing.assert_allclose(result, [plasma(plane.astype(float), decay) for plane in noise], atol=1e-5)


def test_the_plane_of_fog_is_a_power_of_two():
    sizes = {(32, 32): 32, (33, 5): 64, (9, 64): 64, (224, 100): 256, (1, 1): 1}
    assert [weather.fog_side(*size) for size in sizes] == list(sizes.values())


@pytest.mark.parametrize("amount", [0.1, 0.5, -0.2])
def test_brightness_is_hsv_value(amount):
    images = COLOR.copy()
    images[0, 0, :5] = [[0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1e-3, 0], [0.2, 0.2, 0.2]]
    expected = oracles.weather_oracles.with_hsv(images.astype(float), lambda h, s, v: (h, s, np.clip(v + amount, 0, 1)))
    result = weather.brightness.apply(tf.constant(images), amount).numpy()
    np.testing.assert_allclose(result, expected, atol=2e-6)
    np.testing.assert_allclose(result[0, 0, 0], max(amount, 0), atol=1e-6)


def test_brightness_of_very_dark_pixels_is_finite():
    dark = np.float32([0, 1e-45, 1e-39, 1e-20, 1e-7, 1e-6])[None, None, :, None] * np.float32([1, 0.5, 0])
    result = weather.brightness(tf.constant(dark), 3).numpy()
    assert np.isfinite(result).all() and (result >= 0).all()
    np.testing.assert_allclose(result.max(axis=-1), 0.15, atol=1e-5)
