"""A small clean set, and what a corrupted set of it must hold, made without the code under test."""

import os

import numpy as np
import tensorflow as tf

from tf_robust import corrupted_datasets, corruptions, data
from tf_robust.corrupted_datasets import preview
from tf_robust.corrupted_datasets.generator import Generator

NAMES = ("gaussian_noise", "impulse_noise")


def clean(count=11, shape=(9, 7, 3), classes=4):
    """Images of no kind of symmetry, labels in no order."""
    random = np.random.RandomState(3)
    images, labels = random.randint(0, 256, (count, *shape)).astype(np.uint8), random.randint(0, classes, count)
    return data.ArraySource.of("clean", "test", images, labels, [f"class {i}" for i in range(classes)])


def expected(source, name, severity, protocol="cifar_c", seed=5):
    """uint8 [N, H, W, C]: the corrupted images, all at once."""
    images, positions = source.images / np.float32(255), source.positions
    corrupted = corruptions.corrupt(images, name, severity, seed, positions, protocol=protocol)
    return np.round(255 * np.asarray(corrupted)).astype(np.uint8)


def content(folder):
    """{path: bytes} of all files of a folder."""
    found = {}
    for base, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(base, name), "rb") as file:
                found[os.path.relpath(os.path.join(base, name), folder)] = file.read()
    return found


def quick(monkeypatch):
    """Replaces what takes long: the corruptions, by one that depends on all that they depend on, and the sheet."""
    def traced(self, name, severity):
        def levels(images, positions):
            shift = positions[:, None, None, None] * 7 + severity * 31 + len(name) + self.corruption_config.seed
            return images + tf.cast(shift, tf.uint8)
        return levels

    def drawn(path, folder, names, clean, title):
        with open(path, "w") as file:
            file.write(f"{names} {clean.tolist()} {title}")
    monkeypatch.setattr(Generator, "_traced", traced)
    monkeypatch.setattr(preview, "draw", drawn)


def write(source, folder, layout="npy", names=NAMES, protocol="cifar_c", seed=5, **options):
    options = corrupted_datasets.WriterConfig(**{"dataset_format": layout, "corruptions": names, "chunk_size": 4, **options})
    return corrupted_datasets.write(lambda: source, folder, options, corrupted_datasets.CorruptionConfig(seed=seed, protocol=protocol))
