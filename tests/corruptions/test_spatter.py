"""Spatter and its image operations against slow oracles with the same draws."""

import itertools
import math
import zlib

import numpy as np
import pytest
import scipy.ndimage
import tensorflow as tf

from tests.corruptions.weather_draws import COLOR, RANDOM, both, check_normal, clip_to_channels, drawn
from tf_robust.corruptions import spatter, weather


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


def slow_canny(plane):
    """Canny edges at 50 and 150 by the rules of OpenCV, one pixel at a time."""
    plane = plane.astype(int)
    right, down = (
        scipy.ndimage.correlate(plane, kernel, mode="nearest")
        for kernel in (np.outer([1, 2, 1], [-1, 0, 1]), np.outer([-1, 0, 1], [1, 2, 1]))
    )
    steep = np.pad(abs(right) + abs(down), 1)
    edges = np.zeros(plane.shape, int)
    for row, column in np.ndindex(*plane.shape):
        magnitude, x, y = steep[row + 1, column + 1], right[row, column], down[row, column]
        angle = math.degrees(math.atan2(abs(y), abs(x)))
        if angle < 22.5:
            before, behind, strict = (0, -1), (0, 1), 0
        elif angle > 67.5:
            before, behind, strict = (-1, 0), (1, 0), 0
        else:
            before, behind, strict = ((-1, -1), (1, 1), 1) if x * y > 0 else ((-1, 1), (1, -1), 1)
        before, behind = (steep[row + 1 + i, column + 1 + j] for i, j in (before, behind))
        if magnitude > 50 and magnitude > before and magnitude >= behind + strict:
            edges[row, column] = 2 if magnitude > 150 else 1
    labels, _ = scipy.ndimage.label(edges, np.ones([3, 3]))
    return np.isin(labels, np.unique(labels[edges == 2])) & (edges > 0)


def test_edges():
    rough = RANDOM.randint(0, 256, (6, 20, 31))
    smooth = np.round(scipy.ndimage.gaussian_filter(rough.astype(float), [0, 2, 2]) * 2 - 120).clip(0, 255)
    stairs = np.tile(np.arange(31) // 3 * 14, (2, 20, 1))  # candidates without a strong pixel, then with one
    stairs[1, 3, 5:] = 255
    planes = np.concatenate([rough, smooth, stairs, stairs[..., ::-1], np.zeros([1, 20, 31])]).astype(np.float32)
    result = spatter.edges(planes).numpy()
    for plane, ours in zip(planes, result):
        np.testing.assert_array_equal(ours, slow_canny(plane))
    assert result[6:12].any() and not result[12].any() and result[13].any() and not result[-1].any()


def test_a_long_chain_of_candidates_is_followed_to_its_end():
    plane = np.zeros([1, 12, 400], np.float32)
    plane[:, 6:] = 30  # a step of 120 in the gradient, all along: candidates
    plane[0, 6:, :3] = 60
    assert spatter.edges(plane).numpy().any(axis=1).all()


def slow_distance(edges):
    """Returns the minimum over edge pixels of the chamfer norm: the shortest sum of steps, diagonals and knight's moves."""
    down, right = np.indices(edges.shape)
    best = np.full(edges.shape, 20.0)
    for row, column in np.argwhere(edges):
        small, large = np.sort([abs(down - row), abs(right - column)], axis=0)
        flat = (large - 2 * small) + 2.1969 * small
        steep = 2.1969 * (large - small) + 1.4 * (2 * small - large)
        best = np.minimum(best, np.where(large >= 2 * small, flat, steep))
    return best


@pytest.mark.parametrize("size, count", [((64, 75), 3), ((9, 70), 1), ((75, 5), 2), ((40, 40), 60), ((1, 30), 1)])
def test_distance_to_edges(size, count):
    edges = np.zeros([5, *size], bool)
    for plane in edges[1:]:
        plane[RANDOM.randint(0, size[0], count), RANDOM.randint(0, size[1], count)] = True
    edges[4, -1, -1] = edges[4, 0, 0] = True  # distances must not leak into the next row or the next plane
    result = spatter.edge_distance(tf.constant(edges)).numpy()
    for plane, ours in zip(edges, result):
        np.testing.assert_allclose(ours, slow_distance(plane), atol=2e-4)
    assert (result[0] == 20).all()


def slow_equalized(plane, count):
    histogram = np.bincount(plane.ravel(), minlength=count)
    first = histogram[plane.min()]
    if first == plane.size:
        return plane
    table = np.array([np.round((histogram[: level + 1].sum() - first) * 255 / (plane.size - first)) for level in range(count)])
    return np.maximum(table, 0)[plane]


def test_equalization():
    planes = np.minimum(RANDOM.poisson(4, (4, 9, 13)), 20)
    planes[2], planes[3] = 7, np.where(planes[3] > 4, 20, 3)
    result = spatter.equalize(tf.constant(planes, tf.float32), 21)
    for plane, ours in zip(planes, result):
        np.testing.assert_array_equal(ours, slow_equalized(plane, 21))


def slow_water(layer):
    """The benchmark's chain, from SciPy's filters and the slow parts above."""
    levels = (layer * 255).astype(int) % 256
    depth = scipy.ndimage.correlate(slow_distance(slow_canny(levels)), np.ones([3, 3]), mode="mirror")
    depth = slow_equalized(np.floor(depth / 9 + 1e-5).astype(int), 21)
    relief = scipy.ndimage.correlate(depth, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]), mode="mirror").clip(0, 255)
    light = levels * np.round(scipy.ndimage.correlate(relief, np.ones([3, 3]), mode="mirror") / 9)
    return light / max(light.max(), 1)


@both
@pytest.mark.parametrize("severity, constants_set", [(1, "cifar"), (3, "cifar"), (1, "imagenet"), (3, "imagenet")])
def test_water(images, severity, constants_set):
    numbers, draws = drawn(weather.spatter, images, severity, constants_set)
    mean, std, sigma, threshold, strength, _ = numbers
    result = np.clip(weather.spatter.apply(tf.constant(images), *numbers, **draws), 0, 1)
    errors = []
    for image, normal, ours in zip(images, draws["normal"].astype(float), result):
        layer = scipy.ndimage.gaussian_filter(mean + std * normal, sigma, truncate=4.0, mode="nearest")
        layer[layer < threshold] = 0
        light = strength * slow_water(layer)[..., None] * np.array([175, 238, 238]) / 255
        errors.append(255 * abs(clip_to_channels(image + light, images.shape[-1]) - ours))
    assert np.mean(np.less(errors, 1)) > 0.995 and np.mean(errors) < 0.05
    assert abs(result - images).max() > 0.3


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
    np.testing.assert_allclose(spatter.water(tf.constant(layer))[0], slow_water(layer[0].astype(float)), atol=1e-6)


@both
@pytest.mark.parametrize("severity, constants_set", [(4, "cifar"), (5, "cifar"), (4, "imagenet")])
def test_mud(images, severity, constants_set):
    numbers, draws = drawn(weather.spatter, images, severity, constants_set)
    mean, std, sigma, threshold, softness, _ = numbers
    result = np.clip(weather.spatter.apply(tf.constant(images), *numbers, **draws), 0, 1)
    errors = []
    for image, normal, ours in zip(images, draws["normal"].astype(float), result):
        layer = scipy.ndimage.gaussian_filter(mean + std * normal, sigma, truncate=4.0, mode="nearest")
        cover = scipy.ndimage.gaussian_filter((layer > threshold).astype(float), softness, truncate=4.0, mode="nearest")
        cover = np.where(cover < 0.8, 0, cover)[..., None]
        muddy = image * (1 - cover) + cover * np.array([63, 42, 20]) / 255
        errors.append(255 * abs(clip_to_channels(muddy, images.shape[-1]) - ours))
    assert np.mean(np.less(errors, 1)) > 0.995 and np.mean(errors) < 0.05
    assert abs(result - images).max() > 0.3


def test_draws_of_spatter():
    _, draws = drawn(weather.spatter, np.zeros([3000, 8, 6, 3], np.float32), 3)
    assert draws["normal"].shape == (3000, 8, 6)
    check_normal(draws["normal"])
