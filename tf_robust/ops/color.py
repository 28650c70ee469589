"""Color of batched images. Images are float32 in [0, 1], NHWC, with C = 1 or 3 known."""

import functools
from collections.abc import Callable

import tensorflow as tf

from tf_robust.ops import image_ops

_REC_601 = (0.299, 0.587, 0.114)  # weights of red, green and blue


def luma(images: tf.Tensor) -> tf.Tensor:
    """Returns the Rec. 601 luma: [..., C] -> [..., 1]; one channel is returned unchanged."""
    return images if images.shape[-1] == 1 else tf.tensordot(images, tf.constant(_REC_601)[:, None], 1)


def in_color(images: tf.Tensor, change: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Applies `change` to images of three channels. One channel becomes three equal ones, and the result is its clipped luma."""
    if images.shape[-1] == 3:
        return change(images)
    return luma(tf.clip_by_value(change(tf.repeat(images, 3, axis=-1)), 0.0, 1.0))


def jitter(images: tf.Tensor, order: tf.Tensor, amounts: tf.Tensor) -> tf.Tensor:
    """Changes brightness, contrast, saturation and hue of each image, in an order of its own; clips to [0, 1] after each.

    Equals torchvision's ColorJitter: brightness, contrast and saturation blend the image with black, with the mean of its luma
    and with its luma; a factor of 1 changes nothing. One-channel images have no saturation and no hue: these do nothing.

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        order: int32 [N, 4], each row a permutation of 0..3: the adjustments in the order of their application.
        amounts: float32 [N, 4]: the factors of brightness, contrast and saturation, >= 0, and the shift of the hue, in turns.
    """
    functions = [functools.partial(function, column) for column, function in enumerate((_brightness, _contrast, _saturation, _hue))]
    for step in range(len(functions)):
        images = image_ops.apply_chosen(images, order[:, step], amounts, functions)
    return images


def _brightness(column, images, amounts):
    return tf.clip_by_value(images * amounts[:, column, None, None, None], 0.0, 1.0)


def _contrast(column, images, amounts):
    return _blend(tf.reduce_mean(luma(images), axis=[1, 2, 3], keepdims=True), images, amounts[:, column])


def _saturation(column, images, amounts):
    return _blend(luma(images), images, amounts[:, column])


def _blend(base, images, factors):
    return tf.clip_by_value(base + factors[:, None, None, None] * (images - base), 0.0, 1.0)


def _hue(column, images, amounts):
    if images.shape[-1] == 1:
        return images
    hue, saturation, value = tf.unstack(tf.image.rgb_to_hsv(images), axis=-1)
    shifted = tf.math.floormod(hue + amounts[:, column, None, None], 1.0)
    return tf.clip_by_value(tf.image.hsv_to_rgb(tf.stack([shifted, saturation, value], axis=-1)), 0.0, 1.0)


def saturate(images: tf.Tensor, scale: float, shift: float) -> tf.Tensor:
    """Maps the HSV saturation s to clip(scale * s + shift, 0, 1); hue and value stay. A gray pixel has the hue of red, 0.

    Images of one channel are returned unchanged.
    """
    if images.shape[-1] == 1:
        return images
    red, green, blue = tf.unstack(images, axis=-1)
    value = tf.maximum(tf.maximum(red, green), blue)
    chroma = value - tf.minimum(tf.minimum(red, green), blue)  # saturation * value
    changed = value * tf.clip_by_value(scale * tf.math.divide_no_nan(chroma, value) + shift, 0.0, 1.0)
    # at the same hue, each channel lies below the value by the same fraction of the chroma
    stretch = tf.math.divide_no_nan(changed, chroma)
    red, green, blue = (value - (value - channel) * stretch for channel in (red, green, blue))
    red_offset = tf.where(chroma > 0, 0.0, changed)
    return tf.stack([red, green - red_offset, blue - red_offset], axis=-1)
