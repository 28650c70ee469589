"""Pillow's operations on batches, with its rounding, its integer truncations, its pixel centers and its black fill.

Images are uint8 [N, H, W, C], C = 1 or 3, H, W and C known; amounts are float32 [N], the argument of Pillow's function for each image.
The result has the same form. Arithmetic that broadcasts along channels is several times slower than along rows, and reading scattered
pixels is bound by memory: hence rows of W * C values, and bytes.
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
    centers = np.indices([height, width]) - np.reshape([height / 2 - 0.5, width / 2 - 0.5], [2, 1, 1])
    y, x = (tf.constant(axis.reshape(1, -1), tf.float32) for axis in centers)
    return _sample(images, (cosine * y + sine * x) + (height / 2 - 0.5), (cosine * x - sine * y) + (width / 2 - 0.5))


def shear_x(images: tf.Tensor, slopes: tf.Tensor) -> tf.Tensor:
    """`Image.transform(size, AFFINE, (1, slope, 0, 0, 1, 0), BILINEAR)`: a row moves by the slope times its position."""
    return _move_rows(images, slopes[:, None] * (tf.range(images.shape[1], dtype=tf.float32) + 0.5))


def shear_y(images: tf.Tensor, slopes: tf.Tensor) -> tf.Tensor:
    """`Image.transform(size, AFFINE, (1, 0, 0, slope, 1, 0), BILINEAR)`: a column moves by the slope times its position."""
    return _move_columns(images, slopes[:, None] * (tf.range(images.shape[2], dtype=tf.float32) + 0.5))


def translate_x(images: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    """`Image.transform(size, AFFINE, (1, 0, pixels, 0, 1, 0), BILINEAR)`: to the left for positive `pixels`."""
    return _move_rows(images, tf.convert_to_tensor(pixels)[:, None])


def translate_y(images: tf.Tensor, pixels: tf.Tensor) -> tf.Tensor:
    """`Image.transform(size, AFFINE, (1, 0, 0, 0, 1, pixels), BILINEAR)`: upwards for positive `pixels`."""
    return _move_columns(images, tf.convert_to_tensor(pixels)[:, None])


def posterize(images: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """`ImageOps.posterize`: keeps the first `bits` of 8."""
    masks = tf.gather(tf.constant([256 - 2 ** (8 - kept) for kept in range(9)], tf.uint8), tf.cast(bits, tf.int32))
    return tf.bitwise.bitwise_and(images, _per_image(masks))


def solarize(images: tf.Tensor, thresholds: tf.Tensor) -> tf.Tensor:
    """`ImageOps.solarize`: inverts values at or above the threshold."""
    bright = tf.cast(tf.cast(images, tf.float32) >= _per_image(thresholds), tf.uint8)
    return tf.bitwise.bitwise_xor(images, 255 * bright)  # 255 - value, or the value


def invert(images: tf.Tensor, amounts: tf.Tensor) -> tf.Tensor:
    """`ImageOps.invert`; `amounts` is ignored."""
    del amounts
    return 255 - images


def autocontrast(images: tf.Tensor, amounts: tf.Tensor) -> tf.Tensor:
    """`ImageOps.autocontrast`: stretches each channel to 0..255; a constant one stays. `amounts` is ignored."""
    del amounts
    low, high = (tf.cast(reduce(images, axis=[1, 2]), tf.float64) for reduce in (tf.reduce_min, tf.reduce_max))
    flat = tf.cast(high == low, tf.float64)
    scale = (1.0 - flat) * tf.math.divide_no_nan(tf.constant(255.0, tf.float64), high - low) + flat
    scale, offset = (_along_rows(numbers, images) for numbers in (scale, (1.0 - flat) * (-low * scale)))
    stretched = tf.cast(_rows(images), tf.float64) * scale + offset  # as Python computes the table
    return _to_levels(stretched, images)


def equalize(images: tf.Tensor, amounts: tf.Tensor) -> tf.Tensor:
    """`ImageOps.equalize`: equalizes the histogram of each channel. `amounts` is ignored."""
    del amounts
    height, width, channels = images.shape[1:]
    tables = tf.shape(images)[0] * channels
    starts = _along_rows(tf.reshape(tf.range(tables) * 256, [-1, channels]), images)  # of each channel's table
    cells = tf.reshape(tf.cast(_rows(images), tf.int32) + starts, [-1])
    counts = tf.reshape(tf.math.bincount(cells, minlength=tables * 256, maxlength=tables * 256), [-1, 256])
    brightest = tf.reduce_max(tf.range(256) * tf.cast(counts > 0, tf.int32), axis=1, keepdims=True)
    step = (height * width - tf.gather(counts, brightest, batch_dims=1)) // 255
    below = tf.cumsum(counts, axis=1, exclusive=True) + step // 2
    table = tf.where(step > 0, tf.minimum(below // tf.maximum(step, 1), 255), tf.range(256)[None])
    return tf.reshape(tf.gather_nd(tf.reshape(tf.cast(table, tf.uint8), [-1]), cells[:, None]), tf.shape(images))


def color(images: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """`ImageEnhance.Color`: interpolates between gray (0) and the image (1), or extrapolates."""
    values = tf.cast(images, tf.float32)
    return _blend(_gray(values), values, factors)


def contrast(images: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """`ImageEnhance.Contrast`: interpolates between the mean gray and the image."""
    values = tf.cast(images, tf.float32)
    mean = tf.reduce_mean(_gray(values)[..., :1], axis=[1, 2, 3])
    return _blend(_per_image(tf.floor(mean + 0.5)), values, factors)


def brightness(images: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """`ImageEnhance.Brightness`: interpolates between black and the image."""
    return _blend(0.0, tf.cast(images, tf.float32), factors)


def sharpness(images: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """`ImageEnhance.Sharpness`: interpolates between a smoothed image and the image; smoothing leaves the border unchanged."""
    height, width = images.shape[1:3]
    if min(height, width) < 3:
        return images  # border only
    values = tf.cast(images, tf.float32)
    lines = values[:, :-2] + values[:, 1:-1] + values[:, 2:]
    weighted = lines[:, :, :-2] + lines[:, :, 1:-1] + lines[:, :, 2:] + 4.0 * values[:, 1:-1, 1:-1]
    smooth = tf.floor(weighted * (1.0 / 13.0) + 0.5)
    inner = np.zeros([1, height, width, 1], np.float32)
    inner[:, 1:-1, 1:-1] = 1.0
    smooth = tf.pad(smooth, [[0, 0], [1, 1], [1, 1], [0, 0]]) + values * (1.0 - inner)
    return _blend(smooth, values, factors)


_GEOMETRY = (rotate, shear_x, shear_y, translate_x, translate_y)
_LEVELS = (autocontrast, equalize, posterize, solarize, color, contrast, brightness, sharpness, invert)
OPERATIONS = {f.__name__: f for f in (*_GEOMETRY, *_LEVELS)}


def apply_chosen(images: tf.Tensor, chosen: tf.Tensor, amounts: tf.Tensor, names: Sequence[str]) -> tf.Tensor:
    """Applies to each image the operation of `OPERATIONS` that is chosen for it: int32 [N], positions in `names`; -1: none."""
    return image_ops.apply_chosen(images, chosen, amounts, [OPERATIONS[name] for name in names])


def _per_image(numbers):
    return tf.reshape(numbers, [-1, 1, 1, 1])


def _to_levels(values, images):
    """Truncates values in [0, 256) to integers, in the form of the images."""
    return tf.reshape(tf.cast(values, tf.uint8), tf.shape(images))


def _rows(images):
    """Flattens rows, since arithmetic that broadcasts along channels is several times slower: [N, H, W, C] -> [N, H, W * C]."""
    _, height, width, channels = images.shape
    return tf.reshape(images, [-1, height, width * channels])


def _along_rows(numbers, images):
    """Repeats an image's numbers of its channels for each pixel of a row: [N, C] -> [N, 1, W * C]."""
    return tf.tile(numbers[:, None], [1, 1, images.shape[2]])


def _move_rows(images, shifts):
    """Moves each row to the left by its shift in pixels, [N, H], or all rows by one, [N, 1]."""
    height, width, channels = images.shape[1:]
    whole = tf.floor(shifts)
    columns = tf.clip_by_value(tf.range(width + 1) + tf.cast(whole, tf.int32)[..., None], 0, width - 1)
    starts = tf.reshape(tf.range(tf.shape(images)[0] * height) * width, [-1, height, 1])
    pixels = tf.reshape(_pixels(images, starts + columns), [-1, height, (width + 1) * channels])
    position = tf.constant(np.repeat(np.arange(width), channels), tf.float32)
    moved = _between(pixels[..., :-channels], pixels[..., channels:], (shifts - whole)[..., None])
    return _to_levels(moved * _inside(position, shifts[..., None], width), images)


def _move_columns(images, shifts):
    """Moves each column up by its shift in pixels, [N, W], or all columns by one, [N, 1]."""
    height, width, channels = images.shape[1:]
    whole = tf.floor(shifts)
    rows = tf.clip_by_value(tf.range(height + 1)[:, None] + tf.cast(whole, tf.int32)[:, None], 0, height - 1)
    if shifts.shape[1] == 1:
        pixels = tf.cast(tf.gather(_rows(images), rows[..., 0], batch_dims=1), tf.float32)
    else:
        starts = tf.reshape(tf.range(tf.shape(images)[0]) * (height * width), [-1, 1, 1])
        pixels = tf.reshape(_pixels(images, starts + tf.range(width) + width * rows), [-1, height + 1, width * channels])
        shifts, whole = tf.repeat(shifts, channels, axis=1), tf.repeat(whole, channels, axis=1)
    position = tf.range(height, dtype=tf.float32)[:, None]
    moved = _between(pixels[:, :-1], pixels[:, 1:], (shifts - whole)[:, None])
    return _to_levels(moved * _inside(position, shifts[:, None], height), images)


def _sample(images, rows, columns):
    """Returns bilinear samples at coordinates in pixels, [N, H * W] each."""
    height, width, channels = images.shape[1:]
    top, left = tf.floor(rows), tf.floor(columns)
    starts = tf.range(tf.shape(images)[0])[:, None] * (height * width)
    first_row = tf.cast(top, tf.int32)
    above, below = (starts + width * tf.clip_by_value(first_row + ahead, 0, height - 1) for ahead in (0, 1))
    first_column = tf.cast(left, tf.int32)
    before, after = (tf.clip_by_value(first_column + ahead, 0, width - 1) for ahead in (0, 1))
    down, right = _repeat(rows - top, channels), _repeat(columns - left, channels)
    upper, lower = (_between(_pixels(images, row + before), _pixels(images, row + after), right) for row in (above, below))
    inside = _repeat(_inside(rows, 0.0, height) * _inside(columns, 0.0, width), channels)
    return _to_levels(_between(upper, lower, down) * inside, images)


def _between(first, second, fraction):
    return first + fraction * (second - first)


def _inside(position, shift, side):
    """Returns 1 where position + shift lies within the pixels of a line, which have a width of 1, else 0."""
    return tf.cast((position >= -0.5 - shift) & (position < side - 0.5 - shift), tf.float32)


def _repeat(numbers, channels):
    """Repeats the number of each pixel for its channels: [N, M] -> [N, M * C]."""
    if channels == 1:
        return numbers
    repeated = tf.matmul(tf.reshape(numbers, [-1, 1]), tf.ones([1, channels]))  # twice as fast as tf.repeat
    return tf.reshape(repeated, [-1, numbers.shape[1] * channels])


def _pixels(images, cells):
    """Returns the values, float32 [N, M * C], of pixels, by their indices [N, ...] in the flattened batch."""
    channels = images.shape[-1]
    values = tf.gather_nd(tf.reshape(images, [-1, channels]), cells[..., None])
    return tf.cast(tf.reshape(values, [-1, math.prod(cells.shape[1:]) * channels]), tf.float32)


def _gray(images):
    """Pillow's conversion to `L`: Rec. 601 in units of 1/65,536, rounded, on all channels."""
    if images.shape[-1] == 1:
        return images
    luma = tf.tensordot(images, tf.constant([[19595.0], [38470.0], [7471.0]]), 1)  # integers below 2^24: exact
    return tf.zeros_like(images) + tf.floor((luma + 32768.0) * 2.0**-16)


def _blend(degenerate, values, factors):
    """`Image.blend`, clipped to 0 and 255."""
    blended = degenerate + _per_image(factors) * (values - degenerate)
    return tf.cast(tf.clip_by_value(blended, 0.0, 255.0), tf.uint8)
