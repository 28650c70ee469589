"""Which columns of a classifier's output a data set's labels mean, where it knows more classes than the set has."""

import dataclasses
import importlib.resources
import json

import numpy as np

LABEL_SETS = ("imagenet", "imagenet_r")
IMAGENET_CLASSES = 1000
_IMAGENET_A_CLASSES = 200


def label_set_of(name):
    """The label set that a TFDS data set declares by its name, or ""."""
    if name.startswith("imagenet2012"):
        return "imagenet"
    return "imagenet_r" if name.split(":")[0].split("/")[0] == "imagenet_r" else ""


def declared(source, label_set):
    """A source with a declared label set.

    Args:
        source: a `Source`. label_set: of `LABEL_SETS`, or "" for what the source declares itself. imagenet_r: a source of class folders
            named by their WordNet ids, whose labels become columns of a classifier of ImageNet's 1,000 classes.

    Raises:
        ValueError: the classes are not those of the label set.
    """
    if not label_set or source.label_set == label_set:
        return source
    if label_set == "imagenet_r":
        known = imagenet_r_classes()
        if not hasattr(source, "paths"):
            raise ValueError(f"Expected data=folder:DIR or imagenet_r with label_set=imagenet_r. Received: {source.name}")
        source = relabelled(source, dict(zip(known["wnids"], known["columns"])), IMAGENET_CLASSES)
    elif not source.class_mask and source.num_classes != IMAGENET_CLASSES:
        raise ValueError(f"Expected {IMAGENET_CLASSES} classes with label_set=imagenet. Received: {source.num_classes} in {source.name}. "
                         f"Try: --label_set= (not ImageNet's classes), or --label_map=FILE for some of them")
    return dataclasses.replace(source, label_set=label_set)


def class_mask(name, labels=None):
    """The columns that count for a set of a few of ImageNet's 1,000 classes: argmax and softmax are over these only.

    Args:
        name: of a data set. labels: int [N], of the whole set; needed for `imagenet_a`.

    Returns:
        sorted tuple of columns for `imagenet_r` and `imagenet_a`, else None

    Raises:
        ValueError: labels of other than the 200 classes of ImageNet-A.
    """
    name = name.split(":")[0].split("/")[0]
    if name == "imagenet_r":
        return tuple(imagenet_r_classes()["columns"])
    if name != "imagenet_a":
        return None
    found = () if labels is None else tuple(np.unique(labels).tolist())
    if len(found) != _IMAGENET_A_CLASSES:
        raise ValueError(f"Expected the labels of the whole of imagenet_a, which has {_IMAGENET_A_CLASSES} classes. "
                         f"Received: {len(found)} classes")
    return found


def masked(source):
    """A source with the class mask that its name asks for; itself if none."""
    mask = class_mask(source.name, labels_of(source) if source.name.startswith("imagenet_a") else None)
    return source if mask is None else dataclasses.replace(source, class_mask=mask)


def labels_of(source):
    """int64 [N] labels of a source, in no certain order, without decoding images."""
    if hasattr(source, "labels"):
        return np.asarray(source.labels)
    import tensorflow_datasets as tfds
    only = source.builder.as_dataset(split=source.tfds_split, decoders=tfds.decode.PartialDecoding({"label": True}))
    batches = only.map(lambda fields: fields["label"]).batch(4096)
    return np.concatenate([np.zeros(0, np.int64), *batches.as_numpy_iterator()])


def imagenet_r_classes():
    """{"source": text, "columns": [200 ints], "wnids": [200 texts, in the same order]}."""
    return json.loads(importlib.resources.files(__package__).joinpath("imagenet_r_classes.json").read_text("utf-8"))


def read_label_map(path):
    """{name of a class folder: column of the model's output} from a file.

    Args:
        path: a JSON object, or lines "NAME COLUMN"; empty lines and lines that begin with # are skipped.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line or value of another form, a negative column, a name or a column that comes twice.
    """
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        pairs = _from_json(text) if text.lstrip().startswith("{") else _from_lines(text)
    except ValueError as error:
        raise ValueError(f"Expected a label map, a JSON object {{\"NAME\": COLUMN}} or lines \"NAME COLUMN\". "
                         f"Received {path}: {error}") from error
    if not pairs:
        raise ValueError(f"Expected a label map. Received {path} without entries")
    for kind, values in zip(("name", "column"), zip(*pairs)):
        twice = [value for value in dict.fromkeys(values) if values.count(value) > 1]
        if twice:
            raise ValueError(f"Expected each {kind} once in {path}. Received twice: {', '.join(map(str, twice[:5]))}")
    return dict(pairs)


def _from_json(text):
    pairs = json.loads(text, object_pairs_hook=list)
    for name, column in pairs:
        if type(column) is not int or column < 0:
            raise ValueError(f"{name!r} has the column {column!r}, not an integer >= 0")
    return pairs


def _from_lines(text):
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip().rsplit(None, 1)
        if not words or line.strip().startswith("#"):
            continue
        if len(words) != 2 or not words[1].isdecimal():
            raise ValueError(f"line {number} is {line.strip()!r}")
        pairs.append((words[0], int(words[1])))
    return pairs


def relabelled(source, label_map, outputs=None):
    """A source of class folders, its labels the columns of a model's output: its class mask is these columns.

    Args:
        source: a `FileSource`, its class names the folders' names.
        label_map: {folder: column}, as `read_label_map` gives; it may hold more than the folders.
        outputs: columns that the model has; None: as many as the map needs.

    Raises:
        ValueError: a folder without an entry, a column that the model does not have.
    """
    lost = [name for name in source.class_names if name not in label_map]
    if lost:
        raise ValueError(f"Expected the label map to name every class folder of {source.name}. Missing: "
                         f"{', '.join(lost[:5])}{', ...' if len(lost) > 5 else ''} ({len(lost)} of "
                         f"{source.num_classes})")
    columns = [label_map[name] for name in source.class_names]
    outputs = max(columns) + 1 if outputs is None else outputs
    if max(columns) >= outputs:
        raise ValueError(f"Expected columns in 0..{outputs - 1} for a model of {outputs} outputs. "
                         f"Received: {max(columns)} for {source.class_names[columns.index(max(columns))]!r}")
    names = {column: name for name, column in label_map.items()}
    return dataclasses.replace(
        source, labels=tuple(columns[label] for label in source.labels), class_mask=tuple(sorted(columns)),
        class_names=tuple(names.get(column, str(column)) for column in range(outputs)))
