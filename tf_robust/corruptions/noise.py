"""Gaussian, shot, impulse and speckle noise (Hendrycks and Dietterich, 2019). Images are float32 in [0, 1], NHWC."""

import functools

import numpy as np
import scipy.stats
import tensorflow as tf

from tf_robust.corruptions.corruption import Corruption
from tf_robust.ops.lookup import lookup

_LEVELS, _QUANTILES = 256, 2**14


def _draw_normal(draws, shape, *_):
    return {"normal": draws.normal(shape)}


def _draw_uniform(draws, shape, *_):
    return {"uniform": draws.uniform(shape)}


def _add_gaussian(images, std, *, normal):
    """Adds Gaussian noise of a standard deviation to each value."""
    return images + std * normal


def _shot(images, photons, *, uniform):
    """Replaces each value by a Poisson count of photons."""
    return poisson(images, photons, uniform)


def poisson(images: tf.Tensor, photons: float, uniform: tf.Tensor) -> tf.Tensor:
    """Returns Poisson(images * photons) / photons, by the quantile at `uniform` of each gray level's distribution.

    Images are rounded to 256 gray levels, quantiles to 1/16,384.

    Args:
        images: float32 in [0, 1].
        photons: expected count of a white pixel.
        uniform: float32 in [0, 1), of the shape of `images`.
    """
    table = tf.constant(poisson_quantiles(photons).ravel())
    levels = tf.cast(images * (_LEVELS - 1) + 0.5, tf.int32)
    cells = tf.cast(uniform * _QUANTILES, tf.int32)
    return tf.cast(lookup(table, levels * _QUANTILES + cells), tf.float32) * (1.0 / photons)


@functools.lru_cache(maxsize=32)
def poisson_quantiles(photons: float) -> np.ndarray:
    """Returns the number of photons at each gray level and quantile, [256, 16384]; uint8 if they fit: gathers twice as fast."""
    rates = np.arange(_LEVELS)[:, None] * (photons / (_LEVELS - 1))
    counts = np.arange(int(photons + 8 * np.sqrt(photons)) + 8)
    midpoints = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    below = scipy.stats.poisson.cdf(counts[None], rates)
    return np.stack([np.searchsorted(row, midpoints) for row in below]).astype(np.uint8 if len(counts) <= 256 else np.int16)


def _impulse(images, amount, *, uniform):
    """Sets values of single channels: a fraction `amount` / 2 becomes 0 and as many become 1, after clipping."""
    salt, pepper = (tf.cast(chosen, tf.float32) for chosen in (uniform >= 1.0 - amount / 2, uniform < amount / 2))
    return images + (salt - pepper)  # twice as fast as tf.where with numbers


def _speckle(images, std, *, normal):
    """Adds Gaussian noise that is proportional to each value."""
    return images + images * (std * normal)


gaussian_noise = Corruption("gaussian_noise", _add_gaussian, _draw_normal)
shot_noise = Corruption("shot_noise", _shot, _draw_uniform, in_tiles=True)
impulse_noise = Corruption("impulse_noise", _impulse, _draw_uniform)
speckle_noise = Corruption("speckle_noise", _speckle, _draw_normal)
