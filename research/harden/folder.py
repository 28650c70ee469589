"""Writes a folder of PNG images, train/CLASS, validation/CLASS and test/CLASS, as a user of an image folder has.

    python -m research.harden.folder --data_dir=DIR --output=photos

The images are of CIFAR-10, resized to 64 pixels by Pillow's bicubic filter: 12,000 of its training images, 2,000 of them for
validation, and 2,000 of its test images.
"""

import os

import numpy as np
import PIL.Image
from absl import app, flags

from research.harden.images import VALIDATION_FRACTION
from tf_robust import data
from tf_robust.data.source import Source
from tf_robust.utils.files import atomic_folder

SIZE = 64
SPLITS = {"train": 10_000, "validation": 2000, "test": 2000}


def write_folder(folder: str, data_dir: str, splits: dict[str, int]) -> None:
    """Writes images of CIFAR-10 into one subfolder per split and class.

    Args:
        folder: to write.
        data_dir: folder of the TFDS data sets.
        splits: number of images in each split, stratified.
    """
    with atomic_folder(folder) as temporary:
        for split, count in splits.items():
            source = data.open_source("cifar10", split, data_dir, validation_fraction=VALIDATION_FRACTION, examples=count)
            write_split(os.path.join(temporary, split), source)


def write_split(folder: str, source: Source) -> None:
    """Writes the images of a source as CLASS/POSITION.png, at `SIZE` pixels."""
    images, labels = source.read_range(0, len(source))
    for name in source.class_names:
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    for image, label, position in zip(images, labels, source.positions):
        path = os.path.join(folder, source.class_names[label], f"{position:05d}.png")
        PIL.Image.fromarray(np.asarray(image)).resize((SIZE, SIZE), PIL.Image.Resampling.BICUBIC).save(path)


def main(_) -> None:
    write_folder(flags.FLAGS.output, flags.FLAGS.data_dir, SPLITS)


if __name__ == "__main__":
    flags.DEFINE_string("data_dir", "", "folder of the TFDS data sets.")
    flags.DEFINE_string("output", "", "folder to write.")
    app.run(main)
