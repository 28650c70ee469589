"""`hf:NAME` and `hf:DIR`: data sets of the Hugging Face Hub, or folders that its package `datasets` reads."""

import dataclasses
import functools
import io
import os

import numpy as np
import PIL.ExifTags
import PIL.Image
import tensorflow as tf

from tf_robust.data.arrays import WHOLE, class_indices
from tf_robust.data.kinds import ReadOptions, path_of
from tf_robust.data.source import USUAL_SIZE, ArraySource, Fit
from tf_robust.data.subsets import held_out_positions, stratified_order

_SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


def splits(name: str) -> tuple[str, ...]:
    """Returns the splits of `hf:NAME_OR_DIR`, of train, validation and test; () if it has one only."""
    own = tuple(_load(name))
    found = tuple(split for split, names in _SPLITS.items() if {*own} & {*names})
    return (found or own) if len(own) > 1 else ()  # `open_hf` refuses others


def open_hf(name: str, split: str, options: ReadOptions) -> ArraySource:
    """Reads one split of `hf:NAME_OR_DIR`, or `options.examples` of it; split `all`: the only one.

    Without `options.size`, the images have the size of the training images if they all have one, else 224x224.
    """
    loaded = _load(name)
    divided = split in ("train", "validation") and "validation" not in splits(name)
    own = next((own for own in loaded if split == WHOLE or own in _SPLITS["train" if divided else split]), None)
    first = next((own for own in loaded if own in _SPLITS["train"]), own)
    if own is None:
        raise ValueError(f"Expected the split {split!r} of {name}. Received: {', '.join(loaded)}")
    table = loaded[own]
    image_column, label_column = _columns(table, name)
    labels, class_names = class_indices(table[label_column], name, _class_names(loaded, label_column, name, options.num_classes))
    whole = held_out_positions(labels, split, options.validation_fraction, name) if divided else np.arange(len(labels))
    kept = whole[np.sort(stratified_order(labels[whole])[: options.examples])] if options.examples else whole
    found = {one: _sizes_and_channels(loaded[one], image_column, f"{name} ({one})") for one in {own, first}}
    (own_sizes, _), (usual_sizes, channels) = found[own], found[first]
    channels = min(channels, options.channels)
    height, width = options.size or (next(iter(usual_sizes)) if len(usual_sizes) == 1 else USUAL_SIZE)
    change = None if own_sizes == {(height, width)} else Fit(height, width, options.image_fit, varying=len(own_sizes) > 1)

    def read(positions):
        pixels = [_pixels(table[int(i)][image_column], channels) for i in positions]
        pixels = [change.levels(tf.constant(image)).numpy() for image in pixels] if change else pixels
        source = ArraySource.of(name, split, np.stack(pixels), labels[positions], class_names)
        return source if len(positions) == len(labels) else dataclasses.replace(source, kept=positions)

    return dataclasses.replace(read(kept), superset=functools.partial(read, whole)) if len(kept) < len(whole) else read(whole)


def _sizes_and_channels(table, image_column, where):
    """Returns the sizes {(height, width)} of all images, and 1 channel if they are all gray, else 3; without decoding them."""
    import datasets

    sizes, channels = set(), 1
    for row, entry in enumerate(table.select_columns(image_column).cast_column(image_column, datasets.Image(decode=False))):
        entry = entry[image_column]
        if entry is None:
            raise ValueError(f"Expected an image in every row of {where}. Received: none in row {row}. Try: dataset.filter")
        with PIL.Image.open(io.BytesIO(entry["bytes"]) if entry["bytes"] is not None else entry["path"]) as image:
            if image.mode == "F":
                raise ValueError(f"Expected images of uint8 in {where}. Received: floating-point values in row {row}")
            turned = image.getexif().get(PIL.ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)  # by 90 degrees, when it is decoded
            sizes.add(image.size if turned else image.size[::-1])
            channels = channels if image.mode in ("1", "L") or image.mode.startswith("I") else 3
    return sizes, channels


def _class_names(loaded, label_column, name, num_classes):
    """Returns the names of the column's classes, else of the labels of all splits, some of which may lack a class."""
    tables = [table for table in loaded.values() if label_column in table.features]
    if names := getattr(tables[0].features[label_column], "names", ()):
        return names
    labels = np.concatenate([np.asarray(table[label_column]) for table in tables])
    known = labels[labels >= 0] if labels.dtype.kind in "if" else labels  # -1: not published
    return class_indices(known, name, num_classes=num_classes)[1]


def _load(name):
    """Returns {split: table} of a data set."""
    try:
        import datasets
    except ImportError as error:
        raise ValueError(f"Expected the package datasets for data={name}. Not installed. Try: pip install 'tf_robust[datasets]'") from error
    path = path_of(name)
    saved = any(os.path.exists(os.path.join(path, file)) for file in ("dataset_dict.json", "state.json"))
    try:
        loaded = datasets.load_from_disk(path) if saved else datasets.load_dataset(path)
    except Exception as error:  # of the Hub's client, of many types
        raise FileNotFoundError(f"{name} could not be read ({type(error).__name__}: {error})") from error
    return loaded if isinstance(loaded, dict) else {"train": loaded}


def _columns(table, name):
    """Returns the columns of the images and of the labels."""
    import datasets

    images = [column for column, feature in table.features.items() if isinstance(feature, datasets.Image)]
    classes = [column for column, feature in table.features.items() if isinstance(feature, datasets.ClassLabel)]
    labels = [column for column in ("label", "labels", *classes) if column in table.features]
    if not images or not labels:
        kinds = ", ".join(f"{column} ({type(feature).__name__})" for column, feature in table.features.items())
        raise ValueError(f"Expected a column of images and one of class labels in {name}. Received: {kinds}")
    return images[0], labels[0]


def _pixels(image, channels):
    """Returns a Pillow image as uint8 [H, W, channels]; of 16 bits the upper 8."""
    if image.mode.startswith("I"):  # Pillow's conversion would cut values above 255
        values = np.asarray(image).clip(0, 65535)
        bits_16 = image.mode != "I" or values.max() > 255  # mode I may also have 8 bits
        return np.repeat((values // 256 if bits_16 else values).astype(np.uint8)[..., None], channels, axis=2)
    pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return pixels[..., None] if channels == 1 else pixels
