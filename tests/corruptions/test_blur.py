"""Blurs against their oracles at every severity and set of constants; borders, chains of glass blur, and the directions of motion."""

import numpy as np
import pytest
import scipy.ndimage

from tests.corruptions import oracles
from tests.corruptions.noise_blur_digital_oracles import disk_kernel, glass_blur, zoomed
from tf_robust.corruptions import CORRUPTIONS, blur, severities
from tf_robust.ops import image_ops

RANDOM = np.random.RandomState(0)
CONSTANTS = [(constants_set, severity) for constants_set in severities.SETS for severity in range(1, 6)]


def sample_images(shape, count=2):
    return RANDOM.rand(count, *shape).astype(np.float32)


def assert_near(ours, expected, tolerance=3e-6):
    np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["defocus_blur", "glass_blur", "gaussian_blur", "zoom_blur"])
def test_blurs_equal_their_oracles(name):
    for shape in ((26, 40, 3), (40, 26, 1)):
        images = sample_images(shape)
        for constants_set, severity in CONSTANTS:
            assert_near(*oracles.apply_drawn(CORRUPTIONS[name], images, severity, constants_set), 1e-5 if name == "zoom_blur" else 3e-6)


def test_defocus_kernels():
    for constants_set, severity in CONSTANTS:
        numbers = severities.constants_of("defocus_blur", severity, constants_set)
        ours, full = blur.defocus_kernel(*numbers), disk_kernel(*numbers)
        assert ours.shape[0] % 2 == 1 and ours[0].max() > 1e-9
        assert_near(np.pad(ours, (len(full) - len(ours)) // 2), full, 1e-9)
    assert_near(blur.defocus_kernel(1, 0.1), np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]]) / 5, 1e-9)
    assert_near(blur.defocus_kernel(1.5, 0.1), np.full([3, 3], 1 / 9), 1e-9)
    assert blur.defocus_kernel(0.3, 0.4).shape == (3, 3)


def test_zoom_factors_are_those_of_the_originals():
    lengths = {"cifar": (7, 12, 16, 21, 26), "tiny_imagenet": (7, 12, 16, 21, 26), "imagenet": (12, 16, 11, 13, 11)}
    for constants_set, severity in CONSTANTS:
        numbers = severities.constants_of("zoom_blur", severity, constants_set)
        np.testing.assert_allclose(np.arange(1, *numbers), 1 + numbers[1] * np.arange(lengths[constants_set][severity - 1]))


@pytest.mark.parametrize("offset", [(0, 1), (1, 0), (1, 1), (1, -2), (-2, -2)], ids=str)
def test_glass_blur_follows_chains_of_any_length(offset):
    images = sample_images((30, 20, 1))
    offsets = np.tile(np.array(offset, np.int32), [2, 2, 26 * 16, 1])
    moved = np.array(blur.glass_blur.apply(images, 0.01, 2, 2, offsets=offsets))
    assert_near(moved, [glass_blur(image.astype(float), (0.01, 2, 2), steps) for image, steps in zip(images, offsets)])
    if offset == (0, 1):  # each row takes the value of the pixel to the right of its last visited one
        assert_near(moved[:, 3:29, 3:19], np.broadcast_to(images[:, 3:29, 19:20], [2, 26, 16, 1]))


def test_glass_blur_of_a_tiny_image_is_two_gaussians():
    images = sample_images((8, 20, 3))
    offsets = blur.glass_blur.drawn(images, 5, 0, None, (1.5, 4, 2))["offsets"]
    assert offsets.shape == [2, 2, 0, 2]
    expected = images.astype(float)
    for _ in range(2):
        expected = scipy.ndimage.gaussian_filter(expected, (0, 1.5, 1.5, 0), mode="nearest", truncate=4)
    assert_near(blur.glass_blur.apply(images, 1.5, 4, 2, offsets=offsets), expected)


@pytest.mark.parametrize("shape", [(32, 32, 3), (26, 41, 3), (41, 26, 1), (5, 7, 1), (224, 224, 1)], ids=str)
@pytest.mark.parametrize("factor", [1, 1.01, 1.06, 1.1500000000000001, 1.25, 1.75, 2.25, 4.5])
def test_clipped_zoom_equals_scipy(shape, factor):
    images = sample_images(shape, 1) * 3 - 1
    ours = image_ops.clipped_zoom(images, factor)
    assert ours.shape == images.shape
    assert_near(ours, [zoomed(image.astype(float), factor) for image in images], 1e-4 if shape[0] == 224 else 1e-5)


def test_clipped_zoom_does_not_shrink():
    with pytest.raises(ValueError, match="zoom factor"):
        image_ops.clipped_zoom(sample_images((8, 8, 1)), 0.9)
