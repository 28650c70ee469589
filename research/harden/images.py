"""Writes train.npz, validation.npz and test.npz of a data set, the splits that `tf-robust harden` uses with the same flags.

    python -m research.harden.images --data=cifar10 --data_dir=DIR --output=images/cifar10

Plain scripts train on train.npz alone, so that the validation and test images of `harden` are new to the models.
"""

import os

import numpy as np
from absl import app, flags

from tf_robust.data import sources
from tf_robust.utils.files import atomic_folder

VALIDATION_FRACTION = 0.2


def write_images(folder: str, name: str, data_dir: str, examples: int = 0) -> None:
    """Writes `images`, uint8 [N, H, W, C], and `labels`, int64 [N], of each split.

    Args:
        folder: to write.
        name: of the data set.
        data_dir: folder of the TFDS data sets.
        examples: number of training images, stratified; 0: all.
    """
    with atomic_folder(folder) as temporary:
        os.makedirs(temporary)
        for split in sources.SPLITS:
            kept = examples if split == "train" else 0
            source = sources.open_source(name, split, data_dir, validation_fraction=VALIDATION_FRACTION, examples=kept)
            images, labels = source.read_range(0, len(source))
            np.savez(os.path.join(temporary, f"{split}.npz"), images=images, labels=labels)


def main(_) -> None:
    write_images(flags.FLAGS.output, flags.FLAGS.data, flags.FLAGS.data_dir, flags.FLAGS.examples)


if __name__ == "__main__":
    flags.DEFINE_string("data", "", "name of the data set.")
    flags.DEFINE_string("data_dir", "", "folder of the TFDS data sets.")
    flags.DEFINE_string("output", "", "folder to write.")
    flags.DEFINE_integer("examples", 0, "number of training images, stratified; 0: all.")
    app.run(main)
