"""Pillow's operations on batches, with its rounding, its integer truncations, its pixel centers and its black fill.

Images are float32 [N, H, W, C] with integral values 0..255, C = 1 or 3, H, W and C known; amounts are float32 [N], the
argument of Pillow's function for each image. The result has the same form. Gathering pixels dominates the running time, so
each operation gathers as little as it can; arithmetic on all values costs next to nothing.
"""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_robust.ops import image_ops


def rotate(images: tf.Tensor, degrees: tf.Tensor) -> tf.Tensor:
    """`Image.rotate(degrees, BILINEAR)`: counterclockwise about the center, for angles within +-90."""
    height, width = images.shape[1:3]
    angles = degrees[:, None] * (math.pi / 180.0)
    cosine, sine = tf.cos(angles), tf.sin(angles)

    def coordinates(repeats):
        y, x = (
            tf.constant(np.repeat(axis.ravel() + 0.5, repeats)[None], tf.float32)
            for axis in np.indices([height, width]) - np.reshape([height / 2, width / 2], [2, 1, 1])
        )
        return (cosine * y + sine * x) + (height / 2 - 0.5), (cosine * x - sine * y) + (width / 2 - 0.5)

    return _sample(images, coordinates)


def shear_x(images: tf.Tensor, slopes: tf.Tensor) -> tf.Tensor:
    """`Image.transform(size, AFFINE, (1, slope, 0, 0, 1, 0), BILINEAR)`: a row moves by the slope times its position."""
    return _move(images, 2, slopes, tf.zeros_like(slopes))


def shear_y(images: tf.Tensor, slopes: tf.Tensor) -> tf.Tensor:
    """`Image.transform(size, AFFINE, (1, 0, 0, slope, 1, 0), BILINEAR)`: a column moves by the slope times its position."""
    return _move(images, 1, slopes, tf.zeros_like(slopes))


def translate_x(images: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    """`Image.transform(size, AFFINE, (1, 0, pixels, 0, 1, 0), BILINEAR)`: to the left for positive `pixels`."""
    return _move(images, 2, tf.zeros_like(pixels), pixels)


def translate_y(images: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    """`Image.transform(size, AFFINE, (1, 0, 0, 0, 1, pixels), BILINEAR)`: upwards for positive `pixels`."""
    return _move(images, 1, tf.zeros_like(pixels), pixels)


def posterize(images: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """`ImageOps.posterize`: keeps the first `bits` of 8."""
    kept = tf.cast(bits, tf.int32)[:, None]
    fewer, more = (
        tf.gather(tf.constant([2.0**power for power in powers]), kept)  # tf.pow is not exact in graphs
        for powers in (range(-8, 1), range(8, -1, -1))
    )
    return _by_value(images, lambda values: tf.floor(values * fewer) * more)


def solarize(images: tf.Tensor, thresholds: tf.Tensor) -> tf.Tensor:
    """`ImageOps.solarize`: inverts values at or above the threshold."""

    def solarized(values):
        bright = tf.cast(values >= thresholds[:, None], tf.float32)
        return values + bright * (255.0 - 2.0 * values)

    return _by_value(images, solarized)


def invert(images: tf.Tensor, amounts: tf.Tensor) -> tf.Tensor:
    """`ImageOps.invert`; `amounts` is ignored."""
    del amounts
    return 255.0 - images


def autocontrast(images: tf.Tensor, amounts: tf.Tensor) -> tf.Tensor:
    """`ImageOps.autocontrast`: stretches each channel to 0..255; a constant one stays. `amounts` is ignored."""
    del amounts
    values = tf.cast(images, tf.uint8)  # integers are reduced in half the time
    low, high = (tf.cast(reduce(values, axis=[1, 2], keepdims=True), tf.float64) for reduce in (tf.reduce_min, tf.reduce_max))
    flat = tf.cast(high == low, tf.float64)
    scale = (1.0 - flat) * tf.math.divide_no_nan(tf.constant(255.0, tf.float64), high - low) + flat
    stretched = tf.cast(images, tf.float64) * scale + (1.0 - flat) * (-low * scale)  # as Python computes the table
    return tf.cast(tf.clip_by_value(tf.floor(stretched), 0.0, 255.0), tf.float32)


def equalize(images: tf.Tensor, amounts: tf.Tensor) -> tf.Tensor:
    """`ImageOps.equalize`: equalizes the histogram of each channel. `amounts` is ignored."""
    del amounts
    height, width, channels = images.shape[1:]
    lines = tf.shape(images)[0] * channels
    values = tf.cast(images, tf.int32)
    first = tf.reshape(tf.range(lines) * 256, [-1, 1, channels])  # start of each channel's table
    cells = tf.reshape(tf.reshape(values, [-1, height * width, channels]) + first, [-1])
    counts = tf.reshape(tf.math.bincount(cells, minlength=lines * 256, maxlength=lines * 256), [lines, 256])
    brightest = tf.reshape(tf.reduce_max(values, axis=[1, 2]), [-1, 1])
    step = (height * width - tf.gather(counts, brightest, batch_dims=1)) // 255
    below = tf.cumsum(counts, axis=1, exclusive=True) + step // 2
    table = tf.where(step > 0, tf.minimum(below // tf.maximum(step, 1), 255), tf.range(256)[None])
    return tf.reshape(tf.cast(tf.gather(tf.reshape(table, [-1]), cells), tf.float32), tf.shape(images))


def color(images: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """`ImageEnhance.Color`: interpolates between gray (0) and the image (1), or extrapolates."""
    return _blend(_gray(images), images, factors)


def contrast(images: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """`ImageEnhance.Contrast`: interpolates between the mean gray and the image."""
    mean = tf.reduce_mean(_gray(images)[..., :1], axis=[1, 2, 3])
    return _blend(tf.zeros_like(images) + tf.reshape(tf.floor(mean + 0.5), [-1, 1, 1, 1]), images, factors)


def brightness(images: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """`ImageEnhance.Brightness`: interpolates between black and the image."""
    return _blend(tf.zeros_like(images), images, factors)


def sharpness(images: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """`ImageEnhance.Sharpness`: interpolates between a smoothed image and the image; smoothing leaves the border unchanged."""
    height, width = images.shape[1:3]
    if min(height, width) < 3:
        return images  # border only
    lines = images[:, :-2] + images[:, 1:-1] + images[:, 2:]
    weighted = lines[:, :, :-2] + lines[:, :, 1:-1] + lines[:, :, 2:] + 4.0 * images[:, 1:-1, 1:-1]
    smooth = tf.floor(weighted * (1.0 / 13.0) + 0.5)
    inner = np.zeros([1, height, width, 1], np.float32)
    inner[:, 1:-1, 1:-1] = 1.0
    smooth = tf.pad(smooth, [[0, 0], [1, 1], [1, 1], [0, 0]]) + images * (1.0 - inner)
    return _blend(smooth, images, factors)


OPERATIONS = {
    f.__name__: f
    for f in (
        autocontrast,
        equalize,
        posterize,
        rotate,
        solarize,
        shear_x,
        shear_y,
        translate_x,
        translate_y,
        color,
        contrast,
        brightness,
        sharpness,
        invert,
    )
}


def apply_chosen(images: tf.Tensor, chosen: tf.Tensor, amounts: tf.Tensor, names: Sequence[str]) -> tf.Tensor:
    """Applies to each image only the operation that is chosen for it.

    Args:
        images: float32 [N, H, W, C] with integral values 0..255.
        chosen: int32 [N], positions in `names`; -1: none.
        amounts: float32 [N].
        names: of OPERATIONS.

    Returns:
        float32 [N, H, W, C]
    """
    return image_ops.apply_chosen(images, chosen, amounts, [OPERATIONS[name] for name in names])


def _by_value(images, function):
    """Applies a function to values [N, H * W * C]; it may broadcast an image's own numbers [N, 1]."""
    return tf.reshape(function(tf.reshape(images, [-1, math.prod(images.shape[1:])])), tf.shape(images))


def _move(images, axis, slopes, pixels):
    """Moves each line along an axis (1: columns, 2: rows) by pixels + slope * its position; integral shifts are exact."""
    height, width, channels = images.shape[1:]
    along, across = np.indices([height, width])[:: 1 if axis == 1 else -1]
    side, stride = (height, width) if axis == 1 else (width, 1)

    def coordinates(repeats):
        start, line = (tf.constant(np.repeat(x.ravel(), repeats)[None], tf.float32) for x in (along, across + 0.5))
        return start + (slopes[:, None] * line + pixels[:, None])

    at = coordinates(1)
    before = tf.cast(tf.floor(at), tf.int32)
    rest = np.indices([height, width])[2 - axis].ravel() * (1 if axis == 1 else width)
    line = tf.range(tf.shape(images)[0])[:, None] * (height * width) + tf.constant(rest[None], tf.int32)
    first, second = (_pixels(images, line + stride * tf.clip_by_value(before + ahead, 0, side - 1)) for ahead in (0, 1))
    at = coordinates(channels)
    fraction = at - tf.floor(at)
    inside = tf.cast((at >= -0.5) & (at < side - 0.5), tf.float32)
    return tf.reshape(tf.floor(first + fraction * (second - first)) * inside, tf.shape(images))


def _sample(images, coordinates):
    """Returns bilinear samples. coordinates: repeats -> rows and columns [N, H * W * repeats] of each pixel, `repeats` times in a row."""
    height, width, channels = images.shape[1:]
    top, left = (tf.cast(tf.floor(at), tf.int32) for at in coordinates(1))
    origin = tf.range(tf.shape(images)[0])[:, None] * (height * width)
    rows = [origin + width * tf.clip_by_value(top + ahead, 0, height - 1) for ahead in (0, 1)]
    columns = [tf.clip_by_value(left + ahead, 0, width - 1) for ahead in (0, 1)]
    row, column = coordinates(channels)
    down, right = row - tf.floor(row), column - tf.floor(column)

    def between(row):
        first, second = (_pixels(images, row + column) for column in columns)
        return first + right * (second - first)

    upper, lower = map(between, rows)
    inside = tf.cast((row >= -0.5) & (row < height - 0.5) & (column >= -0.5) & (column < width - 0.5), tf.float32)
    return tf.reshape(tf.floor(upper + down * (lower - upper)) * inside, tf.shape(images))


def _pixels(images, cells):
    """Returns the values [N, M * C] of pixels, by their indices [N, M] in the flattened batch."""
    channels = images.shape[-1]
    values = tf.gather_nd(tf.reshape(images, [-1, channels]), cells[..., None])
    return tf.reshape(values, [-1, cells.shape[1] * channels])


def _gray(images):
    """Pillow's conversion to `L`: Rec. 601 in units of 1/65,536, rounded, on all channels."""
    if images.shape[-1] == 1:
        return images
    luma = tf.tensordot(images, tf.constant([[19595.0], [38470.0], [7471.0]]), 1)  # integers below 2^24: exact
    return tf.zeros_like(images) + tf.floor((luma + 32768.0) * 2.0**-16)


def _blend(degenerate, images, factors):
    """`Image.blend`, clipped to 0 and 255."""
    return tf.floor(tf.clip_by_value(degenerate + factors[:, None, None, None] * (images - degenerate), 0.0, 255.0))
