"""Small images, data and networks on which the contracts are checked."""

import contextlib
import random
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import sklearn.datasets

from tf_robust import data
from tf_robust.models import heads


def expect(condition: object, expected: str, received: object) -> None:
    """Raises AssertionError unless a condition holds."""
    if not condition:
        raise AssertionError(f"Expected {expected}. Received: {received}")


@contextlib.contextmanager
def without_global_draws(name: str) -> Iterator[None]:
    """Context that raises AssertionError if code in it draws from the global generator of NumPy or Python."""
    before = _states()
    yield
    changed = [generator for generator, state in _states().items() if state != before[generator]]
    expect(not changed, f"draws of {name} that are functions of its seeds alone", f"draws from the global generator of {changed}")


def _states():
    _, keys, position, *_ = np.random.get_state()
    return {"NumPy": (keys.tobytes(), position), "Python": random.getstate()}


def tiny_network(shape: Sequence[int] = (16, 16, 1), classes: int = 3, batch_norm: bool = True, seed: int = 0) -> keras.Model:
    """Returns a network of one convolution, which is stage 1, batch norm, and a dense embedding of 8."""
    keras.utils.set_random_seed(seed)
    images, x = heads.normalized_input(shape, 0.5, 0.5, 8, "tiny")
    x = keras.layers.Conv2D(4, 3, strides=2, activation="softplus", name="stage_1")(x)
    if batch_norm:
        x = keras.layers.BatchNormalization(momentum=0.9)(x)
    embedding = keras.layers.Dense(8, activation="tanh")(keras.layers.Flatten()(x))
    return heads.classifier(images, embedding, classes, "tiny")


def tiny_source(count: int = 48, shape: Sequence[int] = (16, 16, 1), classes: int = 3, split: str = "train") -> data.ArraySource:
    """Returns a source of noisy images whose class is the brightest third."""
    draws = np.random.RandomState(count)
    labels = np.arange(count) % classes
    images = draws.randint(0, 120, size=(count, *shape))
    for image, label in zip(images, labels):
        image[label * shape[0] // classes : (label + 1) * shape[0] // classes] += 120
    return data.ArraySource.of("tiny", split, images.astype(np.uint8), labels, map(str, range(classes)))


def photographs() -> np.ndarray:
    """Returns float32 [4, 24, 20, 3], pieces of photographs, multiples of 1 / 255."""
    china, flower = (image[::6, ::6] for image in sklearn.datasets.load_sample_images().images)
    pieces = [china[5:29, 10:30], china[30:54, 60:80], flower[20:44, 40:60], flower[40:64, 10:30]]
    return np.stack(pieces).astype(np.float32) / 255
