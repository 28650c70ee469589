import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf

from tf_robust.corruptions import blur, severities
from tf_robust.ops import image_ops

RANDOM = np.random.RandomState(0)
BLURS = {
    corruption.name: corruption for corruption in (blur.defocus_blur, blur.glass_blur, blur.motion_blur, blur.zoom_blur, blur.gaussian_blur)
}
CONSTANTS = [(constants_set, severity) for constants_set in severities.SETS for severity in range(1, 6)]
all_constants = pytest.mark.parametrize("constants_set, severity", CONSTANTS, ids=lambda value: str(value))
shapes = pytest.mark.parametrize("shape", [(26, 40, 3), (40, 26, 1)], ids=str)


def sample_images(shape, count=2):
    return RANDOM.rand(count, *shape).astype(np.float32)


def assert_near(ours, expected, tolerance=3e-6):
    np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance)


def gaussian(images, sigma):
    return scipy.ndimage.gaussian_filter(np.asarray(images, float), (0, sigma, sigma, 0), mode="nearest", truncate=4)


def published_kernel(radius, alias):
    """The defocus kernel on its full grid, one element at a time."""
    half, taps = (8, 1) if radius <= 8 else (radius, 2)
    side = 2 * half + 1
    disk = np.array([[float((i - half) ** 2 + (j - half) ** 2 <= radius**2) for j in range(side)] for i in range(side)])
    disk /= disk.sum()
    soft = np.exp(-(np.arange(-taps, taps + 1) ** 2) / (2 * alias**2))
    soft /= soft.sum()

    def inside(i):
        return abs(i) if i < side else 2 * (side - 1) - i

    return np.array(
        [
            [
                sum(
                    soft[taps + a] * soft[taps + b] * disk[inside(i + a), inside(j + b)]
                    for a in range(-taps, taps + 1)
                    for b in range(-taps, taps + 1)
                )
                for j in range(side)
            ]
            for i in range(side)
        ]
    )


@all_constants
def test_defocus_kernels_equal_the_published_ones(constants_set, severity):
    numbers = severities.constants_of("defocus_blur", severity, constants_set)
    ours, full = blur.defocus_kernel(*numbers), published_kernel(*numbers)
    assert ours.shape[0] % 2 == 1 and ours[0].max() > 1e-9
    margin = (len(full) - len(ours)) // 2
    assert_near(np.pad(ours, margin), full, 1e-9)


def test_small_defocus_kernels():
    plus = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]]) / 5
    assert_near(blur.defocus_kernel(1, 0.1), plus, 1e-9)
    assert_near(blur.defocus_kernel(1.5, 0.1), np.full([3, 3], 1 / 9), 1e-9)
    assert blur.defocus_kernel(0.3, 0.4).shape == (3, 3)


@shapes
@all_constants
def test_defocus_blur_is_a_correlation_mirrored_at_the_border(shape, constants_set, severity):
    images, numbers = sample_images(shape), severities.constants_of("defocus_blur", severity, constants_set)
    expected = scipy.ndimage.correlate(images.astype(float), published_kernel(*numbers)[None, ..., None], mode="mirror")
    assert_near(blur.defocus_blur.apply(images, *numbers), expected)


def glass_blur_by_loop(images, sigma, reach, iterations, offsets):
    """The loop of the originals, including its copy."""
    height, width = images.shape[1:3]
    moved = gaussian(images, sigma)
    for image, iterations_of_it in zip(moved, offsets):
        for steps in iterations_of_it:
            steps = iter(steps.tolist())
            for h in range(height - reach, reach, -1):
                for w in range(width - reach, reach, -1):
                    dy, dx = next(steps)
                    image[h, w] = image[h + dy, w + dx]
    return gaussian(moved, sigma)


@shapes
@all_constants
def test_glass_blur_equals_the_loop(shape, constants_set, severity):
    images, numbers = sample_images(shape), severities.constants_of("glass_blur", severity, constants_set)
    offsets = blur.glass_blur.drawn(images, severity, 7, None, numbers)["offsets"]
    expected = glass_blur_by_loop(images, *numbers, np.array(offsets))
    assert_near(blur.glass_blur.apply(images, *numbers, offsets=offsets), expected)


@pytest.mark.parametrize("offset", [(0, 1), (1, 0), (1, 1), (1, -2), (-2, -2)], ids=str)
def test_glass_blur_follows_chains_of_any_length(offset):
    images = sample_images((30, 20, 1))
    offsets = np.tile(np.array(offset, np.int32), [2, 2, 26 * 16, 1])
    moved = np.array(blur.glass_blur.apply(images, 0.01, 2, 2, offsets=offsets))
    assert_near(moved, glass_blur_by_loop(images, 0.01, 2, 2, offsets))
    if offset == (0, 1):  # each row takes the value of the pixel to the right of its last visited one
        assert_near(moved[:, 3:29, 3:19], np.broadcast_to(images[:, 3:29, 19:20], [2, 26, 16, 1]))


def test_glass_blur_of_a_tiny_image_is_two_gaussians():
    images = sample_images((8, 20, 3))
    offsets = blur.glass_blur.drawn(images, 5, 0, None, (1.5, 4, 2))["offsets"]
    assert offsets.shape == [2, 2, 0, 2]
    assert_near(blur.glass_blur.apply(images, 1.5, 4, 2, offsets=offsets), gaussian(gaussian(images, 1.5), 1.5))


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_offsets_of_glass_blur_are_uniform(reach):
    images = np.zeros([40, 30, 28, 1], np.float32)
    offsets = np.array(blur.glass_blur.drawn(images, 1, 0, None, (1.0, reach, 2))["offsets"])
    assert offsets.shape == (40, 2, (30 - 2 * reach) * (28 - 2 * reach), 2) and offsets.dtype == np.int32
    assert (offsets.min(), offsets.max()) == (-reach, reach - 1)
    counts = np.bincount(((offsets[..., 0] + reach) * 2 * reach + offsets[..., 1] + reach).ravel())
    assert len(counts) == (2 * reach) ** 2 and scipy.stats.chisquare(counts).pvalue > 1e-3
    np.testing.assert_allclose(offsets.mean(), -0.5, atol=0.03)
    np.testing.assert_allclose(offsets.std(), np.sqrt(((2 * reach) ** 2 - 1) / 12), rtol=0.03)


def test_angles_of_motion_blur_are_uniform():
    angles = np.array(blur.motion_blur.drawn(np.zeros([20000, 4, 4, 1], np.float32), 3, 0, None, (6, 2))["angle"])
    assert angles.shape == (20000,) and -45 <= angles.min() < -44.5 and 44.5 < angles.max() <= 45
    np.testing.assert_allclose(angles.mean(), 0, atol=0.03 * 45)
    np.testing.assert_allclose(angles.std(), 90 / np.sqrt(12), rtol=0.03)


def test_motion_blur_uses_the_angle_of_each_image():
    step = np.zeros([2, 20, 20, 1], np.float32)
    step[:, 10:, 10:] = 1
    ours = np.array(blur.motion_blur.apply(step, 6, 2, angle=tf.constant([-45.0, 45.0])))[..., 0]
    weights = np.exp(-(np.arange(13) ** 2) / 8) / np.exp(-(np.arange(13) ** 2) / 8).sum()
    positions = np.ceil(np.arange(13) * np.sqrt(0.5) - 0.5)
    assert_near(ours[1, 9, 9], weights[positions >= 1].sum(), 5e-5)  # down to the right: into the bright quarter
    assert_near(ours[0, 9, 9], 0, 5e-5)
    assert_near(ours[0, 12, 9], weights[(positions >= 1) & (positions <= 2)].sum(), 5e-5)  # up to the right: leaves it again


def zoom_by_scipy(images, factor):
    sides = images.shape[1:3]
    cut = [int(np.ceil(side / factor)) for side in sides]
    top, left = ((side - part) // 2 for side, part in zip(sides, cut))
    window = images[:, top : top + cut[0], left : left + cut[1]].astype(float)
    # nearest: by rounding, SciPy's default may treat the last row as outside (at none of the benchmark's sizes)
    large = np.stack([scipy.ndimage.zoom(image, (factor, factor, 1), order=1, mode="nearest") for image in window])
    top, left = ((new - side) // 2 for new, side in zip(large.shape[1:3], sides))
    return large[:, top : top + sides[0], left : left + sides[1]]


@pytest.mark.parametrize("shape", [(32, 32, 3), (26, 41, 3), (41, 26, 1), (5, 7, 1), (224, 224, 1)], ids=str)
@pytest.mark.parametrize("factor", [1, 1.01, 1.06, 1.1500000000000001, 1.25, 1.75, 2.25, 4.5])
def test_clipped_zoom_equals_scipy(shape, factor):
    images = sample_images(shape, 1) * 3 - 1
    ours = image_ops.clipped_zoom(images, factor)
    assert ours.shape == images.shape
    assert_near(ours, zoom_by_scipy(images, factor), 1e-4 if shape[0] == 224 else 1e-5)


def test_clipped_zoom_does_not_shrink():
    with pytest.raises(ValueError, match="Expected a zoom factor of at least 1. Received: 0.9"):
        image_ops.clipped_zoom(sample_images((8, 8, 1)), 0.9)


LENGTHS = {"cifar": (7, 12, 16, 21, 26), "tiny_imagenet": (7, 12, 16, 21, 26), "imagenet": (12, 16, 11, 13, 11)}


@pytest.mark.parametrize("shape", [(32, 32, 1), (26, 40, 3), (64, 50, 1)], ids=str)
@all_constants
def test_zoom_blur_averages_the_zooms_of_the_originals(shape, constants_set, severity):
    images, numbers = sample_images(shape, 1), severities.constants_of("zoom_blur", severity, constants_set)
    factors = 1 + numbers[1] * np.arange(LENGTHS[constants_set][severity - 1])
    expected = (images + sum(zoom_by_scipy(images, factor) for factor in np.arange(1, *numbers))) / (len(factors) + 1)
    np.testing.assert_allclose(np.arange(1, *numbers), factors)
    assert_near(blur.zoom_blur.apply(images, *numbers), expected, 1e-5)


@shapes
@all_constants
def test_gaussian_blur_equals_scipy(shape, constants_set, severity):
    images, numbers = sample_images(shape), severities.constants_of("gaussian_blur", severity, constants_set)
    assert_near(blur.gaussian_blur.apply(images, *numbers), gaussian(images, *numbers))
