"""Batched warps: images sampled at places between their pixels. Images are float32, NHWC, with H, W and C known.

Places are rows and columns in pixels; whole numbers are the pixels' centres.
"""

import numpy as np
import tensorflow as tf

MODES = ("reflect", "mirror", "nearest", "constant")


def bilinear(images, rows, columns, mode):
    """Samples by bilinear interpolation: equals `scipy.ndimage.map_coordinates` of order 1 on each channel.

    Args:
        images: [N, H, W, C].
        rows, columns: float32 [N, H', W']: where each pixel of the result lies in its image.
        mode: what lies outside of abcd. "reflect": dcba|abcd|dcba, "mirror": dcb|abcd|cba, "nearest": aaaa|abcd|dddd,
            "constant": zeros.

    Returns:
        float32 [N, H', W', C]
    """
    if mode not in MODES:
        raise ValueError(f"Expected mode in {MODES}. Received: {mode!r}")
    height, width, channels = images.shape[1:]
    top, down = _pixel_and_rest(rows, height, mode)
    left, right = _pixel_and_rest(columns, width, mode)
    corner = top * width + left + (tf.range(tf.shape(images)[0]) * (height * width))[:, None, None]
    corner, pixels = tf.reshape(corner, [-1, 1]), tf.reshape(images, [-1, channels])
    below, beside = width if height > 1 else 0, 1 if width > 1 else 0
    down, right = _of_channels(down, channels), _of_channels(right, channels)

    def between(first):
        start = tf.gather_nd(pixels, first)  # half as long as tf.gather
        return start + right * (tf.gather_nd(pixels, first + beside) - start)
    upper = between(corner)
    samples = upper + down * (between(corner + below) - upper)
    if mode == "constant":
        within = (rows >= 0) & (rows <= height - 1) & (columns >= 0) & (columns <= width - 1)
        samples *= _of_channels(tf.cast(within, tf.float32), channels)
    return tf.reshape(samples, tf.concat([tf.shape(rows), [channels]], 0))


def _of_channels(values, channels):
    """[N, H', W'] -> [N * H' * W', channels], repeated: a product takes half as long as broadcasting does."""
    return tf.matmul(tf.reshape(values, [-1, 1]), tf.ones([1, channels]))


def _pixel_and_rest(places, side, mode):
    """Places along one axis -> (int32 pixel before, float share of the pixel after), brought into the image."""
    if mode == "reflect":
        places = _folded(places, -0.5, side)
    elif mode == "mirror":
        places = _folded(places, 0.0, max(side - 1, 1))
    places = tf.clip_by_value(places, 0.0, side - 1.0)  # beyond the centre of a border pixel its value goes on
    pixel = tf.minimum(tf.floor(places), max(side - 2, 0))
    return tf.cast(pixel, tf.int32), places - pixel


def _folded(places, first, length):
    """The line folded to and fro into [first, first + length]."""
    turns = tf.round((places - first) * (0.5 / length))
    return first + tf.abs(places - 2.0 * length * turns - first)  # the distance to the nearest fold of one kind


def affine_places(maps, height, width):
    """Where an affine map takes the pixels of an image.

    Args:
        maps: float32 [N, 2, 3], over (x, y, 1): x is the column, y the row.
        height, width: the image's, in pixels.

    Returns:
        (rows, columns): float32 [N, height, width] each.
    """
    y, x = np.indices([height, width])
    pixels = tf.constant(np.stack([x, y, np.ones_like(x)]).reshape(3, -1), tf.float32)
    # one product: graphs change the order of sums that are written out, and with it the last bits
    columns, rows = tf.unstack(tf.reshape(tf.reshape(maps, [-1, 3]) @ pixels, [-1, 2, height, width]), axis=1)
    return rows, columns
