"""The files of a corrupted set: CIFAR-10-C's arrays, or TFDS's records.

The files themselves are the only record of progress. A unit is one file below `.writing/`, written atomically; a group (the
units of one final file or folder) is finished when all of them exist, by whichever process notices first. So a process may be
killed at any moment, and many may share the work.
"""

import abc
import contextlib
import dataclasses
import functools
import glob
import math
import os
import shutil
import typing
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from tf_robust.corrupted_datasets.reader import RECORD_FRAME, array_header
from tf_robust.metrics import SEVERITIES
from tf_robust.utils.files import atomic_file
from tf_robust.utils.locks import file_lock

VERSION = "1.0.0"
_JPEG_QUALITY = 85
_LABELS = "labels.npy"


class Unit(typing.NamedTuple):
    """One chunk of images under one corruption at one severity."""

    name: str
    severity: int
    chunk: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """The units of a corrupted set."""

    names: tuple[str, ...]  # of the corruptions
    size: int  # number of images of the clean set
    chunk_size: int  # images written at once
    image_shape: tuple[int, ...]  # (H, W, C)
    class_names: tuple[str, ...]  # one per label
    split: str  # of the clean set
    jpeg: bool  # images are stored as JPEG files, as in ImageNet-C

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk_size)

    def range_of(self, chunk: int) -> tuple[int, int]:
        """Returns (first, last + 1) of the images of a chunk."""
        return chunk * self.chunk_size, min(self.size, (chunk + 1) * self.chunk_size)

    def images(self, chunk: int) -> int:
        """Returns the number of images of a chunk."""
        return len(range(*self.range_of(chunk)))

    def values(self, units: Iterable[Unit]) -> int:
        """Returns pixels times channels of units: their bytes without compression."""
        return sum(self.images(unit.chunk) for unit in units) * math.prod(self.image_shape)

    def units(self) -> list[Unit]:
        """Returns all units, chunk by chunk, so that each chunk is read once."""
        return [Unit(name, severity, chunk) for chunk in range(self.chunks) for name in self.names for severity in SEVERITIES]

    def part(self, part: int, parts: int) -> list[Unit]:
        """Returns the units of one part of many, 1..parts: a range of `units`, so that few chunks are read by two parts."""
        units = self.units()
        return units[(part - 1) * len(units) // parts : part * len(units) // parts]


class Layout(abc.ABC):
    """The files of a `Plan` in a folder. Subclasses define the group of a unit, the file of a unit, and how a group is finished."""

    def __init__(self, folder: str, plan: Plan) -> None:
        self.folder, self.plan = folder, plan

    @abc.abstractmethod
    def group(self, name: str, severity: int) -> str:
        """Returns the name of the final file or folder of these units."""

    @abc.abstractmethod
    def path(self, unit: Unit) -> str:
        """Returns the path of a unit, below `.writing/`, until its group is finished."""

    @abc.abstractmethod
    def is_finished(self, group: str) -> bool:
        """Returns whether the final file or folder of a group exists."""

    @abc.abstractmethod
    def write(self, unit: Unit, levels: np.ndarray, labels: np.ndarray) -> None:
        """Writes one unit atomically: uint8 [n, H, W, C] and int64 [n]."""

    @abc.abstractmethod
    def _finish(self, group, paths):
        """Creates the final file or folder from the files of all its units."""

    def room(self, units: Sequence[Unit]) -> int:
        """Returns an upper bound of the bytes that these units and finishing their groups take; 0: unknown."""
        return 0

    def groups(self) -> list[str]:
        """Returns all groups."""
        return list(dict.fromkeys(self.group(unit.name, unit.severity) for unit in self.plan.units()))

    def unfinished(self, *names: str) -> str:
        """Returns a path below `.writing/`."""
        return os.path.join(self.folder, ".writing", *names)

    def missing(self, units: Iterable[Unit]) -> list[Unit]:
        """Returns the units that are not written yet."""
        finished = {group for group in self.groups() if self.is_finished(group)}
        return [unit for unit in units if self.group(unit.name, unit.severity) not in finished and not os.path.exists(self.path(unit))]

    def finish(self, group: str) -> bool:
        """Finishes a group if all its units are written. Returns whether it is finished."""
        with file_lock(self.unfinished("lock")):
            if not self.is_finished(group):
                units = sorted(unit for unit in self.plan.units() if self.group(unit.name, unit.severity) == group)
                paths = list(map(self.path, units))
                if not all(map(os.path.exists, paths)):
                    return False
                self._finish(group, paths)
            shutil.rmtree(self.unfinished(group), ignore_errors=True)
        return True

    def tidy(self) -> None:
        """Removes `.writing/` if it holds no unfinished units."""
        with file_lock(self.unfinished("lock")), contextlib.suppress(FileNotFoundError):  # another process may be faster
            if all(name.startswith("lock") for name in os.listdir(self.unfinished())):
                shutil.rmtree(self.unfinished(), ignore_errors=True)


class ArrayLayout(Layout):
    """CIFAR-10-C: NAME.npy, uint8 [5 * N, H, W, C], severity 1 first, and labels.npy, int64 [5 * N].

    As in the original, labels are repeated for each severity; readers of the original convert them to a 64-bit label tensor.
    """

    def group(self, name: str, severity: int) -> str:
        return f"{name}.npy"

    def path(self, unit: Unit) -> str:
        return self.unfinished(f"{unit.name}.npy", f"{unit.severity}-{unit.chunk:05d}.npy")

    def is_finished(self, group: str) -> bool:
        return all(os.path.exists(os.path.join(self.folder, name)) for name in (group, _LABELS))

    def write(self, unit: Unit, levels: np.ndarray, labels: np.ndarray) -> None:
        if not any(map(os.path.exists, (os.path.join(self.folder, _LABELS), self._labels_path(unit.chunk)))):
            _save(self._labels_path(unit.chunk), labels)
        _save(self.path(unit), levels)

    def _finish(self, group, paths):
        if not os.path.exists(os.path.join(self.folder, _LABELS)):
            parts = [np.load(self._labels_path(chunk)) for chunk in range(self.plan.chunks)]
            _save(os.path.join(self.folder, _LABELS), np.tile(np.concatenate(parts), len(SEVERITIES)))
        _join(os.path.join(self.folder, group), paths)
        shutil.rmtree(self.unfinished("labels"), ignore_errors=True)

    def room(self, units: Sequence[Unit]) -> int:
        """Counts the chunks, and one final file in addition to its chunks."""
        final = len(SEVERITIES) * self.plan.size * math.prod(self.plan.image_shape)
        return self.plan.values(units) + (0 if all(map(self.is_finished, self.groups())) else final)

    def _labels_path(self, chunk):
        return self.unfinished("labels", f"{chunk:05d}.npy")


def _save(path, array):
    with atomic_file(path, "wb") as file:
        np.save(file, array)


def _join(path, parts):
    """Writes one .npy file with the rows of many, without holding them in memory."""
    headers = [array_header(part) for part in parts]
    (_, *row), dtype, _ = headers[0]
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (sum(one[0][0] for one in headers), *row)}
    with atomic_file(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part, (_, _, offset) in zip(parts, headers):
            with open(part, "rb") as chunk:
                chunk.seek(offset)
                shutil.copyfileobj(chunk, file, 2**20)


class RecordLayout(Layout):
    """TFDS: a set of TFRecord files for each corruption and severity, NAME_SEVERITY/1.0.0/.

    Images are PNG, or JPEG of quality 85 where the storage protocol is ImageNet-C's: the file then implements that protocol.
    """

    def group(self, name: str, severity: int) -> str:
        return f"{name}_{severity}"

    def path(self, unit: Unit) -> str:
        group = self.group(unit.name, unit.severity)
        return self.unfinished(group, f"{group}-{self.plan.split}.tfrecord-{unit.chunk:05d}-of-{self.plan.chunks:05d}")

    def is_finished(self, group: str) -> bool:
        return os.path.isdir(os.path.join(self.folder, group, VERSION))

    def write(self, unit: Unit, levels: np.ndarray, labels: np.ndarray) -> None:
        images = _encoder(self.plan.jpeg)(levels).numpy()
        with atomic_file(self.path(unit), "wb") as file, tf.io.TFRecordWriter(file.name) as writer:
            for image, label in zip(images, labels):
                features = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString(deterministic=True))

    def _finish(self, group, paths):
        import tensorflow_datasets as tfds

        folder, final = self.unfinished(group), os.path.join(self.folder, group, VERSION)
        lengths = list(map(self.plan.images, range(self.plan.chunks)))
        num_bytes = sum(map(os.path.getsize, paths)) - RECORD_FRAME * self.plan.size
        split = tfds.core.SplitInfo(name=self.plan.split, shard_lengths=lengths, num_bytes=num_bytes)
        image = tfds.features.Image(shape=self.plan.image_shape, encoding_format="jpeg" if self.plan.jpeg else "png")
        features = tfds.features.FeaturesDict({"image": image, "label": tfds.features.ClassLabel(names=self.plan.class_names)})
        tfds.folder_dataset.write_metadata(
            data_dir=folder, features=features, split_infos=[split], version=VERSION, supervised_keys=("image", "label"), check_data=False
        )
        for leftover in glob.glob(os.path.join(glob.escape(folder), "*.writing-*")):  # of processes that were killed
            os.remove(leftover)
        for path in set(glob.glob(os.path.join(glob.escape(folder), "*"))) - set(paths):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        os.makedirs(os.path.dirname(final), exist_ok=True)
        os.rename(folder, final)


@functools.cache
def _encoder(jpeg):
    """Returns a function uint8 [N, H, W, C] -> bytes [N]."""
    encode = functools.partial(tf.io.encode_jpeg, quality=_JPEG_QUALITY) if jpeg else tf.io.encode_png
    return tf.function(functools.partial(tf.map_fn, encode, fn_output_signature=tf.string), reduce_retracing=True)
