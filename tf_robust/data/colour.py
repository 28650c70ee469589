"""Colour of batched pictures. Images are float32 in [0, 1], NHWC, with C = 1 or 3 known."""

import tensorflow as tf

_REC_601 = (0.299, 0.587, 0.114)  # shares of red, green and blue


def luma(images):
    """Brightness as Rec. 601 weighs it: [..., C] -> [..., 1]; one channel stays as it is."""
    return images if images.shape[-1] == 1 else tf.tensordot(images, tf.constant(_REC_601)[:, None], 1)


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
