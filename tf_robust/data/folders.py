"""Image files of any size.

`folder:DIR`: in one subfolder per class, optionally below train/, validation/ (or val/) and test/. `csv:FILE`: in a table with the columns
path, label and, optionally, a group. `with_stylized` adds stylized images to a training set: the joint training of Geirhos et al. (ICLR
2019), SIN + IN. An epoch covers both kinds in one common order.
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

from tf_robust.data.arrays import WHOLE, class_indices
from tf_robust.data.kinds import ReadOptions, path_of
from tf_robust.data.source import PARALLEL_READS, USUAL_SIZE, Fit, Source, digest, example_seed, list_some, normalize_name
from tf_robust.data.subsets import without_validation
from tf_robust.ops import image_ops
from tf_robust.utils.files import path_text

_READ_FOR_FINGERPRINT = 100  # files
_MEASURED = 200  # files whose median size is computed
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
_UNREAD = (".webp", ".tif", ".tiff", ".avif", ".heic", ".jp2", ".jxl")
_DAMAGED = (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError)  # on reading a header; reported when it is decoded


@dataclasses.dataclass(frozen=True)
class FileSource(Source):
    """Image files in class folders. Those of `image_shape` are unchanged, others are resized to it by `fit`."""

    random_access = sorted_by_class = True

    paths: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()

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
        """Returns a Dataset of (uint8 [H, W, C], label, number) of the files `order`, int [N]. crop: (image, position, number) -> image.

        TensorFlow does not report which file it could not decode. Undecodable files are therefore skipped and detected by their
        missing position: each example carries its position, and an end marker follows the last.
        """
        paths, labels = tf.constant([*map(os.fsencode, self.paths)], tf.string), tf.constant(self.labels, tf.int64)
        count = tf.size(order, tf.int64)

        @tf.autograph.experimental.do_not_convert  # nothing to convert, and the conversion takes longer than tracing
        def example(position, i):
            image = crop(image_ops.decode(tf.io.read_file(paths[i]), self.image_shape[-1]), position, i)
            return position, tf.cast(tf.round(image), tf.uint8), labels[i], tf.cast(i, tf.int64)

        @tf.autograph.experimental.do_not_convert
        def check(position, fields):
            path = tf.strings.unicode_transcode(paths[order[position]], "UTF-8", "UTF-8")  # messages are UTF-8
            reason = " (missing, empty, truncated, or not a PNG, JPEG, GIF or uncompressed BMP image). Try: convert, replace or delete it"
            message = tf.strings.join(["Expected an image that can be decoded. Received: ", path, reason])
            tf.debugging.Assert(fields[0] == position, [message])
            return fields[1:]

        shape = (len(windows), *self.image_shape) if windows else self.image_shape
        end = tf.data.Dataset.from_tensors((count, np.zeros(shape, np.uint8), np.int64(0), np.int64(0)))
        examples = tf.data.Dataset.from_tensor_slices(order).enumerate().map(example, PARALLEL_READS, deterministic=True)
        examples = examples.ignore_errors().concatenate(end).enumerate().take(count).map(check)
        return examples.apply(tf.data.experimental.assert_cardinality(count))

    def subset(self, indices: np.ndarray) -> typing.Self:
        return self._select(indices, paths=tuple(self.paths[i] for i in indices), labels=tuple(self.labels[i] for i in indices))

    def fingerprint(self) -> str:
        """Covers names, sizes in bytes and labels, and the contents of 100 files: reading all would take as long as an evaluation."""
        names = [f"{path_text('/'.join(path.split(os.sep)[-2:]))} {os.path.getsize(path)}" for path in self.paths]
        contents = hashlib.sha256()
        for path in self.paths[:: -(-len(self.paths) // _READ_FOR_FINGERPRINT) or 1]:
            with open(path, "rb") as file:
                contents.update(file.read())
        return digest("\n".join(names), contents.hexdigest(), np.asarray(self.labels), self._changed())


def splits(name: str) -> dict[str, str]:
    """Returns {split: its folder} of train/, validation/ (or val/) and test/ in `folder:DIR`; empty: DIR has no splits."""
    names = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}
    return {split: path for folder, split in names.items() if os.path.isdir(path := os.path.join(path_of(name), folder))}


def open_folder(name: str, split: str, options: ReadOptions) -> Source:
    """Opens `folder:DIR` as a `FileSource`; split `all` if it has no splits.

    If DIR has train/ (and test/, perhaps validation/ or val/), those are the splits, and train/ names the classes; without
    validation/ a fraction of train/ is used. With test/ alone, test/ names the classes. With neither, all images of DIR are read.
    An empty subfolder is a class without images: without it, the classes after it would have other numbers. Without `options.size`,
    the images have the size of the training files if they all have one, else 224x224.
    """
    root = path_of(name)
    if not os.path.isdir(root):
        raise FileNotFoundError(f"Expected a folder of images, one subfolder per class. Not found: {root}")
    folders = splits(name) or {WHOLE: root}
    if not {WHOLE, "train"} & folders.keys() and (split != "test" or "test" not in folders):
        raise FileNotFoundError(f"Expected {os.path.join(root, 'train')} next to the other splits. Not found")
    divided = split in ("train", "validation") and "train" in folders and "validation" not in folders
    base = folders.get("train" if divided else split, os.path.join(root, split))
    first = next(folders[one] for one in (WHOLE, "train", "test") if one in folders)  # names the classes
    classes = [*_class_folders(first)]
    files = _files(split, base, classes)
    usual = None
    if not options.size and base != first:
        usual = common_size([path for path, _ in _files("train", first, classes)]) or USUAL_SIZE
    source = _file_source(name, split, tuple(classes), files, options, usual)
    return without_validation(source, split, options.validation_fraction) if divided else source


def open_csv(name: str, split: str, options: ReadOptions) -> FileSource:
    """Opens all images of `csv:FILE`. Relative paths start from the folder of FILE.

    Without `options.size`, the images have the size of the files if they all have one, else 224x224.
    """
    path = path_of(name)
    try:
        table = pandas.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig")
    except ValueError as error:  # pandas.errors.ParserError is one
        raise ValueError(f"Expected a CSV file with the columns path and label. Received: {path} ({error})") from error
    if not {"path", "label"} <= {*table.columns}:
        raise ValueError(f"Expected the columns path and label in {path}. Received: {', '.join(table.columns)}")
    if not len(table):
        raise ValueError(f"Expected images in {path}. Received: no lines below the header")
    for column in table.columns.drop("path"):
        table[column] = table[column].str.normalize("NFC")
    table["label"] = table["label"].str.strip()
    paths = []
    for file in table["path"]:  # macOS and other systems write composed (NFC) or decomposed (NFD) letters
        file = os.path.join(os.path.dirname(path), os.path.expanduser(file))
        paths.append(next(filter(os.path.isfile, (file, *(unicodedata.normalize(form, file) for form in ("NFC", "NFD")))), file))
    for line, (file, label) in enumerate(zip(paths, table["label"]), start=2):
        if not label:
            raise ValueError(f"Expected a label in every line of {path}. Received: none in line {line}")
        if not os.path.isfile(file):
            raise FileNotFoundError(f"Expected the images of {path}. Not found: {file} (line {line})")
        if not file.lower().endswith(SUFFIXES):
            raise ValueError(f"Expected image files ({', '.join(SUFFIXES)}) in {path}. Received: {file} in line {line}")
    labels, class_names = class_indices(list(table["label"]), name, (), options.num_classes)
    source = _file_source(name, split, class_names, [*zip(paths, labels.tolist())], options)
    return dataclasses.replace(source, columns={column: table[column].to_numpy(str) for column in table.columns.drop(["path", "label"])})


def _file_source(name, split, class_names, files, options, usual=None):
    """Returns the source of files [(path, label), ...]. usual: (height, width) without `options.size`; None: their own, if equal."""
    paths, labels = zip(*files)
    own = common_size(paths)
    height, width = options.size or usual or own or USUAL_SIZE
    fit = None if own == (height, width) else Fit(height, width, options.image_fit, varying=own is None)
    return FileSource(name, split, class_names, (height, width, options.channels), len(files), paths, labels, fit=fit)


def _subfolders(folder):
    return sorted(d for d in os.listdir(folder) if os.path.isdir(os.path.join(folder, d)) and not d.startswith("."))


def _class_folders(folder):
    """Returns {name of a class: name of its subfolder}, in the order of the subfolders."""
    folders = _subfolders(folder)
    classes = {normalize_name(name): name for name in folders}
    if hidden := [name for name in folders if name not in classes.values()]:
        raise ValueError(
            f"Expected class folders of different names in {folder}. Received: two named {normalize_name(hidden[0])!r}, written with "
            "composed and decomposed letters (Unicode NFC and NFD). Try: move the files of one into the other"
        )
    return classes


def _files(split, base, classes):
    """Returns [(path, label), ...] of the image files in the class folders of `base`."""
    if not os.path.isdir(base):
        raise FileNotFoundError(f"Expected {base}, with one subfolder per class, for the split {split!r}. Not found")
    folders = {name: os.path.join(base, folder) for name, folder in _class_folders(base).items()}
    if unknown := folders.keys() - set(classes):
        raise ValueError(f"Expected only the classes of the training set in {base}. Received also: {sorted(unknown)}")
    images = {name: _images(folder) for name, folder in folders.items()}
    empty = [name for name in images if not images[name]]
    below = [folders[name] for name in empty if _subfolders(folders[name])]
    other = [name for name in empty if any(file.lower().endswith(_UNREAD) for file in os.listdir(folders[name]))]
    if below or other or len(empty) == len(images):
        advice = "Add images."
        if other:
            advice = f"Try: convert the files of {other[0]!r} to PNG or JPEG."
        elif below:
            advice = f"Try: data=folder:{below[0]}, if its subfolders are the classes."
        elif not folders and _images(base):
            advice = f"Try: data=folder:{os.path.dirname(base) or '.'}, if {os.path.basename(base)} is a class."
        raise FileNotFoundError(
            f"Expected image files ({', '.join(SUFFIXES)}) in every class folder of {base}. "
            f"Received: {f'none in {list_some(empty)}' if folders else 'no subfolders'}. {advice}"
        )
    return [(os.path.join(folders[name], file), classes.index(name)) for name in classes if name in folders for file in images[name]]


def _images(folder):
    return sorted(file for file in os.listdir(folder) if file.lower().endswith(SUFFIXES) and not file.startswith("."))


def _sizes(paths):
    """Yields (height, width) of the readable image files, from their headers."""
    for path in paths:
        with contextlib.suppress(*_DAMAGED), PIL.Image.open(path) as image:
            yield image.size[::-1]


def common_size(paths: Sequence[str]) -> tuple[int, int] | None:
    """Returns (height, width) of all image files; None if they differ."""
    sizes = _sizes(paths)
    first = next(sizes, None)
    return first if all(size == first for size in sizes) else None


@functools.lru_cache(maxsize=8)
def median_size(paths: Sequence[str]) -> tuple[int, int] | None:
    """Returns the median (height, width) of image files, of evenly chosen ones if there are many; None: none is readable."""
    sizes = [*_sizes(paths[:: -(-len(paths) // _MEASURED) or 1])]
    return tuple(np.median(sizes, axis=0).astype(int).tolist()) if sizes else None


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


def with_stylized(source: Source, directory: str) -> Source:
    """Adds stylized images to a training set: returns the natural images, then the stylized ones.

    For `folder:` data every image has one stylized image, of the same class folder and name; the suffix may differ, as in
    Stylized-ImageNet. Images that are held out, such as for validation, are thus held out in both kinds. For data in memory the
    class folders are the class names; they contain any number of images of any name, none of them of an image that is held
    out, which cannot be checked. Images of another size are resized.

    `directory` has one folder per class: train/CLASS/NAME, else CLASS/NAME. Raises FileNotFoundError if it, a class or an image is
    missing, and ValueError for a folder that is not a class, a file that is not an image, or a data set that is read as a stream.
    """
    root = os.path.expanduser(directory)
    if not os.path.isdir(root):
        raise FileNotFoundError(f"Expected stylized images in {directory}, one subfolder per class. Not found")
    train = os.path.join(root, "train")
    root = train if os.path.isdir(train) and "train" not in source.class_names else root
    if source.paths is not None:
        return _with_stylized_files(source, root)
    if source.in_memory:
        return _with_stylized_arrays(source, root)
    raise ValueError(f"Expected data in memory or data=folder:DIR with stylized_dir. Received: {source.name}, which is read as a stream")


def _with_stylized_files(source, root):
    names = [path.split(os.sep)[-2:] for path in source.paths]  # [class folder, name]
    classes = {folder for folder, _ in names}
    files = [path for paths in _class_images(root, classes, classes | set(source.class_names)).values() for path in paths]
    by_name = {**{os.path.splitext(path)[0]: path for path in files}, **{path: path for path in files}}  # prefers the same suffix
    expected = [os.path.join(root, folder, name) for folder, name in names]
    stylized = [by_name.get(path, by_name.get(os.path.splitext(path)[0])) for path in expected]
    if missing := [path for path, match in zip(expected, stylized) if match is None]:
        raise FileNotFoundError(
            f"Expected a stylized image for each of the {len(source)} images of {source.name}. "
            f"Missing: {len(missing)}, the first {missing[0]}"
        )
    fit = source.fit or Fit(*source.image_shape[:2], "stretch")  # does not change images of this size
    paths, kept = (*source.paths, *stylized), np.tile(source.positions, 2)
    return dataclasses.replace(source, size=len(paths), kept=kept, fit=fit, paths=paths, labels=2 * source.labels)


def _with_stylized_arrays(source, root):
    height, width, channels = source.images.shape[1:]
    images, labels = [*source.images], [*source.labels]
    paths = _class_images(root, source.class_names, source.class_names)
    for label, path in [(label, path) for label, name in enumerate(source.class_names) for path in paths[name]]:
        try:
            images.append(Fit(height, width, "stretch").levels(image_ops.decode(tf.io.read_file(path), channels)).numpy())
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(f"Expected an image that can be decoded. Received: {path}") from error
        labels.append(label)
    return dataclasses.replace(source, size=len(images), kept=None, images=np.stack(images), labels=np.array(labels, np.int64))


def _class_images(root, classes, known):
    """Returns {class folder: sorted paths} of `classes`, none empty; raises for folders that are not among the known classes."""
    folders = _subfolders(root)
    if unknown := sorted(set(folders) - set(known)):
        raise ValueError(f"Expected only folders of the training set's classes in {root}. Received also: {list_some(unknown)}")
    paths = {name: [os.path.join(root, name, file) for file in _images(os.path.join(root, name))] for name in classes if name in folders}
    if empty := sorted(name for name in classes if not paths.get(name)):
        raise FileNotFoundError(f"Expected stylized images of each class in {root} ({', '.join(SUFFIXES)}). Missing: {list_some(empty)}")
    return paths
