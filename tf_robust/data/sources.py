"""Data sets by name: `load(name, split, data_dir)` returns (uint8 [H, W, C], int64 label) in a fixed order.

`open_source` returns the same examples as a `Source`, which knows its size and classes and can be read epoch by epoch in
an order that is a pure function of (seed, epoch). Names are those of `kinds.DATA_KINDS`. Splits: train, validation, test; of a set
without splits also all, and the three are parts of it.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_robust.data.arrays import WHOLE
from tf_robust.data.fitting import FITS
from tf_robust.data.kinds import ReadOptions, held_out_fraction, kind_of
from tf_robust.data.source import Source, digest
from tf_robust.data.subsets import split_train_val_test, stratified_subset
from tf_robust.utils.errors import unknown

SPLITS = ("train", "validation", "test")


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
        name: `digits`, a TFDS name, `folder:DIR` or another of `kinds.DATA_KINDS`; or a source of all images, in memory.
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
    if split not in (*SPLITS, WHOLE):
        raise unknown("split", split, SPLITS)
    size = (image_size, image_size) if image_size else ()
    if isinstance(name, Source):
        if split != WHOLE:
            raise ValueError(f"Expected evaluation_split=all for {name.name}, which have no splits. Received: {split!r}")
        return _subset(name.resized(size, image_fit), examples)
    kind = kind_of(name)
    divided = kind.has_splits(name)
    if split == WHOLE and divided:
        raise ValueError(f"Expected the split test or validation of {name}, which has splits. Received: {split!r}")
    if data_range and not kind.has_range:
        raise ValueError(f"Expected data_range for arrays and npz:FILE; image files have uint8 values. Received: {data_range} for {name}")
    if not 0.0 <= validation_fraction < 1.0:
        raise ValueError(f"Expected validation_fraction in [0, 1). Received: {validation_fraction}")
    if image_fit not in FITS:
        raise unknown("image_fit", image_fit, FITS)
    three_parts = not divided and split != WHOLE
    few = 0 if three_parts else examples
    options = ReadOptions(data_dir, size, tuple(default_size), image_fit, validation_fraction, few, download, data_range, num_classes)
    source = kind.open(name, split if divided else WHOLE, options).resized(size, image_fit)
    if three_parts:
        source = split_train_val_test(source, split, held_out_fraction(name, validation_fraction))
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


def describe_division(name: str, **options) -> dict:
    """Returns what determines the splits of a data set without splits, for JSON. Arguments as in `open_source`."""
    labels = open_source(name, WHOLE, **options).read_labels()
    return {"images": len(labels), "labels": digest(np.asarray(labels, np.int64))}
