"""Data sets by name: `load(name, split, data_dir)` returns (uint8 [H, W, C], int64 label) in a fixed order.

`open_source` returns the same examples as a `Source`, which knows its size and classes and can be read epoch by epoch in
an order that is a pure function of (seed, epoch). Names: `digits`, `synthetic_digits`, `synthetic_mnist`, `toy`, any
image-classification set of TFDS, `folder:DIR`, `csv:FILE`, `npz:FILE`, `hf:NAME_OR_DIR`. Splits: train, validation, test; of a set
without splits also all, and the three are parts of it.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_robust.data import arrays, corner_digits, folders, hugging_face, tables, tfds_sets, toy
from tf_robust.data.arrays import UNSPLIT
from tf_robust.data.class_mask import label_set_of
from tf_robust.data.fitting import FITS
from tf_robust.data.source import ArraySource, Source, digest
from tf_robust.data.subsets import stratified_subset, three_ways, without_validation
from tf_robust.utils.errors import unknown

SPLITS = ("train", "validation", "test")
_UNSPLIT_FRACTION = 0.1  # of the images of a data set without splits, for validation and for test
EMBEDDED = {"digits": 10, "synthetic_digits": 15, "toy": 2, "toy_band": 2}  # classes


def open_source(
    name: str | Source,
    split: str,
    data_dir: str | None = None,
    *,
    image_size: int = 0,
    image_fit: str = "crop",
    default_size: Sequence[int] = (),
    validation_fraction: float = 0.0,
    examples: int = 0,
    download: bool = False,
    data_range: str = "",
    num_classes: int = 0,
) -> Source:
    """Opens one split of a data set as a `Source`.

    Args:
        name: `digits`, `synthetic_digits`, `synthetic_mnist`, `toy`, `toy_band`, a TFDS name, `folder:DIR`, `csv:FILE`, `npz:FILE` or
            `hf:NAME_OR_DIR`; or a source of all images, in memory.
        split: `train`, `validation` or `test`; `all`: the images of a set without splits.
        data_dir: directory of the TFDS sets; None: the default of TFDS (~/tensorflow_datasets).
        image_size: side in pixels to which all images are resized; 0: `default_size` for image files and images of varying size,
            else their own.
        image_fit: `crop`, `stretch` or `pad`: how images of another size are resized; see `fitting.Fit`.
        default_size: (height, width), such as that of a model's input; empty: the size of image files that all have one, else 224x224.
        validation_fraction: fraction of the training set held out as `validation` if the set has no validation split
            of its own; stratified, fixed.
        examples: keep only this many examples, stratified and nested; 0 keeps all.
        download: download a TFDS set that is not in `data_dir`.
        data_range: pixel scale of the images of `npz:FILE`, as in `arrays.from_arrays`.
        num_classes: number of classes where `csv:FILE` and others have labels as numbers; 0: the largest label + 1.

    Returns:
        a `Source`

    Raises:
        ValueError: unknown name or split, invalid fraction, labels out of range.
        FileNotFoundError: the data are missing; the message names the directory and the command that downloads them.
    """
    if split not in (*SPLITS, UNSPLIT):
        raise unknown("split", split, SPLITS)
    if isinstance(name, Source):
        return _part_of(name, split, image_size, image_fit, examples)
    if split == UNSPLIT and not is_unsplit(name) and not _is_missing_folder(name):
        raise ValueError(f"Expected the split test or validation of {name}, which has splits. Received: {split!r}")
    if data_range and not name.startswith("npz:"):
        raise ValueError(f"Expected data_range for arrays and npz:FILE; image files have uint8 values. Received: {data_range} for {name}")
    if not 0.0 <= validation_fraction < 1.0:
        raise ValueError(f"Expected validation_fraction in [0, 1). Received: {validation_fraction}")
    if image_fit not in FITS:
        raise unknown("image_fit", image_fit, FITS)
    size = (image_size, image_size) if image_size else ()
    file_size = size or tuple(default_size)
    if name.startswith("folder:"):
        source: Source = folders.open_folder(name, split, file_size, image_fit, validation_fraction)
    elif name.startswith("csv:"):
        source = tables.open_csv(name, file_size, image_fit, num_classes)
    elif name.startswith("npz:"):
        source = _npz(name, split, validation_fraction, data_range, num_classes).resized(size, image_fit)
    elif name.startswith("hf:"):
        first = UNSPLIT if is_unsplit(name) else split
        few = examples if first == split else 0
        source = hugging_face.open_hf(name, first, file_size, image_fit, few, num_classes, validation_fraction)
    elif name in EMBEDDED:
        source = _embedded(name, split).resized(size, image_fit)
    elif name == "synthetic_mnist":
        source = _synthetic_mnist(split, data_dir, download).resized(size, image_fit)
    else:
        source = tfds_sets.open_tfds(
            name,
            split,
            data_dir,
            size=size,
            fit=image_fit,
            default_size=tuple(default_size),
            validation_fraction=validation_fraction,
            download=download,
        )
        source = dataclasses.replace(source, label_set=label_set_of(name))
    if split != UNSPLIT and is_unsplit(name):
        source = three_ways(source, split, held_out_fraction(name, validation_fraction))
    return _subset(source, examples)


def _is_missing_folder(name):
    return name.startswith("folder:") and not os.path.isdir(os.path.expanduser(name.removeprefix("folder:")))


def _npz(name, split, validation_fraction, data_range, num_classes):
    """All images of a file without splits; of one with splits those of a split, where training images are held out for validation."""
    divided = arrays.npz_has_splits(name)
    origin = UNSPLIT if not divided else "test" if split == "test" else "train"
    source = arrays.open_npz(name, origin, data_range=data_range, num_classes=num_classes)
    return dataclasses.replace(without_validation(source, split, validation_fraction), split=split) if origin == "train" else source


def _part_of(source, split, image_size, image_fit, examples):
    """Images in memory, which have no splits."""
    if split != UNSPLIT:
        raise ValueError(f"Expected evaluation_split=all for {source.name}, which have no splits. Received: {split!r}")
    source = source.resized((image_size, image_size) if image_size else (), image_fit)
    return _subset(source, examples)


def _subset(source, examples):
    if not 0 <= examples <= source.size:
        flag = "train_examples" if source.split == "train" else "subset"
        raise ValueError(
            f"Expected {flag} of at most {source.size}, the size of {source.name} ({source.split}), or 0 for all. Received: {examples}"
        )
    return stratified_subset(source, examples) if examples else source


def load(name: str, split: str, data_dir: str | None = None, **options) -> tf.data.Dataset:
    """Returns the examples of one split in a fixed order: Dataset of (uint8 [H, W, C], int64). Arguments as in `open_source`."""
    return open_source(name, split, data_dir, **options).ordered(256).unbatch()


def describe_undivided(name: str, **options) -> dict:
    """Returns what determines the splits of a data set without splits, for JSON. Arguments as in `open_source`."""
    labels = open_source(name, UNSPLIT, **options).read_labels()
    return {"images": len(labels), "labels": digest(np.asarray(labels, np.int64))}


def has_fixed_splits(name: str) -> bool:
    """Returns whether a data set, not of TFDS or a folder, has three splits of its own: `validation_fraction` has no effect."""
    return name in EMBEDDED or name == "synthetic_mnist"


def is_of_user(name: str) -> bool:
    """Returns whether data are files of the user, which may change, and not a data set with a version."""
    return name.startswith(("folder:", "csv:", "npz:"))


def is_unsplit(name: str) -> bool:
    """Returns whether a data set has no splits of its own: `open_source` divides it in three."""
    if name.startswith("folder:"):
        return folders.is_unsplit(name)
    if name.startswith("npz:"):
        return not arrays.npz_has_splits(name)
    return name.startswith("csv:") or name.startswith("hf:") and UNSPLIT in hugging_face.splits(name)


def has_training(name: str) -> bool:
    """Returns whether a data set has training images: a folder may have test/ alone."""
    root = os.path.expanduser(name.removeprefix("folder:"))
    return not name.startswith("folder:") or folders.is_unsplit(name) or os.path.isdir(os.path.join(root, "train"))


def held_out_fraction(name: str, validation_fraction: float) -> float:
    """Returns the fraction that `open_source` holds out for validation: of a data set without splits at least some."""
    return validation_fraction or (_UNSPLIT_FRACTION if is_unsplit(name) else 0.0)


def has_own_validation(name: str, data_dir: str | None = None) -> bool:
    """Returns whether a data set has a validation split of its own: `validation_fraction` has no effect."""
    return not is_unsplit(name) and has_validation(name, data_dir)


def has_validation(name: str, data_dir: str | None = None, validation_fraction: float = 0.0) -> bool:
    """Returns whether `open_source(name, "validation", ...)` has examples."""
    if has_fixed_splits(name):
        return True
    if name.startswith("folder:"):
        return folders.has_validation(name, validation_fraction)
    if name.startswith(("csv:", "npz:")):
        return is_unsplit(name) or validation_fraction > 0
    if name.startswith("hf:"):
        found = set(hugging_face.splits(name))
        return bool({"validation", UNSPLIT} & found) or ("train" in found and validation_fraction > 0)
    return tfds_sets.has_validation(name, data_dir, validation_fraction)


@functools.lru_cache(maxsize=8)
def _embedded_split(name, split):
    if name in ("toy", "toy_band"):
        return toy.split(split, band=name == "toy_band")
    pools = corner_digits.digit_pools()
    if name == "digits":
        return pools[split]
    quota = {"train": (1000, 10), "validation": (50, 50), "test": (100, 100)}[split]
    return corner_digits.build(*pools[split], *quota, salt=SPLITS.index(split), shift=2)


def _embedded(name, split):
    images, labels = _embedded_split(name, split)
    return ArraySource.of(name, split, images, labels, map(str, range(EMBEDDED[name])))


@functools.lru_cache(maxsize=4)
def _synthetic_mnist_split(split, data_dir):
    origin = "test" if split == "test" else "train"
    mnist = tfds_sets.open_tfds("mnist", origin, data_dir)
    pools = corner_digits.divide(mnist.images, mnist.labels, {"train": 5, "validation": 1})
    pool = (mnist.images, mnist.labels) if split == "test" else pools[split]
    quota = {"train": (5000, 50), "validation": (1000, 1000), "test": (1000, 1000)}[split]
    return corner_digits.build(*pool, *quota, salt=SPLITS.index(split))


def _synthetic_mnist(split, data_dir, download):
    tfds_sets.builder_of("mnist", data_dir, download)
    images, labels = _synthetic_mnist_split(split, data_dir)
    return ArraySource.of("synthetic_mnist", split, images, labels, map(str, range(15)))
