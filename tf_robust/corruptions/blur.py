"""Defocus, glass, motion, zoom and Gaussian blur (Hendrycks and Dietterich, 2019). Images are float32 in [0, 1], NHWC.

The originals truncate to uint8 in the middle of glass blur, between the first Gaussian and the moves, which darkens by
half a gray level in the mean; here values stay floats throughout.
"""

import functools

import numpy as np
import scipy.ndimage
import tensorflow as tf

from tf_robust.corruptions.corruption import Corruption
from tf_robust.ops import filters, image_ops


def _defocus(images, radius, alias):
    return filters.correlate(images, defocus_kernel(radius, alias))


@functools.lru_cache(maxsize=32)
def defocus_kernel(radius, alias):
    """float64 [S, S], S odd: a disk of `radius` pixels, its rim softened by a Gaussian of deviation `alias`.

    As in the originals the disk stands on a grid of at least 17x17 pixels and is mirrored at the grid's edge for the
    Gaussian of 3x3 taps (5x5 beyond radius 8), so at radius 8 the sum is not exactly 1. Zeros around it are cut off.
    """
    reach, taps = (8, 3) if radius <= 8 else (int(radius), 5)
    places = np.arange(-reach, reach + 1)
    disk = (places[:, None]**2 + places**2 <= radius**2).astype(float)
    soft = np.exp(-0.5 * ((np.arange(taps) - taps // 2) / alias)**2)
    soft /= soft.sum()
    kernel = disk / disk.sum()
    for axis in (0, 1):
        kernel = scipy.ndimage.correlate1d(kernel, soft, axis=axis, mode="mirror")
    cut = reach - abs(places[kernel.sum(axis=0) > 1e-9]).max()
    return kernel[cut:len(kernel) - cut, cut:len(kernel) - cut]


def _draw_offsets(draws, shape, sigma, reach, iterations):
    """Where each visited pixel looks, (rows down, columns right) in -reach..reach - 1, in the order of the visits."""
    height, width = (max(side - 2 * reach, 0) for side in shape[:2])
    return {"offsets": draws.integers([iterations, height * width, 2], -reach, reach)}


def _glass(images, sigma, reach, iterations, *, offsets):
    """Gaussian blur, then `iterations` times each pixel takes the value of one nearby, in turn, then Gaussian blur.

    The visits go from row H - reach up to reach + 1, and in each row from column W - reach down to reach + 1. The
    originals mean to swap the two pixels, but both end with the value of the one nearby; so do ours.

    Args:
        sigma: of both Gaussians, pixels. offsets: int32 [N, iterations, (H - 2 reach) (W - 2 reach), 2].
    """
    height, width, channels = images.shape[1:]
    images = filters.gaussian_blur(images, sigma)
    if min(height, width) > 2 * reach:
        origins = _origins(offsets[:, 0], height, width, reach)
        for i in range(1, iterations):
            origins = tf.gather(origins, _origins(offsets[:, i], height, width, reach))
        images = tf.reshape(tf.gather(tf.reshape(images, [-1, channels]), origins), [-1, height, width, channels])
    return filters.gaussian_blur(images, sigma)


def _origins(offsets, height, width, reach):
    """int32 [N, visits, 2] -> int32 [N * H * W]: whose old value each pixel of the batch has after all visits.

    A pixel looks at one that was visited before, so has a new value, where the offset leads forwards in reading order.
    Such chains of pixels are followed in steps of doubled length, from those pixels that are not at their end.
    """
    shifts = tf.reverse(offsets[..., 0] * width + offsets[..., 1], [1])  # in reading order
    shifts = tf.reshape(shifts, [-1, height - 2 * reach, width - 2 * reach])
    shifts = tf.reshape(tf.pad(shifts, [[0, 0], [reach + 1, reach - 1], [reach + 1, reach - 1]]), [-1])
    seen = tf.range(tf.size(shifts)) + shifts
    if reach == 1:  # all offsets lead backwards
        return seen
    # i: what pixel i ends with; ~i, which is negative: the old value of pixel i
    pointers = tf.where(shifts > 0, seen, ~seen)
    ahead = tf.gather(pointers, tf.maximum(pointers, 0))
    pointers = tf.where(pointers >= 0, ahead, pointers)  # all at once while many are open, then only those that still are

    def follow(pointers, open_):
        ahead = tf.gather(pointers, tf.gather_nd(pointers, open_))
        return tf.tensor_scatter_nd_update(pointers, open_, ahead), tf.boolean_mask(open_, ahead >= 0)
    open_ = tf.where(pointers >= 0)  # [pixels, 1]
    return ~tf.while_loop(lambda _, open_: tf.size(open_) > 0, follow, [pointers, open_],
                          shape_invariants=[pointers.shape, tf.TensorShape([None, 1])])[0]


def _draw_angle(draws, *_):
    return {"angle": draws.uniform((), -45.0, 45.0)}


def _motion(images, radius, sigma, *, angle):
    return filters.motion_blur(images, radius, sigma, angle)


def _zoom(images, end, step):
    """The mean of the image and of its zooms by 1, 1 + step, ... before `end`; so the image itself counts twice."""
    factors = np.arange(1, end, step)  # the originals' own call, as it rounds
    alike = {}  # small images: many factors give the same whole numbers of pixels
    for factor in factors:
        alike.setdefault(tuple(image_ops.zoom_sides(side, factor) for side in images.shape[1:3]), []).append(factor)
    total = tf.convert_to_tensor(images, tf.float32)
    for group in alike.values():
        # in turn: else a graph holds all zooms in memory at once, and adds them in another order than eager execution
        with tf.control_dependencies([total]):
            zoomed = image_ops.clipped_zoom(images, group[0])
            total += zoomed if len(group) == 1 else len(group) * zoomed
    return total * (1 / (len(factors) + 1))


defocus_blur = Corruption("defocus_blur", _defocus)
glass_blur = Corruption("glass_blur", _glass, _draw_offsets)
motion_blur = Corruption("motion_blur", _motion, _draw_angle)
zoom_blur = Corruption("zoom_blur", _zoom)
gaussian_blur = Corruption("gaussian_blur", filters.gaussian_blur)
