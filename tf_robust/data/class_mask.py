"""The columns of a classifier's output that the classes of a data set have, and those that compete.

All columns compete, unless the protocol of a published set (ImageNet-A, ImageNet-R) or `--classes=present` masks the others.
"""

import collections
import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Mapping, Sequence

import numpy as np

from tf_robust.data.source import Source, list_some, normalize_name

_PARTS_OF_IMAGENET = ("imagenet_a", "imagenet_r")
IMAGENET_CLASSES = 1000


def label_set_of(name: str) -> str:
    """Returns the label set that the name of a TFDS data set declares, or ""."""
    if name.startswith("imagenet2012"):
        return "imagenet"
    base = name.split(":")[0].split("/")[0]
    return base if base in _PARTS_OF_IMAGENET else ""


def declared(source: Source, label_set: str) -> Source:
    """Returns a source with a declared label set, one of `configs.data.LABEL_SETS`; itself for "".

    Labels of classes that are named by WordNet ids become columns of a classifier of ImageNet's 1,000 classes; `imagenet_a` and
    `imagenet_r` also mask all but their 200 columns. Raises ValueError if the classes are not those of the label set.
    """
    if not label_set or source.label_set == label_set:
        return source
    if label_set in _PARTS_OF_IMAGENET:
        known = classes_of(label_set)
        if source.paths is None:
            raise ValueError(f"Expected data=folder:DIR or {label_set} with label_set={label_set}. Received: {source.name}")
        source = relabel(source, dict(zip(known["wnids"], known["columns"])), IMAGENET_CLASSES)
        source = dataclasses.replace(source, class_mask=tuple(known["columns"]))
    elif source.num_classes < IMAGENET_CLASSES and _are_of_imagenet(source.class_names):
        source = relabel(source, columns_of_imagenet(), IMAGENET_CLASSES)
    elif not source.label_columns and source.num_classes != IMAGENET_CLASSES:
        raise ValueError(
            f"Expected {IMAGENET_CLASSES} classes with label_set=imagenet. Received: {source.num_classes} in {source.name}. "
            "Try: label_set= (not ImageNet's classes), or label_map=FILE for some of them"
        )
    return dataclasses.replace(source, label_set=label_set)


def implied_label_set(source: Source, num_classes: int = 0) -> str:
    """Returns `imagenet` for classes named by WordNet ids of ImageNet's: all of them, or any for a model of 1,000 classes; else ""."""
    if source.label_set or source.label_columns or source.labels is None or not _are_of_imagenet(source.class_names):
        return ""
    complete = source.class_names == tuple(columns_of_imagenet())
    return "imagenet" if complete or source.num_classes < num_classes == IMAGENET_CLASSES else ""


def _are_of_imagenet(class_names):
    return {*class_names} <= columns_of_imagenet().keys()


@functools.cache
def columns_of_imagenet() -> dict[str, int]:
    """Returns {WordNet id: column} of ImageNet's 1,000 classes, in their order."""
    return {wnid: column for column, wnid in enumerate(classes_of("imagenet")["wnids"])}


def protocol_mask(name: str) -> tuple[int, ...] | None:
    """Returns the columns that compete in the published protocol of a data set: sorted, for `imagenet_a` and `imagenet_r`; else None."""
    label_set = label_set_of(name)
    return tuple(classes_of(label_set)["columns"]) if label_set in _PARTS_OF_IMAGENET else None


def present_columns(source: Source, label_columns: Sequence[int] | None) -> tuple[int, ...]:
    """Returns the sorted columns of the classes that have images in a data set, of which a source, with labels not mapped, may be a part.

    label_columns: column of each class; None: labels are columns.
    """
    labels = np.unique(source.complete.read_labels())
    return tuple(np.sort(labels if label_columns is None else np.take(label_columns, labels)).tolist())


def masked(source: Source) -> Source:
    """Returns a source with the class mask of the protocol of its name; itself if there is none."""
    mask = protocol_mask(source.name)
    return source if mask is None else dataclasses.replace(source, class_mask=mask)


@functools.cache
def classes_of(label_set: str) -> dict:
    """Returns {"source": text, "wnids": [texts], "columns": [ints, of the WordNet ids]} of a label set; `imagenet` has no columns."""
    return json.loads(importlib.resources.files(__package__).joinpath(f"{label_set}_classes.json").read_text("utf-8"))


def read_label_map(path: str) -> dict[str, int]:
    """Reads {name of a class folder, as by `normalize_name`: column of the model's output} from a JSON object, or lines "NAME COLUMN".

    Empty lines and lines that begin with # are skipped. UTF-8, with or without a byte order mark.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
        is_json = text.lstrip().startswith("{")
        pairs = json.loads(text, object_pairs_hook=list) if is_json else []
        for number, line in enumerate([] if is_json else map(str.strip, text.splitlines()), 1):
            fields = line.rsplit(None, 1)
            if not fields or line.startswith("#"):
                continue
            if len(fields) != 2 or not fields[1].isdecimal():
                raise ValueError(f"line {number} is {line!r}")
            pairs.append((fields[0], int(fields[1])))
        for name, column in pairs:
            if type(column) is not int or column < 0:
                raise ValueError(f"{name!r} has the column {column!r}, not an integer >= 0")
    except ValueError as error:
        raise ValueError(f'Expected a label map, lines "NAME COLUMN" or a JSON object. Received: {path}: {error}') from error
    pairs = [(normalize_name(name), column) for name, column in pairs]
    if not pairs:
        raise ValueError(f"Expected a label map. Received: {path} without entries")
    for kind, values in zip(("name", "column"), zip(*pairs)):
        if duplicates := [str(value) for value, count in collections.Counter(values).items() if count > 1]:
            raise ValueError(f"Expected each {kind} once in {path}. Received: duplicates {list_some(duplicates)}")
    return dict(pairs)


def relabel(source: Source, label_map: Mapping[str, int], outputs: int | None = None) -> Source:
    """Returns a source of class folders or arrays whose labels are columns of a model's output, all of which compete.

    label_map: {folder: column}, which may contain more than the folders. outputs: number of columns of the model; None: as many as needed.
    """
    if missing := [name for name in source.class_names if name not in label_map]:
        raise ValueError(f"Expected the label map to name every class folder of {source.name}. Missing: {list_some(missing)}")
    if "labels" not in {field.name for field in dataclasses.fields(source)}:
        raise ValueError(f"Expected images in class folders or arrays with label_map. Received: {source.name}, which is read as records")
    columns = [label_map[name] for name in source.class_names]
    outputs = max(columns) + 1 if outputs is None else outputs
    if max(columns) >= outputs:
        name = source.class_names[columns.index(max(columns))]
        raise ValueError(f"Expected columns in 0..{outputs - 1} for a model of {outputs} outputs. Received: {max(columns)} for {name!r}")
    names = {column: name for name, column in label_map.items()}
    labels = np.take(columns, source.read_labels()).astype(np.int64)
    return dataclasses.replace(  # type: ignore[call-arg]  # `labels` is a field of these sources
        source,
        labels=labels if isinstance(source.labels, np.ndarray) else tuple(labels.tolist()),
        label_columns=tuple(columns),
        class_names=tuple(names.get(column, str(column)) for column in range(outputs)),
    )
