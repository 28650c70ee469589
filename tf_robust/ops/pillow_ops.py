"""Pillow's operations on batches, with its rounding, its integer truncations, its pixel centres and its black fill.

Images are float32 [N, H, W, C] that hold whole numbers 0..255, C = 1 or 3, H, W and C known; amounts are float32 [N], what
Pillow's function is told for each image. The result has the same form. What takes the time is gathering pixels, so each
operation gathers as little as it can; arithmetic on all values costs next to nothing beside it.
"""

import math

import numpy as np
import tensorflow as tf

from tf_robust.ops import image_ops


def rotate(images, degrees):
    """`Image.rotate(degrees, BILINEAR)`: counter-clockwise about the centre, for angles within +-90."""
    height, width = images.shape[1:3]
    angles = degrees[:, None] * (math.pi / 180.0)
    cosine, sine = tf.cos(angles), tf.sin(angles)

    def places(repeats):
        y, x = (tf.constant(np.repeat(axis.ravel() + 0.5, repeats)[None], tf.float32)
                for axis in np.indices([height, width]) - np.reshape([height / 2, width / 2], [2, 1, 1]))
        return (cosine * y + sine * x) + (height / 2 - 0.5), (cosine * x - sine * y) + (width / 2 - 0.5)
    return _sampled(images, places)


def shear_x(images, slopes):
    """`Image.transform(size, AFFINE, (1, slope, 0, 0, 1, 0), BILINEAR)`: a row moves by the slope times its place."""
    return _moved(images, 2, slopes, tf.zeros_like(slopes))


def shear_y(images, slopes):
    """`Image.transform(size, AFFINE, (1, 0, 0, slope, 1, 0), BILINEAR)`"""
    return _moved(images, 1, slopes, tf.zeros_like(slopes))


def translate_x(images, pixels):
    """`Image.transform(size, AFFINE, (1, 0, pixels, 0, 1, 0), BILINEAR)`: to the left for positive `pixels`."""
    return _moved(images, 2, tf.zeros_like(pixels), pixels)


def translate_y(images, pixels):
    """`Image.transform(size, AFFINE, (1, 0, 0, 0, 1, pixels), BILINEAR)`: upwards for positive `pixels`."""
    return _moved(images, 1, tf.zeros_like(pixels), pixels)


def posterize(images, bits):
    """`ImageOps.posterize`: only the first `bits` of 8 are kept."""
    kept = tf.cast(bits, tf.int32)[:, None]
    fewer, more = (tf.gather(tf.constant([2.0 ** power for power in powers]), kept)  # tf.pow is not exact in graphs
                   for powers in (range(-8, 1), range(8, -1, -1)))
    return _by_value(images, lambda values: tf.floor(values * fewer) * more)


def solarize(images, thresholds):
    """`ImageOps.solarize`: values from the threshold on are inverted."""
    def solarized(values):
        bright = tf.cast(values >= thresholds[:, None], tf.float32)
        return values + bright * (255.0 - 2.0 * values)
    return _by_value(images, solarized)


def invert(images, amounts):
    """`ImageOps.invert`; the amounts say nothing."""
    del amounts
    return 255.0 - images


def autocontrast(images, amounts):
    """`ImageOps.autocontrast`: each channel stretched to 0..255; a flat one stays. The amounts say nothing."""
    del amounts
    values = tf.cast(images, tf.uint8)  # integers are reduced in half the time
    low, high = (tf.cast(reduce(values, axis=[1, 2], keepdims=True), tf.float64) for reduce in (tf.reduce_min, tf.reduce_max))
    flat = tf.cast(high == low, tf.float64)
    scale = (1.0 - flat) * tf.math.divide_no_nan(tf.constant(255.0, tf.float64), high - low) + flat
    stretched = tf.cast(images, tf.float64) * scale + (1.0 - flat) * (-low * scale)  # as Python computes the table
    return tf.cast(tf.clip_by_value(tf.floor(stretched), 0.0, 255.0), tf.float32)


def equalize(images, amounts):
    """`ImageOps.equalize`: each channel's histogram made even. The amounts say nothing."""
    del amounts
    height, width, channels = images.shape[1:]
    lines = tf.shape(images)[0] * channels
    values = tf.cast(images, tf.int32)
    first = tf.reshape(tf.range(lines) * 256, [-1, 1, channels])  # where a channel's table begins
    places = tf.reshape(tf.reshape(values, [-1, height * width, channels]) + first, [-1])
    counts = tf.reshape(tf.math.bincount(places, minlength=lines * 256, maxlength=lines * 256), [lines, 256])
    brightest = tf.reshape(tf.reduce_max(values, axis=[1, 2]), [-1, 1])
    step = (height * width - tf.gather(counts, brightest, batch_dims=1)) // 255
    below = tf.cumsum(counts, axis=1, exclusive=True) + step // 2
    table = tf.where(step > 0, tf.minimum(below // tf.maximum(step, 1), 255), tf.range(256)[None])
    return tf.reshape(tf.cast(tf.gather(tf.reshape(table, [-1]), places), tf.float32), tf.shape(images))


def color(images, factors):
    """`ImageEnhance.Color`: between gray (0) and the image (1), and beyond."""
    return _blended(_gray(images), images, factors)


def contrast(images, factors):
    """`ImageEnhance.Contrast`: between the mean gray and the image."""
    mean = tf.reduce_mean(_gray(images)[..., :1], axis=[1, 2, 3])
    return _blended(tf.zeros_like(images) + tf.reshape(tf.floor(mean + 0.5), [-1, 1, 1, 1]), images, factors)


def brightness(images, factors):
    """`ImageEnhance.Brightness`: between black and the image."""
    return _blended(tf.zeros_like(images), images, factors)


def sharpness(images, factors):
    """`ImageEnhance.Sharpness`: between a smoothed image and the image; the smoothing leaves the border as it is."""
    height, width = images.shape[1:3]
    if min(height, width) < 3:
        return images  # all border
    lines = images[:, :-2] + images[:, 1:-1] + images[:, 2:]
    weighted = lines[:, :, :-2] + lines[:, :, 1:-1] + lines[:, :, 2:] + 4.0 * images[:, 1:-1, 1:-1]
    smooth = tf.floor(weighted * (1.0 / 13.0) + 0.5)
    inner = np.zeros([1, height, width, 1], np.float32)
    inner[:, 1:-1, 1:-1] = 1.0
    smooth = tf.pad(smooth, [[0, 0], [1, 1], [1, 1], [0, 0]]) + images * (1.0 - inner)
    return _blended(smooth, images, factors)


OPERATIONS = {f.__name__: f for f in (autocontrast, equalize, posterize, rotate, solarize, shear_x, shear_y, translate_x,
                                      translate_y, color, contrast, brightness, sharpness, invert)}


def apply_chosen(images, chosen, amounts, names):
    """Applies to each image the operation that is chosen for it, and no other.

    Args:
        images: float32 [N, H, W, C] of whole numbers 0..255. chosen: int32 [N], positions in `names`; -1: none.
        amounts: float32 [N]. names: of OPERATIONS.

    Returns:
        float32 [N, H, W, C]
    """
    return image_ops.apply_chosen(images, chosen, amounts, [OPERATIONS[name] for name in names])


def _by_value(images, function):
    """A function of values [N, H * W * C], each image's beside its own numbers [N, 1]."""
    return tf.reshape(function(tf.reshape(images, [-1, math.prod(images.shape[1:])])), tf.shape(images))


def _moved(images, axis, slopes, pixels):
    """Each line along an axis (1: columns, 2: rows) moved by pixels + slope * its place, whole numbers exactly."""
    height, width, channels = images.shape[1:]
    along, across = (np.indices([height, width])[::1 if axis == 1 else -1])
    side, stride = (height, width) if axis == 1 else (width, 1)

    def places(repeats):
        here, line = (tf.constant(np.repeat(x.ravel(), repeats)[None], tf.float32) for x in (along, across + 0.5))
        return here + (slopes[:, None] * line + pixels[:, None])
    at = places(1)
    before = tf.cast(tf.floor(at), tf.int32)
    rest = np.indices([height, width])[2 - axis].ravel() * (1 if axis == 1 else width)
    line = tf.range(tf.shape(images)[0])[:, None] * (height * width) + tf.constant(rest[None], tf.int32)
    first, second = (_pixels(images, line + stride * tf.clip_by_value(before + ahead, 0, side - 1)) for ahead in (0, 1))
    at = places(channels)
    share = at - tf.floor(at)
    inside = tf.cast((at >= -0.5) & (at < side - 0.5), tf.float32)
    return tf.reshape(tf.floor(first + share * (second - first)) * inside, tf.shape(images))


def _sampled(images, places):
    """Bilinear samples. places: repeats -> rows and columns [N, H * W * repeats] of each pixel, `repeats` times in a row."""
    height, width, channels = images.shape[1:]
    top, left = (tf.cast(tf.floor(at), tf.int32) for at in places(1))
    origin = tf.range(tf.shape(images)[0])[:, None] * (height * width)
    rows = [origin + width * tf.clip_by_value(top + ahead, 0, height - 1) for ahead in (0, 1)]
    columns = [tf.clip_by_value(left + ahead, 0, width - 1) for ahead in (0, 1)]
    row, column = places(channels)
    down, right = row - tf.floor(row), column - tf.floor(column)

    def between(row):
        first, second = (_pixels(images, row + column) for column in columns)
        return first + right * (second - first)
    upper, lower = map(between, rows)
    inside = tf.cast((row >= -0.5) & (row < height - 0.5) & (column >= -0.5) & (column < width - 0.5), tf.float32)
    return tf.reshape(tf.floor(upper + down * (lower - upper)) * inside, tf.shape(images))


def _pixels(images, places):
    """Values [N, M * C] of the pixels at places [N, M] in the batch's one list of pixels."""
    channels = images.shape[-1]
    found = tf.gather_nd(tf.reshape(images, [-1, channels]), places[..., None])
    return tf.reshape(found, [-1, places.shape[1] * channels])


def _gray(images):
    """Pillow's conversion to `L`: Rec. 601 in parts of 65,536, rounded, on all channels."""
    if images.shape[-1] == 1:
        return images
    luma = tf.tensordot(images, tf.constant([[19595.0], [38470.0], [7471.0]]), 1)  # whole numbers below 2^24: exact
    return tf.zeros_like(images) + tf.floor((luma + 32768.0) * 2.0**-16)


def _blended(degenerate, images, factors):
    """`Image.blend`, with values cut off at 0 and 255."""
    return tf.floor(tf.clip_by_value(degenerate + factors[:, None, None, None] * (images - degenerate), 0.0, 255.0))
