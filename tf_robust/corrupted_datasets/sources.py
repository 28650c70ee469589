"""One corruption at one severity, read from files on demand: a CIFAR-C array, or TFDS's records."""

import dataclasses
import functools
import math
import os
import typing

import numpy as np
import tensorflow as tf

from tf_robust.data.source import PARALLEL_READS, Source, digest
from tf_robust.data.tfds_sets import RecordFiles
from tf_robust.ops import image_ops

RECORD_FRAME = 16  # bytes of a TFRecord around each example


def array_header(path: str) -> tuple[tuple[int, ...], np.dtype, int]:
    """Returns (shape, type, byte at which the values begin) of a .npy file of rows of numbers, after checking that the file is complete."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"Expected a .npy file. Not found: {path}")
    with open(path, "rb") as file:
        try:
            version = np.lib.format.read_magic(file)  # 3.0 differs from 2.0 in the names of fields
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, columns_first, dtype = read(file)
        except Exception as error:  # NumPy reads the header as Python: TypeError, SyntaxError, tokenize.TokenError...
            raise ValueError(f"Expected a .npy file. Received: {path}, damaged ({error}). Try: create or download it again") from error
        offset = file.tell()
    if dtype.hasobject or columns_first or not shape or min(shape) < 0:
        order = "columns" if columns_first else "rows"
        raise ValueError(f"Expected rows of numbers. Received: {path} of shape {shape}, type {dtype}, {order} first")
    expected, size = offset + math.prod(shape) * dtype.itemsize, os.path.getsize(path)
    if size != expected:
        raise ValueError(
            f"Expected {expected:,} bytes in {path} by its header (shape {shape}, {dtype}). "
            f"Received: {size:,}, an incomplete file. Try: create or download it again"
        )
    return shape, dtype, offset


@dataclasses.dataclass(frozen=True)
class ArrayFileSource(Source):
    """One severity of a CIFAR-C .npy file: rows `first`..`first` + N - 1 of the file `path`, and labels, int64 [N]."""

    random_access = True
    path: str = ""
    first: int = 0
    labels: np.ndarray = None  # fields after optional ones need a default

    def _rows(self, positions):
        """Reads rows of the file, which is mapped anew for each call: no page stays resident."""
        return np.array(np.load(self.path, mmap_mode="r", allow_pickle=False)[self.first + positions])

    def ordered(self, batch_size: int) -> tf.data.Dataset:
        def batches():
            for start in range(0, self.size, batch_size):
                cut = slice(start, start + batch_size)
                yield self._rows(self.positions[cut]), self.labels[cut]

        specs = (tf.TensorSpec([None, *self.image_shape], tf.uint8), tf.TensorSpec([None], tf.int64))
        return tf.data.Dataset.from_generator(batches, output_signature=specs)

    def subset(self, indices: np.ndarray) -> typing.Self:
        return dataclasses.replace(self, size=len(indices), kept=self.positions[indices], labels=self.labels[indices])

    def fingerprint(self) -> str:
        return digest(self._rows(self.positions), self.labels)


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
