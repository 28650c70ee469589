"""Small sets of TensorFlow Datasets on disk."""

import itertools
import os

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


def write_files(folder, name, split, features, examples, lengths):
    """Writes the record files of a TFDS set in the order of `examples`, which TFDS itself would shuffle; `lengths`: examples per file."""
    os.makedirs(folder)
    examples = iter(examples)
    for number, length in enumerate(lengths):
        with tf.io.TFRecordWriter(os.path.join(folder, f"{name}-{split}.tfrecord-{number:05d}-of-{len(lengths):05d}")) as writer:
            for example in itertools.islice(examples, length):
                writer.write(features.serialize_example(example))
    split_info = tfds.core.SplitInfo(name=split, shard_lengths=lengths, num_bytes=1)
    tfds.folder_dataset.write_metadata(data_dir=folder, features=features, check_data=False, split_infos=[split_info])
