"""Small sets of TensorFlow Datasets on disk."""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

FIRST = {"train": 0, "validation": 100, "test": 200}  # the number of the first image


def write(root, name, sizes, *, label="label", ramp=0):
    """Writes a TFDS set of 8x8 images: image i has the value i, increasing by `ramp` per pixel, and label i % 2."""
    features = tfds.features.FeaturesDict(
        {"image": tfds.features.Image(shape=(8, 8, 3)), label: tfds.features.ClassLabel(names=["even", "odd"])}
    )

    def examples(split):
        values = np.arange(sizes[split]) + FIRST[split]
        images = values[:, None, None, None] + ramp * np.arange(64).reshape(8, 8, 1) + np.zeros(3, int)
        return tf.data.Dataset.from_tensor_slices({"image": images.astype(np.uint8), label: values % 2})

    tfds.dataset_builders.store_as_tfds_dataset(
        name=name, version="1.0.0", features=features, split_datasets={s: examples(s) for s in sizes}, data_dir=root
    )
