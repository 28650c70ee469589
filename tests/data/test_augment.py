import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tf_robust.data.augment import VIEWS, crop_flip, patch_gaussian
from tf_robust.utils.hyperparameters import parameters

SEED = tf.constant([3, 4], tf.int64)
CHANGING = {name: view for name, view in VIEWS.items() if name != "clean"}
augmentations = pytest.mark.parametrize("augment", CHANGING.values(), ids=CHANGING)


def sample_images(count, height, width, channels=3):
    return tf.constant(np.random.RandomState(0).uniform(0.01, 0.99, (count, height, width, channels)), tf.float32)


def assert_uniform(counts):
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@augmentations
def test_shape_type_and_range_are_kept_and_results_are_a_function_of_the_seed(augment):
    images = sample_images(5, 12, 10)
    result = augment(images, SEED)
    assert result.shape == images.shape and result.dtype == tf.float32
    assert 0 <= result.numpy().min() and result.numpy().max() <= 1 and (result != images).numpy().any()
    np.testing.assert_array_equal(augment(images, SEED), result)
    assert (augment(images, SEED + 7) != result).numpy().any()


@pytest.mark.slow
@augmentations
def test_dataset_equals_eager(augment):
    images = sample_images(6, 12, 10)
    mapped = tf.data.Dataset.from_tensors((images, SEED)).map(augment)
    np.testing.assert_allclose(next(iter(mapped)), augment(images, SEED), rtol=0, atol=1e-6)  # graphs reorder sums


@augmentations
def test_hyperparameters_have_the_annotated_type(augment):
    for option in parameters(augment).values():
        assert option.kind is type(option.default) or option.default in option.choices


def windows(sample_image, padding):
    """Returns every window of the zero-padded image, original and mirrored: {bytes: (top, left, mirrored)}."""
    height, width = sample_image.shape[:2]
    padded = np.pad(sample_image, [(padding, padding), (padding, padding), (0, 0)])
    positions = {}
    for top, left in np.ndindex(2 * padding + 1, 2 * padding + 1):
        window = padded[top : top + height, left : left + width]
        positions[window.tobytes()] = (top, left, False)
        positions[window[:, ::-1].tobytes()] = (top, left, True)
    return positions


@pytest.mark.parametrize("padding", [0, 2])
def test_crop_flip_crops_every_window_equally_often(padding):
    sample_image = sample_images(1, 3, 4, 2)[0].numpy()
    possible = windows(sample_image, padding)
    assert len(possible) == 2 * (2 * padding + 1) ** 2
    crops = crop_flip(tf.constant(np.repeat(sample_image[None], 2000, axis=0)), SEED, padding=padding).numpy()
    drawn = [possible[crop.tobytes()] for crop in crops]
    assert_uniform([drawn.count(window) for window in possible.values()])


def patches(height, width, size):
    """Returns {mask: center} of every patch, rows and columns [center - floor(size / 2), center + ceil(size / 2))."""
    positions = {}
    for row, column in np.ndindex(height, width):
        top, left = row - size // 2, column - size // 2
        mask = np.zeros([height, width], bool)
        mask[max(0, top) : top + size, max(0, left) : left + size] = True
        positions[mask.tobytes()] = (row, column)
    return positions


def noised(images, **options):
    """Returns bool [N, H, W]: True inside the patch of Patch Gaussian."""
    return (patch_gaussian(images, SEED, **options) != images).numpy().any(axis=-1)


@pytest.mark.parametrize("size", [1, 4, 5])
def test_patch_centers_are_uniform_over_all_pixels(size):
    positions = patches(9, 7, size)
    assert len(positions) == 9 * 7
    drawn = [positions[mask.tobytes()] for mask in noised(sample_images(2000, 9, 7), size=size, sigma=10.0)]
    assert_uniform([drawn.count(position) for position in positions.values()])


def test_random_size_is_uniform_up_to_the_size():
    images, inner = sample_images(3000, 12, 12), range(2, 10)  # around these centers no patch extends beyond the image
    inside = {
        mask: (side, *center)
        for side in range(1, 5)
        for mask, center in patches(12, 12, side).items()
        if center[0] in inner and center[1] in inner
    }
    drawn = [inside.get(mask.tobytes()) for mask in noised(images, size=4, sigma=10.0, random_size=True)]
    assert_uniform([sum(patch is not None and patch[0] == side for patch in drawn) for side in range(1, 5)])
    assert abs(np.mean([patch is None for patch in drawn]) - (1 - (8 / 12) ** 2)) < 0.04


def test_noise_inside_the_patch_is_normal_with_std_sigma():
    gray = tf.fill([50, 8, 8, 3], 0.5)
    noise = (patch_gaussian(gray, SEED, size=16, sigma=0.1) - gray).numpy()  # covers every pixel
    assert scipy.stats.kstest(noise.ravel(), "norm", (0.0, 0.1)).pvalue > 1e-3
    assert abs(np.corrcoef(noise[..., 0].ravel(), noise[..., 1].ravel())[0, 1]) < 5 / np.sqrt(3200)


def test_random_sigma_is_uniform_up_to_sigma():
    gray = tf.fill([300, 16, 16, 3], 0.5)
    noise = (patch_gaussian(gray, SEED, size=32, sigma=0.1, random_sigma=True) - gray).numpy()
    assert scipy.stats.kstest(noise.std(axis=(1, 2, 3)), "uniform", (0.0, 0.1)).pvalue > 1e-3
