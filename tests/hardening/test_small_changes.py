"""Small changes against SciPy, Pillow and colorsys, image by image."""

import colorsys
import io

import numpy as np
import pytest
import scipy.ndimage
from PIL import Image

from tests.rounding import tolerance
from tf_robust.hardening.diagnosis import SMALL_CHANGES, changed


def images_of(count, height=20, width=34, channels=3):
    random = np.random.RandomState(0).rand(count, height, width, channels)
    smooth = scipy.ndimage.gaussian_filter(random, (0, 2, 2, 0))
    return ((smooth - smooth.min()) / np.ptp(smooth)).astype(np.float32)


def test_translation_moves_by_a_sixteenth_of_the_side():
    images = images_of(8)
    moved = changed(images, "translation")
    for i, (image, result) in enumerate(zip(images, moved)):
        down, right = [(0, 2), (1, 0), (0, -2), (-1, 0)][i % 4]  # 20 x 34 pixels: 1 and 2
        padded = np.pad(image, [(2, 2), (2, 2), (0, 0)], mode="symmetric")
        np.testing.assert_allclose(result, padded[2 + down : 22 + down, 2 + right : 36 + right], atol=1e-6)


def test_translation_moves_small_images_by_one_pixel():
    images = images_of(1, 8, 8, 1)
    np.testing.assert_allclose(changed(images, "translation")[0, :, :7], images[0, :, 1:], atol=1e-6)


def test_rotation_turns_by_five_degrees_in_both_directions():
    images = images_of(4)
    turned = changed(images, "rotation")
    y, x = np.indices([20, 34])
    for i, (image, result) in enumerate(zip(images, turned)):
        angle = np.deg2rad(5) * (-1) ** i
        down, right = y - 9.5, x - 16.5
        rows, columns = 9.5 + np.sin(angle) * right + np.cos(angle) * down, 16.5 + np.cos(angle) * right - np.sin(angle) * down
        for channel in range(3):
            expected = scipy.ndimage.map_coordinates(image[..., channel], [rows, columns], order=1, mode="reflect")
            np.testing.assert_allclose(result[..., channel], expected, atol=1e-4)


def test_crop_enlarges_the_center():
    images = images_of(2, 32, 32)
    for image, result in zip(images, changed(images, "crop")):
        expected = scipy.ndimage.zoom(image[2:30, 2:30], (32 / 28, 32 / 28, 1), order=1)
        np.testing.assert_allclose(result, expected, atol=1e-4)


def test_jpeg_equals_pillow():
    images = images_of(2)
    for image, result in zip(images, changed(images, "jpeg")):
        file = io.BytesIO()
        Image.fromarray(np.round(255 * image).astype(np.uint8)).save(file, "jpeg", quality=75)
        np.testing.assert_allclose(result, np.asarray(Image.open(file)) / 255, atol=1e-6)


def test_brightness_changes_the_value_by_a_tenth_up_and_down():
    images = images_of(2, 6, 6)
    results = changed(images, "brightness")
    for i, (image, result) in enumerate(zip(images, results)):
        for pixel, found in zip(image.reshape(-1, 3), result.reshape(-1, 3)):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel.tolist())
            expected = colorsys.hsv_to_rgb(hue, saturation, min(max(value + 0.1 * (-1) ** i, 0), 1))
            np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", SMALL_CHANGES)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_change_is_a_function_of_image_and_position(name, channels):
    images = images_of(130, 8, 9, channels)
    results = changed(images, name)
    assert results.shape == images.shape and results.dtype == np.float32 and 0 <= results.min() <= results.max() <= 1
    assert 0 < np.abs(results - images).mean() < 0.2
    np.testing.assert_allclose(results[:108], changed(images[:108], name), rtol=0, atol=tolerance(16, size=9))  # positions within 9 pixels
