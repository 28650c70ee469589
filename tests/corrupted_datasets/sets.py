"""A small clean set and its expected corrupted images, computed without the code under test."""

import os

import numpy as np
import tensorflow as tf

from tf_robust import corrupted_datasets, corruptions, data
from tf_robust.corrupted_datasets import job
from tf_robust.corrupted_datasets.job import Generator

NAMES = ("gaussian_noise", "impulse_noise")


def clean(count=11, shape=(9, 7, 3), classes=4):
    """Returns a source of random images and labels."""
    random = np.random.RandomState(3)
    images, labels = random.randint(0, 256, (count, *shape)).astype(np.uint8), random.randint(0, classes, count)
    return data.ArraySource.of("clean", "test", images, labels, [f"class {i}" for i in range(classes)])


def expected(source, name, severity, protocol="cifar_c", seed=5):
    """Returns the corrupted images in one batch: uint8 [N, H, W, C]."""
    images, positions = source.images / np.float32(255), source.positions
    corrupted = corruptions.corrupt(images, name, severity, seed, positions, protocol=protocol)
    return np.round(255 * np.asarray(corrupted)).astype(np.uint8)


def content(folder):
    """Returns {path: bytes} of all files of a folder."""
    contents = {}
    for base, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(base, name), "rb") as file:
                contents[os.path.relpath(os.path.join(base, name), folder)] = file.read()
    return contents


def quick(monkeypatch):
    """Replaces the slow parts: corruptions, by one that depends on the same arguments, and the image sheet."""

    def traced(self, name, severity):
        def levels(images, positions):
            shift = positions[:, None, None, None] * 7 + severity * 31 + len(name) + self.corruption_config.seed
            return images + tf.cast(shift, tf.uint8)

        return levels

    def drawn(path, folder, names, clean, title):
        with open(path, "w") as file:
            file.write(f"{names} {clean.tolist()} {title}")

    monkeypatch.setattr(Generator, "_traced", traced)
    monkeypatch.setattr(job, "draw_sheet", drawn)


def write(source, folder, layout="npy", names=NAMES, protocol="cifar_c", seed=5, **options):
    options = corrupted_datasets.WriterConfig(**{"dataset_format": layout, "corruptions": names, "chunk_size": 4, **options})
    return corrupted_datasets.write(lambda: source, folder, options, corrupted_datasets.CorruptionConfig(seed=seed, protocol=protocol))
