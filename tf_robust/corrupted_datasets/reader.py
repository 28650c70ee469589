"""Reading corrupted sets: folders of CIFAR-C's .npy files, TFDS's corrupted sets, and those that `job` wrote.

`open_corrupted` returns one corruption at one severity as a `Source`, read from files on demand; `available` lists the corruptions. Names
are the benchmark's; TFDS has other names for two of CIFAR-10-C's, and CIFAR-10-C-bar spells one in its own way.
"""

import dataclasses
import functools
import math
import os
import pathlib
import re
import typing
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_robust.data import tfds_sets
from tf_robust.data.source import PARALLEL_READS, Source, check_labels, digest
from tf_robust.data.subsets import stratified_order
from tf_robust.data.tfds_sets import RecordFiles
from tf_robust.metrics import SEVERITIES
from tf_robust.ops import image_ops
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import read_json

RECORD_FRAME = 16  # bytes of a TFRecord around each example
TFDS_SETS = ("cifar10_corrupted", "imagenet2012_corrupted")
_TFDS_NAMES = {"glass_blur": "frosted_glass_blur", "elastic_transform": "elastic"}
_FILE_NAMES = {"transverse_chromatic_abberation": "transverse_chromatic_aberration"}  # in CIFAR-10-C-bar
_FOLDER_NAMES = {tfds_name: name for name, tfds_name in _TFDS_NAMES.items()}
_CARD = {
    "type": "object",
    "required": ["data", "seed"],
    "properties": {
        "data": {"type": "object", "required": ["fingerprint"], "properties": {"fingerprint": {"type": "string"}}},
        "seed": {"type": "integer"},
    },
}


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


CorruptedSource: typing.TypeAlias = ArrayFileSource | RecordFileSource


def open_corrupted(where: str, source: Source | None, corruption: str, severity: int, *, data_dir: str | None = None) -> CorruptedSource:
    """Opens one corruption at one severity, as a `Source` in a fixed order.

    Args:
        where: a folder of CIFAR-C's .npy files, a folder of NAME_SEVERITY folders (as written by `tf-robust corrupt` or TFDS),
            or `cifar10_corrupted` or `imagenet2012_corrupted`, sets of TFDS.
        source: the clean images, which the corrupted ones must match in number, shape and labels, and whose subset and class
            mask apply; or None. Sets from elsewhere may hold the images in another order: then only the number of
            images in each class is compared, and a subset is drawn anew.
        corruption: name of the benchmark.
        severity: 1 to 5.
        data_dir: of a TFDS set, as in `open_source`.

    Raises:
        FileNotFoundError: the folder, corruption or severity is missing; the message lists the available ones.
        ValueError: damaged files, or those of other images.
    """
    where = os.path.expanduser(where)
    folder, members = _members(where, data_dir)
    if (corruption, severity) not in members:
        advice, names = "", dict.fromkeys(name for name, _ in members)
        if folder != where:
            name = _TFDS_NAMES.get(corruption, corruption) if where == "cifar10_corrupted" else corruption
            advice = f". Try: `tfds build {where}/{name}_{severity}` on a machine with a network, or --data_dir with its data"
        severities = {name: " ".join(str(severity) for severity in SEVERITIES if (name, severity) in members) for name in names}
        listed = ", ".join(f"{name} {text}" for name, text in severities.items()).replace("1 2 3 4 5", "1-5")
        raise FileNotFoundError(f"Expected {corruption!r} at severity {severity} in {folder}. Received: {listed or 'none'}{advice}")
    corrupted = members[corruption, severity]()
    if source is None:
        return corrupted
    corrupted = _match(corrupted, source, card_of(where))
    check_images(where, source)
    return corrupted


def available(where: str, data_dir: str | None = None) -> list[tuple[str, int]]:
    """Returns the corruptions of a corrupted set: [(name, severity)], sorted. Arguments as in `open_corrupted`."""
    return [*_members(os.path.expanduser(where), data_dir)[1]]


def check_images(where: str, source: Source) -> None:
    """Raises ValueError for a set that `tf-robust corrupt` wrote of other images than a source's, where its card can tell.

    With mapped labels the fingerprint of a source is another than that of the images that were corrupted.
    """
    card = card_of(where)
    if not card or source.label_columns or card["data"]["fingerprint"] in source.fingerprints():
        return
    written, split = card["data"].get("name", "other images"), card["data"].get("split")
    raise ValueError(
        f"Expected a corrupted set of the images of {source.name} ({source.split}) in {where}. Received: one of "
        f"{written}{f' ({split})' if split else ''}, of other content or size. Try: tf-robust corrupt with these images and options, "
        "into another folder"
    )


def card_of(where: str) -> dict:
    """Returns the card.json that `tf-robust corrupt` wrote; {} for sets from elsewhere."""
    path = os.path.join(os.path.expanduser(where), "card.json")
    return read_json(path, _CARD) if os.path.exists(path) else {}


def _members(where: str, data_dir: str | None) -> tuple[str, dict[tuple[str, int], Callable[[], CorruptedSource]]]:
    """Returns the folder of a corrupted set, and {(corruption, severity): function that opens it}, sorted."""
    folder = where
    if not os.path.isdir(where):
        if os.sep in where or where.startswith("."):
            raise FileNotFoundError(f"Expected a folder of a corrupted set. Not found: {where}")
        if where not in TFDS_SETS:
            raise unknown("corrupted set (neither a folder nor a set of TFDS)", where, TFDS_SETS)
        import tensorflow_datasets as tfds

        folder = os.path.join(os.path.expanduser(data_dir or tfds.core.constants.DATA_DIR), where)
    members: dict[tuple[str, int], Callable[[], CorruptedSource]] = {}
    for path in pathlib.Path(folder).glob("*.npy") if folder == where else ():
        if path.name != "labels.npy":
            name = _FILE_NAMES.get(path.stem, path.stem)
            members |= {(name, severity): functools.partial(_open_array, str(path), name, severity) for severity in SEVERITIES}
    if not members:
        versions = [path.parent for path in pathlib.Path(folder).glob("*_[1-5]/*.*.*/dataset_info.json")]
        versions = [path for path in versions if re.fullmatch(r"\d+\.\d+\.\d+", path.name)]
        for path in sorted(versions, key=lambda path: [*map(int, path.name.split("."))]):  # the newest replaces others
            name, _, severity = path.parent.name.rpartition("_")
            name = _FOLDER_NAMES.get(name, name)
            members[name, int(severity)] = functools.partial(_open_records, where, str(path), name, int(severity))
    if not members and folder == where:
        inside = sorted(os.listdir(where))
        raise FileNotFoundError(
            f"Expected NAME.npy files (CIFAR-10-C) or NAME_SEVERITY folders (TFDS) in {where}. "
            f"Received: {', '.join(inside[:8]) or 'nothing'}{', ...' if len(inside) > 8 else ''}"
        )
    return folder, dict(sorted(members.items(), key=lambda member: member[0]))


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


def _open_array(path, corruption, severity):
    folder = os.path.dirname(path)
    labels_path = os.path.join(folder, "labels.npy")
    shape, dtype, _ = array_header(path)
    if dtype != np.uint8 or len(shape) != 4 or shape[0] % 5 or not shape[0] or shape[3] not in (1, 3):
        raise ValueError(f"Expected uint8 images [5 * N, H, W, 1 or 3] in {path}. Received: {dtype} {shape}")
    labels_shape, labels_type, _ = array_header(labels_path)
    labels = np.load(labels_path, allow_pickle=False).squeeze()
    if not np.issubdtype(labels_type, np.integer) or labels.shape != shape[:1]:
        raise ValueError(
            f"Expected {shape[0]} integer labels in {labels_path}, one per image of {path}. Received: {labels_type} {labels_shape}"
        )
    size = shape[0] // 5
    first = (severity - 1) * size
    labels = labels[first : first + size].astype(np.int64)
    class_names = tuple(map(str, range(int(labels.max()) + 1)))
    check_labels(labels, max(len(class_names), 1), labels_path)
    name = f"{folder}: {corruption} {severity}"
    return ArrayFileSource(name, "test", class_names, shape[1:], size, path=path, first=first, labels=labels)


def _open_records(where, folder, corruption, severity):
    import tensorflow_datasets as tfds

    name = f"{where}: {corruption} {severity}"
    try:
        builder = tfds.builder_from_directory(folder)
    except (*tfds_sets.DAMAGED, ValueError) as error:
        raise tfds_sets.damaged(folder, error) from error
    splits, features = builder.info.splits, builder.info.features
    split = "test" if "test" in splits else "validation" if "validation" in splits else next(iter(splits), None)
    usable = "image" in features and "label" in features and hasattr(features["label"], "names")
    if split is None or not usable or None in features["image"].shape:
        raise ValueError(
            f"Expected a set with images of one size ('image') and a 'label' in {name}. Received: "
            f"{', '.join(f'{key} {value.shape}' for key, value in sorted(features.items()))}; "
            f"splits: {', '.join(splits) or 'none'}"
        )
    info = splits[split]
    corrupted = RecordFileSource(name, split, tuple(features["label"].names), features["image"].shape, info.num_examples, builder, split)
    missing = [path for path in corrupted.files if not os.path.exists(path)]
    if missing:
        raise FileNotFoundError(f"Expected {len(corrupted.files)} files in {name}. Not found: {missing[0]} ({len(missing)} missing)")
    expected, size = info.num_bytes + RECORD_FRAME * info.num_examples, sum(map(os.path.getsize, corrupted.files))
    if size != expected and card_of(where):  # sets from elsewhere may count their bytes differently
        raise ValueError(
            f"Expected {expected:,} bytes of TFRecord files in {folder}. Received: {size:,}, an incomplete file. "
            "Try: delete the folder and create or download it again"
        )
    return corrupted


def _match(corrupted, source, card):
    """Returns the corrupted images of `source`, with its classes and its subset, after checking that they match."""
    if corrupted.image_shape != tuple(source.image_shape):
        raise ValueError(
            f"Expected images {tuple(source.image_shape)} in {corrupted.name}, as in {source.name}. Received: {corrupted.image_shape}"
        )
    if corrupted.num_classes > source.num_classes:
        raise ValueError(
            f"Expected at most the {source.num_classes} classes of {source.name} in {corrupted.name}. Received: {corrupted.num_classes}"
        )
    fingerprint = card["data"]["fingerprint"] if card else ""
    if source.paths is not None and source.label_columns and isinstance(corrupted, ArrayFileSource) and fingerprint != source.fingerprint():
        folders = list(source.label_columns)  # as written without a label map
        own = dataclasses.replace(
            source,  # `labels` is a field of a FileSource
            labels=tuple(folders.index(label) for label in source.read_labels()),
            class_names=tuple(source.class_names[column] for column in folders),
            label_columns=None,
        )
        matched = _match(corrupted, own, card)
        return dataclasses.replace(
            matched, labels=np.take(folders, matched.labels), class_names=source.class_names, class_mask=source.class_mask
        )
    corrupted = dataclasses.replace(corrupted, class_names=source.class_names, class_mask=source.class_mask)
    if fingerprint == source.fingerprint():
        return corrupted
    if source.kept is None and len(corrupted) != len(source) or len(corrupted) <= source.positions.max():
        expected = len(source) if source.kept is None else f"at least {source.positions.max() + 1}"
        raise ValueError(f"Expected {expected} images, of {source.name} ({source.split}), in {corrupted.name}. Received: {len(corrupted)}")
    return _subset(corrupted, source, same_order=bool(card)) if source.random_access else corrupted


def _subset(corrupted, source, same_order):
    """Returns the part of the corrupted images that shows the images of `source`, by their labels."""
    complete, clean_labels, labels = source.kept is None, np.asarray(source.labels), corrupted.labels
    if np.array_equal(labels[source.positions], clean_labels):
        return corrupted if complete else corrupted.subset(source.positions)
    counts = [np.bincount(values, minlength=source.num_classes) for values in (clean_labels, labels)]
    if same_order or complete and not np.array_equal(*counts):
        index = int(np.flatnonzero(labels[source.positions] != clean_labels)[0])
        raise ValueError(
            f"Expected the labels of {source.name} ({source.split}) in {corrupted.name}. Received: label "
            f"{labels[source.positions][index]} for {clean_labels[index]} at index {index}: other images"
        )
    if complete:
        return corrupted
    chosen = np.sort(stratified_order(labels)[: len(source)])
    if np.any(np.diff(source.positions) < 0):  # as in test-time adaptation: class by class as in the source
        by_class, ranks = np.argsort(labels[chosen], kind="stable"), np.argsort(np.argsort(clean_labels, kind="stable"))
        chosen = chosen[by_class][ranks]
    return corrupted.subset(chosen)
