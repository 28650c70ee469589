"""Corrupted sets that are there already: folders of CIFAR-C's .npy files, TFDS's corrupted sets, and our own.

`open_corrupted` gives one corruption at one severity as a `Source`; `available` says which there are. Names are the
benchmark's; TFDS calls two of CIFAR-10-C's otherwise.
"""

import dataclasses
import os
import re

import numpy as np

from tf_robust.corrupted_datasets.npy_files import array_header
from tf_robust.corrupted_datasets.sources import ArrayFileSource, RecordFileSource
from tf_robust.data import tfds_sets
from tf_robust.data.source import check_labels, stratified_order
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import read_json

TFDS_SETS = ("cifar10_corrupted", "imagenet2012_corrupted")
SEVERITIES = (1, 2, 3, 4, 5)
_TFDS_NAMES = {"glass_blur": "frosted_glass_blur", "elastic_transform": "elastic"}
_CARD = {"type": "object", "required": ["data", "seed"], "properties": {
    "data": {"type": "object", "required": ["fingerprint"], "properties": {"fingerprint": {"type": "string"}}},
    "seed": {"type": "integer"}}}
_FRAME = 16  # bytes of a TFRecord around each example


def open_corrupted(where, source, corruption, severity, *, data_dir=None, download=False):
    """One corruption at one severity, as a `Source` in a fixed order.

    Args:
        where: a folder of CIFAR-C's .npy files, a folder of NAME_SEVERITY folders (as `--mode=corrupt` or TFDS makes),
            or `cifar10_corrupted` or `imagenet2012_corrupted`, for TFDS to find.
        source: the clean images, which it must fit in number, shape and labels, and whose subset and class mask it
            takes; or None. Sets that others made may hold the images in another order: then only the number of
            images in each class is compared, and a subset is drawn anew.
        corruption: name of the benchmark. severity: 1 to 5.
        data_dir, download: of a TFDS set, as `open_source`.

    Raises:
        FileNotFoundError: there is no such folder, corruption or severity; says what there is.
        ValueError: a file that is cut short, of another shape or type, or with labels that do not fit.
    """
    if severity not in SEVERITIES:
        raise ValueError(f"Expected severity in 1..5. Received: {severity}")
    where = os.path.expanduser(where)
    kind = _kind(where)
    if kind == "tfds":
        there = _open_tfds(where, corruption, severity, data_dir, download)
    else:
        found = available(where)
        if (corruption, severity) not in found:
            raise FileNotFoundError(f"Expected {corruption!r} at severity {severity} in {where}. "
                                    f"Found: {_listed(found)}")
        there = {"arrays": _open_arrays, "records": _open_records}[kind](where, corruption, severity)
    return there if source is None else _fitted(there, source, card_of(where))


def available(where, data_dir=None):
    """The corruptions that a corrupted set holds: [(name, severity)], sorted. Arguments as `open_corrupted`."""
    where = os.path.expanduser(where)
    kind = _kind(where)
    if kind == "arrays":
        return sorted((name, severity) for name in _array_names(where) for severity in SEVERITIES)
    folder = _tfds_folder(where, data_dir) if kind == "tfds" else where
    return sorted(_record_folders(folder))


def card_of(where):
    """What `--mode=corrupt` noted about a set that it wrote (its card.json); {} for what others made."""
    path = os.path.join(os.path.expanduser(where), "card.json")
    return read_json(path, _CARD) if os.path.exists(path) else {}


def _kind(where):
    if not os.path.isdir(where):
        if os.sep in where or where.startswith("."):
            raise FileNotFoundError(f"Expected a folder of a corrupted set. Not found: {where}")
        if where not in TFDS_SETS:
            raise unknown("corrupted set (neither a folder nor a set of TFDS)", where, TFDS_SETS)
        return "tfds"
    if _array_names(where):
        return "arrays"
    if _record_folders(where):
        return "records"
    inside = sorted(os.listdir(where))
    raise FileNotFoundError(f"Expected NAME.npy files (CIFAR-10-C) or NAME_SEVERITY folders (TFDS) in {where}. "
                            f"Found: {', '.join(inside[:8]) or 'nothing'}{', ...' if len(inside) > 8 else ''}")


def _array_names(folder):
    return {file.removesuffix(".npy") for file in os.listdir(folder) if file.endswith(".npy") and file != "labels.npy"}


def _record_folders(folder):
    """{(corruption, severity): folder of its newest version} of a folder of NAME_SEVERITY/VERSION folders."""
    names = {theirs: ours for ours, theirs in _TFDS_NAMES.items()}
    found = {}
    for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        match = re.fullmatch(r"(\w+)_([1-5])", entry)
        versions = [v for v in _versions(os.path.join(folder, entry)) if match]
        if versions:
            found[names.get(match[1], match[1]), int(match[2])] = os.path.join(folder, entry, versions[-1])
    return found


def _versions(folder):
    found = os.listdir(folder) if os.path.isdir(folder) else ()
    return sorted((v for v in found if re.fullmatch(r"\d+\.\d+\.\d+", v)
                   and os.path.exists(os.path.join(folder, v, "dataset_info.json"))),
                  key=lambda version: [int(number) for number in version.split(".")])


def _tfds_folder(name, data_dir):
    import tensorflow_datasets as tfds
    return os.path.join(os.path.expanduser(data_dir or tfds.core.constants.DATA_DIR), name)


def _listed(found):
    """`fog 1-5, snow 2`."""
    names = dict.fromkeys(name for name, _ in found)
    severities = {name: [str(s) for n, s in found if n == name] for name in names}
    each = [f"{name} {'1-5' if len(which) == 5 else ' '.join(which)}" for name, which in severities.items()]
    return ", ".join(each) or "none"


def _open_arrays(folder, corruption, severity):
    path, labels_path = os.path.join(folder, f"{corruption}.npy"), os.path.join(folder, "labels.npy")
    shape, dtype, _ = array_header(path)
    if dtype != np.uint8 or len(shape) != 4 or shape[0] % 5 or not shape[0] or shape[3] not in (1, 3):
        raise ValueError(f"Expected uint8 images [5 * N, H, W, 1 or 3] in {path}. Received: {dtype} {shape}")
    kind = array_header(labels_path)
    labels = np.load(labels_path, allow_pickle=False).squeeze()
    if not np.issubdtype(kind.dtype, np.integer) or labels.shape != shape[:1]:
        raise ValueError(f"Expected {shape[0]} integer labels in {labels_path}, one an image of {path}. "
                         f"Received: {kind.dtype} {kind.shape}")
    size = shape[0] // 5
    first = (severity - 1) * size
    labels = labels[first:first + size].astype(np.int64)
    check_labels(labels, max(int(labels.max()) + 1, 1), labels_path)
    return ArrayFileSource(f"{folder}: {corruption} {severity}", "test", _numbers(labels), shape[1:], size,
                           path=path, first=first, labels=labels)


def _numbers(labels):
    return tuple(map(str, range(int(labels.max()) + 1)))


def _open_records(where, corruption, severity):
    import tensorflow_datasets as tfds
    folder = _record_folders(where)[corruption, severity]
    try:
        builder = tfds.builder_from_directory(folder)
    except (*tfds_sets.DAMAGED, ValueError) as error:
        raise tfds_sets.damaged(folder, error) from error
    there = _record_source(f"{where}: {corruption} {severity}", builder)
    if card_of(where):  # others may count their bytes otherwise
        _check_bytes(there, folder)
    return there


def _open_tfds(where, corruption, severity, data_dir, download):
    theirs = _TFDS_NAMES.get(corruption, corruption) if where == "cifar10_corrupted" else corruption
    found = available(where, data_dir)
    if (corruption, severity) not in found and not download:
        raise FileNotFoundError(f"Expected {where}/{theirs}_{severity} in {_tfds_folder(where, data_dir)}. Found: "
                                f"{_listed(found)}. To make it on a machine with a network: add --download, or run "
                                f"`tfds build {where}/{theirs}_{severity}`; or name the folder that has it "
                                "with --data_dir")
    return _record_source(where, tfds_sets.builder_of(f"{where}/{theirs}_{severity}", data_dir, download))


def _record_source(name, builder):
    splits, features = builder.info.splits, builder.info.features
    split = "test" if "test" in splits else "validation" if "validation" in splits else next(iter(splits), None)
    fits = "image" in features and "label" in features and hasattr(features["label"], "names")
    if split is None or not fits or None in features["image"].shape:
        raise ValueError(f"Expected a set with images of one size ('image') and a 'label' in {name}. It has: "
                         f"{', '.join(f'{key} {value.shape}' for key, value in sorted(features.items()))}; "
                         f"splits: {', '.join(splits) or 'none'}")
    there = RecordFileSource(name, split, tuple(features["label"].names), features["image"].shape,
                             splits[split].num_examples, builder, split)
    lost = [path for path in there._files if not os.path.exists(path)]
    if lost:
        raise FileNotFoundError(f"Expected {len(there._files)} files in {name}. Not found: {lost[0]} "
                                f"({len(lost)} lost)")
    return there


def _check_bytes(there, folder):
    split = there.builder.info.splits[there.tfds_split]
    expected, size = split.num_bytes + _FRAME * split.num_examples, sum(map(os.path.getsize, there._files))
    if size != expected:
        raise ValueError(f"Expected {expected:,} bytes of TFRecord files in {folder}. Received {size:,}: one was not "
                         "written or copied to its end; delete the folder and make or fetch it again")


def _fitted(there, source, card):
    """`there` as the corrupted images of `source`: of its classes, cut to its subset; checked."""
    if there.image_shape != tuple(source.image_shape):
        raise ValueError(f"Expected images {tuple(source.image_shape)} in {there.name}, as those of {source.name}. "
                         f"Received: {there.image_shape}")
    if there.num_classes > source.num_classes:
        raise ValueError(f"Expected at most the {source.num_classes} classes of {source.name} in {there.name}. "
                         f"Received: {there.num_classes}")
    there = dataclasses.replace(there, class_names=source.class_names, class_mask=source.class_mask)
    if card and card["data"]["fingerprint"] == source.fingerprint():
        return there
    if source.kept is None and len(there) != len(source) or len(there) <= source.positions.max():
        wanted = len(source) if source.kept is None else f"at least {source.positions.max() + 1}"
        raise ValueError(f"Expected {wanted} images, of {source.name} ({source.split}), in {there.name}. "
                         f"Received: {len(there)}")
    return there if getattr(source, "labels", None) is None else _cut(there, source, same_order=bool(card))


def _cut(there, source, same_order):
    """The part of `there` that shows the images of `source`, by their labels."""
    whole, known, mine = source.kept is None, np.asarray(source.labels), there.labels
    if np.array_equal(mine[source.positions], known):
        return there if whole else there.subset(source.positions)
    counts = [np.bincount(labels, minlength=source.num_classes) for labels in (known, mine)]
    if same_order or whole and not np.array_equal(*counts):
        place = int(np.flatnonzero(mine[source.positions] != known)[0])
        raise ValueError(f"Expected the labels of {source.name} ({source.split}) in {there.name}. Received label "
                         f"{mine[source.positions][place]} for {known[place]} at index {place}: other images")
    return there if whole else there.subset(np.sort(stratified_order(mine)[:len(source)]))
