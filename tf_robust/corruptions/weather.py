"""Snow, frost, fog, spatter and brightness (Hendrycks and Dietterich, 2019). Images are float32 in [0, 1], NHWC.

A one-channel image is treated as three equal channels; the result is the luma (Rec. 601) of the clipped color image.
"""

import functools

import tensorflow as tf

from tf_robust.corruptions import frost_images
from tf_robust.corruptions.corruption import Corruption
from tf_robust.corruptions.frost_images import frost_source, frost_textures  # noqa: F401 (re-exported)
from tf_robust.corruptions.spatter import water
from tf_robust.ops import filters, image_ops
from tf_robust.ops.color import in_color, luma

_WATER = (175 / 255, 238 / 255, 238 / 255)
_MUD = (63 / 255, 42 / 255, 20 / 255)


def _colored(planes, color):
    """Returns planes of light of one color: [N, H, W] -> [N, H, W, 3], or with one number as the color [N, H, W, 1]."""
    return tf.tensordot(planes[..., None], tf.constant([color]), 1)  # a product: half the time of repeating the planes


# Snow


def _draw_snow(draws, shape, *_):
    return {"normal": draws.normal(shape[:2]), "angle": draws.uniform((), -135.0, -45.0)}


def _snow(images, mean, std, zoom, threshold, radius, sigma, mix, *, normal, angle):
    """Adds flakes blown in one direction, and the same rotated by 180 degrees, over a whitened image.

    The layer stays float; the originals round it to 8 bits before the motion blur.
    """
    layer = flakes(normal, mean, std, zoom, threshold)
    return snowed(images, filters.motion_blur(layer, radius, sigma, angle), mix)


def flakes(normal: tf.Tensor, mean: float, std: float, zoom: float, threshold: float) -> tf.Tensor:
    """Returns a layer of flakes, float32 [N, H, W, 1] in [0, 1], from normal draws [N, H, W]."""
    layer = image_ops.clipped_zoom((mean + std * normal)[..., None], zoom)
    return tf.where(layer < threshold, 0.0, tf.minimum(layer, 1.0))


def snowed(images: tf.Tensor, layer: tf.Tensor, mix: float) -> tf.Tensor:
    """Adds a layer [N, H, W, 1] of flakes, and the same rotated by 180 degrees, to images whitened by 1 - `mix`."""
    whitened = tf.maximum(images, mix * images + (1.0 - mix) * (1.5 * luma(images) + 0.5))  # never darker than it was
    return whitened + _colored((layer + layer[:, ::-1, ::-1])[..., 0], [1.0] * images.shape[-1])


# Frost


def _draw_frost(draws, *_):
    return {"texture": draws.integers((), 0, len(frost_images.FILES)), "corner": draws.uniform((2,))}


@functools.lru_cache(maxsize=4)
def frost_from(frost_dir: str | None) -> Corruption:
    """Returns frost with the images of a folder (None: procedural ice), which are read when the first image is corrupted."""

    def apply(images, image_weight, frost_weight, *, texture, corner):
        """Adds a window of an image of frost to the darkened image."""
        height, width, _ = images.shape[1:]
        windows = frost_images.windows(frost_dir, height, width, texture, corner)
        return in_color(images, lambda rgb: image_weight * rgb + frost_weight / 255 * windows)

    return Corruption("frost", apply, _draw_frost)


# Fog


def _draw_fog(draws, shape, *_):
    return {"noise": draws.uniform((fog_side(*shape[:2]) ** 2,), -1.0, 1.0)}


def fog_side(height: int, width: int) -> int:
    """Returns the side of the fog map: a power of two, at least as large as the image."""
    return 1 << (max(height, width) - 1).bit_length()


def _fog(images, strength, wibble_decay, *, noise):
    """Adds plasma and scales the image so that its maximum does not grow."""
    _, height, width, _ = images.shape
    fog_map = plasma(noise, fog_side(height, width), wibble_decay)[:, :height, :width, None]
    highest = tf.reduce_max(images, axis=[1, 2, 3], keepdims=True)
    return (images + strength * fog_map) * (highest / (highest + strength))


def plasma(noise: tf.Tensor, side: int, wibble_decay: float) -> tf.Tensor:
    """Returns diamond-square maps on a torus: float [N, side * side] in [-1, 1) -> [N, side, side] in [0, 1].

    The noise is scaled by wibble**2 (the originals multiply a draw from (-wibble, wibble) by wibble); the wibble begins
    at 100 and is divided by `wibble_decay` from level to level.
    """
    levels, remaining = [], tf.reshape(noise, [-1, side, side])
    while remaining.shape[1] > 1:
        even, odd = tf.unstack(tf.reshape(remaining, [-1, remaining.shape[1] // 2, 2, remaining.shape[2]]), axis=2)  # rows
        (remaining, above), (left, center) = _split(even), _split(odd)
        levels.append((center, above, left))
    corners, wibble = tf.zeros_like(remaining), 100.0
    for center, above, left in reversed(levels):
        down, right = _midpoint(corners, tf.roll(corners, -1, 1)), _midpoint(corners, tf.roll(corners, -1, 2))
        center = _midpoint(right, tf.roll(right, -1, 1)) + wibble**2 * center
        above = _midpoint(right, _midpoint(center, tf.roll(center, 1, 1))) + wibble**2 * above
        left = _midpoint(down, _midpoint(center, tf.roll(center, 1, 2))) + wibble**2 * left
        rows = tf.stack([_interleaved(corners, above), _interleaved(left, center)], axis=2)
        corners = tf.reshape(rows, [-1, 2 * rows.shape[1], rows.shape[3]])
        wibble /= wibble_decay
    corners -= tf.reduce_min(corners, axis=[1, 2], keepdims=True)
    return tf.math.divide_no_nan(corners, tf.reduce_max(corners, axis=[1, 2], keepdims=True))


def _midpoint(one, other):
    # pairwise: a graph would sum four values in another order
    return 0.5 * (one + other)


def _split(rows):
    """Returns the even and the odd columns of [N, h, 2 w], [N, h, w] each: as parts of complex numbers, much faster than slices."""
    pairs = tf.bitcast(tf.reshape(rows, [-1, rows.shape[1], rows.shape[2] // 2, 2]), tf.complex64)
    return tf.math.real(pairs), tf.math.imag(pairs)


def _interleaved(even, odd):
    """The inverse of `_split`."""
    return tf.reshape(tf.bitcast(tf.complex(even, odd), tf.float32), [-1, even.shape[1], 2 * even.shape[2]])


# Spatter


def _draw_spatter(draws, shape, *_):
    return {"normal": draws.normal(shape[:2])}


def _spatter(images, mean, std, sigma, threshold, strength, mud, *, normal):
    """Adds drops where smoothed noise exceeds a threshold: shining water is added, or mud covers the image.

    `strength` is the brightness of the brightest water, or for mud the standard deviation in pixels that softens its edges.
    """
    layer = drops(normal, mean, std, sigma, threshold)
    if not mud:
        return wetted(images, layer, strength)
    cover = filters.gaussian_blur(tf.cast(layer > threshold, tf.float32), strength)
    cover = tf.where(cover < 0.8, 0.0, cover)
    return in_color(images, lambda rgb: rgb * (1.0 - cover) + _colored(cover[..., 0], _MUD))


def drops(normal: tf.Tensor, mean: float, std: float, sigma: float, threshold: float) -> tf.Tensor:
    """Returns a layer of drops, float32 [N, H, W, 1], from normal draws [N, H, W]."""
    layer = filters.gaussian_blur((mean + std * normal)[..., None], sigma)
    return tf.where(layer < threshold, 0.0, layer)


def wetted(images: tf.Tensor, layer: tf.Tensor, strength: float) -> tf.Tensor:
    """Adds the light of a layer [N, H, W, 1] of water, whose maximum is `strength` times the color of water."""
    light = _colored(water(layer[..., 0]), [strength * value for value in _WATER])
    return in_color(images, lambda rgb: rgb + light)


# Brightness


def _brighten(images, amount):
    """Adds `amount` to the HSV value and clips it to [0, 1]; hue and saturation are unchanged, so black becomes gray."""
    value = tf.reduce_max(images, axis=-1, keepdims=True)
    divisor = tf.maximum(value, 1e-6)  # smaller values count as black
    return (images + (divisor - value)) * (tf.clip_by_value(value + amount, 0.0, 1.0) / divisor)


snow = Corruption("snow", _snow, _draw_snow, in_tiles=True)
frost = frost_from(None)
fog = Corruption("fog", _fog, _draw_fog)
spatter = Corruption("spatter", _spatter, _draw_spatter, in_tiles=True)
brightness = Corruption("brightness", _brighten)
