"""Opens data sets: by name (`kinds.DATA_KINDS`), those of a run, and shifted ones."""

import dataclasses
import difflib
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_robust.configs import DataConfig
from tf_robust.data import class_mask, folders
from tf_robust.data.arrays import WHOLE
from tf_robust.data.kinds import SPLITS, ReadOptions, has_splits, held_out_fraction, kind_of, shift_name
from tf_robust.data.source import FITS, Source, digest, list_some
from tf_robust.data.subsets import labelled_fraction, split_train_val_test, stratified_subset
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import path_text
from tf_robust.utils.progress import print_note


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
    channels: int = 3,
) -> Source:
    """Opens one split of a data set as a `Source`.

    Args:
        name: `digits`, a TFDS name, `folder:DIR` or another of `kinds.DATA_KINDS`; or a source of all images, in memory.
        split: `train`, `validation` or `test`; `all`: the images of a set without splits, of which the three are parts.
        data_dir, image_size, image_fit, validation_fraction, download, data_range: as in `configs.DataConfig`.
        default_size: (height, width) of image files and images of varying size if `image_size` is 0, such as that of a model's input;
            empty: their own size if they all have one, else 224x224.
        examples: keep only this many examples, stratified and nested; 0 keeps all.
        num_classes: number of classes where `csv:FILE` and others have labels as numbers; 0: the largest label + 1.
        channels: of image files, 1 or 3: such as that of a model's input.

    Raises:
        ValueError: unknown name or split, invalid fraction, labels out of range.
        FileNotFoundError: the data are missing; the message names the directory and the command that downloads them.

    Examples:
        >>> source = tfr.data.open_source("digits", "train", validation_fraction=0.1)
        >>> source.image_shape, source.num_classes, len(source)
        ((28, 28, 1), 10, 1298)
        >>> len(tfr.data.open_source("digits", "validation", validation_fraction=0.1))
        200
    """
    if split not in (*SPLITS, WHOLE):
        raise unknown("split", split, SPLITS)
    size = (image_size, image_size) if image_size else ()
    if isinstance(name, Source):
        if split != WHOLE:
            raise ValueError(f"Expected evaluation_split=all for {name.name}, which have no splits. Received: {split!r}")
        return _subset(name.resized(size, image_fit), examples)
    kind = kind_of(name)
    divided = bool(kind.splits(name))
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
    size_of_files, of_arrays = size or tuple(default_size), (data_range, num_classes)
    options = ReadOptions(data_dir, size_of_files, image_fit, validation_fraction, few, download, *of_arrays, channels)
    source = kind.open(name, split if divided else WHOLE, options).resized(size, image_fit)
    if three_parts:
        source = split_train_val_test(source, split, held_out_fraction(name, validation_fraction))
    return _subset(source, examples)


def _subset(source, examples):
    if not 0 <= examples <= source.size:
        flag = "train_examples" if source.split == "train" else "subset"
        raise ValueError(f"Expected {flag} of at most {source.size}, the size of {source.name} ({source.split}). Received: {examples}")
    return stratified_subset(source, examples) if examples else source


def load(name: str, split: str, data_dir: str | None = None, **options) -> tf.data.Dataset:
    """Returns the examples of one split in a fixed order: Dataset of (uint8 [H, W, C], int64). Arguments as in `open_source`.

    Examples:
        >>> dataset = tfr.data.load("digits", "test")
        >>> dataset.element_spec[0]
        TensorSpec(shape=(28, 28, 1), dtype=tf.uint8, name=None)
        >>> next(iter(dataset.batch(100)))[1].shape
        TensorShape([100])
    """
    return open_source(name, split, data_dir, **options).ordered(256).unbatch()


def describe_division(name: str, **options) -> dict:
    """Returns what determines the splits of a data set without splits, for JSON. Arguments as in `open_source`."""
    labels = open_source(name, WHOLE, **options).read_labels()
    return {"images": len(labels), "labels": digest(np.asarray(labels, np.int64))}


def open_split(
    config: DataConfig,
    split: str,
    examples: int,
    *,
    seed: int,
    model_size: tuple[int, int] | tuple[()],
    num_classes: int = 0,
    channels: int = 3,
    images: Source | None = None,
    mapped: bool = True,
) -> Source:
    """Returns one split of the data of a run.

    Args:
        config, split: as in `open_source`.
        examples: number of examples of validation and test, stratified; 0: all. `config.train_examples` is the number for train.
        seed: selects the labeled fraction of train.
        model_size: (height, width) of the images that an evaluated model takes; empty: not known.
        num_classes: of the evaluated model; 0: not known.
        channels: of image files, as an evaluated model takes them.
        images: all images, in memory; None: those that `config.data` names.
        mapped: whether labels are columns of the model's output (`map_labels`), or still the classes in the order of the data.
    """
    source = open_source(
        config.data if images is None else images,
        split,
        config.data_dir or None,
        image_size=config.image_size,
        image_fit=config.image_fit,
        default_size=model_size,
        examples=config.train_examples if split == "train" else examples,
        validation_fraction=config.validation_fraction,
        download=config.download,
        data_range=config.data_range,
        num_classes=num_classes,
        channels=channels,
    )
    _print_notes(source, config.data, images is None)
    if split == "train":
        source = labelled_fraction(source, config.label_fraction, seed)
    return map_labels(config, source, num_classes) if mapped else source


def _print_notes(source, name, named):
    """Prints how images are resized and, of data given by name, which image files are not read and which classes have no images."""
    if named and os.path.isdir(name):
        print_note(f"{name} is the data set of this name, not the folder. Try: data=folder:{name}")
    if source.fit:
        size = folders.median_size(source.paths) if source.paths is not None else None
        factor = max(source.fit.height / size[0], source.fit.width / size[1]) if size else 1.0
        enlarged = f", enlarged by a factor of about {factor:.1f} (median size {size[0]}x{size[1]})" if factor >= 2 else ""
        windows = source.varying_size and source.split == "train"
        hint = "; in training, random windows of them are resized." if windows else ". image_size and image_fit change that."
        print_note(f"images of {name} ({source.split}) are {source.fit}{enlarged}{hint}")
    if source.paths is not None and source.image_shape[2] == 1:
        print_note(f"images of {name} are read in gray, which the model takes.")
    if not (named and kind_of(name).class_folders):
        return
    if unread := folders.unread_images(source.paths or ()):
        example = path_text(unread[0])
        print_note(f"{len(unread)} images of {name} are not read, such as {example}. Try: PNG or JPEG files in the class folders.")
    if (absent := np.setdiff1d(range(source.num_classes), source.complete.read_labels())).size:
        print_note(
            f"{absent.size} of the {source.num_classes} classes of {name} have no images ({source.split}), such as "
            f"{source.class_names[absent[0]]!r}: they stay classes, so that those after them keep their numbers."
        )


def map_labels(config: DataConfig, source: Source, num_classes: int = 0) -> Source:
    """Returns a source whose labels are columns of the model's output, by the label map, the label set or the WordNet ids of its classes.

    Subsets are drawn before: their images do not depend on the order of a model's classes. num_classes: of the model; 0: not known.
    """
    mapped = source
    if config.label_map:
        mapped = class_mask.relabel(source, class_mask.read_label_map(config.label_map), num_classes or None)
    label_set = config.label_set or class_mask.implied_label_set(mapped, num_classes)
    if label_set and not config.label_set:
        print_note(f"label_set={label_set}: the classes of {source.name} are named by ImageNet's WordNet ids.")
    mapped = class_mask.masked(class_mask.declared(mapped, label_set))
    if config.classes == "all" or mapped.class_mask:
        return mapped
    mask = class_mask.present_columns(source, mapped.label_columns)
    return mapped if len(mask) == num_classes else dataclasses.replace(mapped, class_mask=mask)


@dataclasses.dataclass(frozen=True)
class Shift:
    """A shifted data set and the columns of a classifier that its classes have."""

    name: str  # in the names of metrics
    source: Source  # the images; its labels number its own classes
    columns: tuple[int, ...]  # of the classifier's output, for each class of the source
    class_mask: tuple[int, ...] | None  # the columns that compete; None: all

    def card(self) -> dict:
        """Returns what metrics on this set depend on, for JSON."""
        return {
            "num_images": len(self.source),
            "fingerprint": self.source.fingerprint(),
            "image_shape": list(self.source.image_shape),
            "class_mask": f"{len(self.class_mask)} classes" if self.class_mask else "none",
            **({} if self.columns == tuple(range(len(self.columns))) else {"columns": list(self.columns)}),
            **({"image_fit": str(self.source.fit)} if self.source.fit else {}),
        }


def open_shift(config: DataConfig, name: str, original: Source, *, subset: int = 0, images: Source | None = None) -> Shift:
    """Returns a shifted data set, as `matched`: its test images, or all of them if it has no splits.

    images: its images, in memory; None: those that `name` names.
    """
    source = _open_further(config, name, original, images, original.num_classes)
    shift = matched(source, original, name=shift_name(name), subset=subset, image_fit=config.image_fit, present=config.classes == "present")
    if shift.source.fit:
        print_note(f"images of {name} are {shift.source.fit}.")
    missing = missing_classes(shift, original) if shift.class_mask is None or original.class_mask else []
    if missing:
        print_note(
            f"{name} has no images of {len(missing)} of the classes of {original.name}, such as {missing[0]!r}: "
            "the accuracies on the two are those of different classes."
        )
    return shift


def open_other(config: DataConfig, name: str, original: Source, *, subset: int = 0, images: Source | None = None) -> Source:
    """Returns a data set of other classes: its test images, or all of them if it has no splits. Arguments as in `open_shift`."""
    source = with_size_of(_open_further(config, name, original, images, 0), original, config.image_fit)
    if source.fit:
        print_note(f"images of {name} are {source.fit}.")
    return stratified_subset(source, subset) if subset else source


def _open_further(config, name, original, images, num_classes):
    return open_source(
        name if images is None else images,
        "test" if images is None and has_splits(name) else WHOLE,
        config.data_dir or None,
        image_fit=config.image_fit,
        default_size=original.image_shape[:2],
        download=config.download,
        data_range=config.data_range if images is None and kind_of(name).has_range else "",
        num_classes=num_classes,
        channels=original.image_shape[2],
    )


def matched(source: Source, original: Source, *, name: str, subset: int = 0, image_fit: str = "crop", present: bool = False) -> Shift:
    """Returns a shifted data set with the image size of the original one and with its classes, or some of them.

    Classes correspond by their names; by their numbers where one of the two sets only has numbers; of a classifier of ImageNet's 1,000
    classes also by their WordNet ids. Raises ValueError for a class that the original does not have, or another number of channels.

    Args:
        source: the shifted images.
        original: the images that the model is evaluated on; its classes are the columns of the model's output.
        name: of the shift, as `shift_name` returns it.
        subset: largest number of images, a fixed stratified subset; 0: all.
        image_fit: as in `open_source`.
        present: whether only the classes present in the original compete or, where it has all, those present in the shifted set.
    """
    source = with_size_of(source, original, image_fit)
    columns = _columns(source, original)
    mask = class_mask.protocol_mask(source.name) if original.num_classes == class_mask.IMAGENET_CLASSES else None
    if mask is None and original.class_mask and {*columns} <= {*original.class_mask}:
        mask = original.class_mask
    elif mask is None and present:
        mask = class_mask.present_columns(source, columns)
    return Shift(name, stratified_subset(source, subset) if subset else source, columns, mask)


def missing_classes(shift: Shift, original: Source) -> list[str]:
    """Returns the names of the original's classes that have images there and none in the shifted set; none if either is a stream."""
    if not (shift.source.random_access and original.random_access):
        return []
    present = {shift.columns[label] for label in np.unique(shift.source.read_labels())}
    return [original.class_names[column] for column in np.unique(original.read_labels()) if column not in present]


def with_size_of(source: Source, original: Source, image_fit: str = "crop") -> Source:
    """Returns a source with the image size of another one; raises ValueError for another number of channels."""
    if source.image_shape[2] != original.image_shape[2]:
        raise ValueError(
            f"Expected images with {original.image_shape[2]} channels, as {original.name} has them. Received: {source.name} with "
            f"{source.image_shape[2]}. Channels are neither repeated nor averaged automatically. Try: npz:FILE of converted images"
        )
    return source.resized(original.image_shape[:2], image_fit)


def _columns(source, original):
    """Returns the column of the original's classes for each class of a shifted set."""
    names, known = source.class_names, original.class_names
    column_of = {name: column for column, name in enumerate(known)}
    if not {*names} <= {*known}:
        numbers = tuple(map(str, range(len(names))))
        if len(names) == len(known) and numbers in (names, known):
            return tuple(range(len(names)))
        if original.label_set == "imagenet" and {*names} <= class_mask.columns_of_imagenet().keys():
            column_of = class_mask.columns_of_imagenet()
    if missing := [name for name in names if name not in column_of]:
        nearest = difflib.get_close_matches(missing[0], known, n=1, cutoff=0.7)
        advice = f"Did you mean {nearest[0]!r}?" if nearest else "Try: class folders of the same names"
        raise ValueError(
            f"Expected in {source.name} classes of {original.name}: {list_some(known)}. "
            f"Received unknown: {list_some([*map(repr, missing)])}. {advice}"
        )
    return tuple(column_of[name] for name in names)
