import colorsys

import numpy as np
import pytest
import tensorflow as tf

from tf_robust.ops import color

RANDOM = np.random.RandomState(0).rand(3, 6, 5, 3).astype(np.float32)
CORNERS = np.stack(np.meshgrid(*3 * [[0.0, 0.25, 1.0]], indexing="ij"), axis=-1).reshape(1, 9, 3, 3).astype(np.float32)
GRAY = np.repeat(np.linspace(0, 1, 30, dtype=np.float32).reshape(1, 6, 5, 1), 3, axis=-1)
CHANGES = [(0.3, 0), (0.1, 0), (2, 0.1), (2.5, 0.2), (20, 0.2), (0, 0), (0, 0.5), (1, 0), (1, -0.3)]


def saturated(pixel, scale, shift):
    hue, saturation, value = colorsys.rgb_to_hsv(*pixel.astype(float))
    return colorsys.hsv_to_rgb(hue, np.clip(saturation * scale + shift, 0, 1), value)


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("images", [RANDOM, CORNERS, GRAY], ids=["random", "corners of the cube", "gray"])
def test_saturate_equals_colorsys(images, change):
    expected = np.reshape([saturated(pixel, *change) for pixel in images.reshape(-1, 3)], images.shape)
    np.testing.assert_allclose(color.saturate(images, *change), expected, atol=2e-6)


def test_near_gray_and_near_black_stay_finite_and_in_range():
    tiny = np.array([0, 1e-45, 1e-38, 1e-20, 1e-7], np.float32)
    offsets = np.stack(np.meshgrid(tiny, tiny, tiny), axis=-1).reshape(-1, 3)
    pixels = np.concatenate([offsets, offsets + np.float32(0.5)])
    for change in CHANGES:
        out = color.saturate(pixels[None, None], *change).numpy()
        assert np.isfinite(out).all() and out.min() >= -1e-7 and out.max() <= 0.5 + 1e-6


def test_one_channel_keeps_its_values():
    np.testing.assert_array_equal(color.saturate(tf.constant(RANDOM[..., :1]), 2.0, 0.2), RANDOM[..., :1])
    np.testing.assert_array_equal(color.luma(tf.constant(RANDOM[..., :1])), RANDOM[..., :1])


def test_luma_is_rec_601():
    expected = 0.299 * RANDOM[..., :1] + 0.587 * RANDOM[..., 1:2] + 0.114 * RANDOM[..., 2:]
    np.testing.assert_allclose(color.luma(tf.constant(RANDOM)), expected, rtol=1e-6)
