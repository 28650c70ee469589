"""Defocus, glass, motion, zoom and Gaussian blur (Hendrycks and Dietterich, 2019). Images are float32 in [0, 1], NHWC.

The originals truncate to uint8 inside glass blur, between the first Gaussian and the moves, which darkens by half a gray
level on average; here values stay floats throughout.
"""

import functools

import numpy as np
import scipy.ndimage
import tensorflow as tf

from tf_robust.corruptions.corruption import Corruption
from tf_robust.ops import filters, image_ops
from tf_robust.ops.lookup import lookup


def _defocus(images, radius, alias):
    """Averages over a disk, as a lens out of focus does."""
    return filters.correlate(images, defocus_kernel(radius, alias))


@functools.lru_cache(maxsize=32)
def defocus_kernel(radius: float, alias: float) -> np.ndarray:
    """Returns a disk of `radius` pixels, softened by a Gaussian of standard deviation `alias`: float64 [S, S], S odd.

    As in the originals the disk stands on a grid of at least 17x17 pixels and is mirrored at the grid's edge for the
    Gaussian of 3x3 taps (5x5 beyond radius 8), so at radius 8 the sum is not exactly 1. Surrounding zeros are removed.
    """
    reach, taps = (8, 3) if radius <= 8 else (int(radius), 5)
    positions = np.arange(-reach, reach + 1)
    disk = (positions[:, None] ** 2 + positions**2 <= radius**2).astype(float)
    soft = np.exp(-0.5 * ((np.arange(taps) - taps // 2) / alias) ** 2)
    soft /= soft.sum()
    kernel = disk / disk.sum()
    for axis in (0, 1):
        kernel = scipy.ndimage.correlate1d(kernel, soft, axis=axis, mode="mirror")
    cut = reach - abs(positions[kernel.sum(axis=0) > 1e-9]).max()
    return kernel[cut : len(kernel) - cut, cut : len(kernel) - cut]


def _draw_offsets(draws, shape, sigma, reach, iterations):
    """Draws the source of each visited pixel, (rows down, columns right) in -reach..reach - 1, in the order of the visits."""
    height, width = (max(side - 2 * reach, 0) for side in shape[:2])
    return {"offsets": draws.integers([iterations, height * width, 2], -reach, reach)}


def _glass(images, sigma, reach, iterations, *, offsets):
    """Applies a Gaussian blur; then, `iterations` times, each pixel in turn takes the value of a nearby one; then a second Gaussian blur.

    Pixels are visited from row H - reach up to reach + 1, and in each row from column W - reach down to reach + 1. The
    originals intend to swap the two pixels, but both end with the value of the nearby one; the same holds here.

    Args:
        sigma: standard deviation of both Gaussians, in pixels.
        offsets: int32 [N, iterations, (H - 2 reach) (W - 2 reach), 2].
    """
    height, width, channels = images.shape[1:]
    images = filters.gaussian_blur(images, sigma)
    if min(height, width) > 2 * reach:
        origins = _origins(offsets[:, 0], height, width, reach)
        for i in range(1, iterations):
            origins = lookup(origins, _origins(offsets[:, i], height, width, reach))
        images = tf.reshape(lookup(tf.reshape(images, [-1, channels]), origins), [-1, height, width, channels])
    return filters.gaussian_blur(images, sigma)


def _origins(offsets, height, width, reach):
    """Returns int32 [N * H * W]: the pixel of the batch whose old value each pixel has after all visits. offsets: [N, visits, 2].

    Where the offset points forwards in reading order, the source was visited before and has a new value. Such chains of
    pixels are followed by pointer jumping, from those pixels that are not at the end of their chain.
    """
    shifts = tf.reverse(offsets[..., 0] * width + offsets[..., 1], [1])  # in reading order
    shifts = tf.reshape(shifts, [-1, height - 2 * reach, width - 2 * reach])
    shifts = tf.reshape(tf.pad(shifts, [[0, 0], [reach + 1, reach - 1], [reach + 1, reach - 1]]), [-1])
    sources = tf.range(tf.size(shifts)) + shifts
    if reach == 1:  # all offsets lead backwards
        return sources
    # i: the final value of pixel i; ~i, which is negative: the old value of pixel i
    pointers = tf.where(shifts > 0, sources, ~sources)
    ahead = lookup(pointers, tf.maximum(pointers, 0))
    pointers = tf.where(pointers >= 0, ahead, pointers)  # one dense step while most are open, then sparse ones

    def follow(pointers, open_):
        ahead = lookup(pointers, lookup(pointers, open_[:, 0]))
        return tf.tensor_scatter_nd_update(pointers, open_, ahead), tf.boolean_mask(open_, ahead >= 0)

    open_ = tf.where(pointers >= 0)  # [pixels, 1]
    return ~tf.while_loop(
        lambda _, open_: tf.size(open_) > 0, follow, [pointers, open_], shape_invariants=[pointers.shape, tf.TensorShape([None, 1])]
    )[0]


def _draw_angle(draws, *_):
    return {"angle": draws.uniform((), -45.0, 45.0)}


def _motion(images, radius, sigma, *, angle):
    """Averages along a line in a random direction, with the weights of half a Gaussian."""
    return filters.motion_blur(images, radius, sigma, angle)


def _zoom(images, end, step):
    """Averages the image and its zooms by 1, 1 + step, ... before `end`; so the image itself counts twice."""
    factors = np.arange(1, end, step)  # the call of the originals, including its rounding
    groups = {}  # in small images many factors give the same integral sizes
    for factor in factors:
        groups.setdefault(tuple(image_ops.zoom_sides(side, factor) for side in images.shape[1:3]), []).append(factor)
    total = tf.convert_to_tensor(images, tf.float32)
    for group in groups.values():
        # sequential: otherwise a graph holds all zooms in memory at once, and adds them in another order than eager execution
        with tf.control_dependencies([total]):
            zoomed = image_ops.clipped_zoom(images, group[0])
            total += zoomed if len(group) == 1 else len(group) * zoomed
    return total * (1 / (len(factors) + 1))


defocus_blur = Corruption("defocus_blur", _defocus, in_tiles=True)
glass_blur = Corruption("glass_blur", _glass, _draw_offsets, in_tiles=True)
motion_blur = Corruption("motion_blur", _motion, _draw_angle, in_tiles=True)
zoom_blur = Corruption("zoom_blur", _zoom, in_tiles=True)
gaussian_blur = Corruption("gaussian_blur", filters.gaussian_blur)
