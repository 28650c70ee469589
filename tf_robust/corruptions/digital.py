"""Contrast, elastic transformation, pixelation, JPEG compression, saturation (Hendrycks and Dietterich, 2019).

Images are float32 in [0, 1], NHWC. Pixelation and JPEG compression operate on integral gray levels, as Pillow does.
"""

import functools

import numpy as np
import tensorflow as tf

from tf_robust.corruptions.corruption import Corruption
from tf_robust.ops import color, image_ops, warps
from tf_robust.ops.filters import gaussian_blur

_SWAPPED = [0, 2, 1, 3]  # rows and columns
_LEVEL = 1 / 255  # a factor: graphs replace a division by a product, which changes the last bits against eager execution


def _contrast(images, factor):
    """Scales the distance of each value from its image's and channel's mean."""
    height, width, channels = images.shape[1:]
    rows = tf.reshape(images, [-1, height, width * channels])
    means = tf.reshape(tf.reduce_mean(rows, axis=1), [-1, width, channels])
    means = tf.reduce_mean(means, axis=1)  # one axis at a time: faster than both at once
    rows = factor * rows + tf.tile((1.0 - factor) * means, [1, width])[:, None]
    return tf.reshape(rows, tf.shape(images))


def _draw_elastic(draws, shape, *_):
    return {"corners": draws.uniform((3, 2), -1.0, 1.0), "displacement": draws.uniform((2, *shape[:2]), -1.0, 1.0)}


def _elastic(images, strength, sigma, jitter, *, corners, displacement):
    """Applies a random affine map, then a smooth random displacement; each interpolates bilinearly.

    Coordinates are exact, as in OpenCV 5. OpenCV 4 rounds those of the affine map to 1/32 pixel: compared with version 4.10
    up to 4 % of the pixels differed by more than one gray level, and none by more than four.

    Args:
        strength: factor of the displacement, in pixels.
        sigma: standard deviation of the Gaussian that smooths the displacement, in pixels.
        jitter: how far the three points that define the affine map may move in each direction, in pixels.
        corners: [N, 3, 2], x and y shift of each of these points, in [-1, 1).
        displacement: [N, 2, H, W], x and y displacement of each pixel, in [-1, 1), before it is smoothed.
    """
    height, width, _ = images.shape[1:]
    back = warps.affine_coordinates(_inverse_maps(jitter * corners, height, width), height, width)
    images = warps.bilinear(images, *back, "mirror")
    if strength == 0:
        return images
    fields = tf.reshape(displacement, [-1, height, width, 1])
    fields = strength * gaussian_blur(fields, sigma, truncate=3.0, mode="reflect")
    right, down = tf.unstack(tf.reshape(fields, tf.shape(displacement)), axis=1)
    rows, columns = tf.range(height, dtype=tf.float32)[:, None], tf.range(width, dtype=tf.float32)
    return warps.bilinear(images, rows + down, columns + right, "reflect")


def _inverse_maps(shifts, height, width):
    """Returns affine maps, [N, 2, 3] over (x, y, 1), that move three points shifted by `shifts`, [N, 3, 2], back.

    The points are the corners of a right angle about the center: (x, y + leg), (x, y) and (x - leg, y).
    """
    reach = min(height, width) // 3
    x, y, leg = height // 2 + reach, width // 2 - reach, 2 * reach  # height goes with x, as in the originals
    points = tf.constant([[x, y + leg], [x, y], [x - leg, y]], tf.float32)
    end, corner, other_end = tf.unstack(points + shifts, axis=1)  # [N, 2] each
    upright, level = end - corner, other_end - corner
    scale = leg / (upright[:, 0] * level[:, 1] - upright[:, 1] * level[:, 0])
    linear = scale[:, None, None] * tf.stack([_rotated(upright), _rotated(level)], axis=1)
    offset = points[1] - tf.linalg.matvec(linear, corner)
    return tf.concat([linear, offset[..., None]], axis=2)


def _rotated(vectors):
    """Rotates vectors [N, 2] by 90 degrees."""
    return tf.stack([vectors[:, 1], -vectors[:, 0]], axis=1)


def _pixelate(images, fraction):
    """Shrinks each side to int(fraction * side) pixels and enlarges again, both with Pillow's box filter.

    Rows are shrunk first, each to integral gray levels, then columns. (Where an image is more than twice as high as widened,
    Pillow 13 begins with the columns; Pillow 11 does not.)
    """
    height, width, _ = images.shape[1:]
    rows, columns = (max(int(side * fraction), 1) for side in (height, width))
    levels = tf.round(255.0 * tf.transpose(images, _SWAPPED))  # in this order the product needs no extra memory
    levels = tf.transpose(_box_means(levels, columns), _SWAPPED)
    small = tf.transpose(_box_means(levels, rows) * _LEVEL, _SWAPPED)
    widened = tf.gather(small, _enlarged(columns, width), axis=1)  # full lines: much faster than along the third axis
    return tf.gather(tf.transpose(widened, _SWAPPED), _enlarged(rows, height), axis=1)


def _box_means(levels, count):
    """Means over `count` boxes along axis 1, as integral gray levels: [N, side, K, C] -> [N, count, K, C]."""
    boxes, pixels, offset = pillow_boxes(levels.shape[1], count)
    if not np.array_equal(pixels, np.arange(levels.shape[1])):
        levels = tf.gather(levels, pixels, axis=1)
    batch, (size, width, channels) = tf.shape(levels)[0], levels.shape[1:]
    boxes = tf.reshape(tf.range(batch)[:, None] * count + boxes, [-1])
    means = tf.math.segment_mean(tf.reshape(levels, [batch * size, width * channels]), boxes)
    return tf.floor(tf.reshape(means, [batch, count, width, channels]) + offset[:, None, None])


@functools.lru_cache
def pillow_boxes(side: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reproduces how Pillow's box filter shrinks `side` pixels to `count`, with its floating-point steps.

    Nearly always the boxes divide the pixels among them; for some odd sides one pixel is omitted or counted twice.

    Returns:
        int32 [M] boxes, sorted; int32 [M] the pixels in them; float32 [count], the offset added to each mean before it is
        rounded down
    """
    scale, pixels = side / count, np.arange(side)
    centers = ((np.arange(count) + 0.5) * scale)[:, None]
    offsets = (pixels - centers + 0.5) * (1 / scale)
    near = ((centers - scale / 2 + 0.5).astype(int) <= pixels) & (pixels < (centers + scale / 2 + 0.5).astype(int))
    boxes, pixels = np.nonzero(near & (-0.5 < offsets) & (offsets <= 0.5))
    sizes = np.bincount(boxes)
    # an even number of pixels may give a mean halfway between levels; Pillow's weights are multiples of 2**-22
    upwards = np.floor(2**22 / sizes + 0.5) * sizes >= 2**22
    return boxes.astype(np.int32), pixels.astype(np.int32), np.where(upwards, 0.5001, 0.4999).astype(np.float32)


def _enlarged(count, side):
    """Returns the index, among `count` pixels, of the source of each of `side` pixels."""
    return ((np.arange(side) + 0.5) * (count / side)).astype(np.int32)


def _jpeg(images, quality):
    """Compresses as JPEG of a quality and decodes it."""
    levels = jpeg_round_trip(image_ops.to_levels(images), quality)
    return tf.cast(levels, tf.float32) * _LEVEL


def jpeg_round_trip(levels: tf.Tensor, quality: int) -> tf.Tensor:
    """Compresses uint8 [N, H, W, C] as JPEG and decodes it: equals Pillow at its defaults, with 4:2:0 subsampling."""
    shape = levels.shape[1:]

    def decoded(image):
        code = tf.io.encode_jpeg(image, quality=quality)
        return tf.io.decode_jpeg(code, channels=shape[2], dct_method="INTEGER_ACCURATE")  # as Pillow; not TensorFlow's default

    return tf.map_fn(decoded, levels, fn_output_signature=tf.TensorSpec(shape, tf.uint8))


contrast = Corruption("contrast", _contrast)
elastic_transform = Corruption("elastic_transform", _elastic, _draw_elastic, in_tiles=True)
pixelate = Corruption("pixelate", _pixelate, clip=False)
jpeg_compression = Corruption("jpeg_compression", _jpeg, clip=False)
saturate = Corruption("saturate", color.saturate)
