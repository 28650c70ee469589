"""`csv:FILE`: image files named in a table with the columns path, label and, optionally, a group."""

import os
import unicodedata

import numpy as np
import pandas

from tf_robust.data.arrays import UNSPLIT, class_indices
from tf_robust.data.fitting import USUAL_SIZE, Fit
from tf_robust.data.folders import SUFFIXES, FileSource, common_size


def open_csv(name: str, size: tuple[int, ...], fit: str, num_classes: int = 0) -> FileSource:
    """Opens all images of `csv:FILE`. Relative paths start from the folder of FILE.

    Args:
        name: csv:FILE.
        size: (height, width); empty: the size of the files if they all have one, else 224x224.
        fit: of `fitting.FITS`, how files of another size are resized.
        num_classes: as in `arrays.from_arrays`.

    Raises:
        FileNotFoundError: there is no such file, or an image is missing.
        ValueError: a column or a label is missing, or files of another kind.
    """
    path = os.path.expanduser(name.removeprefix("csv:"))
    if not os.path.isfile(path):
        raise FileNotFoundError(f"Expected a CSV file with the columns path and label. Not found: {path}")
    try:
        table = pandas.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig")
    except (ValueError, pandas.errors.ParserError) as error:
        raise ValueError(f"Expected a CSV file with the columns path and label. Received: {path} ({error})") from error
    if missing := {"path", "label"} - set(table.columns):
        raise ValueError(
            f"Expected the columns path and label in {path}. Received: {', '.join(table.columns)}. Missing: {', '.join(missing)}"
        )
    for column in table.columns.drop("path"):
        table[column] = table[column].str.normalize("NFC")
    table["label"] = table["label"].str.strip()
    if not len(table):
        raise ValueError(f"Expected images in {path}. Received: no lines below the header")
    if (table["label"] == "").any():
        raise ValueError(f"Expected a label in every line of {path}. Received: none in line {int(np.argmax(table['label'] == '')) + 2}")
    paths = [_existing(os.path.join(os.path.dirname(path), os.path.expanduser(file))) for file in table["path"]]
    _check_files(paths, path)
    labels, class_names = class_indices(list(table["label"]), name, (), num_classes)
    files = tuple(zip(paths, labels.tolist()))
    own = common_size(files)
    height, width = size or own or USUAL_SIZE
    return FileSource(
        name,
        UNSPLIT,
        class_names,
        (height, width, 3),
        len(files),
        tuple(paths),
        tuple(labels.tolist()),
        columns={column: table[column].to_numpy(str) for column in table.columns if column not in ("path", "label")},
        fit=None if own == (height, width) else Fit(height, width, fit, varying=own is None),
    )


def _existing(path):
    """A path as it is, or with composed (NFC) or decomposed (NFD) letters if only that exists: macOS and other systems differ."""
    forms = (path, *(unicodedata.normalize(form, path) for form in ("NFC", "NFD")))
    return next(filter(os.path.isfile, forms), path)


def _check_files(paths, table):
    absent = [(line, path) for line, path in enumerate(paths, start=2) if not os.path.isfile(path)]
    if absent:
        line, path = absent[0]
        raise FileNotFoundError(f"Expected the images of {table}. Not found: {path} (line {line}), {len(absent)} of {len(paths)} in all")
    other = [(line, path) for line, path in enumerate(paths, start=2) if not path.lower().endswith(SUFFIXES)]
    if other:
        raise ValueError(f"Expected image files ({', '.join(SUFFIXES)}) in {table}. Received: {other[0][1]} in line {other[0][0]}")
