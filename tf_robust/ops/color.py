"""Color of batched images. Images are float32 in [0, 1], NHWC, with C = 1 or 3 known."""

import functools

import tensorflow as tf

from tf_robust.ops import image_ops

_REC_601 = (0.299, 0.587, 0.114)  # shares of red, green and blue


def luma(images):
    """Brightness as Rec. 601 weighs it: [..., C] -> [..., 1]; one channel stays as it is."""
    return images if images.shape[-1] == 1 else tf.tensordot(images, tf.constant(_REC_601)[:, None], 1)


def jittered(images, order, amounts):
    """Brightness, contrast, saturation and hue of each image changed, in its own order, cut off at 0 and 1 after each.

    As torchvision's ColorJitter: brightness, contrast and saturation blend the image with black, with the mean of its luma
    and with its luma; an amount of 1 changes nothing. One-channel images have no saturation and no hue: these do nothing.

    Args:
        images: [N, H, W, C]. order: int32 [N, 4], each row a permutation of 0..3: what is done first, second, ...
        amounts: float32 [N, 4]: the factors of brightness, contrast and saturation, >= 0, and the shift of the hue, in turns.
    """
    functions = [functools.partial(function, which) for which, function in enumerate((_brightness, _contrast, _saturation, _hue))]
    for place in range(len(functions)):
        images = image_ops.apply_chosen(images, order[:, place], amounts, functions)
    return images


def _brightness(which, images, amounts):
    return tf.clip_by_value(images * amounts[:, which, None, None, None], 0.0, 1.0)


def _contrast(which, images, amounts):
    return _blended(tf.reduce_mean(luma(images), axis=[1, 2, 3], keepdims=True), images, amounts[:, which])


def _saturation(which, images, amounts):
    return _blended(luma(images), images, amounts[:, which])


def _blended(base, images, factors):
    return tf.clip_by_value(base + factors[:, None, None, None] * (images - base), 0.0, 1.0)


def _hue(which, images, amounts):
    if images.shape[-1] == 1:
        return images
    hue, saturation, value = tf.unstack(tf.image.rgb_to_hsv(images), axis=-1)
    turned = tf.math.floormod(hue + amounts[:, which, None, None], 1.0)
    return tf.clip_by_value(tf.image.hsv_to_rgb(tf.stack([turned, saturation, value], axis=-1)), 0.0, 1.0)


def saturate(images, scale, shift):
    """HSV saturation s becomes clip(scale * s + shift, 0, 1); hue and value stay. A gray pixel's hue is red's, 0.

    Args:
        images: [N, H, W, C]; one channel stays as it is.
        scale, shift: numbers.
    """
    if images.shape[-1] == 1:
        return images
    red, green, blue = tf.unstack(images, axis=-1)
    value = tf.maximum(tf.maximum(red, green), blue)
    chroma = value - tf.minimum(tf.minimum(red, green), blue)  # saturation * value
    changed = value * tf.clip_by_value(scale * tf.math.divide_no_nan(chroma, value) + shift, 0.0, 1.0)
    # at the same hue, each channel lies below the value by the same share of the chroma
    stretch = tf.math.divide_no_nan(changed, chroma)
    red, green, blue = (value - (value - channel) * stretch for channel in (red, green, blue))
    reddened = tf.where(chroma > 0, 0.0, changed)
    return tf.stack([red, green - reddened, blue - reddened], axis=-1)
