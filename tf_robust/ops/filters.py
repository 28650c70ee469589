"""Batched linear filters: float32 [N, H, W, C] of any range -> the same; H, W and C are known when the graph is built.

What a filter makes of an image depends, bit for bit, on that image alone: matrix products are kept short enough that
no library splits their sums differently for another number of images.
"""

import functools
import math

import numpy as np
import scipy.fft
import scipy.ndimage
import tensorflow as tf

_BLOCK = 32  # pixels of a line that one matrix product makes: the fastest at 224 pixels
_DIRECT = 7  # side of the largest kernel that is faster as a sum of shifts than through frequencies
_NEGLIGIBLE = 2e-5  # weight of the last taps that may be left out: 1/200 of a gray level


def gaussian_blur(images, sigma, *, truncate=4.0, mode="nearest"):
    """Gaussian filter of each channel, equal to `scipy.ndimage.gaussian_filter` over height and width.

    Args:
        sigma: standard deviation in pixels, a number or float [N]; 0 leaves an image as it is. A number is faster.
        truncate: taps reach int(truncate * sigma + 0.5) pixels.
        mode: what lies beyond the border: its last pixel ("nearest") or the mirror image, border included ("reflect").
    """
    if mode not in ("nearest", "reflect"):
        raise ValueError(f"Expected mode 'nearest' or 'reflect'. Received: {mode!r}")
    images = tf.convert_to_tensor(images, tf.float32)
    if not tf.is_tensor(sigma) and np.ndim(sigma) == 0:
        if int(truncate * sigma + 0.5) == 0:
            return images
        return separable(images, *(gaussian_operator(side, float(sigma), truncate, mode) for side in images.shape[1:3]))
    sigma = tf.broadcast_to(tf.cast(sigma, tf.float64), tf.shape(images)[:1])
    for side in images.shape[1:3]:
        images = along_height(images, _gaussian_operators(side, sigma, truncate, mode).__matmul__)
    return images


@functools.lru_cache(maxsize=256)
def gaussian_operator(side, sigma, truncate, mode):
    """float64 [side, side]: row i holds the weight of each pixel of a line in pixel i of the filtered line."""
    return scipy.ndimage.gaussian_filter1d(np.eye(side), sigma, axis=0, truncate=truncate, mode=mode)


def _gaussian_operators(side, sigma, truncate, mode):
    """float64 [N] deviations -> float32 [N, side, side], each as `gaussian_operator`."""
    radius = tf.cast(truncate * sigma + 0.5, tf.int32)
    offsets = tf.range(-tf.reduce_max(radius), tf.reduce_max(radius) + 1)
    scaled = tf.cast(offsets, tf.float64) / tf.where(sigma > 0, sigma, 1.0)[:, None]
    weights = tf.where(tf.abs(offsets) <= radius[:, None], tf.exp(-0.5 * scaled**2), 0.0)
    weights = tf.cast(weights / tf.reduce_sum(weights, axis=1, keepdims=True), tf.float32)  # [N, taps]
    places = tf.range(side)[:, None] + offsets
    if mode == "nearest":
        places = tf.clip_by_value(places, 0, side - 1)
    else:
        places = tf.math.floormod(places, 2 * side)
        places = tf.minimum(places, 2 * side - 1 - places)
    cells = tf.reshape(tf.range(side)[:, None] * side + places, [-1])
    summed = tf.math.unsorted_segment_sum(tf.tile(tf.transpose(weights), [side, 1]), cells, side * side)
    return tf.reshape(tf.transpose(summed), [-1, side, side])


def separable(images, rows, columns):
    """rows X columns^T for each channel X, with NumPy matrices [H, H] and [W, W]; zeros off the diagonal save time."""
    images = tf.convert_to_tensor(images, tf.float32)
    for matrix in (rows, columns):
        images = along_height(images, functools.partial(_product, matrix))
    return images


def resized_windows(images, corners, sides):
    """A window of each image enlarged to the image's size, bilinearly, with its border repeated, as Pillow's `resize`.

    Args:
        images: [N, H, W, C]. corners: float32 [N, 2], top and left. sides: float32 [N, 2], height and width, whole numbers of
            at least 1; the window lies inside the image.
    """
    for axis in (0, 1):
        side, start, length = images.shape[1], corners[:, axis, None], sides[:, axis, None]
        places = (tf.range(side, dtype=tf.float32) + 0.5) * (length / side) - 0.5
        places = start + tf.clip_by_value(places, 0.0, length - 1.0)  # [N, side]
        weights = tf.nn.relu(1.0 - tf.abs(places[:, :, None] - tf.range(side, dtype=tf.float32)))
        images = along_height(images, weights.__matmul__)
    return images


def along_height(images, product):
    """`product` of the columns, given as [N, H, W * C]; then height and width change places, for the next product."""
    height, width, channels = images.shape[1:]
    images = product(tf.reshape(images, [-1, height, width * channels]))
    return tf.transpose(tf.reshape(images, [-1, height, width, channels]), [0, 2, 1, 3])


def _product(matrix, lines):
    """NumPy matrix [S, S], tensor [N, S, M] -> [N, S, M]: block by block, and of each only the columns that matter."""
    blocks = []
    for first in range(0, len(matrix), _BLOCK):
        block = matrix[first:first + _BLOCK]
        used = np.flatnonzero(block.any(axis=0))
        begin, end = used[0], used[-1] + 1
        # rank 3: with operands of rank 4 to repeat, oneDNN's product in TensorFlow 2.21 reads beyond its memory
        blocks.append(tf.constant(block[None, :, begin:end], tf.float32) @ lines[:, begin:end])
    return tf.concat(blocks, axis=1)


def correlate(images, kernel):
    """Each channel under a NumPy kernel of odd sides; beyond the border the image is mirrored, its last pixel once.

    out(h, w) = sum kernel(i, j) in(h + i - centre, w + j - centre), as OpenCV's filter2D and `scipy.ndimage.correlate`
    of mode "mirror".
    """
    images = tf.convert_to_tensor(images, tf.float32)
    height, width, channels = images.shape[1:]
    sides = [size + taps - 1 for size, taps in zip((height, width), kernel.shape)]
    direct = max(kernel.shape) <= _DIRECT
    if not direct:
        sides = [scipy.fft.next_fast_len(side, real=True) for side in sides]
    for axis, (side, taps) in enumerate(zip(sides, kernel.shape), start=1):
        images = tf.gather(images, _mirrored(images.shape[axis], taps // 2, side), axis=axis)
    if direct:
        taps = np.repeat(kernel[:, :, None, None], channels, axis=2)
        found = tf.nn.depthwise_conv2d(images, tf.constant(taps, tf.float32), [1, 1, 1, 1], "VALID")
        return tf.reshape(found, [-1, height, width, channels])  # TensorFlow leaves the border on a batch of none
    spectrum = tf.constant(np.conj(np.fft.rfft2(kernel, sides)), tf.complex64)
    return _filtered(tf.transpose(images, [0, 3, 1, 2]), spectrum, height, width)


def _mirrored(size, reach, length):
    """int [length]: which of `size` pixels stands at each place from -reach on."""
    period = max(2 * size - 2, 1)
    places = np.arange(-reach, length - reach) % period
    return np.minimum(places, period - places)


def _filtered(planes, spectrum, height, width):
    """[N, C, H', W'], its spectrum's factors -> float32 [N, height, width, C], the first rows and columns."""
    sides = planes.shape[2:]
    planes = tf.signal.irfft2d(tf.signal.rfft2d(planes) * spectrum, sides)
    return tf.transpose(planes[:, :, :height, :width], [0, 2, 3, 1])


def motion_blur(images, radius, sigma, angles):
    """ImageMagick's motion blur: 2 ceil(radius) + 1 taps on one side of the pixel, weights of half a Gaussian.

    Tap i lies at ceil(i cos(angle) - 0.5) pixels to the right and ceil(i sin(angle) - 0.5) down; beyond the border lies
    its last pixel. Taps that together weigh less than 2e-5 are left out.

    Args:
        radius, sigma: in pixels, numbers.
        angles: float [N], degrees.
    """
    images = tf.convert_to_tensor(images, tf.float32)
    height, width, _ = images.shape[1:]
    weights = half_gaussian(radius, sigma)
    steps = np.arange(len(weights))
    radians = tf.cast(angles, tf.float64)[:, None] * (math.pi / 180)
    down = tf.cast(tf.math.ceil(steps * tf.sin(radians) - 0.5), tf.int32)  # [N, taps]
    right = tf.cast(tf.math.ceil(steps * tf.cos(radians) - 0.5), tf.int32)
    # each image needs one border only: on a circle, what lies behind the last row lies before the first one as well
    sides = [scipy.fft.next_fast_len(side + len(weights) - 1, real=True) for side in (height, width)]
    planes = tf.transpose(images, [0, 3, 1, 2])
    planes = _with_border(planes, right[:, -1] >= 0, 3, sides[1])
    planes = _with_border(planes, down[:, -1] >= 0, 2, sides[0])
    return _filtered(planes, _spectrum(weights, down, right, sides), height, width)


def half_gaussian(radius, sigma):
    """float64 [taps], of sum 1: the weights of motion blur, without the last that do not matter."""
    weights = np.exp(-np.arange(2 * math.ceil(radius) + 1)**2 / (2 * sigma**2))
    behind = np.cumsum(weights[::-1])[::-1] / weights.sum()  # weight of each tap and all that follow
    weights = weights[behind >= _NEGLIGIBLE]
    return weights / weights.sum()


def _with_border(planes, at_end, axis, side):
    """Lengthens an axis of [N, C, H, W] to `side` by repeating its last element; where not `at_end` [N], its first."""
    first, last = (tf.gather(planes, [i], axis=axis) for i in (0, planes.shape[axis] - 1))
    border = tf.where(at_end[:, None, None, None], last, first)
    return tf.concat([planes, tf.repeat(border, side - planes.shape[axis], axis=axis)], axis=axis)


def _spectrum(weights, down, right, sides):
    """Taps [T] at offsets int [N, T] -> complex [N, 1, F, G], by which a spectrum is multiplied to take the taps."""
    count = tf.shape(down)[0]
    places = tf.math.floormod(-down, sides[0]) * sides[1] + tf.math.floormod(-right, sides[1])
    places += tf.range(count)[:, None] * (sides[0] * sides[1])
    kernels = tf.math.unsorted_segment_sum(tf.tile(tf.constant(weights, tf.float32), [count]), tf.reshape(places, [-1]),
                                           count * (sides[0] * sides[1]))
    return tf.signal.rfft2d(tf.reshape(kernels, [count, 1, *sides]))
