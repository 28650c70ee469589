"""`folder:DIR`: image files of any size in one subfolder per class, optionally below train/, validation/ (or val/) and test/."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import typing
from collections.abc import Sequence

import numpy as np
import PIL.Image
import tensorflow as tf

from tf_robust.data.fitting import USUAL_SIZE, Fit
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


def open_folder(name: str, split: str, size: tuple[int, ...], fit: str, validation_fraction: float) -> Source:
    """Opens `folder:DIR` as a `FileSource`.

    If DIR has train/ (and test/, perhaps validation/ or val/), those are the splits, and train/ names the classes; without
    validation/ a fraction of train/ is used. With test/ alone, test/ names the classes. With neither, all images of DIR are read.
    An empty subfolder is a class without images: without it, the classes after it would have other numbers.

    Args:
        name: as in `sources.open_source`.
        split: as in `sources.open_source`; `all` for a folder without splits, which has no others.
        size: (height, width); empty: the size of the training files if they all have one, else 224x224.
        fit: of `fitting.FITS`, how files of another size are resized.
        validation_fraction: as in `sources.open_source`.

    Raises:
        FileNotFoundError: a folder or its images are missing.
        ValueError: a class that the training set does not have, or an invalid fraction.
    """
    root = os.path.expanduser(name.removeprefix("folder:"))
    if not os.path.isdir(root):
        raise FileNotFoundError(f"Expected a folder of images, one subfolder per class. Not found: {root}")
    train = os.path.join(root, "train")
    has_splits = not is_unsplit(name)
    tested_only = not os.path.isdir(train) and os.path.isdir(os.path.join(root, "test")) and split == "test"
    if has_splits and not os.path.isdir(train) and not tested_only:
        raise FileNotFoundError(f"Expected {train} next to the other splits. Not found")
    first = os.path.join(root, "test") if tested_only else train if has_splits else root
    classes = [*_class_folders(first)]
    folder_of_split = _validation_folder(root) if split == "validation" else os.path.join(root, split)
    base = folder_of_split if has_splits and (split == "test" or has_validation(name, 0.0)) else first
    files = _files(split, base, classes)
    height, width = size or common_size(files if base == first else _files("train", first, classes)) or USUAL_SIZE
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
        fit=None if own == (height, width) else Fit(height, width, fit, varying=own is None),
    )
    return without_validation(source, split, validation_fraction) if base == train and not has_validation(name, 0.0) else source


def is_unsplit(name: str) -> bool:
    """Returns whether a folder has no subfolders train, validation or test."""
    root = os.path.expanduser(name.removeprefix("folder:"))
    return os.path.isdir(root) and not {"train", "val", "validation", "test"} & set(_subfolders(root))


def has_validation(name: str, validation_fraction: float) -> bool:
    """Returns whether `open_folder(name, "validation", ...)` has examples."""
    root = os.path.expanduser(name.removeprefix("folder:"))
    return is_unsplit(name) or validation_fraction > 0.0 or bool(_validation_folder(root))


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
