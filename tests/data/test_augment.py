import inspect

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
def test_shape_type_and_range_are_kept(augment):
    images = sample_images(5, 12, 10)
    found = augment(images, SEED)
    assert found.shape == images.shape and found.dtype == tf.float32
    assert 0 <= found.numpy().min() and found.numpy().max() <= 1 and (found != images).numpy().any()


@augmentations
def test_the_seed_decides(augment):
    images = sample_images(20, 12, 10)
    np.testing.assert_array_equal(augment(images, SEED), augment(images, SEED))
    assert (augment(images, SEED) != augment(images, SEED + 7)).numpy().any()


@augmentations
def test_a_dataset_sees_what_eager_code_sees(augment):
    images = sample_images(6, 12, 10)
    mapped = tf.data.Dataset.from_tensors((images, SEED)).map(augment)
    np.testing.assert_allclose(next(iter(mapped)), augment(images, SEED), rtol=0, atol=1e-6)  # graphs reorder sums


@augmentations
def test_hyperparameters_are_annotated_and_documented(augment):
    assert list(inspect.signature(augment).parameters)[:2] == ["images", "seed"]
    for option in parameters(augment).values():
        assert option.help and (option.kind is type(option.default) or option.default in option.choices)


def windows(sample_image, padding):
    """Every window of the zero-padded image, as it is and mirrored: bytes -> (top, left, mirrored)."""
    height, width = sample_image.shape[:2]
    padded = np.pad(sample_image, [(padding, padding), (padding, padding), (0, 0)])
    found = {}
    for top, left in np.ndindex(2 * padding + 1, 2 * padding + 1):
        window = padded[top:top + height, left:left + width]
        found[window.tobytes()] = (top, left, False)
        found[window[:, ::-1].tobytes()] = (top, left, True)
    return found


@pytest.mark.parametrize("padding", [0, 2])
def test_crop_flip_takes_every_window_equally_often(padding):
    sample_image = sample_images(1, 3, 4, 2)[0].numpy()
    possible = windows(sample_image, padding)
    assert len(possible) == 2 * (2 * padding + 1)**2
    crops = crop_flip(tf.constant(np.repeat(sample_image[None], 2000, axis=0)), SEED, padding=padding).numpy()
    drawn = [possible[crop.tobytes()] for crop in crops]
    assert_uniform([drawn.count(window) for window in possible.values()])


def patches(height, width, size):
    """Every place of the patch, rows and columns [centre - floor(size / 2), centre + ceil(size / 2)): mask -> it."""
    found = {}
    for row, column in np.ndindex(height, width):
        top, left = row - size // 2, column - size // 2
        mask = np.zeros([height, width], bool)
        mask[max(0, top):top + size, max(0, left):left + size] = True
        found[mask.tobytes()] = (row, column)
    return found


def noised(images, **options):
    """bool [N, H, W]: where the patch of Patch Gaussian lies."""
    return (patch_gaussian(images, SEED, **options) != images).numpy().any(axis=-1)


@pytest.mark.parametrize("size", [1, 4, 5])
def test_patch_centres_are_uniform_over_all_pixels(size):
    places = patches(9, 7, size)
    assert len(places) == 9 * 7
    drawn = [places[mask.tobytes()] for mask in noised(sample_images(2000, 9, 7), size=size, sigma=10.0)]
    assert_uniform([drawn.count(place) for place in places.values()])


def test_random_size_is_uniform_up_to_the_size():
    images, inner = sample_images(3000, 12, 12), range(2, 10)  # around these centres no patch sticks out
    whole = {mask: (side, *centre) for side in range(1, 5) for mask, centre in patches(12, 12, side).items()
             if centre[0] in inner and centre[1] in inner}
    drawn = [whole.get(mask.tobytes()) for mask in noised(images, size=4, sigma=10.0, random_size=True)]
    assert_uniform([sum(place is not None and place[0] == side for place in drawn) for side in range(1, 5)])
    assert abs(np.mean([place is None for place in drawn]) - (1 - (8 / 12)**2)) < 0.04


def test_noise_inside_the_patch_is_normal_with_the_given_deviation():
    gray = tf.fill([50, 8, 8, 3], 0.5)
    noise = (patch_gaussian(gray, SEED, size=16, sigma=0.1) - gray).numpy()  # covers every pixel
    assert scipy.stats.kstest(noise.ravel(), "norm", (0.0, 0.1)).pvalue > 1e-3
    assert abs(np.corrcoef(noise[..., 0].ravel(), noise[..., 1].ravel())[0, 1]) < 5 / np.sqrt(3200)


def test_random_sigma_is_uniform_up_to_sigma():
    gray = tf.fill([300, 16, 16, 3], 0.5)
    noise = (patch_gaussian(gray, SEED, size=32, sigma=0.1, random_sigma=True) - gray).numpy()
    assert scipy.stats.kstest(noise.std(axis=(1, 2, 3)), "uniform", (0.0, 0.1)).pvalue > 1e-3


def test_strong_noise_is_clipped():
    found = patch_gaussian(sample_images(20, 8, 8), SEED, size=16, sigma=10.0).numpy()
    assert found.min() == 0 and found.max() == 1 and np.isin(found, [0, 1]).mean() > 0.9
