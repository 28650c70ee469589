"""Snow, frost, fog, spatter and brightness (Hendrycks and Dietterich, 2019). Images are float32 in [0, 1], NHWC.

A one-channel image is treated as three equal channels and gives the luma (Rec. 601) of what is seen of the result.
"""

import functools

import tensorflow as tf

from tf_robust.corruptions import frost_images
from tf_robust.corruptions.corruption import Corruption
from tf_robust.corruptions.frost_images import frost_source, frost_textures  # noqa: F401 (for users of this module)
from tf_robust.corruptions.spatter import water
from tf_robust.ops import filters, image_ops
from tf_robust.ops.color import luma

_WATER = (175 / 255, 238 / 255, 238 / 255)
_MUD = (63 / 255, 42 / 255, 20 / 255)


def _colored(planes, color):
    """[N, H, W] -> [N, H, W, 3] or, with one number as the color, [N, H, W, 1]: planes of light of one color."""
    return tf.tensordot(planes[..., None], tf.constant([color]), 1)  # a product: half the time of repeating the planes


def _one_or_three(images, change):
    """`change` of images of three channels; of one: of three equal ones, and the luma of what is seen of it."""
    if images.shape[-1] == 3:
        return change(images)
    return luma(tf.clip_by_value(change(tf.repeat(images, 3, axis=-1)), 0.0, 1.0))


# Snow

def _draw_snow(draws, shape, *_):
    return {"normal": draws.normal(shape[:2]), "angle": draws.uniform((), -135.0, -45.0)}


def _snow(images, mean, deviation, zoom, threshold, radius, sigma, mix, *, normal, angle):
    """Flakes blown in one direction, and the same turned by 180 degrees, over a whitened image.

    The layer stays float; the originals round it to 8 bits before the motion blur.
    """
    layer = flakes(normal, mean, deviation, zoom, threshold)
    return snowed(images, filters.motion_blur(layer, radius, sigma, angle), mix)


def flakes(normal, mean, deviation, zoom, threshold):
    """Normal draws [N, H, W] -> a layer of flakes, float32 [N, H, W, 1] in [0, 1]."""
    layer = image_ops.clipped_zoom((mean + deviation * normal)[..., None], zoom)
    return tf.where(layer < threshold, 0.0, tf.minimum(layer, 1.0))


def snowed(images, layer, mix):
    """Images under a layer [N, H, W, 1] of flakes, and the same turned by 180 degrees; whitened by 1 - `mix`."""
    whitened = tf.maximum(images, mix * images + (1.0 - mix) * (1.5 * luma(images) + 0.5))  # never darker than it was
    return whitened + _colored((layer + layer[:, ::-1, ::-1])[..., 0], [1.0] * images.shape[-1])


# Frost

def _draw_frost(draws, *_):
    return {"texture": draws.integers((), 0, len(frost_images.FILES)), "corner": draws.uniform((2,))}


@functools.lru_cache(maxsize=4)
def frost_from(frost_dir):
    """Frost by the images of a folder (None: procedural ice), which are read when the first image is corrupted."""

    def apply(images, image_weight, frost_weight, *, texture, corner):
        height, width, _ = images.shape[1:]
        windows = frost_images.windows(frost_dir, height, width, texture, corner)
        return _one_or_three(images, lambda rgb: image_weight * rgb + frost_weight / 255 * windows)

    return Corruption("frost", apply, _draw_frost)


# Fog

def _draw_fog(draws, shape, *_):
    return {"noise": draws.uniform((fog_side(*shape[:2]) ** 2,), -1.0, 1.0)}


def fog_side(height, width):
    """The side of the fog map: a power of two, at least as large as the image."""
    return 1 << (max(height, width) - 1).bit_length()


def _fog(images, strength, wibble_decay, *, noise):
    """Plasma added, then scaled so that the image's maximum stays below what it was."""
    _, height, width, _ = images.shape
    fog_map = plasma(noise, fog_side(height, width), wibble_decay)[:, :height, :width, None]
    highest = tf.reduce_max(images, axis=[1, 2, 3], keepdims=True)
    return (images + strength * fog_map) * (highest / (highest + strength))


def plasma(noise, side, wibble_decay):
    """Diamond-square maps on a torus: float [N, side * side] in [-1, 1) -> [N, side, side] in [0, 1].

    The noise is scaled by wibble**2 (the originals multiply a draw from (-wibble, wibble) by wibble); the wibble begins
    at 100 and is divided by `wibble_decay` from level to level.
    """
    levels, rest = [], tf.reshape(noise, [-1, side, side])
    while rest.shape[1] > 1:
        even, odd = tf.unstack(tf.reshape(rest, [-1, rest.shape[1] // 2, 2, rest.shape[2]]), axis=2)  # rows
        (rest, above), (left, centre) = _split(even), _split(odd)
        levels.append((centre, above, left))
    corners, wibble = tf.zeros_like(rest), 100.0
    for centre, above, left in reversed(levels):
        down, right = _middle(corners, tf.roll(corners, -1, 1)), _middle(corners, tf.roll(corners, -1, 2))
        centre = _middle(right, tf.roll(right, -1, 1)) + wibble**2 * centre
        above = _middle(right, _middle(centre, tf.roll(centre, 1, 1))) + wibble**2 * above
        left = _middle(down, _middle(centre, tf.roll(centre, 1, 2))) + wibble**2 * left
        rows = tf.stack([_interleaved(corners, above), _interleaved(left, centre)], axis=2)
        corners = tf.reshape(rows, [-1, 2 * rows.shape[1], rows.shape[3]])
        wibble /= wibble_decay
    corners -= tf.reduce_min(corners, axis=[1, 2], keepdims=True)
    return tf.math.divide_no_nan(corners, tf.reduce_max(corners, axis=[1, 2], keepdims=True))


def _middle(one, other):
    # of four at once, a graph takes the sum in another order
    return 0.5 * (one + other)


def _split(rows):
    """[N, h, 2 w] -> its even and its odd columns, [N, h, w] each: parts of complex numbers; slices take far longer."""
    pairs = tf.bitcast(tf.reshape(rows, [-1, rows.shape[1], rows.shape[2] // 2, 2]), tf.complex64)
    return tf.math.real(pairs), tf.math.imag(pairs)


def _interleaved(even, odd):
    """The inverse of `_split`."""
    return tf.reshape(tf.bitcast(tf.complex(even, odd), tf.float32), [-1, even.shape[1], 2 * even.shape[2]])


# Spatter

def _draw_spatter(draws, shape, *_):
    return {"normal": draws.normal(shape[:2])}


def _spatter(images, mean, deviation, sigma, threshold, strength, mud, *, normal):
    """Drops where smoothed noise exceeds a threshold: shining water is added, mud covers.

    `strength` is the share of the brightest water, or for mud the deviation in pixels that softens its rim.
    """
    layer = drops(normal, mean, deviation, sigma, threshold)
    if not mud:
        return wetted(images, layer, strength)
    cover = filters.gaussian_blur(tf.cast(layer > threshold, tf.float32), strength)
    cover = tf.where(cover < 0.8, 0.0, cover)
    return _one_or_three(images, lambda rgb: rgb * (1.0 - cover) + _colored(cover[..., 0], _MUD))


def drops(normal, mean, deviation, sigma, threshold):
    """Normal draws [N, H, W] -> a layer of drops, float32 [N, H, W, 1]."""
    layer = filters.gaussian_blur((mean + deviation * normal)[..., None], sigma)
    return tf.where(layer < threshold, 0.0, layer)


def wetted(images, layer, strength):
    """Images under a layer [N, H, W, 1] of water, whose brightest light has the share `strength`."""
    light = _colored(water(layer[..., 0]), [strength * value for value in _WATER])
    return _one_or_three(images, lambda rgb: rgb + light)


# Brightness

def _brighten(images, amount):
    """HSV value plus `amount`, clipped to [0, 1]; hue and saturation stay, so black becomes gray."""
    value = tf.reduce_max(images, axis=-1, keepdims=True)
    divisor = tf.maximum(value, 1e-6)  # below, a pixel counts as black
    return (images + (divisor - value)) * (tf.clip_by_value(value + amount, 0.0, 1.0) / divisor)


snow = Corruption("snow", _snow, _draw_snow)
frost = frost_from(None)
fog = Corruption("fog", _fog, _draw_fog)
spatter = Corruption("spatter", _spatter, _draw_spatter)
brightness = Corruption("brightness", _brighten)
