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

from tests.corruptions import bar_oracles, noise_blur_digital_oracles, weather_oracles
from tf_robust.corruptions import CORRUPTIONS
from tf_robust.corruptions.weather import frost_textures

ORACLES = {
    name: oracle
    for module in (noise_blur_digital_oracles, weather_oracles, bar_oracles)
    for name, oracle in vars(module).items()
    if name in CORRUPTIONS
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


def apply(corruption, images, numbers, drawn):
    """Returns the images of a `Corruption` and of its oracle with the same draws, neither clipped."""
    oracle = ORACLES[corruption.name]
    if corruption.name == "frost":
        oracle = functools.partial(oracle, textures=[np.asarray(ice, float) for ice in frost_textures(None)])
    values = {key: np.asarray(value) for key, value in drawn.items()}
    expected = [oracle(image.astype(float), numbers, **{key: rows[i] for key, rows in values.items()}) for i, image in enumerate(images)]
    return corruption.apply(tf.constant(images), *numbers, **drawn).numpy(), np.array(expected)


def apply_drawn(corruption, images, severity, constants_set="cifar", seed=0):
    """Returns the same with the constants of a severity and the draws of a seed."""
    numbers = corruption.constants(severity, images.shape[1:], constants_set)
    return apply(corruption, images, numbers, corruption.drawn(images, severity, seed, None, numbers))


def differences(corruption, images, severity, constants_set, seed=0):
    """Returns the difference of a `Corruption` and its oracle, both clipped, in gray levels [N, H, W, C]."""
    ours, expected = apply_drawn(corruption, images, severity, constants_set, seed)
    return 255 * (np.clip(ours, 0, 1) - np.clip(expected, 0, 1))


def summary(difference):
    """Returns (fraction of pixels within 1 in every channel, mean absolute difference, largest), in gray levels."""
    error = abs(difference)
    return (error.max(axis=-1) <= 1 + 1e-3).mean(), error.mean(), error.max()
