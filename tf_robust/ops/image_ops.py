"""Batched image primitives. Images are float32 in [0, 1], NHWC, unless a function says otherwise."""

import math

import numpy as np
import tensorflow as tf

from tf_robust.ops import philox


def fold(seed, purpose):
    """Another int [2] seed for each purpose (an int). Not `seed + 1`: that is the next step's or example's seed."""
    seed = tf.cast(seed, tf.int64)
    return philox.fold(tf.reverse(seed, [0]), tf.constant(purpose, tf.int64))


def to_float(images):
    """uint8 [..., H, W, C] in 0..255 -> float32 in [0, 1]."""
    return tf.cast(images, tf.float32) / 255.0


def check_images(images):
    """Returns `images` as float32 [N, H, W, C], or says what is wrong with them.

    Raises:
        ValueError: the rank is not 4, a value is not finite, or a value lies outside [0, 1].
    """
    images = np.asarray(images)
    if images.ndim != 4:
        raise ValueError(f"Expected images of shape [N, H, W, C]. Received shape: {images.shape}")
    if not np.issubdtype(images.dtype, np.floating):
        raise ValueError(f"Expected float images in [0, 1]; divide uint8 by 255. Received dtype: {images.dtype}")
    if not np.isfinite(images).all():
        bad = np.flatnonzero(~np.isfinite(images).reshape(len(images), -1).all(axis=1))
        raise ValueError(f"Expected finite images. Received NaN or infinity in {bad.size} of {len(images)} images, "
                         f"the first at index {bad[0]}")
    if images.size and (images.min() < 0.0 or images.max() > 1.0):
        raise ValueError(f"Expected images in [0, 1]; normalization is a layer inside the model. "
                         f"Received values in [{images.min():g}, {images.max():g}]")
    return images.astype(np.float32)


def resize(images, height, width):
    """Bilinear with antialiasing: [..., H, W, C] -> float32 [..., height, width, C]."""
    return tf.image.resize(images, [height, width], antialias=True)


def crop_at(images, tops, lefts, height, width):
    """Cuts one window from each image: [N, H, W, C], int [N], int [N] -> [N, height, width, C]."""
    rows = tops[:, None, None] + tf.range(height)[None, :, None]  # [N, h, 1]
    columns = lefts[:, None, None] + tf.range(width)[None, None, :]  # [N, 1, w]
    rows, columns = tf.broadcast_to(rows, tf.shape(rows + columns)), tf.broadcast_to(columns, tf.shape(rows + columns))
    return tf.gather_nd(images, tf.stack([rows, columns], axis=-1), batch_dims=1)


def random_windows(count, shape, seed, min_area=0.08):
    """Windows of `min_area` to 100 % of the area, aspect 3/4 to 4/3: for each the first of ten drawn that fits, else all.

    After Szegedy et al. (2015).

    Args:
        count: of windows. shape: float [2], height and width of the images. seed: int [2].

    Returns:
        (top and left corners [count, 2], heights and widths [count, 2]), float32 of whole numbers
    """
    draws = philox.uniform([count, 10, 4], seed)
    area = shape[0] * shape[1] * (min_area + (1.0 - min_area) * draws[..., 0])
    aspect = tf.exp((2.0 * draws[..., 1] - 1.0) * tf.math.log(4.0 / 3.0))  # width over height
    sides = tf.stack([tf.round(tf.sqrt(area / aspect)), tf.round(tf.sqrt(area * aspect))], axis=-1)  # [count, 10, 2]
    fits = tf.reduce_all((sides <= shape) & (sides >= 1), axis=2)
    first = tf.argmax(tf.cast(fits, tf.int32), axis=1)
    window = tf.where(tf.reduce_any(fits, axis=1, keepdims=True), tf.gather(sides, first, batch_dims=1), shape)
    return tf.floor(tf.gather(draws, first, batch_dims=1)[:, 2:] * (shape - window + 1.0)), window


def random_crops(image, height, width, seed, windows=()):
    """`random_resized_crop_flip` of one image [H, W, C], 8 to 100 % of its area; with `windows` one for each of these smallest
    shares, stacked: [len(windows), height, width, C]."""
    if not windows:
        return random_resized_crop_flip(image, height, width, seed)
    return tf.stack([random_resized_crop_flip(image, height, width, fold(seed, 2 + number), min_area)
                     for number, min_area in enumerate(windows)])


def random_resized_crop_flip(image, height, width, seed, min_area=0.08):
    """One image of any size: a window of `min_area` to 100 % of the area, resized; half of them mirrored.

    Args:
        image: [H, W, C], any scale. height, width: of the result in pixels. seed: int [2].
    """
    corner, window = random_windows(1, tf.cast(tf.shape(image)[:2], tf.float32), seed, min_area)
    corner, window = tf.cast(corner[0], tf.int32), tf.cast(window[0], tf.int32)
    image = resize(image[corner[0]:corner[0] + window[0], corner[1]:corner[1] + window[1]], height, width)
    mirror = philox.uniform([], fold(seed, 1)) < 0.5
    return tf.clip_by_value(tf.where(mirror, image[:, ::-1], image), 0, 255)


def apply_chosen(images, chosen, arguments, functions):
    """Applies to each image the function that is chosen for it, and no other.

    Args:
        images: float32 [N, H, W, C]. chosen: int32 [N], positions in `functions`; -1: none. arguments: [N, ...], an image's
            share of which its function is told. functions: (images [M, H, W, C], arguments [M, ...]) -> images.

    Returns:
        float32 [N, H, W, C]
    """
    groups = len(functions) + 1
    group = tf.where(chosen < 0, len(functions), chosen)
    parts = zip(*(tf.dynamic_partition(x, group, groups) for x in (images, arguments, tf.range(tf.shape(images)[0]))))
    done, places = [], []
    for function, (some, told, place) in zip((*functions, None), parts):
        some = tf.ensure_shape(some, [None, *images.shape[1:]])
        done.append(function(some, told) if function else some)
        places.append(place)
    return tf.ensure_shape(tf.dynamic_stitch(places, done), images.shape)


def clipped_zoom(images, factor):
    """The benchmark's zoom, for both sides alike: the central H / factor x W / factor pixels enlarged to H x W.

    ceil(H / factor) rows become round(that * factor) rows, bilinearly and with the first and the last row at the ends,
    as `scipy.ndimage.zoom` of order 1 does; what is too many is then cut off at both ends alike. Columns likewise.

    Args:
        images: [N, H, W, C], any range. factor: a number, at least 1.
    """
    if factor < 1:
        raise ValueError(f"Expected a zoom factor of at least 1. Received: {factor}")
    images = tf.convert_to_tensor(images, tf.float32)
    cropped, enlarged = zip(*(zoom_sides(side, factor) for side in images.shape[1:3]))
    if cropped == enlarged:
        return images
    window = central_crop(images, *cropped)
    return central_crop(tf.raw_ops.ResizeBilinear(images=window, size=enlarged, align_corners=True), *images.shape[1:3])


def zoom_sides(side, factor):
    """Pixels of a line that `clipped_zoom` cuts out, and pixels that it makes of them."""
    cropped = math.ceil(side / factor)
    return cropped, round(cropped * factor)


def central_crop(images, height, width):
    """[N, H, W, C] -> [N, height, width, C]; where the rest is odd, the larger part is cut off below and right."""
    top, left = (images.shape[1] - height) // 2, (images.shape[2] - width) // 2
    return images[:, top:top + height, left:left + width]
