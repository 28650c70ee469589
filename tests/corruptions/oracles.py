"""The public generator of the common corruptions, one image at a time, in NumPy, SciPy and Pillow.

Written for the tests alone and from the construction of the originals, not from `tf_robust.corruptions`. An oracle is
(image, constants, **drawn) -> image: float64 [H, W, C] in [0, 1], C = 1 or 3, the constants of one severity as a tuple,
and the random inputs of this image, without the first axis. The result is not clipped. The originals' truncation to
uint8 between steps is omitted, except inside spatter's water, where integral gray levels are part of the construction.

This file lists the oracles and compares a corruption with its oracle; the oracles themselves are in
noise_blur_digital_oracles.py, weather_oracles.py and bar_oracles.py.
"""

import functools

import numpy as np
import PIL.Image
import sklearn.datasets
import tensorflow as tf

from tests.corruptions.bar_oracles import (
    blue_noise_sample,
    brownish_noise,
    caustic_refraction,
    checkerboard_cutout,
    circular_motion_blur,
    concentric_sine_waves,
    inverse_sparkles,
    lines,
    perlin_noise,
    pinch_and_twirl,
    plasma_noise,
    ripple,
    single_frequency_grayscale,
    sparkles,
    transverse_chromatic_aberration,
)
from tests.corruptions.noise_blur_digital_oracles import (
    contrast,
    defocus_blur,
    elastic_transform,
    gaussian_blur,
    gaussian_noise,
    glass_blur,
    impulse_noise,
    jpeg_compression,
    motion_blur,
    pixelate,
    saturate,
    shot_noise,
    speckle_noise,
    zoom_blur,
)
from tests.corruptions.weather_oracles import brightness, fog, frost, snow, spatter

ORACLES = {
    oracle.__name__: oracle
    for oracle in (
        gaussian_noise,
        shot_noise,
        impulse_noise,
        defocus_blur,
        glass_blur,
        motion_blur,
        zoom_blur,
        snow,
        frost,
        fog,
        brightness,
        contrast,
        elastic_transform,
        pixelate,
        jpeg_compression,
        speckle_noise,
        gaussian_blur,
        spatter,
        saturate,
        blue_noise_sample,
        brownish_noise,
        caustic_refraction,
        checkerboard_cutout,
        circular_motion_blur,
        concentric_sine_waves,
        inverse_sparkles,
        lines,
        perlin_noise,
        pinch_and_twirl,
        plasma_noise,
        ripple,
        single_frequency_grayscale,
        sparkles,
        transverse_chromatic_aberration,
    )
}


def sample_images(height, width, channels, count):
    """Returns float32 [count, height, width, channels] at integral gray levels: one synthetic image, then windows of photographs."""
    random = np.random.RandomState(height + width)
    photographs = [PIL.Image.fromarray(image) for image in sklearn.datasets.load_sample_images().images]
    samples = [synthetic_image(height, width)]
    while len(samples) < count:
        photograph = photographs[len(samples) % 2]
        side = random.uniform(0.4, 1) * min(photograph.width / width, photograph.height / height)
        left, top = random.rand(2) * (photograph.width - side * width, photograph.height - side * height)
        samples.append(photograph.resize((width, height), PIL.Image.Resampling.BOX, (left, top, left + side * width, top + side * height)))
    return np.stack(
        [
            np.asarray(sample_image.convert("L" if channels == 1 else "RGB"), np.float32).reshape(height, width, channels) / 255
            for sample_image in samples
        ]
    )


def synthetic_image(height, width):
    """Returns color ramps with a black square, a white disk and stripes: flat areas and sharp edges, rare in photographs."""
    row, column = np.mgrid[:height, :width] / np.array([height, width])[:, None, None]
    sample_image = np.stack([row, column, 1 - row], axis=-1)
    sample_image[(abs(row - 0.25) < 0.15) & (abs(column - 0.25) < 0.15)] = 0
    sample_image[(row - 0.7) ** 2 + (column - 0.3) ** 2 < 0.03] = 1
    sample_image[(column > 0.6) & (row > 0.5) & (np.arange(width) % 2 == 0)] = 0.5
    return PIL.Image.fromarray(np.round(255 * sample_image).astype(np.uint8))


def differences(corruption, images, severity, constants_set, seed=0):
    """Returns the difference of a `Corruption` and its oracle, both clipped, in gray levels [N, H, W, C]."""
    numbers = corruption.constants(severity, images.shape[1:], constants_set)
    drawn = corruption.drawn(images, severity, seed, None, numbers)
    ours = np.clip(corruption.apply(tf.constant(images), *numbers, **drawn), 0, 1)
    oracle = ORACLES[corruption.name]
    if corruption.name == "frost":
        from tf_robust.corruptions.weather import frost_textures

        oracle = functools.partial(oracle, textures=[np.asarray(ice, float) for ice in frost_textures(None)])
    drawn = {key: np.asarray(values) for key, values in drawn.items()}
    expected = [oracle(image.astype(float), numbers, **{key: values[i] for key, values in drawn.items()}) for i, image in enumerate(images)]
    return 255 * (ours - np.clip(expected, 0, 1))


def summary(difference):
    """Returns (fraction of pixels within 1 in every channel, mean absolute difference, largest), in gray levels."""
    error = abs(difference)
    return (error.max(axis=-1) <= 1 + 1e-3).mean(), error.mean(), error.max()
