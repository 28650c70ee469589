"""Digital corruptions against NumPy, SciPy and Pillow."""

import colorsys
import io
import operator

import numpy as np
import PIL.Image
import pytest
import scipy.ndimage
import tensorflow as tf

from tf_robust.corruptions import digital, severities

ALL = (digital.contrast, digital.elastic_transform, digital.pixelate, digital.jpeg_compression, digital.saturate)
NAME = operator.attrgetter("name")
BOX = PIL.Image.Resampling.BOX


def sample_images(count, height, width, channels, seed=0):
    """Returns float32 in [0, 1] at integral gray levels: smooth colors, fine noise on one half."""
    random = np.random.RandomState(seed)
    smooth = scipy.ndimage.gaussian_filter(random.rand(count, height, width, channels), (0, 2, 2, 0), mode="wrap")
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    smooth[:, :, width // 2 :] += random.uniform(-0.2, 0.2, size=smooth[:, :, width // 2 :].shape)
    return (np.round(255 * smooth.clip(0, 1)) / 255).astype(np.float32)


def levels(images):
    """Returns gray levels as integers; fails unless they are integral."""
    scaled = 255 * np.asarray(images)
    np.testing.assert_allclose(scaled, np.round(scaled), atol=1e-4)
    return np.round(scaled).astype(int)


def by_pillow(images, change):
    """Applies `change` to each image as a PIL.Image. Returns gray levels [N, H, W, C]."""
    scaled = np.round(255 * np.asarray(images)).astype(np.uint8)
    changed = [
        np.asarray(change(PIL.Image.fromarray(sample_image.squeeze(-1) if sample_image.shape[-1] == 1 else sample_image)))
        for sample_image in scaled
    ]
    return np.reshape(changed, scaled.shape).astype(int)


# Contrast


@pytest.mark.parametrize("shape", [(3, 32, 32, 3), (2, 9, 14, 3), (2, 14, 9, 1)], ids=str)
def test_contrast_scales_about_each_images_and_channels_mean(shape):
    images = sample_images(*shape)
    mean = images.mean(axis=(1, 2), keepdims=True, dtype=float)
    np.testing.assert_allclose(digital.contrast.apply(images, 0.3), (images - mean) * 0.3 + mean, atol=1e-6)


# Elastic transformation


def affine(image, before, after):
    """Maps the points `before` (x, y) to `after`; sampled by SciPy in float64."""
    matrix = np.linalg.solve(np.c_[after, np.ones(3)], before)  # [3, 2]: (x, y, 1) of the result -> (x, y) before
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    x, y = np.moveaxis(np.stack([columns, rows, np.ones_like(rows)], axis=-1) @ matrix, -1, 0)
    return sampled(image, y, x, "mirror")


def sampled(image, rows, columns, mode):
    return np.stack(
        [scipy.ndimage.map_coordinates(image[..., c], [rows, columns], order=1, mode=mode) for c in range(image.shape[-1])], axis=-1
    )


def elastic(image, strength, sigma, jitter, corners, displacement):
    """The steps of the original; its `center` holds (height, width) // 2 and is used as (x, y)."""
    size, center = min(image.shape[:2]) // 3, np.array(image.shape[:2]) // 2
    before = np.array([center + size, [center[0] + size, center[1] - size], center - size], float)
    image = affine(image.astype(float), before, before + jitter * corners)
    x, y = (strength * scipy.ndimage.gaussian_filter(field.astype(float), sigma, mode="reflect", truncate=3) for field in displacement)
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    return sampled(image, rows + y, columns + x, "reflect")


def draws_for(images, seed=0):
    random = np.random.RandomState(seed)
    count, height, width, _ = images.shape
    return {
        "corners": random.uniform(-1, 1, size=(count, 3, 2)).astype(np.float32),
        "displacement": random.uniform(-1, 1, size=(count, 2, height, width)).astype(np.float32),
    }


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
    drawn = draws_for(images)
    result = digital.elastic_transform.apply(images, *constants, **drawn)
    expected = [elastic(image, *constants, *draw) for image, *draw in zip(images, *drawn.values())]
    np.testing.assert_allclose(result, expected, atol=2e-4)  # a twentieth of a gray level


def test_equal_corners_move_the_image():
    images = sample_images(2, 30, 40, 3)
    corners = np.tile(np.float32([0.75, -0.5]), [2, 3, 1])  # 3 pixels to the right, 2 up
    moved = digital.elastic_transform.apply(images, 0.0, 0.0, 4.0, corners=corners, displacement=None)
    expected = np.pad(images, [(0, 0), (0, 2), (3, 0), (0, 0)], mode="reflect")[:, 2:, :-3]
    np.testing.assert_allclose(moved, expected, atol=2e-5)


def test_a_constant_displacement_shifts_the_image():
    images = sample_images(1, 20, 24, 3)
    displacement = np.stack([np.full([20, 24], 0.5), np.full([20, 24], -0.25)])[None].astype(np.float32)
    corners = np.zeros([1, 3, 2], np.float32)
    moved = digital.elastic_transform.apply(images, 8.0, 1.0, 0.0, corners=corners, displacement=displacement)
    expected = np.pad(images, [(0, 0), (2, 0), (0, 4), (0, 0)], mode="symmetric")[:, :-2, 4:]
    np.testing.assert_allclose(moved, expected, atol=2e-5)


def test_elastic_draws_are_uniform_and_independent():
    images, constants = tf.zeros([400, 24, 20, 3]), (1.0, 2.0, 3.0)
    drawn = digital.elastic_transform.drawn(images, 3, 0, None, constants)
    assert {name: tuple(values.shape) for name, values in drawn.items()} == {"corners": (400, 3, 2), "displacement": (400, 2, 24, 20)}
    for values in map(np.asarray, drawn.values()):
        error = 1 / np.sqrt(values.size)
        assert values.min() >= -1 and values.max() < 1
        assert abs(values.mean()) < 4 * error * np.sqrt(1 / 3)
        assert abs(np.mean(values**2) - 1 / 3) < 4 * error * np.sqrt(4 / 45)
        correlation = np.corrcoef(values.reshape(400, -1)[:, :6].T)
        assert abs(correlation - np.eye(6)).max() < 4.5 / np.sqrt(400)
    first = [values.numpy().reshape(400, -1)[:, :6].ravel() for values in drawn.values()]
    assert abs(np.corrcoef(first)[0, 1]) < 0.08


# Pixelation


def shrunk(fraction):
    def change(sample_image):
        small = sample_image.resize((int(fraction * sample_image.width), int(fraction * sample_image.height)), BOX)
        return small.resize(sample_image.size, BOX)

    return change


FRACTIONS = sorted({fraction for fractions in severities.CONSTANTS["pixelate"].values() for fraction in fractions})


@pytest.mark.parametrize("height, width", [(32, 32), (64, 64), (224, 224), (45, 37), (29, 50), (41, 41)])
@pytest.mark.parametrize("fraction", FRACTIONS)
def test_pixelate_equals_pillow_on_every_pixel(fraction, height, width):
    images = sample_images(2, height, width, 3)
    images[1] = np.round(images[1] * 3) / 255  # few dark levels: many means halfway between two
    np.testing.assert_array_equal(levels(digital.pixelate.apply(images, fraction)), by_pillow(images, shrunk(fraction)))


@pytest.mark.parametrize("fraction", [0.03, 0.1, 0.17, 0.99, 1.0])
def test_pixelate_accepts_any_fraction(fraction):
    images = sample_images(2, 50, 70, 1)
    np.testing.assert_array_equal(levels(digital.pixelate.apply(images, fraction)), by_pillow(images, shrunk(fraction)))


def test_pixelate_at_every_size():
    """Pillow omits a pixel, or counts it twice, at some sizes."""
    for side in range(4, 60):
        images = sample_images(1, side, side, 1)
        for fraction in (0.85, 0.6, 0.3):
            expected = by_pillow(images, shrunk(fraction))
            np.testing.assert_array_equal(levels(digital.pixelate.apply(images, fraction)), expected, f"{side}, {fraction}")


def test_pixelate_keeps_one_pixel_of_the_smallest_image():
    images = np.full([1, 1, 3, 1], 0.2, np.float32)
    np.testing.assert_allclose(digital.pixelate.apply(images, 0.25), images)


# JPEG compression


def compressed(quality):
    def change(sample_image):
        stream = io.BytesIO()
        sample_image.save(stream, "JPEG", quality=quality)
        return PIL.Image.open(stream)

    return change


@pytest.mark.parametrize(
    "height, width, channels", [(32, 32, 3), (64, 64, 3), (224, 224, 3), (45, 37, 3), (17, 50, 1), (32, 32, 1), (3, 5, 3)]
)
@pytest.mark.parametrize("quality", [7, 25, 58, 80, 100])
def test_jpeg_equals_pillow_on_every_pixel(quality, height, width, channels):
    images = sample_images(2, height, width, channels)
    result = levels(digital.jpeg_compression.apply(images, quality))
    np.testing.assert_array_equal(result, by_pillow(images, compressed(quality)))


# Saturation


@pytest.mark.parametrize("severity", [1, 5])
def test_saturate_scales_and_shifts_saturation_in_hsv(severity):
    images = sample_images(1, 8, 9, 3)
    scale, shift = {1: (0.3, 0), 5: (2.5, 0.2)}[severity]
    pixels = [colorsys.rgb_to_hsv(*pixel) for pixel in images.reshape(-1, 3).astype(float)]
    expected = [colorsys.hsv_to_rgb(hue, min(saturation * scale + shift, 1), value) for hue, saturation, value in pixels]
    np.testing.assert_allclose(digital.saturate(images, severity), np.reshape(expected, images.shape), atol=2e-6)


# Rounding


@pytest.mark.parametrize("corruption", (digital.pixelate, digital.jpeg_compression), ids=NAME)
def test_pixelate_and_jpeg_first_round_to_gray_levels(corruption):
    images = sample_images(2, 32, 32, 3)
    between = images + np.random.RandomState(1).uniform(-0.49, 0.49, size=images.shape).astype(np.float32) / 255
    between = between.clip(0, 1)
    number = corruption.constants(3, (32, 32, 3))
    np.testing.assert_array_equal(corruption.apply(between, *number), corruption.apply(images, *number))
