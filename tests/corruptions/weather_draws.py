"""Images, random inputs and checks of distributions for the tests of the weather corruptions."""

import numpy as np
import pytest
import tensorflow as tf

from tf_robust.corruptions import weather

RANDOM = np.random.RandomState(0)
COLOR = RANDOM.rand(4, 18, 26, 3).astype(np.float32)
GRAY = RANDOM.rand(4, 26, 18, 1).astype(np.float32)
LUMA = [0.299, 0.587, 0.114]
CORRUPTIONS = {name: getattr(weather, name) for name in ("snow", "frost", "fog", "spatter", "brightness")}
every = pytest.mark.parametrize("corruption", CORRUPTIONS.values(), ids=CORRUPTIONS)
both = pytest.mark.parametrize("images", [COLOR, GRAY], ids=["color", "gray"])


def drawn(corruption, images, severity, constants_set="cifar", seed=5):
    """Returns (constants, {name: array}) as the corruption draws them for `images`."""
    constants = corruption.constants(severity, images.shape[1:], constants_set)
    draws = corruption.drawn(tf.constant(images), severity, seed, None, constants)
    return constants, {name: np.asarray(values) for name, values in draws.items()}


def clip_to_channels(image, channels):
    """Clips a corrupted image of three channels; with one channel, returns its luma."""
    image = np.clip(image, 0, 1)
    return image if channels == 3 else (image @ LUMA)[..., None]


def check_normal(values):
    values = values.astype(float)
    assert abs(values.mean()) < 0.03 and abs(values.std() - 1) < 0.03
    assert abs((values**3).mean()) < 0.1 and abs((values**4).mean() - 3) < 0.2
    assert abs((values[1:] * values[:-1]).mean()) < 0.03  # adjacent images


def check_uniform(values, low, high):
    unit = (values.astype(float) - low) / (high - low)
    assert unit.min() >= 0 and unit.max() <= 1 and values.max() < high
    assert abs(unit.mean() - 0.5) < 0.015 and abs(unit.std() * np.sqrt(12) - 1) < 0.03
    assert abs(np.corrcoef(unit[1:].ravel(), unit[:-1].ravel())[0, 1]) < 0.04
