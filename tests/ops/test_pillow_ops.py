"""Every operation against Pillow. `by_pillow` is the oracle of tests/data/test_augmix.py too."""

import numpy as np
import PIL.Image
import pytest
import scipy.ndimage
import tensorflow as tf
from PIL import ImageEnhance, ImageOps

from tf_robust.ops.pillow_ops import OPERATIONS


def affine(coefficients):
    """(image, amount) -> Pillow's affine transform with `coefficients(amount)`."""
    return lambda sample_image, amount: sample_image.transform(
        sample_image.size, PIL.Image.Transform.AFFINE, coefficients(amount), resample=PIL.Image.Resampling.BILINEAR
    )


PILLOW = {
    "autocontrast": lambda sample_image, _: ImageOps.autocontrast(sample_image),
    "equalize": lambda sample_image, _: ImageOps.equalize(sample_image),
    "posterize": lambda sample_image, bits: ImageOps.posterize(sample_image, int(bits)),
    "rotate": lambda sample_image, degrees: sample_image.rotate(degrees, resample=PIL.Image.Resampling.BILINEAR),
    "solarize": lambda sample_image, threshold: ImageOps.solarize(sample_image, int(threshold)),
    "shear_x": affine(lambda slope: (1, slope, 0, 0, 1, 0)),
    "shear_y": affine(lambda slope: (1, 0, 0, slope, 1, 0)),
    "translate_x": affine(lambda pixels: (1, 0, pixels, 0, 1, 0)),
    "translate_y": affine(lambda pixels: (1, 0, 0, 0, 1, pixels)),
    "color": lambda sample_image, factor: ImageEnhance.Color(sample_image).enhance(factor),
    "contrast": lambda sample_image, factor: ImageEnhance.Contrast(sample_image).enhance(factor),
    "brightness": lambda sample_image, factor: ImageEnhance.Brightness(sample_image).enhance(factor),
    "sharpness": lambda sample_image, factor: ImageEnhance.Sharpness(sample_image).enhance(factor),
    "invert": lambda sample_image, _: ImageOps.invert(sample_image),
}
TABLES = ("autocontrast", "equalize", "posterize", "solarize", "invert")  # integer look-ups: exact
ENHANCERS = ("color", "contrast", "brightness", "sharpness")
SHAPES = ((32, 32, 3), (23, 17, 1), (6, 41, 3))
TINY = ((1, 1, 3), (1, 5, 1), (5, 1, 3), (2, 3, 3), (2, 2, 1), (3, 3, 3))
operations = pytest.mark.parametrize("name", PILLOW)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def by_pillow(name, image, amount):
    """Applies Pillow's operation to [H, W, C] with integral values 0..255, C = 1 or 3."""
    levels = np.asarray(image).astype(np.uint8)
    sample_image = PIL.Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
    return np.asarray(PILLOW[name](sample_image, float(amount)), np.float32).reshape(levels.shape)


def all_by_pillow(name, images, amounts):
    return np.stack([by_pillow(name, image, amount) for image, amount in zip(images, amounts)])


def sample_images(shape, seed=0):
    """Noise, smooth, dark, pale, flat, of two and of five levels, black and white: float32 [12, *shape]."""
    random = np.random.RandomState(seed)
    noise = random.randint(0, 256, size=(3, *shape))
    width = (0, shape[0] / 8, shape[1] / 8, 0)
    smooth = scipy.ndimage.gaussian_filter(random.randn(3, *shape), width, mode="nearest")
    smooth = np.clip(128 + 60 * smooth / max(smooth.std(), 1e-9), 0, 255)
    dark, pale = random.randint(0, 40, size=shape), random.randint(190, 251, size=shape)
    flat = np.broadcast_to(random.randint(0, 256, size=shape[-1]), shape)
    two, five = random.choice([90, 91], size=shape), random.choice([0, 3, 100, 200, 255], size=shape)
    extremes = random.choice([0, 255], size=shape)
    return np.round([*noise, *smooth, dark, pale, flat, two, five, extremes]).astype(np.float32)


def amounts_of(name, shape):
    """Returns the amounts of AugMix (severities to 10) and AutoAugment, with both ends and the identity."""
    random, side = np.random.RandomState(1), shape[1] if name == "translate_x" else shape[0]
    far = 150 / 331 * side
    return np.float32(
        {
            "posterize": np.arange(1, 9),
            "solarize": np.arange(0, 257, 4),
            "rotate": [*np.arange(-30, 31), *random.uniform(-30, 30, size=20)],
            "shear_x": np.linspace(-0.3, 0.3, 41),
            "shear_y": np.linspace(-0.3, 0.3, 41),
            **{
                axis: [*np.arange(-np.floor(far), far), *random.uniform(-far, far, size=20), -far, far]
                for axis in ("translate_x", "translate_y")
            },
            **{enhancer: [*np.linspace(0.1, 1.9, 37), 0, *random.uniform(0.1, 1.9, size=20)] for enhancer in ENHANCERS},
        }.get(name, [-3.0, 0.0, 7.5])  # which the others ignore
    )


def cases(name, shape):
    """Every image with every amount: images [M, *shape], amounts [M]."""
    images, amounts = sample_images(shape), amounts_of(name, shape)
    return np.repeat(images, len(amounts), axis=0), np.tile(amounts, len(images))


def apply(name, images, amounts):
    result = OPERATIONS[name](tf.constant(images, tf.uint8), tf.constant(amounts, tf.float32))
    assert result.dtype == tf.uint8 and result.shape == images.shape
    return result.numpy().astype(np.float32)


def test_every_operation_has_an_oracle():
    assert set(OPERATIONS) == set(PILLOW)


@operations
@shapes
def test_equals_pillow(name, shape):
    images, amounts = cases(name, shape)
    result, expected = apply(name, images, amounts), all_by_pillow(name, images, amounts)
    if name in TABLES:
        np.testing.assert_array_equal(result, expected)
        return
    difference = np.abs(result - expected)
    assert (difference <= 1).mean() >= 0.999
    if name in ENHANCERS:
        assert difference.max() <= 1 and (difference == 0).mean() >= 0.99
    else:  # rounding may differ only for pixels that are sampled exactly at the border
        assert ((difference <= 1).mean(axis=(1, 2, 3)) >= 0.98).all() and (difference == 0).mean() >= 0.99


@operations
@pytest.mark.parametrize("shape", TINY, ids=str)
def test_equals_pillow_on_tiny_images(name, shape):
    images, amounts = cases(name, shape)
    difference = np.abs(apply(name, images, amounts) - all_by_pillow(name, images, amounts))
    assert (difference <= (name not in TABLES)).mean() >= (1 if name in TABLES + ENHANCERS else 0.99)


@pytest.mark.parametrize("name", ["translate_x", "translate_y"])
@shapes
def test_translation_by_integral_pixels_is_exact(name, shape):
    pixels = np.arange(-max(shape) - 1, max(shape) + 2)
    images = sample_images(shape)[pixels % 12]
    np.testing.assert_array_equal(apply(name, images, pixels), all_by_pillow(name, images, pixels))


IDENTITY = {"posterize": 8, "solarize": 256, **dict.fromkeys(("rotate", "shear_x", "shear_y", "translate_x", "translate_y"), 0)}


@pytest.mark.parametrize("name, identity", [*IDENTITY.items(), ("rotate", -0.0), *((enhancer, 1) for enhancer in ENHANCERS)])
@shapes
def test_identity_amounts(name, identity, shape):
    images = sample_images(shape)
    np.testing.assert_array_equal(apply(name, images, np.full(len(images), identity)), images)


@pytest.mark.parametrize("name", ["autocontrast", "equalize"])
def test_autocontrast_and_equalize_are_exact_for_many_ranges_of_levels(name):
    random = np.random.RandomState(2)
    low, high = np.sort(random.randint(0, 256, size=(2, 1500)), axis=0)[:, :, None]
    images = np.clip(np.arange(512) // 2, low, high).reshape(-1, 16, 32, 1).astype(np.float32)
    unused = np.zeros(len(images))
    np.testing.assert_array_equal(apply(name, images, unused), all_by_pillow(name, images, unused))


def test_equalize_is_exact_for_uneven_histograms():
    random = np.random.RandomState(3)
    a, b = random.uniform(0.2, 3, size=(2, 200, 1, 1, 1))
    levels = 255 * random.rand(200, 1, 1, 3) ** 2 * random.beta(a, b, (200, 31, 37, 3))
    images, unused = np.round(levels).astype(np.float32), np.zeros(200)
    np.testing.assert_array_equal(apply("equalize", images, unused), all_by_pillow("equalize", images, unused))


def shuffled(name, shape):
    """Returns a random subset of the cases, so that each image has an amount of its own."""
    images, amounts = cases(name, shape)
    chosen = np.random.RandomState(4).choice(len(images), min(24, len(images)), replace=False)
    return images[chosen], amounts[chosen]


@operations
def test_an_image_does_not_depend_on_its_batch(name):
    images, amounts = shuffled(name, (17, 23, 3))
    expected = [apply(name, image[None], amount[None])[0] for image, amount in zip(images, amounts)]
    np.testing.assert_array_equal(apply(name, images, amounts), expected)


@operations
def test_graph_equals_eager_for_any_number_of_images(name):
    images, amounts = shuffled(name, (17, 23, 1))
    traced = tf.function(OPERATIONS[name], input_signature=[tf.TensorSpec([None, 17, 23, 1], tf.uint8), tf.TensorSpec([None])])
    for count in (0, 1, len(images)):
        inputs = images[:count].astype(np.uint8), amounts[:count]
        np.testing.assert_array_equal(traced(*inputs), apply(name, *inputs))
