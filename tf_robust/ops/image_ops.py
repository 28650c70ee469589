"""Batched image primitives. Images are float32 in [0, 1], NHWC, unless documented otherwise."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_robust.ops import philox

RANGE_TOLERANCE = 0.01  # of the pixel scale
_LUMA = (19595, 38470, 7471)  # of red, green and blue (ITU-R 601-2), in 65,536ths


def fold(seed: tf.Tensor, purpose: int) -> tf.Tensor:
    """Returns another int [2] seed for each purpose. Not `seed + 1`: that is the seed of the next step or example."""
    seed = tf.cast(seed, tf.int64)
    return philox.fold(tf.reverse(seed, [0]), tf.constant(purpose, tf.int64))


def to_float(images: tf.Tensor) -> tf.Tensor:
    """Converts uint8 [..., H, W, C] in 0..255 to float32 in [0, 1]."""
    return tf.cast(images, tf.float32) / 255.0


def to_levels(images: tf.Tensor) -> tf.Tensor:
    """Rounds float32 in [0, 1] to the nearest of 256 gray levels: uint8 of the same shape, in one pass over the memory."""
    levels = tf.raw_ops.QuantizeV2(input=images, min_range=0.0, max_range=1.0, T=tf.quint8, mode="MIN_FIRST").output
    return tf.bitcast(levels, tf.uint8)


def unit_images(images: tf.Tensor, input_range: tuple[float, float], whose: str = "images") -> tf.Tensor:
    """Returns images of any shape, on the pixel scale `input_range` = (low, high), as float32 in [0, 1].

    Raises tf.errors.InvalidArgumentError for values outside the range, by more than `RANGE_TOLERANCE` of it; `whose` names the images.
    """
    low, high = input_range
    unit = tf.cast(images, tf.float32)
    unit = unit if (low, high) == (0.0, 1.0) else (unit - low) / (high - low)
    message = f"Expected images in [{low:g}, {high:g}]. Try: input_range=(low, high) of the {whose}"
    inside = tf.reduce_all((unit >= -RANGE_TOLERANCE) & (unit <= 1.0 + RANGE_TOLERANCE))
    with tf.control_dependencies([tf.debugging.Assert(inside, [message, "Received:", tf.reduce_min(images), tf.reduce_max(images)])]):
        return tf.identity(unit)


def decode(contents: tf.Tensor, channels: int) -> tf.Tensor:
    """Decodes the bytes of a JPEG, PNG, BMP or GIF file to uint8 [H, W, channels], of 3 channels, or of 1: the luma, as Pillow's mode L.

    JPEG is decoded by the exact inverse cosine transform, as Pillow and OpenCV do and TensorFlow by default does not.
    """
    image = tf.case(
        [
            (tf.io.is_jpeg(contents), lambda: tf.io.decode_jpeg(contents, channels=3, dct_method="INTEGER_ACCURATE")),
            (_has_palette(contents), lambda: _decode_palette(contents)),
        ],
        default=lambda: tf.io.decode_image(contents, channels=3, expand_animations=False),
    )
    if channels == 1:
        weighted = tf.cast(image, tf.int32) * _LUMA
        image = tf.cast((tf.reduce_sum(weighted, axis=-1, keepdims=True) + (1 << 15)) // (1 << 16), tf.uint8)
    return tf.ensure_shape(image, [None, None, channels])


def _has_palette(contents):
    """Returns whether a file is an uncompressed BMP of 1, 4 or 8 bits per pixel."""
    header = tf.strings.substr(tf.strings.join([contents, "\0" * 34]), 0, 34)
    bits, compression = _field(header, 28, tf.uint16), _field(header, 30, tf.int32)
    return (tf.strings.substr(header, 0, 2) == "BM") & tf.reduce_any(bits == [1, 4, 8]) & (compression == 0)


def _decode_palette(contents):
    """Decodes an uncompressed BMP file of 1, 4 or 8 bits per pixel, the numbers of its colors: uint8 [H, W, 3]."""
    palette, pixels = 14 + _field(contents, 14, tf.int32), _field(contents, 10, tf.int32)  # where they begin
    colors = tf.reshape(tf.io.decode_raw(tf.strings.substr(contents, palette, pixels - palette), tf.uint8), [-1, 4])
    width, height, bits = _field(contents, 18, tf.int32), _field(contents, 22, tf.int32), _field(contents, 28, tf.uint16)
    bytes_of_row = (width * tf.cast(bits, tf.int32) + 31) // 32 * 4
    packed = tf.strings.substr(contents, pixels, tf.abs(height) * bytes_of_row)
    packed = tf.reshape(tf.io.decode_raw(packed, tf.uint8), [tf.abs(height), bytes_of_row, 1])
    shifts = tf.cast(tf.range(8 - tf.cast(bits, tf.int32), -1, -tf.cast(bits, tf.int32)), tf.uint8)
    numbers = tf.bitwise.right_shift(packed, shifts) & tf.cast(2 ** tf.cast(bits, tf.int32) - 1, tf.uint8)
    numbers = tf.reshape(numbers, [tf.abs(height), -1])[:, :width]
    numbers = tf.cond(height > 0, lambda: numbers[::-1], lambda: numbers)  # the last row first, unless the height is negative
    return tf.gather(colors[:, 2::-1], tf.cast(numbers, tf.int32))  # blue is stored first


def _field(contents, position, dtype):
    return tf.io.decode_raw(tf.strings.substr(contents, position, dtype.size), dtype)[0]


def check_images(images: np.ndarray | tf.Tensor) -> np.ndarray:
    """Returns images as float32 [N, H, W, C]; raises ValueError for another rank or dtype, and values not finite or not in [0, 1]."""
    images = np.asarray(images)
    if images.ndim != 4:
        raise ValueError(f"Expected images of shape [N, H, W, C]. Received shape: {images.shape}")
    if not np.issubdtype(images.dtype, np.floating):
        raise ValueError(f"Expected float images in [0, 1]; divide uint8 by 255. Received dtype: {images.dtype}")
    if not np.isfinite(images).all():
        bad = np.flatnonzero(~np.isfinite(images).reshape(len(images), -1).all(axis=1))
        raise ValueError(
            f"Expected finite images. Received: NaN or infinity in {bad.size} of {len(images)} images, the first at index {bad[0]}"
        )
    if images.size and (images.min() < 0.0 or images.max() > 1.0):
        raise ValueError(
            f"Expected images in [0, 1]; normalization is a layer inside the model. Received: [{images.min():g}, {images.max():g}]"
        )
    return images.astype(np.float32)


def resize(images: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Resizes bilinearly with antialiasing: [..., H, W, C] -> float32 [..., height, width, C]."""
    return tf.image.resize(images, [height, width], antialias=True)


def crop_at(images: tf.Tensor, tops: tf.Tensor, lefts: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Cuts one window from each image: [N, H, W, C], int [N], int [N] -> [N, height, width, C]."""
    rows = tops[:, None, None] + tf.range(height)[None, :, None]  # [N, h, 1]
    columns = lefts[:, None, None] + tf.range(width)[None, None, :]  # [N, 1, w]
    rows, columns = tf.broadcast_to(rows, tf.shape(rows + columns)), tf.broadcast_to(columns, tf.shape(rows + columns))
    return tf.gather_nd(images, tf.stack([rows, columns], axis=-1), batch_dims=1)


def random_windows(count: tf.Tensor | int, shape: tf.Tensor, seed: tf.Tensor, min_area: float = 0.08) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws windows of `min_area` to 100 % of the area and aspect 3/4 to 4/3 (Szegedy et al., 2015).

    Ten candidates are drawn for each window; the first that fits is taken, else the full image.

    Args:
        count: number of windows.
        shape: float [2], height and width of the images.
        seed: int [2].
        min_area: smallest fraction of the area.

    Returns:
        (top and left corners [count, 2], heights and widths [count, 2]), float32 with integral values
    """
    draws = philox.uniform([count, 10, 4], seed)
    area = shape[0] * shape[1] * (min_area + (1.0 - min_area) * draws[..., 0])
    aspect = tf.exp((2.0 * draws[..., 1] - 1.0) * tf.math.log(4.0 / 3.0))  # width over height
    sides = tf.stack([tf.round(tf.sqrt(area / aspect)), tf.round(tf.sqrt(area * aspect))], axis=-1)  # [count, 10, 2]
    fits = tf.reduce_all((sides <= shape) & (sides >= 1), axis=2)
    first = tf.argmax(tf.cast(fits, tf.int32), axis=1)
    window = tf.where(tf.reduce_any(fits, axis=1, keepdims=True), tf.gather(sides, first, batch_dims=1), shape)
    return tf.floor(tf.gather(draws, first, batch_dims=1)[:, 2:] * (shape - window + 1.0)), window


def random_crops(image: tf.Tensor, height: int, width: int, seed: tf.Tensor, windows: Sequence[float] = ()) -> tf.Tensor:
    """Applies `random_resized_crop_flip` to one image once, or once for each of several smallest areas.

    Args:
        image: [H, W, C], any scale.
        height, width: of the result, in pixels.
        seed: int [2].
        windows: smallest fractions of the area; empty: one crop of 8 to 100 % of the area.

    Returns:
        [height, width, C], or with `windows` stacked: [len(windows), height, width, C]
    """
    if not windows:
        return random_resized_crop_flip(image, height, width, seed)
    return tf.stack(
        [random_resized_crop_flip(image, height, width, fold(seed, 2 + number), min_area) for number, min_area in enumerate(windows)]
    )


def random_resized_crop_flip(image: tf.Tensor, height: int, width: int, seed: tf.Tensor, min_area: float = 0.08) -> tf.Tensor:
    """Resizes a random window of `min_area` to 100 % of the area of an image [H, W, C] to [height, width, C]; half are mirrored."""
    corner, window = random_windows(1, tf.cast(tf.shape(image)[:2], tf.float32), seed, min_area)
    corner, window = tf.cast(corner[0], tf.int32), tf.cast(window[0], tf.int32)
    image = resize(image[corner[0] : corner[0] + window[0], corner[1] : corner[1] + window[1]], height, width)
    mirror = philox.uniform([], fold(seed, 1)) < 0.5
    return tf.clip_by_value(tf.where(mirror, image[:, ::-1], image), 0, 255)


def apply_chosen(
    images: tf.Tensor, chosen: tf.Tensor, arguments: tf.Tensor, functions: Sequence[Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]
) -> tf.Tensor:
    """Applies to each image only the function that is chosen for it.

    Args:
        images: [N, H, W, C].
        chosen: int32 [N], positions in `functions`; -1: none.
        arguments: [N, ...], the rows that belong to the images.
        functions: (images [M, H, W, C], arguments [M, ...]) -> images.
    """
    groups = len(functions) + 1
    group = tf.where(chosen < 0, len(functions), chosen)
    parts = zip(*(tf.dynamic_partition(x, group, groups) for x in (images, arguments, tf.range(tf.shape(images)[0]))))
    results, rows = [], []
    for function, (subset, subset_arguments, subset_rows) in zip((*functions, None), parts):
        subset = tf.ensure_shape(subset, [None, *images.shape[1:]])
        results.append(function(subset, subset_arguments) if function else subset)
        rows.append(subset_rows)
    return tf.ensure_shape(tf.dynamic_stitch(rows, results), images.shape)


def clipped_zoom(images: tf.Tensor, factor: float) -> tf.Tensor:
    """Enlarges the central H / factor x W / factor pixels to H x W, as the corruption benchmark does.

    ceil(H / factor) rows become round(that * factor) rows, bilinearly and with the first and the last row at the ends,
    as `scipy.ndimage.zoom` of order 1 does; the surplus is then cropped at both ends alike. Columns likewise. Raises ValueError for a
    factor below 1.
    """
    if factor < 1:
        raise ValueError(f"Expected a zoom factor of at least 1. Received: {factor}")
    images = tf.convert_to_tensor(images, tf.float32)
    cropped, enlarged = zip(*(zoom_sides(side, factor) for side in images.shape[1:3]))
    if cropped == enlarged:
        return images
    window = central_crop(images, *cropped)
    return central_crop(tf.raw_ops.ResizeBilinear(images=window, size=enlarged, align_corners=True), *images.shape[1:3])


def zoom_sides(side: int, factor: float) -> tuple[int, int]:
    """Returns the pixels of a line that `clipped_zoom` crops and the pixels to which it enlarges them."""
    cropped = math.ceil(side / factor)
    return cropped, round(cropped * factor)


def central_crop(images: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Crops the center: [N, H, W, C] -> [N, height, width, C]; an odd remainder is cropped below and right."""
    top, left = (images.shape[1] - height) // 2, (images.shape[2] - width) // 2
    return images[:, top : top + height, left : left + width]
