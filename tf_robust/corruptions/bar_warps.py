"""Corruptions of C-bar that move pixels: refraction, twirls, ripples, zoomed channels, rotations (Mintun et al., 2021).

Images are float32 in [0, 1], NHWC. `level` is the strength on the authors' scale, 0 to 10. Outside of the image everything is black.
The authors spell one name `transverse_chromatic_abberation`.
"""

import functools
import math

import numpy as np
import scipy.ndimage
import tensorflow as tf

from tf_robust.corruptions.bar_noise import per_image, pixel_grid
from tf_robust.corruptions.corruption import Corruption
from tf_robust.corruptions.severities import nearest_set, side_of
from tf_robust.ops import filters, warps
from tf_robust.ops.color import in_color

_TURN = 2 * math.pi
_ROTATIONS = np.linspace(-1, 1, 21)


def _sampled(images, rows, columns):
    """Samples images bilinearly at positions [N, H, W], with black pixels around the image."""
    framed = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]])
    return warps.bilinear(framed, rows + 1.0, columns + 1.0, "nearest")


# Refraction


def _draw_caustics(draws, *_):
    return {"time": draws.uniform((), 0.5, 2.0), "size": draws.uniform((), 0.75, 1.25)}


def _caustic_refraction(images, level, *, time, size):
    """Refracts the image at a wavy surface, whose height is a caustic pattern, and lights its slopes from one corner."""
    height, width = images.shape[1:3]
    side = side_of(height, width)
    surface = filters.gaussian_blur(_caustics(height, width, time, side * size)[..., None], 1.0, mode="reflect")[..., 0]
    framed = tf.pad(surface, [[0, 0], [1, 1], [1, 1]])
    down, right = framed[:, 2:, 1:-1] - framed[:, :-2, 1:-1], framed[:, 1:-1, 2:] - framed[:, 1:-1, :-2]
    cosine = tf.math.rsqrt(down**2 + right**2 + 1.0)  # of the angle between the surface's normal and the view
    # a vertical ray that enters a medium of refractive index 4; nearly level parts do not refract
    bend = cosine * (tf.sqrt(1.0 - (1.0 - cosine**2) / 16) - cosine / 4)
    bend = level / 10 * 0.5 * side * tf.where(cosine >= 1.0 - 1e-3, 0.0, bend)
    rows, columns = pixel_grid(height, width)
    light = level / 10 * 2.0 * (down - right)
    return _sampled(images, rows + bend * down, columns + bend * right) + light[..., None]


def _caustics(height, width, time, period):
    """Returns a pattern of light on the ground of a pool, [N, H, W] in [0, 1].

    Args:
        time: [N], selects the pattern.
        period: [N], in pixels, after which it repeats.
    """
    rows, columns = pixel_grid(height, width)
    period, time = per_image(period), per_image(time)
    y, x = (_TURN * ((positions / period) % 1.0) + (40 * _TURN - 250.0) for positions in (rows, columns))  # less 40 turns: exact angles
    down, right, total = y + 0.0 * x, x + 0.0 * y, 1.0
    for step in range(1, 6):
        phase = time * (1.0 - 3.5 / step)
        down, right = (
            y + tf.cos(phase - down) + tf.sin(phase + right),
            x + tf.sin(phase - right) + tf.cos(phase + down),
        )
        first, second = tf.sin(down + phase), tf.cos(right + phase)
        # 200 / hypot(tall / first, wide / second), and 0 where a divisor is 0
        tall, wide = y - 40 * _TURN, x - 40 * _TURN
        total += 200.0 * tf.abs(first * second) * tf.math.rsqrt((tall * second) ** 2 + (wide * first) ** 2 + 1e-12)
    return tf.minimum(tf.abs(1.17 - (total / 5) ** 1.4) ** 8, 1.0)


# Twirls


def _cells(height, width):
    """Returns the number of twirls along each side."""
    return 5 if nearest_set(height, width) == "imagenet" else 3


def _draw_twirls(draws, shape, *_):
    return {"signs": draws.integers((_cells(*shape[:2]) ** 2,), 0, 2)}


def _pinch_and_twirl(images, level, *, signs):
    """Pinches and twirls the disks of a regular grid, each clockwise or counterclockwise.

    Args:
        signs: int32 [N, disks], 0 or 1: the direction of each twirl.
    """
    height, width = images.shape[1:3]
    disks, still, turned = _twirl_maps(height, width, level)
    signs = tf.gather(tf.pad(2.0 * tf.cast(signs, tf.float32) - 1.0, [[0, 0], [0, 1]]), disks, axis=1)  # [N, H, W]
    rows, columns = (tf.constant(fixed, tf.float32) + signs * tf.constant(turning, tf.float32) for fixed, turning in zip(still, turned))
    return _sampled(images, rows, columns)


@functools.lru_cache(maxsize=32)
def _twirl_maps(height, width, level):
    """Returns int [H, W], the disk of each pixel, and its sources: the part [2, H, W] for both directions, and the part that has a sign."""
    cells, angle, amount = _cells(height, width), level / 10 * math.pi / 2, level / 10 * 0.4 + 0.1
    pixels, sides = np.indices([height, width]), [max(side // cells, 1) for side in (height, width)]
    cell = [axis // side for axis, side in zip(pixels, sides)]
    radius = np.reshape(sides, [2, 1, 1]) / 2
    centers = (np.stack(cell) * 2 + 1) * radius
    offsets = (pixels - centers) / radius  # the disk is the unit disk
    distance = np.hypot(*offsets)
    inside = (distance <= 1) & (distance > 0) & (cell[0] < cells) & (cell[1] < cells)
    safe = np.where(inside, distance, 1)
    offsets = offsets * np.sin(math.pi / 2 * safe) ** -amount
    turns = angle * (1 - safe) ** 2
    still = centers + radius * offsets * np.cos(turns)
    turned = radius * np.stack([-offsets[1], offsets[0]]) * np.sin(turns)
    return np.where(inside, cell[1] * cells + cell[0], cells**2), np.where(inside, still, pixels), np.where(inside, turned, 0)


# Ripples


def _draw_ripple(draws, *_):
    return {"wavelengths": draws.uniform((2,), 0.1, 0.3), "phases": draws.uniform((2,), 0.0, _TURN)}


def _ripple(images, level, *, wavelengths, phases):
    """Shifts rows by a sine of the row, and columns by a sine of the column, bilinearly."""
    side = side_of(*images.shape[1:3])
    for axis in (0, 1):
        pixels = tf.range(images.shape[1], dtype=tf.float32)  # of the axis: `along_height` swaps height and width
        waves = tf.sin(pixels * (_TURN / side / wavelengths[:, axis, None]) + phases[:, axis, None])
        positions = pixels + level / 10 * 0.025 * side * waves
        weights = tf.nn.relu(1.0 - tf.abs(positions[:, :, None] - pixels))  # [N, side, side]
        images = filters.along_height(images, weights.__matmul__)
    return images


# Zoomed channels


def _draw_order(draws, *_):
    return {"order": draws.uniform((3,))}


def _aberration(images, level, *, order):
    """Magnifies the center of two of the three color channels by 1 + `level` / 40 and 1 + `level` / 20, and blurs all by a spline."""
    scales = [1.0, 1.0 + level / 40, 1.0 + level / 20]
    chosen = tf.argsort(order, axis=1)  # [N, 3], the scale of each channel
    rows, columns = (
        tf.gather(tf.constant(np.stack([_zoom_operator(side, scale) for scale in scales]), tf.float32), chosen)
        for side in images.shape[1:3]
    )

    def change(rgb):
        planes = rows @ tf.transpose(rgb, [0, 3, 1, 2]) @ tf.transpose(columns, [0, 1, 3, 2])
        return tf.transpose(planes, [0, 2, 3, 1])

    return in_color(images, change)


@functools.lru_cache(maxsize=64)
def _zoom_operator(side, scale):
    """Returns the central part of `scipy.ndimage.zoom` along one axis as a matrix, [side, side]; order 3 without its prefilter."""
    zoomed = np.stack([scipy.ndimage.zoom(unit, scale, prefilter=False) for unit in np.eye(side)], axis=1)
    first = (len(zoomed) - side) // 2
    return zoomed[first : first + side]


# Rotations


def _circular_motion_blur(images, level):
    """Averages 21 rotations by up to 1.5 * `level` degrees to each side, with the weights of a Gaussian, by cubic splines.

    A rotation equals `scipy.ndimage.rotate`: pixels whose source is outside of the image are black.
    """
    height, width, channels = images.shape[1:]
    splines = filters.separable(images, *(_spline_operator(side) for side in (height, width)))
    framed = tf.gather(tf.gather(splines, _with_neighbors(height), axis=1), _with_neighbors(width), axis=2)
    # [H + 3, W, N, C, 4]: four neighbors in a row at each pixel, of all images
    windows = tf.stack([framed[:, :, i : i + width] for i in range(4)], axis=-1)
    windows = tf.reshape(tf.transpose(windows, [1, 2, 0, 3, 4]), [(height + 3) * width, -1])
    total, weights = tf.zeros([height * width, tf.size(images) // (height * width)]), np.exp(-2 * _ROTATIONS**2)
    for rotation, weight in zip(_ROTATIONS, weights / weights.sum()):
        with tf.control_dependencies([total]):  # sequential: otherwise a graph holds all rotations in memory at once
            total += _rotated(windows, height, width, 1.5 * level * rotation, weight)
    return tf.transpose(tf.reshape(total, [height, width, -1, channels]), [2, 0, 1, 3])


def _rotated(windows, height, width, degrees, weight):
    """Returns rotated images times `weight`, [H * W, N * C], from windows [(H + 3) * W, N * C * 4] of spline coefficients."""
    row, column, row_weights, column_weights = _rotation(height, width, degrees)
    gathered = 0.0
    for tap in range(4):
        rows = tf.gather(windows, ((row + tap) * width + column).ravel())
        gathered += tf.constant(weight * row_weights[tap].reshape(-1, 1), tf.float32) * rows
    gathered = tf.reshape(gathered, [height * width, tf.shape(windows)[1] // 4, 4])
    return tf.linalg.matvec(gathered, tf.constant(column_weights.reshape(4, -1).T, tf.float32))


def _rotation(height, width, degrees):
    """Returns row and column, int [H, W], of the first of four neighbors, and the cubic weights, [4, H, W], of their rows and columns."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    center = np.reshape([height - 1, width - 1], [2, 1, 1]) / 2
    down, right = np.indices([height, width]) - center
    source = np.stack([cos * down + sin * right, cos * right - sin * down]) + center
    inside = ((source >= 0) & (source <= 2 * center)).all(axis=0)
    first = np.clip(np.floor(source), 0, 2 * center).astype(int)
    fraction = np.where(inside, source - first, 0)
    taps = [(1 - fraction) ** 3, 3 * fraction**3 - 6 * fraction**2 + 4, 1 + 3 * fraction * (1 + fraction - fraction**2), fraction**3]
    rows, columns = np.stack(taps, axis=1) / 6
    return *first, inside * rows, columns


def _with_neighbors(side):
    """Returns the pixels of a line with one more before it and two behind, mirrored."""
    period = max(2 * side - 2, 1)
    positions = np.arange(-1, side + 2) % period
    return np.minimum(positions, period - positions)


@functools.lru_cache(maxsize=16)
def _spline_operator(side):
    """Returns the matrix [side, side] that gives the coefficients of a cubic spline through the values of a line."""
    return scipy.ndimage.spline_filter1d(np.eye(side), axis=0, mode="mirror")


caustic_refraction = Corruption("caustic_refraction", _caustic_refraction, _draw_caustics)
pinch_and_twirl = Corruption("pinch_and_twirl", _pinch_and_twirl, _draw_twirls)
ripple = Corruption("ripple", _ripple, _draw_ripple)
transverse_chromatic_aberration = Corruption("transverse_chromatic_aberration", _aberration, _draw_order)
circular_motion_blur = Corruption("circular_motion_blur", _circular_motion_blur)
