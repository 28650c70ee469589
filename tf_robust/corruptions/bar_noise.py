"""Corruptions of C-bar that add or blend noise (Mintun et al., "On Interaction Between Augmentations and Corruptions in Natural
Corruption Robustness", 2021). Images are float32 in [0, 1], NHWC.

`level` is the strength on the authors' scale, 0 to 10. Lengths are fractions of the image's side, the geometric mean of height and width.
The authors spell two names `cocentric_sine_waves` and `single_frequency_greyscale`.
"""

import functools
import math

import numpy as np
import tensorflow as tf

from tf_robust.corruptions.corruption import Corruption
from tf_robust.corruptions.severities import side_of
from tf_robust.ops.color import in_color

_TURN = 2 * math.pi
_GRADIENTS = 256
_OCTAVES = (1, 2, 4, 8, 16)


def pixel_grid(height: int, width: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the rows [H, 1] and columns [1, W] of the pixels, float32."""
    return tf.range(height, dtype=tf.float32)[:, None], tf.range(width, dtype=tf.float32)[None]


def per_image(values: tf.Tensor) -> tf.Tensor:
    """Reshapes one number per image, [N], to [N, 1, 1]."""
    return values[:, None, None]


# Waves


def _draw_wave(draws, *_):
    return {"frequencies": draws.uniform((2,), -1.0, 1.0), "order": draws.uniform(), "phase": draws.uniform((), 0.0, _TURN)}


def _single_frequency(images, level, *, frequencies, order, phase):
    """Adds a gray plane wave. The absolute frequency along one axis, up to half a turn per pixel, is a limit for the other axis."""
    rows, columns = pixel_grid(*images.shape[1:3])
    higher = math.pi * frequencies[:, 0]
    lower = tf.abs(higher) * frequencies[:, 1]
    down, right = tf.where(order < 0.5, higher, lower), tf.where(order < 0.5, lower, higher)
    wave = tf.sin(per_image(down) * rows + (per_image(right) * columns + per_image(phase)))
    return images + (level / 10 * 196 / 255) * wave[..., None]


def _draw_rings(draws, *_):
    return {
        "center": draws.uniform((2,)),
        "petals": draws.uniform((), 0.0, 10.0),
        "amplitude": draws.uniform((), 0.0, 0.1),
        "width": draws.uniform((), 0.0, 0.1),
    }


def _concentric_sine_waves(images, level, *, center, petals, amplitude, width):
    """Adds gray rings about a point: a sawtooth of the distance, to which a sine of the angle is added."""
    side = side_of(*images.shape[1:3])
    rows, columns = (tf.cast(positions, tf.float64) for positions in pixel_grid(*images.shape[1:3]))  # narrow rings enlarge rounding
    center, petals, amplitude, width = (tf.cast(values, tf.float64) for values in (center, petals, amplitude, width))
    down = rows - per_image(center[:, 0] * images.shape[1])
    right = columns - per_image(center[:, 1] * images.shape[2])
    waves = tf.sin(tf.atan2(right, down) * per_image(petals)) * per_image(side * amplitude)
    rings = (tf.sqrt(down**2 + right**2) + waves) / per_image(side * width)
    return images + (level / 10 * 128 / 255) * tf.cast(rings - tf.floor(rings) - 0.5, tf.float32)[..., None]


# Plasma


def _draw_plasma(draws, *_):
    return {
        "time": draws.uniform((), 0.0, 6 * math.pi),
        "iterations": draws.integers((), 4, 7),
        "sharpness": draws.uniform((), 0.5, 1.0),
        "scale": draws.uniform((), 0.075, 0.2),
    }


def _plasma(images, level, *, time, iterations, sharpness, scale):
    """Blends the image with colored plasma, whose coordinates are shifted by sines of one another, with growing frequency.

    In the authors' code each step multiplies a phase, which begins at 0 and so stays 0; it is left out here.
    """
    rows, columns = pixel_grid(*images.shape[1:3])
    unit = per_image(side_of(*images.shape[1:3]) * scale)
    x, y = columns / unit + 0.0 * rows, rows / unit + 0.0 * columns
    time, damping = per_image(time), per_image(2.25 - sharpness)
    frequency, slowness, divisor = 1.0, 1.0, tf.ones_like(damping)
    for step in range(6):
        active = tf.cast(step < per_image(iterations), tf.float32) / divisor
        right = active * tf.cos(frequency * y + time / slowness)
        down = active * tf.sin(frequency * x + time / slowness)
        x, y = x + (right - 0.3 * down), y + (down + 0.3 * right)
        frequency, slowness, divisor = 1.93 * frequency, 1.15 * slowness, divisor * damping
    plasma = tf.stack([tf.sin(x - time), tf.sin(0.5 * (x + y + tf.sin(time))), tf.sin(y + time)], axis=-1)
    amount = level / 10 * 64 / 255
    return in_color(images, lambda rgb: (1.0 - amount) * rgb + amount * plasma)


# Perlin noise


def _draw_perlin(draws, *_):
    return {"gradients": draws.uniform((_GRADIENTS, 2), -1.0, 1.0), "order": draws.uniform((_GRADIENTS,))}


def _perlin(images, level, *, gradients, order):
    """Blends the image with turbulence: absolute values of five octaves of gradient noise (Perlin, 1985), from a seventh of the side on.

    Each row of the lattice has the same 256 gradients, from another one on.

    Args:
        gradients: [N, 256, 2], down and right; their directions are used.
        order: [N, 256], whose order gives the first gradient of each row.
    """
    height, width = images.shape[1:3]
    cell = side_of(height, width) / 7
    gradients /= tf.norm(gradients, axis=2, keepdims=True)
    count, across = (int((side - 1) / cell * _OCTAVES[-1]) + 2 for side in (height, width))
    first = tf.gather(tf.argsort(order, axis=1), np.arange(count) % _GRADIENTS, axis=1)
    lattice = tf.gather(gradients, (first[:, :, None] + tf.range(across)) % _GRADIENTS, batch_dims=1)  # [N, count, across, 2]
    down, right = tf.unstack(lattice, axis=3)
    turbulence = 0.0
    for octave in _OCTAVES:
        rows, row_slopes = _lattice_weights(height, cell / octave)
        columns, column_slopes = _lattice_weights(width, cell / octave)
        top, left = rows.shape[1], columns.shape[1]
        noise = _both_axes(row_slopes, down[:, :top, :left], columns) + _both_axes(rows, right[:, :top, :left], column_slopes)
        turbulence += tf.abs(1.5 * noise) / octave
    alpha = level / 10 * 0.5
    return (1.0 - alpha) * images + alpha * tf.clip_by_value(0.5 * turbulence + 0.5, 0.0, 1.0)[..., None]


@functools.lru_cache(maxsize=64)
def _lattice_weights(side, cell):
    """Returns matrices [side, lattice points]: the weight of each point in each pixel, and the weight times the pixel's distance."""
    positions = np.arange(side) / cell
    before = np.floor(positions).astype(int)
    fraction = positions - before
    smooth = fraction**2 * (3 - 2 * fraction)
    weights, slopes = np.zeros([2, side, before[-1] + 2])
    pixels = np.arange(side)
    weights[pixels, before], weights[pixels, before + 1] = 1 - smooth, smooth
    slopes[pixels, before], slopes[pixels, before + 1] = (1 - smooth) * fraction, smooth * (fraction - 1)
    return weights, slopes


def _both_axes(rows, planes, columns):
    """Returns rows X columns^T of each plane X, [N, A, B], with NumPy matrices [H, A] and [W, B]: [N, H, W]."""
    return tf.constant(rows[None], tf.float32) @ planes @ tf.constant(columns.T[None], tf.float32)


# Noise with a spectrum


def _draw_phase(draws, shape, *_):
    return {"phases": draws.uniform((1, (shape[0] * shape[1] + 1) // 2), 0.0, _TURN)}


def _draw_phases(draws, shape, *_):
    return {"phases": draws.uniform((shape[2], (shape[0] * shape[1] + 1) // 2), 0.0, _TURN)}


def _blue_noise_sample(images, level, *, phases):
    """Blackens the pixels in which blue noise, whose amplitude is proportional to the frequency, is below a threshold."""
    noise = spectral_noise(phases, cycles(*images.shape[1:3]))
    return images * tf.cast(noise > level / 10 * 3.0 - 2.5, tf.float32)


def _brownish(images, level, *, phases):
    """Adds noise whose amplitude at k cycles per image is proportional to 1 / (k² + 1), to each channel its own."""
    return images + (level / 10 * 64 / 255) * spectral_noise(phases, 1 / (cycles(*images.shape[1:3]) ** 2 + 1))


def cycles(height: int, width: int) -> np.ndarray:
    """Returns the frequency of each term of a two-dimensional Fourier transform, in cycles per side, float64 [H, W]."""
    side = side_of(height, width)
    return np.hypot(*np.meshgrid(side * np.fft.fftfreq(height), side * np.fft.fftfreq(width), indexing="ij"))


def spectral_noise(phases: tf.Tensor, amplitudes: np.ndarray) -> tf.Tensor:
    """Returns noise with a given spectrum, of standard deviation 1 in each image and channel.

    It is the real part of a Fourier sum. As in the authors' code, the second half of the phases, ordered by frequency, repeats the first
    half backwards: terms of opposite frequency have other phases, so the amplitudes of the real part are random.

    Args:
        phases: float32 [N, C, ceil(H W / 2)], in radians.
        amplitudes: float [H, W], in the order of the Fourier transform.

    Returns:
        float32 [N, H, W, C]
    """
    height, width = amplitudes.shape
    phases = tf.concat([phases, phases[:, :, ::-1][:, :, (height * width) % 2 :]], axis=2)
    phases = tf.signal.fftshift(tf.reshape(phases, [-1, phases.shape[1], height, width]), axes=(2, 3))
    amplitudes = tf.constant(amplitudes, tf.float32)
    terms = tf.complex(amplitudes * tf.cos(phases), amplitudes * tf.sin(phases))
    noise = tf.math.real(tf.signal.ifft2d(terms))
    return tf.transpose(noise / tf.math.reduce_std(noise, axis=[2, 3], keepdims=True), [0, 2, 3, 1])


single_frequency_grayscale = Corruption("single_frequency_grayscale", _single_frequency, _draw_wave)
concentric_sine_waves = Corruption("concentric_sine_waves", _concentric_sine_waves, _draw_rings)
plasma_noise = Corruption("plasma_noise", _plasma, _draw_plasma)
perlin_noise = Corruption("perlin_noise", _perlin, _draw_perlin)
blue_noise_sample = Corruption("blue_noise_sample", _blue_noise_sample, _draw_phase)
brownish_noise = Corruption("brownish_noise", _brownish, _draw_phases)
