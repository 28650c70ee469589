"""Light on water drops: the relief that spatter makes of its liquid layer. Batched; planes are [N, H, W].

The chain of the benchmark (OpenCV on 8-bit planes): Canny edges, distance to them, equalization, embossing. It is followed
exactly, with one exception: where a layer has no water, the originals divide 0 by 0, and here nothing is added.
"""

import math

import numpy as np
import tensorflow as tf

from tf_robust.ops.lookup import lookup

_LOW, _HIGH = 50.0, 150.0  # of the Canny edge detector
REACH = 20  # largest distance, in pixels
_DIAGONAL, _KNIGHT = 91750 / 65536, 143976 / 65536  # 1.4 and 2.1969 in 16 bits: multiples of 2**-16 add up exactly
_STEPS = (
    ((0, 1), 1.0),
    ((1, 0), 1.0),
    ((1, 1), _DIAGONAL),
    ((1, -1), _DIAGONAL),
    ((1, 2), _KNIGHT),
    ((1, -2), _KNIGHT),
    ((2, 1), _KNIGHT),
    ((2, -1), _KNIGHT),
)


def water(layer: tf.Tensor) -> tf.Tensor:
    """Returns the brightness of the water at each pixel, [N, H, W] in [0, 1]; its maximum in each plane is 1 if there is water.

    Args:
        layer: float32 [N, H, W], thickness of the liquid; 0 where there is none. Quantized to 8 bits, with wraparound.
    """
    levels = tf.floor(255.0 * layer)
    levels = tf.where(levels > 255.0, levels - 256.0, levels)
    depth = tf.floor(_box_sum(edge_distance(edges(levels))) / 9.0)
    relief = tf.clip_by_value(_emboss(equalize(depth, REACH + 1)), 0.0, 255.0)
    light = levels * tf.round(_box_sum(relief) / 9.0)
    return light * tf.math.divide_no_nan(1.0, tf.reduce_max(light, axis=[1, 2], keepdims=True))


def edges(levels: tf.Tensor) -> tf.Tensor:
    """Returns edges (Canny, 1986), bool, of planes with integral values in 0..255, as cv2.Canny(levels, 50, 150)."""
    right, down = _sobel(levels)
    magnitude = tf.abs(right) + tf.abs(down)
    ridge = _is_ridge(magnitude, right, down)
    return _hysteresis(ridge & (magnitude > _HIGH), ridge & (magnitude > _LOW))


def _sobel(levels):
    """Returns gradients to the right and down, 3 x 3, with repeated borders."""
    padded = tf.pad(levels, [[0, 0], [1, 1], [1, 1]], mode="SYMMETRIC")
    above, center, below = padded[:, :-2], padded[:, 1:-1], padded[:, 2:]
    smooth, slope = above + 2.0 * center + below, below - above
    return smooth[:, :, 2:] - smooth[:, :, :-2], slope[:, :, :-2] + 2.0 * slope[:, :, 1:-1] + slope[:, :, 2:]


def _is_ridge(magnitude, right, down):
    """Returns whether no neighbor along the gradient, in the nearest of four directions, is steeper."""
    height, width = magnitude.shape[1:]
    padded = tf.pad(magnitude, [[0, 0], [1, 1], [1, 1]])

    def neighbor(rows, columns):
        return padded[:, 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]

    across = (magnitude > neighbor(0, -1)) & (magnitude >= neighbor(0, 1))
    upright = (magnitude > neighbor(-1, 0)) & (magnitude >= neighbor(1, 0))
    falling = (magnitude > neighbor(-1, -1)) & (magnitude > neighbor(1, 1))
    rising = (magnitude > neighbor(-1, 1)) & (magnitude > neighbor(1, -1))
    steepness, flatness = tf.abs(down), tf.abs(right)
    oblique = tf.where(right * down > 0, falling, rising)
    oblique = tf.where(steepness > flatness * math.tan(math.radians(67.5)), upright, oblique)
    return tf.where(steepness < flatness * math.tan(math.radians(22.5)), across, oblique)


def _hysteresis(strong, candidates):
    """Returns the strong pixels and the candidates that are connected to one, diagonally too: bool."""
    _, height, width = strong.shape
    stride = width + 2
    around = tf.constant([-stride - 1, -stride, -stride + 1, -1, 1, stride - 1, stride, stride + 1])
    kept = tf.reshape(tf.pad(strong, [[0, 0], [1, 1], [1, 1]]), [-1])
    weak = tf.pad(candidates & ~strong, [[0, 0], [1, 1], [1, 1]])
    cells = tf.cast(tf.where(tf.reshape(weak, [-1])), tf.int32)  # [M, 1]: few, so only they are visited

    def grow(kept, _):
        joined = tf.reduce_any(tf.gather(kept, cells + around), axis=1)
        added = joined & ~tf.gather(kept, cells[:, 0])
        return tf.tensor_scatter_nd_update(kept, cells, joined), tf.reduce_any(added)

    kept, _ = tf.while_loop(lambda _, grew: grew, grow, (kept, tf.constant(True)), parallel_iterations=1)
    return tf.reshape(kept, [-1, height + 2, stride])[:, 1:-1, 1:-1]


def edge_distance(is_edge: tf.Tensor) -> tf.Tensor:
    """Returns the distance to the nearest edge pixel, at most 20: bool [N, H, W] -> float32.

    The 5 x 5 chamfer metric (Borgefors, 1986) of OpenCV's distanceTransform: 1 for a step, 1.4 for a diagonal, 2.1969 for a
    knight's move. A shortest path may take its moves in any order, so the eight axes are processed one after the other, with
    1, 2, 4, ... moves at once. All planes lie in one line with `REACH` far pixels behind each row and each plane: distances
    shifted across a border end there.
    """
    height, width = is_edge.shape[1:]
    far = tf.pad(tf.where(is_edge, 0.0, float(REACH)), [[0, 0], [0, REACH], [0, REACH]], constant_values=float(REACH))
    distance = tf.reshape(far, [-1])
    for (rows, columns), cost in _STEPS:
        for times in _doublings(math.ceil(REACH / cost) - 1):
            shift = times * (rows * (width + REACH) + columns)
            nearer = tf.minimum(tf.roll(distance, shift, 0), tf.roll(distance, -shift, 0))
            distance = tf.minimum(distance, nearer + times * cost)
    return tf.reshape(distance, tf.shape(far))[:, :height, :width]


def _doublings(limit):
    """Returns 1, 2, 4, ... and a remainder: the fewest numbers whose partial sums are all of 0..limit."""
    parts, part = [], 1
    while limit > 0:
        parts.append(min(part, limit))
        limit, part = limit - parts[-1], 2 * part
    return parts


def equalize(levels: tf.Tensor, count: int) -> tf.Tensor:
    """Equalizes the histogram, to 0..255, of planes with integral values in 0..count - 1; a plane of one level is unchanged."""
    _, height, width = levels.shape
    levels = tf.cast(levels, tf.int32)
    flat = tf.reshape(levels, [-1, height * width])
    histogram = tf.math.bincount(flat, minlength=count, maxlength=count, axis=-1)
    below = tf.cast(tf.cumsum(histogram, axis=1), tf.float32)  # [N, count]: pixels up to each level
    first = tf.reduce_min(tf.where(below > 0, below, np.inf), axis=1, keepdims=True)  # pixels of the lowest level
    others = height * width - first
    table = tf.round((below - first) * (255.0 / others))
    table = tf.where(others > 0, tf.maximum(table, 0.0), tf.range(count, dtype=tf.float32))
    cells = flat + tf.range(tf.shape(levels)[0])[:, None] * count
    return tf.reshape(lookup(tf.reshape(table, [-1]), cells), tf.shape(levels))


def _emboss(planes):
    """Correlates with [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], light from the upper left; borders mirrored."""
    padded = _mirror(planes)
    return (
        planes
        + 2.0 * (padded[:, 2:, 2:] - padded[:, :-2, :-2])
        + (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2])
        + (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1])
    )


def _box_sum(planes):
    """Sums over 3 x 3; borders mirrored."""
    padded = _mirror(planes)
    rows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    return rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]


def _mirror(planes):
    """Adds one pixel on each side: the neighbor of the border pixel, or, where a side has one pixel, that pixel."""
    for axis in (1, 2):
        padding = [[1, 1] if i == axis else [0, 0] for i in range(3)]
        planes = tf.pad(planes, padding, mode="REFLECT" if planes.shape[axis] > 1 else "SYMMETRIC")
    return planes
