import numpy as np
import pytest
import scipy.ndimage
import tensorflow as tf

from tests.corruptions.noise_blur_digital_oracles import motion
from tests.rounding import fourier_tolerance, tolerance
from tf_robust.ops import filters

RANDOM = np.random.RandomState(0)
SHAPES = {"wide": (13, 20, 3), "gray": (9, 7, 1), "long": (70, 37, 3), "line": (1, 40, 1)}  # long: in several blocks
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def sample_images(shape, count=2):
    """float32 [count, H, W, C] in [-1, 2): filters take any range."""
    return RANDOM.uniform(-1, 2, size=(count, *shape)).astype(np.float32)


def assert_near(ours, expected, tolerance=3e-6):
    np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance)


def scipy_gaussian(images, sigma, **options):
    return scipy.ndimage.gaussian_filter(images.astype(float), (0, sigma, sigma, 0), **options)


@shapes
@pytest.mark.parametrize("mode", ["nearest", "reflect"])
@pytest.mark.parametrize("sigma", [0.24, 0.4, 1, 2.5, 6])  # 0.24: the radius is 1 by rounding only
def test_gaussian_blur_equals_scipy(shape, sigma, mode):
    images = sample_images(shape)
    assert_near(filters.gaussian_blur(images, sigma, mode=mode), scipy_gaussian(images, sigma, mode=mode, truncate=4))


@pytest.mark.parametrize("truncate", [3, 6.0, 7])
def test_gaussian_blur_is_truncated(truncate):
    images = sample_images((40, 30, 1))
    for sigma in (0.9, np.full(2, 0.9)):
        ours = filters.gaussian_blur(images, sigma, truncate=truncate)
        assert_near(ours, scipy_gaussian(images, 0.9, mode="nearest", truncate=truncate))


@shapes
@pytest.mark.parametrize("mode", ["nearest", "reflect"])
def test_gaussian_blur_with_a_sigma_for_each_image(shape, mode):
    sigmas = np.array([0.0, 0.05, 0.4, 1.7, 5.0], np.float32)
    images = sample_images(shape, 5)
    expected = [image if sigma == 0 else scipy_gaussian(image[None], sigma, mode=mode)[0] for image, sigma in zip(images, sigmas)]
    for argument in (sigmas, list(sigmas), tf.constant(sigmas)):
        assert_near(filters.gaussian_blur(images, argument, mode=mode), expected)
    assert_near(filters.gaussian_blur(images, tf.constant(1.7), mode=mode), scipy_gaussian(images, 1.7, mode=mode))


def test_gaussian_blur_of_sigma_0_is_the_image():
    images = sample_images((6, 5, 3))
    for sigma in (0, 0.0, 0.1, [0.0, 0.1]):  # 0.1: a radius of 0
        np.testing.assert_array_equal(filters.gaussian_blur(images, sigma), images)


def test_gaussian_blur_rejects_an_unknown_mode():
    with pytest.raises(ValueError, match="mirror"):
        filters.gaussian_blur(sample_images((6, 5, 3)), 1.0, mode="mirror")


@shapes
def test_separable_multiplies_rows_and_columns(shape):
    rows, columns = (RANDOM.randn(side, side) * (abs(np.subtract.outer(range(side), range(side)) - 2) < 5) for side in shape[:2])
    rows[3:4] = 0
    images = sample_images(shape)
    assert_near(filters.separable(images, rows, columns), np.einsum("ih,nhwc,jw->nijc", rows, images, columns), 3e-5)


@shapes
@pytest.mark.parametrize("sides", [(3, 3), (1, 5), (7, 5), (9, 9), (3, 21), (15, 15)], ids=str)
def test_correlate_equals_scipy(shape, sides):
    images, kernel = sample_images(shape), RANDOM.uniform(-1, 1, size=sides) / 10  # no symmetry that would hide a flip
    expected = scipy.ndimage.correlate(images.astype(float), kernel[None, :, :, None], mode="mirror")
    assert_near(filters.correlate(images, kernel), expected, 3e-5)


@pytest.mark.parametrize("shape", [(13, 20, 3), (9, 7, 1)], ids=str)
@pytest.mark.parametrize("radius, sigma", [(6, 1), (4.5, 2.5), (15, 8), (0, 1)])
def test_motion_blur_equals_its_definition(shape, radius, sigma):
    angles = np.array([0, 17.3, 45, 80.1, 90, 133, 180, 200.5, -12.25, -45, -90, -100.7, -133, 271], np.float32)
    images = sample_images(shape, len(angles))
    expected = [motion(image.astype(float), radius, sigma, angle) for image, angle in zip(images, angles)]
    assert_near(filters.motion_blur(images, radius, sigma, angles), expected, 5e-5)


def test_motion_blur_reads_to_the_right_at_0_degrees_and_down_at_90():
    point = np.zeros([4, 9, 11, 1], np.float32)
    point[:, 4, 5] = 1
    blurred = np.array(filters.motion_blur(point, 1, 2.0, tf.constant([0.0, 90.0, 180.0, -90.0])))[..., 0]
    weights = np.exp(-(np.arange(3) ** 2) / 8) / np.exp(-(np.arange(3) ** 2) / 8).sum()
    for image, line in zip(blurred, (blurred[0, 4, 5::-1], blurred[1, 4::-1, 5], blurred[2, 4, 5:], blurred[3, 4:, 5])):
        assert_near(line[:3], weights, 1e-6)
        assert_near(abs(image).sum(), 1, 1e-5)


@pytest.mark.parametrize("radius, sigma, taps", [(6, 2, 9), (6, 1, 5), (15, 8, 31), (20, 15, 41)])
def test_motion_blur_omits_negligible_taps_only(radius, sigma, taps):
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    ours = filters.half_gaussian(radius, sigma)
    assert len(ours) == taps and weights[taps:].sum() < 2e-5 * weights.sum()
    np.testing.assert_allclose(ours, weights[:taps] / weights.sum(), rtol=2e-5)
    np.testing.assert_allclose(ours.sum(), 1, rtol=1e-12)


FILTERS = {  # with the tolerance: twice 13 taps, twice 73, a sum of 15, and Fourier transforms of at most 128 x 128 values
    "gaussian": (lambda images, i: filters.gaussian_blur(images, 1.5), tolerance(26)),
    "gaussians": (lambda images, i: filters.gaussian_blur(images, 0.45 * tf.cast(i, tf.float32)), tolerance(146)),
    "motion": (lambda images, i: filters.motion_blur(images, 6, 2, 30 * tf.cast(i, tf.float32)), fourier_tolerance(2**14)),
    "direct": (lambda images, i: filters.correlate(images, np.ones([5, 3]) / 14), tolerance(15, size=15 / 14)),
    "frequencies": (lambda images, i: filters.correlate(images, np.ones([11, 9]) / 98), fourier_tolerance(2**14)),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("shape", [(32, 32, 3), (45, 40, 1), (100, 70, 3)], ids=str)
def test_an_image_is_filtered_alike_alone_and_in_a_batch(name, shape):
    images, indices = tf.constant(sample_images(shape, 21)), tf.range(21)
    apply, atol = FILTERS[name]
    expected = apply(images, indices)
    specs = [tf.TensorSpec([None, *shape]), tf.TensorSpec([None], tf.int32)]
    traced = tf.function(apply, input_signature=specs)
    assert traced.get_concrete_function().structured_outputs.shape[1:] == shape
    for start, end in ((0, 1), (20, 21), (0, 21), (3, 12)):
        for function in (apply, traced):
            np.testing.assert_allclose(function(images[start:end], indices[start:end]), expected[start:end], rtol=0, atol=atol)
