import numpy as np
import pytest
import tensorflow as tf

from tests.rounding import tolerance
from tf_robust import corruptions
from tf_robust.corruptions import corruption
from tf_robust.data import augmix
from tf_robust.ops.tiles import in_tiles

IMAGE_BYTES = 4 * 16 * 16 * 3
TILED = [one.name for one in corruptions.CORRUPTIONS.values() if one.in_tiles]


def images_of(count):
    return np.random.default_rng(count).random([count, 16, 16, 3], np.float32)


@pytest.mark.parametrize("count, known", [(0, False), (1, True), (3, False), (4, True), (7, False), (9, True)])
def test_every_image_is_processed_once_and_in_order(count, known):
    sizes = []

    def scale(images, indices):
        tf.py_function(lambda size: sizes.append(int(size)), [tf.shape(images)[0]], [])
        return images * tf.cast(indices, tf.float32)[:, None, None, None]

    images, factors = images_of(count), np.arange(10, 10 + count)
    spec = tf.TensorSpec([count if known else None, 16, 16, 3])
    scaled = tf.function(lambda images: in_tiles(scale, images, tf.constant(factors), 3 * IMAGE_BYTES + 5)).get_concrete_function(spec)
    np.testing.assert_array_equal(scaled(images), images * factors[:, None, None, None].astype(np.float32))
    assert scaled.structured_outputs.shape.as_list() == spec.shape.as_list()
    assert sum(sizes) == count and max(sizes, default=0) <= 3


@pytest.mark.parametrize("name", TILED)
def test_corruptions_in_tiles_are_those_of_the_whole_batch(monkeypatch, name):
    images, indices = images_of(7), [4, 5, 6, 7, 8, 9, 2]
    whole = corruptions.corrupt(images, name, 3, seed=1, indices=indices)
    monkeypatch.setattr(corruption, "TILE_BYTES", 2 * IMAGE_BYTES)
    in_tiles = corruptions.corrupt(images, name, 3, seed=1, indices=indices)
    np.testing.assert_allclose(in_tiles, whole, rtol=0, atol=tolerance(128))  # at most four filters of 32 taps


def test_augmix_in_tiles_is_that_of_the_whole_batch(monkeypatch):
    images = images_of(7)
    whole = augmix.augmix(images, seed=3)
    monkeypatch.setattr(augmix, "TILE_BYTES", 3 * IMAGE_BYTES)
    np.testing.assert_allclose(augmix.augmix(images, seed=3), whole, rtol=0, atol=tolerance(16))  # the mixture of levels
