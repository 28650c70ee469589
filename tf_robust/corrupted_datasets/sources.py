"""Sources of one corruption at one severity, read from files on demand: a CIFAR-C array, or TFDS's records."""

import dataclasses
import functools
import typing

import numpy as np
import tensorflow as tf

from tf_robust.corrupted_datasets.npy_files import rows
from tf_robust.data.source import PARALLEL_READS, Source, digest
from tf_robust.data.tfds_sets import RecordFiles
from tf_robust.ops import image_ops


@dataclasses.dataclass(frozen=True)
class ArrayFileSource(Source):
    """One severity of a CIFAR-C .npy file: rows `first`..`first` + N - 1, read on demand.

    Attributes:
        path: of the file.
        first: row of the first example.
        labels: int64 [N].
    """

    random_access = True
    path: str = ""
    first: int = 0
    labels: np.ndarray = None  # fields after optional ones need a default

    def ordered(self, batch_size: int) -> tf.data.Dataset:
        def batches():
            for start in range(0, self.size, batch_size):
                cut = slice(start, start + batch_size)
                yield rows(self.path, self.first + self.positions[cut]), self.labels[cut]

        return tf.data.Dataset.from_generator(
            batches, output_signature=(tf.TensorSpec([None, *self.image_shape], tf.uint8), tf.TensorSpec([None], tf.int64))
        )

    def subset(self, indices: np.ndarray) -> typing.Self:
        return dataclasses.replace(self, size=len(indices), kept=self.positions[indices], labels=self.labels[indices])

    def fingerprint(self) -> str:
        return digest(rows(self.path, self.first + self.positions), self.labels)


@dataclasses.dataclass(frozen=True)
class RecordFileSource(RecordFiles):
    """TFRecord files of TFDS. JPEG is decoded exactly as by Pillow, which is not TensorFlow's default."""

    random_access = True

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """Labels, int64 [N], read without decoding images."""
        return self._labels_of(self._records())

    def ordered(self, batch_size: int) -> tf.data.Dataset:
        def example(_, record):
            fields = self._fields(record)
            image = image_ops.decode(fields["image"], self.image_shape[-1])
            return tf.ensure_shape(image, self.image_shape), tf.cast(fields["label"], tf.int64)

        return self._records().map(example, PARALLEL_READS, deterministic=True).batch(batch_size)

    def subset(self, indices: np.ndarray) -> typing.Self:
        return dataclasses.replace(self, size=len(indices), kept=self.positions[indices])

    def _records(self):
        """Returns a Dataset of (position, record) of the kept examples in their order; in another than the files', from memory."""
        count = self.builder.info.splits[self.tfds_split].num_examples
        if self.kept is None:
            return self._range(0, count)
        first = int(self.kept[0])
        if np.array_equal(self.kept, np.arange(first, first + self.size)):
            return self._range(first, first + self.size)
        records = self._range(0, count)
        mask = np.zeros(count, bool)
        mask[self.kept] = True
        mask = tf.constant(mask)
        records = records.filter(lambda position, _: mask[position])
        if np.all(np.diff(self.kept) > 0):
            return records
        found = dict(records.as_numpy_iterator())
        return tf.data.Dataset.from_tensor_slices((self.kept, np.array([found[position] for position in self.kept], object)))
