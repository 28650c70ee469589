"""Spatter and its image operations against slow oracles with the same draws."""

import itertools
import zlib

import numpy as np
import pytest
import scipy.ndimage
import tensorflow as tf

from tests.corruptions import oracles
from tests.corruptions.weather_oracles import COLOR, GRAY, canny, distance_to, equalized, water
from tf_robust.corruptions import spatter, weather

RANDOM = np.random.RandomState(0)


def speckled(seed):
    """Returns uint8 [70, 90]: patches of 150..255 on 0, by integer arithmetic alone."""
    plane = np.random.RandomState(seed).randint(0, 256, (70, 90))
    for _ in range(2):
        plane = sum(np.roll(plane, shift, (0, 1)) for shift in itertools.product(range(-2, 3), repeat=2)) // 25
    plane = (plane - plane.min()) * 255 // (plane.max() - plane.min())
    return np.where(plane < 150, 0, plane).astype(np.uint8)


# Results of OpenCV 4.12 and 5.0 on speckled(0), (1), (2): CRC of Canny(plane, 50, 150) > 0; sums of the distances to
# those edges (DIST_L2, 5 x 5, at most 20) and of their squares; CRC of equalizeHist(plane)
OPENCV = [
    (950685966, 16958.1146, 75612.248, 2905795445),
    (4079019766, 12439.2971, 41856.389, 2894950616),
    (3794512097, 18747.2343, 91672.910, 3759776877),
]


def test_edges_distances_and_equalization_equal_opencv():
    planes = np.stack([speckled(seed) for seed in range(3)]).astype(np.float32)
    edges = spatter.edges(planes)
    distances = spatter.edge_distance(edges).numpy().astype(float)
    equalize = spatter.equalize(planes, 256)
    for i, (edges_crc, total, squares, equalized_crc) in enumerate(OPENCV):
        assert zlib.crc32(edges[i].numpy().astype(np.uint8).tobytes()) == edges_crc
        assert zlib.crc32(equalize[i].numpy().astype(np.uint8).tobytes()) == equalized_crc
        assert distances[i].sum() == pytest.approx(total, rel=1e-5)
        assert (distances[i] ** 2).sum() == pytest.approx(squares, rel=1e-5)


def test_edges():
    rough = RANDOM.randint(0, 256, (6, 20, 31))
    smooth = np.round(scipy.ndimage.gaussian_filter(rough.astype(float), [0, 2, 2]) * 2 - 120).clip(0, 255)
    stairs = np.tile(np.arange(31) // 3 * 14, (2, 20, 1))  # candidates without a strong pixel, then with one
    stairs[1, 3, 5:] = 255
    planes = np.concatenate([rough, smooth, stairs, stairs[..., ::-1], np.zeros([1, 20, 31])]).astype(np.float32)
    result = spatter.edges(planes).numpy()
    for plane, ours in zip(planes, result):
        np.testing.assert_array_equal(ours, canny(plane.astype(int), 50, 150))
    assert result[6:12].any() and not result[12].any() and result[13].any() and not result[-1].any()


def test_a_long_chain_of_candidates_is_followed_to_its_end():
    plane = np.zeros([1, 12, 400], np.float32)
    plane[:, 6:] = 30  # a step of 120 in the gradient, all along: candidates
    plane[0, 6:, :3] = 60
    assert spatter.edges(plane).numpy().any(axis=1).all()


@pytest.mark.parametrize("size, count", [((64, 75), 3), ((9, 70), 1), ((75, 5), 2), ((40, 40), 60), ((1, 30), 1)])
def test_distance_to_edges(size, count):
    edges = np.zeros([5, *size], bool)
    for plane in edges[1:]:
        plane[RANDOM.randint(0, size[0], count), RANDOM.randint(0, size[1], count)] = True
    edges[4, -1, -1] = edges[4, 0, 0] = True  # distances must not leak into the next row or the next plane
    result = spatter.edge_distance(tf.constant(edges)).numpy()
    for plane, ours in zip(edges, result):
        np.testing.assert_allclose(ours, distance_to(plane, 20.0), atol=2e-4)
    assert (result[0] == 20).all()


def test_equalization():
    planes = np.minimum(RANDOM.poisson(4, (4, 9, 13)), 20)
    planes[2], planes[3] = 7, np.where(planes[3] > 4, 20, 3)
    result = spatter.equalize(tf.constant(planes, tf.float32), 21)
    for plane, ours in zip(planes, result):
        np.testing.assert_array_equal(ours, equalized(plane))


@pytest.mark.parametrize("images", [COLOR, GRAY], ids=["color", "gray"])
def test_water_and_mud_equal_the_oracle(images):
    for constants_set, severity in (*itertools.product(("cifar", "imagenet"), (1, 3, 4)), ("cifar", 5)):
        difference = oracles.differences(weather.spatter, images, severity, constants_set)
        fraction, mean, _ = oracles.summary(difference)
        assert fraction > 0.995 and mean < 0.05
        assert abs(weather.spatter(tf.constant(images), severity, constants=constants_set) - images).numpy().max() > 0.3


def test_an_image_without_water_is_unchanged():
    layer = np.zeros([2, 12, 12], np.float32)
    layer[1, 4:8, 4:8] = 0.8
    light = spatter.water(tf.constant(layer)).numpy()
    assert not light[0].any() and light[1].max() == 1 and not light[1, :4].any()
    np.testing.assert_array_equal(
        weather.spatter.apply(tf.constant(COLOR), 0.5, 0.1, 1, 0.9, 0.5, 0, normal=np.zeros(COLOR.shape[:3], np.float32)), COLOR
    )


def test_an_overflow_of_8_bits_wraps_around():
    layer = np.full([1, 16, 16], 0.9, np.float32)
    layer[0, 6:10, 6:10] = 1.2
    np.testing.assert_allclose(spatter.water(tf.constant(layer))[0], water(layer[0].astype(float)), atol=1e-6)
