"""Corruptions of C-bar that cover parts of the image: sparkles, gray squares and gray lines (Mintun et al., 2021).

Images are float32 in [0, 1], NHWC. `level` is the strength on the authors' scale, 0 to 10.
"""

import math

import tensorflow as tf

from tf_robust.corruptions.bar_noise import per_image, pixel_grid
from tf_robust.corruptions.corruption import Corruption
from tf_robust.corruptions.severities import side_of

_TURN = 2 * math.pi
_SPARKLES = 5
_RAYS = (50, 200)  # least number of rays, and one more than the largest
_STD = 0.25  # of the lengths of rays, as a fraction of the mean
_GRAY = 128 / 255
_CELLS = 32  # more than the squares that fit into any diagonal


# Sparkles


def _draw_sparkles(draws, *_):
    return {
        "centers": draws.uniform((_SPARKLES, 2)),
        "rays": draws.integers((_SPARKLES,), *_RAYS),
        "lengths": draws.normal((_SPARKLES, _RAYS[1] - 1)),
    }


def _sparkles(images, level, *, centers, rays, lengths):
    """Adds five white sparkles, with rays of at least one pixel, anywhere in the image."""
    height, width = images.shape[1:3]
    radius = level / 10 * 0.1 * side_of(height, width)
    lengths = tf.maximum(radius + _STD * radius * lengths, 1.0)
    visible = 1.0
    for i in range(_SPARKLES):
        visible *= 1.0 - _glow(height, width, centers[:, i], rays[:, i], lengths[:, i], 1.0)
    return 1.0 - (1.0 - images) * visible[..., None]


def _draw_inverse(draws, *_):
    return {
        "center": draws.uniform((2,), 0.25, 0.75),
        "rays": draws.integers((), *_RAYS),
        "lengths": draws.normal((_RAYS[1] - 1,)),
    }


def _inverse_sparkles(images, level, *, center, rays, lengths):
    """Whitens the image around a sparkle near the center."""
    height, width = images.shape[1:3]
    radius = 0.25 * side_of(height, width)
    glow = _glow(height, width, center, rays, radius + _STD * radius * lengths, level / 10 * 65 / 50)
    return 1.0 + glow[..., None] * (images - 1.0)


def _glow(height, width, center, rays, lengths, exponent):
    """Returns the brightness of a sparkle at each pixel, [N, H, W] in [0, 1]: (length of the ray / distance) ** (2 exponent), clipped.

    Args:
        center: [N, 2], as a fraction of height and width.
        rays: int32 [N], how many there are.
        lengths: [N, 199], of the rays in pixels; the first `rays` are used. Between two rays the length is interpolated.
        exponent: how fast the brightness falls with the distance.
    """
    rows, columns = pixel_grid(height, width)
    down, right = rows - per_image(height * center[:, 0]), columns - per_image(width * center[:, 1])
    count = per_image(rays)
    turns = (tf.atan2(right, down) / _TURN + 0.5) * tf.cast(count, tf.float32)
    ray = tf.cast(turns, tf.int32)
    fraction = turns - tf.cast(ray, tf.float32)
    length = _lookup(lengths, ray % count)
    length += fraction * (_lookup(lengths, (ray + 1) % count) - length)
    falling = (length**2 / (down**2 + right**2 + 1e-4)) ** exponent
    return tf.clip_by_value((1.0 - (fraction - 0.5) ** 2) * falling, 0.0, 1.0)


def _lookup(tables, positions):
    """Returns the entries of tables [N, K] at int32 positions [N, H, W]."""
    first = tf.range(tf.shape(tables)[0]) * tables.shape[1]
    return tf.gather(tf.reshape(tables, [-1]), positions + per_image(first))


# Squares


def _draw_squares(draws, *_):
    return {
        "angle": draws.uniform((), 0.0, _TURN),
        "scale": draws.uniform((), 0.1, 0.25),
        "cells": draws.uniform((_CELLS**2,)),
    }


def _checkerboard(images, level, *, angle, scale, cells):
    """Covers a fraction of the black squares of a rotated checkerboard, `level` / 10, with gray.

    Args:
        scale: [N], side of the squares as a fraction of the image's.
        cells: [N, 1024], a number for each square; it is covered if this is below the fraction.
    """
    rows, columns = pixel_grid(*images.shape[1:3])
    side = tf.maximum(per_image(scale) * side_of(*images.shape[1:3]), 1.0)
    cos, sin = per_image(tf.cos(angle)), per_image(tf.sin(angle))
    one = tf.cast(tf.floor((cos * rows + sin * columns) / side), tf.int32)
    other = tf.cast(tf.floor((cos * columns - sin * rows) / side), tf.int32)
    chosen = _lookup(cells, one % _CELLS * _CELLS + other % _CELLS) < level / 10
    covered = chosen & ((one + other) % 2 == 0)
    return tf.where(covered[..., None], _GRAY, images)


# Lines


def _count(level, height, width):
    """Returns the number of lines; in the authors' code images smaller than 20 pixels would have none at the lowest level."""
    return max(int(level / 10 * side_of(height, width)), 1)


def _draw_lines(draws, shape, level):
    count = _count(level, *shape[:2])
    return {
        "middles": draws.uniform((count, 2)),
        "angle": draws.uniform((), 0.0, _TURN),
        "variation": draws.uniform((), 0.1, 1.0),
        "turns": draws.uniform((count,), -0.5, 0.5),
    }


def _lines(images, level, *, middles, angle, variation, turns):
    """Draws gray lines, one pixel wide and two sides long, around a common angle. Their ends are whole pixels."""
    height, width = images.shape[1:3]
    angles = angle[:, None] + _TURN * variation[:, None] * turns
    half = side_of(height, width) * tf.stack([tf.cos(angles), tf.sin(angles)], axis=-1)
    middles *= tf.constant([height, width], tf.float32)
    begins, ends = tf.cast(tf.cast(middles - half, tf.int32), tf.float32), tf.cast(tf.cast(middles + half, tf.int32), tf.float32)
    visible = 1.0
    for i in range(_count(level, height, width)):
        visible *= 1.0 - _line(height, width, begins[:, i], ends[:, i])
    return _GRAY + visible[..., None] * (images - _GRAY)


def _line(height, width, begin, end):
    """Returns the opacity of smooth lines, [N, H, W]: 1 minus the distance to the line in pixels, at least 0; nothing beyond its ends.

    Args:
        begin: [N, 2], row and column, integral.
        end: [N, 2].
    """
    rows, columns = pixel_grid(height, width)
    steps = end - begin
    length = tf.norm(steps, axis=1)
    down, right = (per_image(steps[:, i] / length) for i in (0, 1))
    row, column = rows - per_image(begin[:, 0]), columns - per_image(begin[:, 1])
    along, across = down * row + right * column, right * row - down * column
    return tf.where((along >= 0) & (along <= per_image(length)), tf.nn.relu(1.0 - tf.abs(across)), 0.0)


sparkles = Corruption("sparkles", _sparkles, _draw_sparkles)
inverse_sparkles = Corruption("inverse_sparkles", _inverse_sparkles, _draw_inverse)
checkerboard_cutout = Corruption("checkerboard_cutout", _checkerboard, _draw_squares)
lines = Corruption("lines", _lines, _draw_lines)
