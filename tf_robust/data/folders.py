"""Image files of any size.

`folder:DIR`: in one subfolder per class, optionally below train/, validation/ (or val/) and test/. `csv:FILE`: in a table with the columns
path, label and, optionally, a group.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import typing
import unicodedata
from collections.abc import Sequence

import numpy as np
import pandas
import PIL.Image
import tensorflow as tf

from tf_robust.data.arrays import class_indices
from tf_robust.data.fitting import USUAL_SIZE, Fit
from tf_robust.data.kinds import ReadOptions, path_of
from tf_robust.data.source import PARALLEL_READS, Arrays, Source, digest, example_seed, normalize_name, read_subset
from tf_robust.data.subsets import without_validation
from tf_robust.ops import image_ops
from tf_robust.utils.files import path_text

_READ_FOR_FINGERPRINT = 100  # files
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
_UNREAD = (".webp", ".tif", ".tiff", ".avif", ".heic", ".jp2", ".jxl")


@dataclasses.dataclass(frozen=True)
class FileSource(Source):
    """Image files in class folders. Those of `image_shape` are unchanged, others are resized to it by `fit`.

    Attributes:
        paths: of the image files.
        labels: one per file.
    """

    random_access = sorted_by_class = True
    paths: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()

    @property
    def cuts_windows(self) -> bool:
        return self.fit is not None

    def _read(self, path):
        return image_ops.decode(tf.io.read_file(path), self.image_shape[-1])

    def ordered(self, batch_size: int) -> tf.data.Dataset:
        return self._examples(tf.range(self.size), self._fitted).map(lambda image, label, _: (image, label)).batch(batch_size)

    def _fitted(self, image, *_):
        return tf.ensure_shape(image, self.image_shape) if self.fit is None else self.fit.levels(image)

    def epoch(
        self, seed: int, epoch: int | tf.Tensor, batch_size: int, skip_batches: int | tf.Tensor = 0, windows: Sequence[float] = ()
    ) -> tf.data.Dataset:
        skipped = skip_batches * batch_size

        def crop(image, position, i):  # a balanced epoch has copies of images, each with a crop of its own
            number = tf.cast(skipped, tf.int64) + position if self.balanced else i
            return image_ops.random_crops(image, *self.image_shape[:2], example_seed(seed, epoch, number), windows)

        order = self.epoch_order(seed, epoch)[skipped:]
        return self._examples(order, crop if windows or self.varying_size else self._fitted, windows).batch(batch_size, drop_remainder=True)

    def _examples(self, order, crop, windows=()):
        """Returns a Dataset of (uint8 [H, W, C], label, number) of the files `order`, int [N].

        `crop(image, position in order, number)` crops or resizes them.

        TensorFlow does not report which file it could not decode. Undecodable files are therefore skipped and detected by their
        missing position: each example carries its position, and an end marker follows the last.
        """
        paths, labels = tf.constant([*map(os.fsencode, self.paths)], tf.string), tf.constant(self.labels, tf.int64)
        count = tf.size(order, tf.int64)

        def example(position, i):
            return position, tf.cast(tf.round(crop(self._read(paths[i]), position, i)), tf.uint8), labels[i], tf.cast(i, tf.int64)

        def check(position, fields):
            tf.debugging.Assert(
                fields[0] == position,
                [
                    tf.strings.join(
                        [
                            "Expected an image that can be decoded. Received: ",
                            tf.strings.unicode_transcode(paths[order[position]], "UTF-8", "UTF-8"),  # messages are UTF-8
                            " (missing, empty, truncated, or not a PNG, JPEG, GIF or uncompressed BMP image). "
                            "Try: convert, replace or delete it",
                        ]
                    )
                ],
            )
            return fields[1:]

        shape = (len(windows), *self.image_shape) if windows else self.image_shape
        end = tf.data.Dataset.from_tensors((count, np.zeros(shape, np.uint8), np.int64(0), np.int64(0)))
        examples = tf.data.Dataset.from_tensor_slices(order).enumerate().map(example, PARALLEL_READS, deterministic=True)
        examples = examples.ignore_errors().concatenate(end).enumerate().take(count).map(check)
        return examples.apply(tf.data.experimental.assert_cardinality(count))

    def subset(self, indices: np.ndarray) -> typing.Self:
        return dataclasses.replace(
            self,
            size=len(indices),
            kept=self.positions[indices],
            superset=self,
            paths=tuple(self.paths[i] for i in indices),
            labels=tuple(self.labels[i] for i in indices),
        )

    def read_range(self, first: int, last: int) -> Arrays:
        return read_subset(self, first, last)

    def fingerprint(self) -> str:
        """Covers names, sizes in bytes and labels, and the contents of 100 files: reading all would take as long as an evaluation."""
        names = [f"{path_text('/'.join(path.split(os.sep)[-2:]))} {os.path.getsize(path)}" for path in self.paths]
        contents = hashlib.sha256()
        for path in self.paths[:: -(-len(self.paths) // _READ_FOR_FINGERPRINT) or 1]:
            with open(path, "rb") as file:
                contents.update(file.read())
        return digest("\n".join(names), contents.hexdigest(), np.asarray(self.labels), self._changed())


def open_folder(name: str, split: str, options: ReadOptions) -> Source:
    """Opens `folder:DIR` as a `FileSource`.

    If DIR has train/ (and test/, perhaps validation/ or val/), those are the splits, and train/ names the classes; without
    validation/ a fraction of train/ is used. With test/ alone, test/ names the classes. With neither, all images of DIR are read.
    An empty subfolder is a class without images: without it, the classes after it would have other numbers.

    Args:
        name: as in `sources.open_source`.
        split: as in `sources.open_source`; `all` for a folder without splits, which has no others.
        options: without `file_size`, the images have the size of the training files if they all have one, else 224x224.

    Raises:
        FileNotFoundError: a folder or its images are missing.
        ValueError: a class that the training set does not have, or an invalid fraction.
    """
    root = path_of(name)
    if not os.path.isdir(root):
        raise FileNotFoundError(f"Expected a folder of images, one subfolder per class. Not found: {root}")
    train = os.path.join(root, "train")
    divided = has_splits(name)
    tested_only = not os.path.isdir(train) and os.path.isdir(os.path.join(root, "test")) and split == "test"
    if divided and not os.path.isdir(train) and not tested_only:
        raise FileNotFoundError(f"Expected {train} next to the other splits. Not found")
    first = os.path.join(root, "test") if tested_only else train if divided else root
    classes = [*_class_folders(first)]
    folder_of_split = _validation_folder(root) if split == "validation" else os.path.join(root, split)
    has_own_validation = bool(_validation_folder(root))
    base = folder_of_split if divided and (split == "test" or has_own_validation) else first
    files = _files(split, base, classes)
    height, width = options.file_size or common_size(files if base == first else _files("train", first, classes)) or USUAL_SIZE
    own = common_size(files)
    paths, labels = zip(*files)
    source = FileSource(
        name,
        split,
        tuple(classes),
        (height, width, 3),
        len(files),
        paths,
        labels,
        fit=None if own == (height, width) else Fit(height, width, options.image_fit, varying=own is None),
    )
    return without_validation(source, split, options.validation_fraction) if base == train and not has_own_validation else source


def open_csv(name: str, split: str, options: ReadOptions) -> FileSource:
    """Opens all images of `csv:FILE`. Relative paths start from the folder of FILE.

    Args:
        name: csv:FILE.
        split: `all`.
        options: without `file_size`, the images have the size of the files if they all have one, else 224x224.

    Raises:
        FileNotFoundError: there is no such file, or an image is missing.
        ValueError: a column or a label is missing, or files of another kind.
    """
    path = path_of(name)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"Expected a CSV file with the columns path and label. Not found: {path}")
    try:
        table = pandas.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig")
    except (ValueError, pandas.errors.ParserError) as error:
        raise ValueError(f"Expected a CSV file with the columns path and label. Received: {path} ({error})") from error
    if missing := {"path", "label"} - set(table.columns):
        raise ValueError(
            f"Expected the columns path and label in {path}. Received: {', '.join(table.columns)}. Missing: {', '.join(missing)}"
        )
    for column in table.columns.drop("path"):
        table[column] = table[column].str.normalize("NFC")
    table["label"] = table["label"].str.strip()
    if not len(table):
        raise ValueError(f"Expected images in {path}. Received: no lines below the header")
    if (table["label"] == "").any():
        raise ValueError(f"Expected a label in every line of {path}. Received: none in line {int(np.argmax(table['label'] == '')) + 2}")
    paths = [_existing(os.path.join(os.path.dirname(path), os.path.expanduser(file))) for file in table["path"]]
    _check_files(paths, path)
    labels, class_names = class_indices(list(table["label"]), name, (), options.num_classes)
    files = tuple(zip(paths, labels.tolist()))
    own = common_size(files)
    height, width = options.file_size or own or USUAL_SIZE
    return FileSource(
        name,
        split,
        class_names,
        (height, width, 3),
        len(files),
        tuple(paths),
        tuple(labels.tolist()),
        columns={column: table[column].to_numpy(str) for column in table.columns if column not in ("path", "label")},
        fit=None if own == (height, width) else Fit(height, width, options.image_fit, varying=own is None),
    )


def has_splits(name: str) -> bool:
    """Returns whether a folder has subfolders train, validation or test."""
    root = path_of(name)
    return os.path.isdir(root) and bool({"train", "val", "validation", "test"} & set(_subfolders(root)))


def has_training(name: str) -> bool:
    """Returns whether a folder has training images: it may have test/ alone."""
    return not has_splits(name) or os.path.isdir(os.path.join(path_of(name), "train"))


def has_validation(name: str, data_dir: str | None, validation_fraction: float) -> bool:
    """Returns whether a folder with splits has one for validation, or a part of train/."""
    del data_dir
    return validation_fraction > 0.0 or bool(_validation_folder(path_of(name)))


def _validation_folder(root):
    """The subfolder of validation images; empty: there is none."""
    folders = (os.path.join(root, name) for name in ("validation", "val"))
    return next((folder for folder in folders if os.path.isdir(folder)), "")


def _subfolders(folder):
    return sorted(d for d in os.listdir(folder) if os.path.isdir(os.path.join(folder, d)) and not d.startswith("."))


def _class_folders(folder):
    """{name of a class: name of its subfolder}, in the order of the subfolders."""
    folders = _subfolders(folder)
    classes = {normalize_name(name): name for name in folders}
    if hidden := [name for name in folders if name not in classes.values()]:
        raise ValueError(
            f"Expected class folders of different names in {folder}. Received: two named {normalize_name(hidden[0])!r}, written with "
            "composed and decomposed letters (Unicode NFC and NFD). Try: move the files of one into the other"
        )
    return classes


def _files(split, base, classes):
    """Returns ((path, label), ...) of the image files in the class folders of `base`."""
    if not os.path.isdir(base):
        raise FileNotFoundError(f"Expected {base}, with one subfolder per class, for the split {split!r}. Not found")
    folders = _class_folders(base)
    unknown = folders.keys() - set(classes)
    if unknown:
        raise ValueError(f"Expected only the classes of the training set in {base}. Received also: {sorted(unknown)}")
    images_by_class = {name: _images(os.path.join(base, folders[name])) for name in classes if name in folders}
    if not images_by_class:
        advice = f"Try: data=folder:{os.path.dirname(base) or '.'}, if {os.path.basename(base)} is a class." if _images(base) else ""
        holds = "image files, but no subfolders" if advice else "none"
        raise FileNotFoundError(
            f"Expected subfolders of {base}, one per class, with image files ({', '.join(SUFFIXES)}) in them. "
            f"Received: {holds}. {advice}".strip()
        )
    without = [name for name, images in images_by_class.items() if not images]
    below = [name for name in without if _subfolders(os.path.join(base, folders[name]))]
    other = [name for name in without if any(file.lower().endswith(_UNREAD) for file in os.listdir(os.path.join(base, folders[name])))]
    empty = without if len(without) == len(images_by_class) else [name for name in without if name in {*below, *other}]
    if empty:
        advice = f"Try: data=folder:{os.path.join(base, below[0])}, if its subfolders are the classes." if below else "Add images."
        advice = f"Try: convert the files of {other[0]!r} to PNG or JPEG." if other else advice
        raise FileNotFoundError(
            f"Expected image files ({', '.join(SUFFIXES)}) in every class folder of {base}. Received: none in "
            f"{', '.join(empty[:5])}{', ...' if len(empty) > 5 else ''} "
            f"({len(empty)} of {len(images_by_class)}). {advice}"
        )
    return tuple(
        (os.path.join(base, folders[name], file), classes.index(name)) for name, images in images_by_class.items() for file in images
    )


def _images(folder):
    return sorted(file for file in os.listdir(folder) if file.lower().endswith(SUFFIXES) and not file.startswith("."))


@functools.lru_cache(maxsize=8)
def median_size(paths: Sequence[str], most: int = 200) -> tuple[int, int] | None:
    """Returns the median (height, width) of image files, of evenly chosen ones if there are more than `most`; None: none is readable."""
    sizes = []
    for path in paths[:: -(-len(paths) // most)] if paths else ():
        with contextlib.suppress(OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError):
            with PIL.Image.open(path) as image:
                sizes.append(image.size[::-1])
    return (int(np.median([height for height, _ in sizes])), int(np.median([width for _, width in sizes]))) if sizes else None


def unread_images(paths: Sequence[str]) -> list[str]:
    """Returns the images in class folders that are not read: of other formats, such as WebP, or in subfolders; and those beside them."""
    folders = sorted({os.path.dirname(path) for path in paths})
    found = [os.path.join(parent, file) for parent in sorted({os.path.dirname(folder) for folder in folders}) for file in _images(parent)]
    for folder in folders:
        found += [os.path.join(folder, file) for file in sorted(os.listdir(folder)) if file.lower().endswith(_UNREAD)]
        for below in _subfolders(folder):
            for parent, _, files in os.walk(os.path.join(folder, below)):
                found += [os.path.join(parent, file) for file in sorted(files) if file.lower().endswith((*SUFFIXES, *_UNREAD))]
    return found


def common_size(files: tuple[tuple[str, int], ...]) -> tuple[int, int] | None:
    """Returns (height, width) of all image files, (path, label), from their headers; None if they differ. Unreadable files are ignored."""
    common = None
    for path, _ in files:
        try:
            with PIL.Image.open(path) as image:
                size = image.size[::-1]
        except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError):  # reported when it is decoded
            continue
        if size != (common or size):
            return None
        common = size
    return common


def _existing(path):
    """A path as it is, or with composed (NFC) or decomposed (NFD) letters if only that exists: macOS and other systems differ."""
    forms = (path, *(unicodedata.normalize(form, path) for form in ("NFC", "NFD")))
    return next(filter(os.path.isfile, forms), path)


def _check_files(paths, table):
    absent = [(line, path) for line, path in enumerate(paths, start=2) if not os.path.isfile(path)]
    if absent:
        line, path = absent[0]
        raise FileNotFoundError(f"Expected the images of {table}. Not found: {path} (line {line}), {len(absent)} of {len(paths)} in all")
    other = [(line, path) for line, path in enumerate(paths, start=2) if not path.lower().endswith(SUFFIXES)]
    if other:
        raise ValueError(f"Expected image files ({', '.join(SUFFIXES)}) in {table}. Received: {other[0][1]} in line {other[0][0]}")
