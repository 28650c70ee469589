"""Batched linear filters: float32 [N, H, W, C] of any range -> the same; H, W and C are known when the graph is built.

The result for an image is the same in every batch, up to the rounding of float32: libraries add up in another order for another number of
images, depending on the instructions of the CPU. Matrix products are kept short.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy.fft
import scipy.ndimage
import tensorflow as tf

_BLOCK = 32  # rows of a matrix for each product: the fastest at 224 pixels
_DIRECT = 7  # side of the largest kernel that is faster as a direct convolution than by the Fourier transform
_NEGLIGIBLE = 2e-5  # weight of the last taps that may be left out: 1/200 of a gray level


def gaussian_blur(images: tf.Tensor, sigma: float | np.ndarray | tf.Tensor, *, truncate: float = 4.0, mode: str = "nearest") -> tf.Tensor:
    """Applies a Gaussian filter to each channel, equal to `scipy.ndimage.gaussian_filter` over height and width.

    Args:
        sigma: standard deviation in pixels, a number or float [N]; 0 leaves an image unchanged. A number is faster.
        truncate: taps reach int(truncate * sigma + 0.5) pixels.
        mode: padding: the last pixel ("nearest") or the mirror image, border included ("reflect"); ValueError for another.
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
def gaussian_operator(side: int, sigma: float, truncate: float, mode: str) -> np.ndarray:
    """Returns the filter as a matrix: float64 [side, side], row i holds the weights of all pixels in filtered pixel i."""
    return scipy.ndimage.gaussian_filter1d(np.eye(side), sigma, axis=0, truncate=truncate, mode=mode)


def _gaussian_operators(side, sigma, truncate, mode):
    """Returns float32 [N, side, side], each as in `gaussian_operator`, for float64 [N] standard deviations."""
    radius = tf.cast(truncate * sigma + 0.5, tf.int32)
    offsets = tf.range(-tf.reduce_max(radius), tf.reduce_max(radius) + 1)
    scaled = tf.cast(offsets, tf.float64) / tf.where(sigma > 0, sigma, 1.0)[:, None]
    weights = tf.where(tf.abs(offsets) <= radius[:, None], tf.exp(-0.5 * scaled**2), 0.0)
    weights = tf.cast(weights / tf.reduce_sum(weights, axis=1, keepdims=True), tf.float32)  # [N, taps]
    sources = tf.range(side)[:, None] + offsets
    if mode == "nearest":
        sources = tf.clip_by_value(sources, 0, side - 1)
    else:
        sources = tf.math.floormod(sources, 2 * side)
        sources = tf.minimum(sources, 2 * side - 1 - sources)
    cells = tf.reshape(tf.range(side)[:, None] * side + sources, [-1])
    summed = tf.math.unsorted_segment_sum(tf.tile(tf.transpose(weights), [side, 1]), cells, side * side)
    return tf.reshape(tf.transpose(summed), [-1, side, side])


def separable(images: tf.Tensor, rows: np.ndarray, columns: np.ndarray) -> tf.Tensor:
    """Returns rows X columns^T for each channel X, with NumPy matrices [H, H] and [W, W]; zeros off the diagonal save time."""
    images = tf.convert_to_tensor(images, tf.float32)
    for matrix in (rows, columns):
        images = along_height(images, functools.partial(_product, matrix))
    return images


def resized_windows(images: tf.Tensor, corners: tf.Tensor, sides: tf.Tensor) -> tf.Tensor:
    """Enlarges a window of each image to the image's size, bilinearly, with its border repeated, as in Pillow's `resize`.

    Args:
        corners: float32 [N, 2], top and left.
        sides: float32 [N, 2], height and width, integral and at least 1; the window lies inside the image.
    """
    for axis in (0, 1):
        side, start, length = images.shape[1], corners[:, axis, None], sides[:, axis, None]
        positions = (tf.range(side, dtype=tf.float32) + 0.5) * (length / side) - 0.5
        positions = start + tf.clip_by_value(positions, 0.0, length - 1.0)  # [N, side]
        weights = tf.nn.relu(1.0 - tf.abs(positions[:, :, None] - tf.range(side, dtype=tf.float32)))
        images = along_height(images, weights.__matmul__)
    return images


def along_height(images: tf.Tensor, product: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Applies `product` to the columns, as [N, H, W * C], and swaps height and width: two calls filter both axes."""
    height, width, channels = images.shape[1:]
    images = product(tf.reshape(images, [-1, height, width * channels]))
    return tf.transpose(tf.reshape(images, [-1, height, width, channels]), [0, 2, 1, 3])


def _product(matrix, lines):
    """Multiplies a NumPy matrix [S, S] and a tensor [N, S, M] -> [N, S, M], block by block, without columns that are all zero."""
    blocks = []
    for first in range(0, len(matrix), _BLOCK):
        block = matrix[first : first + _BLOCK]
        used = np.flatnonzero(block.any(axis=0))
        begin, end = used[0], used[-1] + 1
        # rank 3: oneDNN's product in TensorFlow 2.21 reads out of bounds when it broadcasts operands of rank 4
        blocks.append(tf.constant(block[None, :, begin:end], tf.float32) @ lines[:, begin:end])
    return tf.concat(blocks, axis=1)


def correlate(images: tf.Tensor, kernel: np.ndarray) -> tf.Tensor:
    """Correlates each channel with a kernel; padding mirrors the image without repeating its last pixel.

    out(h, w) = sum kernel(i, j) in(h + i - center, w + j - center), as OpenCV's filter2D and `scipy.ndimage.correlate`
    of mode "mirror". kernel: float [K, L], odd sides.
    """
    images = tf.convert_to_tensor(images, tf.float32)
    height, width, channels = images.shape[1:]
    reaches = [taps // 2 for taps in kernel.shape]
    if max(kernel.shape) <= _DIRECT:
        for axis, reach in enumerate(reaches, start=1):
            images = tf.gather(images, _mirrored(images.shape[axis], reach, images.shape[axis] + 2 * reach), axis=axis)
        taps = np.repeat(kernel[:, :, None, None], channels, axis=2)
        filtered = tf.nn.depthwise_conv2d(images, tf.constant(taps, tf.float32), [1, 1, 1, 1], "VALID")
        return tf.reshape(filtered, [-1, height, width, channels])  # TensorFlow does not remove the border of an empty batch
    sides = [scipy.fft.next_fast_len(size + taps - 1, real=True) for size, taps in zip((height, width), kernel.shape)]
    rows, columns = (_mirrored(size, reach, side) for size, reach, side in zip((height, width), reaches, sides))
    # whole lines are gathered, which is much faster than along a later axis
    planes = tf.gather(tf.transpose(images, [0, 2, 1, 3]), columns, axis=1)
    planes = tf.gather(tf.transpose(planes, [0, 3, 2, 1]), rows, axis=2)
    spectrum = tf.constant(np.conj(np.fft.rfft2(kernel, sides)), tf.complex64)
    return _filtered(planes, spectrum, height, width)


def _mirrored(size, reach, length):
    """Returns int [length]: the index, among `size` pixels, of each position from -reach on."""
    period = max(2 * size - 2, 1)
    positions = np.arange(-reach, length - reach) % period
    return np.minimum(positions, period - positions)


def _filtered(planes, spectrum, height, width):
    """Filters [N, C, H', W'] by factors of its spectrum -> float32 [N, height, width, C], the first rows and columns."""
    sides = planes.shape[2:]
    planes = tf.signal.irfft2d(tf.signal.rfft2d(planes) * spectrum, sides)
    return tf.transpose(planes[:, :, :height, :width], [0, 2, 3, 1])


def motion_blur(images: tf.Tensor, radius: float, sigma: float, angles: tf.Tensor) -> tf.Tensor:
    """Applies ImageMagick's motion blur: 2 ceil(radius) + 1 taps on one side of the pixel, weights of half a Gaussian.

    Tap i lies ceil(i cos(angle) - 0.5) pixels to the right and ceil(i sin(angle) - 0.5) down; borders are repeated. Taps that
    together weigh less than 2e-5 are left out.

    Args:
        radius, sigma: of the kernel, and standard deviation of the Gaussian, in pixels.
        angles: float [N], degrees.
    """
    images = tf.convert_to_tensor(images, tf.float32)
    height, width, _ = images.shape[1:]
    weights = half_gaussian(radius, sigma)
    steps = np.arange(len(weights))
    radians = tf.cast(angles, tf.float64)[:, None] * (math.pi / 180)
    down = tf.cast(tf.math.ceil(steps * tf.sin(radians) - 0.5), tf.int32)  # [N, taps]
    right = tf.cast(tf.math.ceil(steps * tf.cos(radians) - 0.5), tf.int32)
    # one border suffices: positions are periodic, so the padding after the last row also precedes the first
    sides = [scipy.fft.next_fast_len(side + len(weights) - 1, real=True) for side in (height, width)]
    planes = tf.transpose(images, [0, 3, 1, 2])
    planes = _with_border(planes, right[:, -1] >= 0, 3, sides[1])
    planes = _with_border(planes, down[:, -1] >= 0, 2, sides[0])
    return _filtered(planes, _spectrum(weights, down, right, sides), height, width)


def half_gaussian(radius: float, sigma: float) -> np.ndarray:
    """Returns the weights of motion blur, float64 [taps] of sum 1, without the last taps of negligible weight."""
    weights = np.exp(-(np.arange(2 * math.ceil(radius) + 1) ** 2) / (2 * sigma**2))
    remaining = np.cumsum(weights[::-1])[::-1] / weights.sum()  # weight of each tap and all that follow
    weights = weights[remaining >= _NEGLIGIBLE]
    return weights / weights.sum()


def _with_border(planes, at_end, axis, side):
    """Lengthens an axis of [N, C, H, W] to `side` by repeating its last element where `at_end` [N], else its first."""
    first, last = (tf.gather(planes, [i], axis=axis) for i in (0, planes.shape[axis] - 1))
    border = tf.where(at_end[:, None, None, None], last, first)
    return tf.concat([planes, tf.repeat(border, side - planes.shape[axis], axis=axis)], axis=axis)


def _spectrum(weights, down, right, sides):
    """Returns the transfer function, complex [N, 1, F, G], of taps [T] at offsets int [N, T]."""
    count = tf.shape(down)[0]
    cells = tf.math.floormod(-down, sides[0]) * sides[1] + tf.math.floormod(-right, sides[1])
    cells += tf.range(count)[:, None] * (sides[0] * sides[1])
    kernels = tf.math.unsorted_segment_sum(
        tf.tile(tf.constant(weights, tf.float32), [count]), tf.reshape(cells, [-1]), count * (sides[0] * sides[1])
    )
    return tf.signal.rfft2d(tf.reshape(kernels, [count, 1, *sides]))
