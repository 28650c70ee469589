import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tf_robust.ops import image_ops


def test_uint8_is_scaled_to_0_1():
    np.testing.assert_allclose(image_ops.to_float(np.array([0, 51, 255], np.uint8)), [0.0, 0.2, 1.0])


def test_crop_at_cuts_each_image_at_its_own_corner():
    images = np.random.RandomState(0).rand(3, 7, 6, 2)
    tops, lefts = np.array([0, 3, 2]), np.array([2, 0, 1])
    expected = [image[top : top + 4, left : left + 3] for image, top, left in zip(images, tops, lefts)]
    np.testing.assert_array_equal(image_ops.crop_at(tf.constant(images), tops, lefts, 4, 3), expected)


def test_random_windows_are_inside_the_image_of_8_to_100_percent_moderate_aspect_and_half_mirrored():
    rows, columns = np.meshgrid(np.arange(30.0), np.arange(40.0), indexing="ij")
    coordinates = tf.constant(np.stack([rows, columns], axis=-1), tf.float32)  # each pixel holds its coordinates
    crop = tf.function(lambda seed: image_ops.random_resized_crop_flip(coordinates, 100, 100, tf.stack([seed, 5])))
    crops = np.stack([crop(tf.constant(seed)) for seed in range(300)])
    rows, columns = crops[:, 49:51, 50, 0], crops[:, 50, 49:51, 1]  # interpolation is exact away from the border
    height, mirrored_width = 100 * np.diff(rows)[:, 0], 100 * np.diff(columns)[:, 0]
    width = np.abs(mirrored_width)
    top, left = rows.mean(axis=1) - (height - 1) / 2, columns.mean(axis=1) - (width - 1) / 2
    area_fraction, aspect = height * width / 1200, width / height
    assert 0.07 < area_fraction.min() < 0.12 and 0.9 < area_fraction.max() <= 1.001
    assert 0.69 < aspect.min() < 0.8 and 1.25 < aspect.max() < 1.45
    np.testing.assert_allclose([height, width, top, left], np.round([height, width, top, left]), atol=0.01)
    np.testing.assert_allclose([top.min(), left.min()], [0, 0], atol=0.01)
    np.testing.assert_allclose([(top + height).max(), (left + width).max()], [30, 40], atol=0.01)
    assert 120 < (mirrored_width < 0).sum() < 180


def test_an_image_that_no_window_fits_is_not_cropped():
    narrow = tf.random.stateless_uniform([200, 2, 3], [0, 0], 0, 255)
    uncropped = image_ops.resize(narrow, 8, 8)
    crops = [image_ops.random_resized_crop_flip(narrow, 8, 8, tf.constant([seed, 0])) for seed in range(20)]
    mirrored = [np.array_equal(crop, uncropped[:, ::-1]) for crop in crops]
    assert all(flipped or np.array_equal(crop, uncropped) for crop, flipped in zip(crops, mirrored))
    assert 0 < sum(mirrored) < 20


def test_levels_are_rounded():
    random = np.random.default_rng(0).random([2, 100, 100, 3], np.float32)
    every = np.tile((np.arange(256) / 255).astype(np.float32), 3)
    for images in (random, every):
        np.testing.assert_array_equal(image_ops.to_levels(tf.constant(images)), np.round(np.float32(255) * images))


@pytest.mark.parametrize(
    "kind, options", [("JPEG", {"quality": 75}), ("JPEG", {"quality": 95, "subsampling": 0}), ("PNG", {}), ("BMP", {})]
)
@pytest.mark.parametrize("gray", [False, True])
def test_files_are_decoded_as_by_pillow(kind, options, gray):
    smooth = np.random.RandomState(0).randint(0, 256, (7, 6, 3)).astype(np.uint8)
    image = Image.fromarray(smooth).resize((50, 37), Image.Resampling.BICUBIC)
    image = image.convert("L") if gray and kind != "BMP" else image
    image.save(file := io.BytesIO(), kind, **options)
    decoded = tf.function(image_ops.decode)(tf.constant(file.getvalue()), 3).numpy()
    expected = np.asarray(Image.open(file).convert("RGB"), int)
    assert decoded.dtype == np.uint8 and np.abs(decoded - expected).max() <= (1 if kind == "JPEG" else 0)
    luma = tf.function(image_ops.decode)(tf.constant(file.getvalue()), 1).numpy()[..., 0]
    assert np.abs(luma - np.asarray(Image.fromarray(decoded).convert("L"), int)).max() == 0


@pytest.mark.parametrize("colors", [50, 256, "gray"])
def test_colors_of_a_palette_are_decoded(colors):
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (9, 7, 3)).astype(np.uint8))
    image = image.convert("L") if colors == "gray" else image.quantize(colors)
    for kind in ("BMP", "PNG"):
        image.save(file := io.BytesIO(), kind)
        decoded = tf.function(image_ops.decode)(tf.constant(file.getvalue()), 3).numpy()
        np.testing.assert_array_equal(decoded, Image.open(file).convert("RGB"))


def test_files_that_are_no_image_cannot_be_decoded():
    for contents in (b"", b"text", b"\xff\xd8\xff broken"):
        with pytest.raises(tf.errors.InvalidArgumentError):
            image_ops.decode(tf.constant(contents), 3)
