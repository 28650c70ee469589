"""Small changes of images that a user expects to be harmless. Images are float32 in [0, 1], NHWC.

Sizes are relative to the image. Nothing is random: directions and signs alternate from image to image. Beyond its border an image is
mirrored.
"""

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_robust.corruptions.digital import jpeg_compression
from tf_robust.corruptions.weather import brightness as hsv_brightness
from tf_robust.ops import image_ops, warps

TRANSLATION = 1 / 16  # of the side
DEGREES = 5.0
ZOOM = 8 / 7  # ImageNet's central crop: 224 of 256 pixels
QUALITY = 75  # Pillow's default
BRIGHTNESS = 0.1
_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))


def translation(images: tf.Tensor, numbers: np.ndarray) -> tf.Tensor:
    """Moves images by 1/16 of their side, rounded to pixels and at least one: to the left, up, to the right, down in turn."""
    height, width = images.shape[1:3]
    steps = np.array([max(1, round(side * TRANSLATION)) for side in (width, height)])
    maps = np.tile(np.eye(2, 3, dtype=np.float32), [len(numbers), 1, 1])
    maps[:, :, 2] = np.array(_DIRECTIONS)[numbers % 4] * steps
    return _affine(images, maps)


def rotation(images: tf.Tensor, numbers: np.ndarray) -> tf.Tensor:
    """Rotates images about their center by 5 degrees, in one direction and the other in turn."""
    height, width = images.shape[1:3]
    angles = np.where(numbers % 2, -1.0, 1.0) * math.radians(DEGREES)
    turn = np.moveaxis(np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]]), -1, 0)  # [N, 2, 2]
    center = np.array([(width - 1) / 2, (height - 1) / 2])
    return _affine(images, np.concatenate([turn, (center - turn @ center)[..., None]], axis=2))


def crop(images: tf.Tensor, numbers: np.ndarray) -> tf.Tensor:
    """Enlarges the central 7/8 of each side."""
    del numbers
    return image_ops.clipped_zoom(images, ZOOM)


def jpeg(images: tf.Tensor, numbers: np.ndarray) -> tf.Tensor:
    """Compresses images as JPEG of quality 75."""
    del numbers
    return jpeg_compression.apply(images, QUALITY)


def brightness(images: tf.Tensor, numbers: np.ndarray) -> tf.Tensor:
    """Adds and subtracts in turn 0.1 to the HSV value."""
    signs = np.where(numbers % 2, -1.0, 1.0).astype(np.float32)
    return hsv_brightness.apply(images, BRIGHTNESS * signs[:, None, None, None])


def _affine(images, maps):
    rows, columns = warps.affine_coordinates(tf.constant(maps, tf.float32), *images.shape[1:3])
    return warps.bilinear(images, rows, columns, "reflect")


SMALL_CHANGES: dict[str, Callable[[tf.Tensor, np.ndarray], tf.Tensor]] = {
    f.__name__: f for f in (translation, rotation, crop, jpeg, brightness)
}
BATCH = 100  # images: bounds the memory


def changed(images: np.ndarray, name: str) -> np.ndarray:
    """Returns changed images, float32 [N, H, W, C] in [0, 1]: a function of an image and its position.

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        name: from `SMALL_CHANGES`.
    """
    parts = [
        SMALL_CHANGES[name](tf.constant(images[first : first + BATCH]), np.arange(first, min(first + BATCH, len(images)))).numpy()
        for first in range(0, len(images), BATCH)
    ]
    return np.clip(np.concatenate(parts), 0.0, 1.0)
