"""Digital corruptions against NumPy, SciPy and Pillow."""

import numpy as np
import pytest
import scipy.ndimage

from tests.corruptions import oracles
from tf_robust.corruptions import digital, severities


def sample_images(count, height, width, channels):
    """Returns float32 in [0, 1] at integral gray levels: smooth colors, fine noise on one half."""
    random = np.random.RandomState(0)
    smooth = scipy.ndimage.gaussian_filter(random.rand(count, height, width, channels), (0, 2, 2, 0), mode="wrap")
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    smooth[:, :, width // 2 :] += random.uniform(-0.2, 0.2, size=smooth[:, :, width // 2 :].shape)
    return (np.round(255 * smooth.clip(0, 1)) / 255).astype(np.float32)


def levels(images):
    """Returns gray levels as integers; fails unless they are integral."""
    scaled = 255 * np.asarray(images)
    np.testing.assert_allclose(scaled, np.round(scaled), atol=1e-4)
    return np.round(scaled).astype(int)


def test_contrast_scales_about_each_images_and_channels_mean():
    for shape in ((3, 32, 32, 3), (2, 9, 14, 3), (2, 14, 9, 1)):
        np.testing.assert_allclose(*oracles.apply(digital.contrast, sample_images(*shape), (0.3,), {}), atol=1e-6)


@pytest.mark.parametrize("severity", [1, 5])
def test_saturate_scales_and_shifts_saturation_in_hsv(severity):
    images, numbers = sample_images(1, 8, 9, 3), {1: (0.3, 0), 5: (2.5, 0.2)}[severity]
    _, expected = oracles.apply(digital.saturate, images, numbers, {})
    np.testing.assert_allclose(digital.saturate(images, severity), np.clip(expected, 0, 1), atol=2e-6)


@pytest.mark.parametrize(
    "shape, constants",
    [
        *[((2, 32, 32, 3), severities.constants_of("elastic_transform", severity, "cifar")) for severity in range(1, 6)],
        ((2, 64, 48, 3), severities.constants_of("elastic_transform", 3, "tiny_imagenet")),
        ((1, 112, 150, 1), severities.constants_of("elastic_transform", 1, "imagenet")),  # blurred over 1025 pixels
        ((1, 224, 224, 3), severities.constants_of("elastic_transform", 5, "imagenet")),
        ((3, 31, 45, 1), (9.0, 1.5, 2.5)),
        ((3, 45, 31, 3), (9.0, 1.5, 2.5)),
        ((3, 32, 32, 3), (0.0, 0.0, 2.0)),
        ((3, 32, 32, 3), (6.0, 0.0, 2.0)),
    ],
    ids=str,
)
def test_elastic_equals_scipy(shape, constants):
    images = sample_images(*shape)
    drawn = digital.elastic_transform.drawn(images, 3, 0, None, constants)
    np.testing.assert_allclose(*oracles.apply(digital.elastic_transform, images, constants, drawn), atol=2e-4)  # 1/20 of a gray level


def test_equal_corners_or_displacements_move_the_image():
    images = sample_images(2, 30, 40, 3)
    corners = np.tile(np.float32([0.75, -0.5]), [2, 3, 1])  # 3 pixels to the right, 2 up
    moved = digital.elastic_transform.apply(images, 0.0, 0.0, 4.0, corners=corners, displacement=None)
    expected = np.pad(images, [(0, 0), (0, 2), (3, 0), (0, 0)], mode="reflect")[:, 2:, :-3]
    np.testing.assert_allclose(moved, expected, atol=2e-5)
    displacement = np.tile(np.float32([0.5, -0.25])[:, None, None], [2, 1, 30, 40])
    moved = digital.elastic_transform.apply(images, 8.0, 1.0, 0.0, corners=0 * corners, displacement=displacement)
    expected = np.pad(images, [(0, 0), (2, 0), (0, 4), (0, 0)], mode="symmetric")[:, :-2, 4:]
    np.testing.assert_allclose(moved, expected, atol=2e-5)


def check_pixelate(images, fraction):
    ours, expected = oracles.apply(digital.pixelate, images, (fraction,), {})
    np.testing.assert_array_equal(levels(ours), levels(expected), f"{images.shape}, {fraction}")


def test_pixelate_equals_pillow_on_every_pixel():
    fractions = {fraction for published in severities.CONSTANTS["pixelate"].values() for fraction in published}
    for height, width in ((32, 32), (64, 64), (224, 224), (45, 37), (29, 50), (41, 41)):
        images = sample_images(2, height, width, 3)
        images[1] = np.round(images[1] * 3) / 255  # few dark levels: many means halfway between two
        for fraction in fractions:
            check_pixelate(images, fraction)
    for fraction in (0.03, 0.1, 0.17, 0.99, 1.0):
        check_pixelate(sample_images(2, 50, 70, 1), fraction)


def test_pixelate_at_every_size():
    """Pillow omits a pixel, or counts it twice, at some sizes."""
    for side in range(4, 60):
        for fraction in (0.85, 0.6, 0.3):
            check_pixelate(sample_images(1, side, side, 1), fraction)
    smallest = np.full([1, 1, 3, 1], 0.2, np.float32)
    np.testing.assert_allclose(digital.pixelate.apply(smallest, 0.25), smallest)  # keeps one pixel


@pytest.mark.parametrize("shape", [(32, 32, 3), (64, 64, 3), (224, 224, 3), (45, 37, 3), (17, 50, 1), (32, 32, 1), (3, 5, 3)], ids=str)
def test_jpeg_equals_pillow_on_every_pixel(shape):
    images = sample_images(2, *shape)
    for quality in (7, 25, 58, 80, 100):
        ours, expected = oracles.apply(digital.jpeg_compression, images, (quality,), {})
        np.testing.assert_array_equal(levels(ours), levels(expected), f"quality {quality}")


@pytest.mark.parametrize("corruption", (digital.pixelate, digital.jpeg_compression))
def test_pixelate_and_jpeg_first_round_to_gray_levels(corruption):
    images = sample_images(2, 32, 32, 3)
    between = images + np.random.RandomState(1).uniform(-0.49, 0.49, size=images.shape).astype(np.float32) / 255
    number = corruption.constants(3, (32, 32, 3))
    np.testing.assert_array_equal(corruption.apply(between.clip(0, 1), *number), corruption.apply(images, *number))
