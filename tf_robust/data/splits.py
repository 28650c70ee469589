"""Opens the splits of the data that a `DataConfig` names, with labels that are columns of a model's output."""

import dataclasses
import os

import numpy as np

from tf_robust import data
from tf_robust.configs import DataConfig
from tf_robust.data import folders, shifts
from tf_robust.data.shifts import Shift
from tf_robust.data.source import Source
from tf_robust.utils.files import path_text
from tf_robust.utils.progress import print_note


def open_split(
    config: DataConfig,
    split: str,
    examples: int,
    *,
    seed: int,
    model_size: tuple[int, int] | tuple[()],
    num_classes: int = 0,
    images: Source | None = None,
    mapped: bool = True,
) -> Source:
    """Returns one split of the data of a run.

    Args:
        config: names the data.
        split: train, validation or test.
        examples: number of examples of validation and test, stratified; 0: all. `config.train_examples` is that of train.
        seed: selects the labeled fraction of train.
        model_size: (height, width) of the images that an evaluated model takes; empty: not known.
        num_classes: of the evaluated model; 0: not known.
        images: all images, in memory; None: those that `config.data` names.
        mapped: whether labels are columns of the model's output (`map_labels`), or still the classes in the order of the data.
    """
    source = data.open_source(
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
    )
    if images is None and os.path.isdir(config.data):
        print_note(f"{config.data} is the data set of this name, not the folder. Try: data=folder:{config.data}")
    if source.fit:
        windows = source.varying_size and split == "train"
        hint = "; in training, random windows of them are resized." if windows else ". image_size and image_fit change that."
        print_note(f"images of {config.data} ({split}) are {source.fit}{_enlargement(source)}{hint}")
    in_folders = images is None and data.kind_of(config.data).class_folders
    unread = folders.unread_images(source.paths or ()) if in_folders else []
    if unread:
        example = path_text(unread[0])
        print_note(f"{len(unread)} images of {config.data} are not read, such as {example}. Try: PNG or JPEG files in the class folders.")
    if in_folders and (absent := np.setdiff1d(range(source.num_classes), source.complete.read_labels())).size:
        print_note(
            f"{absent.size} of the {source.num_classes} classes of {config.data} have no images ({split}), such as "
            f"{source.class_names[absent[0]]!r}: they stay classes, so that those after them keep their numbers."
        )
    if split == "train":
        source = data.labelled_fraction(source, config.label_fraction, seed)
    return map_labels(config, source, num_classes) if mapped else source


def _enlargement(source):
    """`, enlarged by a factor of about 4.7 (median 48x48)` of image files that are much smaller than the images of the model."""
    size = folders.median_size(source.paths) if source.paths is not None else None
    factor = max(source.fit.height / size[0], source.fit.width / size[1]) if size else 1.0
    return f", enlarged by a factor of about {factor:.1f} (median size {size[0]}x{size[1]})" if factor >= 2 else ""


def map_labels(config: DataConfig, source: Source, num_classes: int = 0) -> Source:
    """Returns a source whose labels are columns of the model's output, by the label map, the label set or the WordNet ids of its classes.

    Subsets are drawn before: which images they have does not depend on the order of a model's classes.

    Args:
        config: names the label map, the label set and the classes that compete.
        source: one split, or a part of it.
        num_classes: of the evaluated model; 0: not known.
    """
    mapped = data.relabel(source, data.read_label_map(config.label_map), num_classes or None) if config.label_map else source
    label_set = config.label_set or data.implied_label_set(mapped, num_classes)
    if label_set and not config.label_set:
        print_note(f"label_set={label_set}: the classes of {source.name} are named by ImageNet's WordNet ids.")
    mapped = data.masked(data.declared(mapped, label_set))
    if config.classes == "all" or mapped.class_mask:
        return mapped
    mask = data.present_columns(source, mapped.label_columns)
    return mapped if len(mask) == num_classes else dataclasses.replace(mapped, class_mask=mask)


def open_shift(config: DataConfig, name: str, original: Source, *, subset: int = 0, images: Source | None = None) -> Shift:
    """Returns a shifted data set: its test images, or all of them if it has no splits.

    Args:
        config: has the folder of the data and how images are resized.
        name: of the data set.
        original: the images that the model is evaluated on; see `shifts.matched`.
        subset: largest number of images, stratified; 0: all.
        images: its images, in memory; None: those that `name` names.

    Raises:
        ValueError: unknown name, a class that the original does not have, or another number of channels.
    """
    source = _open_further(config, name, original, images, original.num_classes)
    shift = shifts.matched(
        source, original, name=shifts.shift_name(name), subset=subset, image_fit=config.image_fit, present=config.classes == "present"
    )
    if shift.source.fit:
        print_note(f"images of {name} are {shift.source.fit}.")
    missing = shifts.missing_classes(shift, original) if shift.class_mask is None or original.class_mask else []
    if missing:
        print_note(
            f"{name} has no images of {len(missing)} of the classes of {original.name}, such as {missing[0]!r}: "
            "the accuracies on the two are those of different classes."
        )
    return shift


def open_other(config: DataConfig, name: str, original: Source, *, subset: int = 0, images: Source | None = None) -> Source:
    """Returns a data set of other classes: its test images, or all of them if it has no splits. Arguments as in `open_shift`.

    Raises:
        ValueError: unknown name, or another number of channels.
    """
    source = shifts.with_size_of(_open_further(config, name, original, images, 0), original, config.image_fit)
    if source.fit:
        print_note(f"images of {name} are {source.fit}.")
    return data.subsets.stratified_subset(source, subset) if 0 < subset < len(source) else source


def _open_further(config, name, original, images, num_classes):
    return data.open_source(
        name if images is None else images,
        "all" if images is not None or not data.has_splits(name) else "test",
        config.data_dir or None,
        image_fit=config.image_fit,
        default_size=original.image_shape[:2],
        download=config.download,
        data_range=config.data_range if images is None and data.kind_of(name).has_range else "",
        num_classes=num_classes,
    )
