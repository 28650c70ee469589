"""Shifted data sets: images of the same classes under other conditions, on which a model is evaluated besides its own data."""

import dataclasses
import difflib
import os
import re
from collections.abc import Collection

import numpy as np

from tf_robust.data.class_mask import IMAGENET_CLASSES, columns_of_imagenet, present_columns, protocol_mask
from tf_robust.data.kinds import kind_of
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_subset


@dataclasses.dataclass(frozen=True)
class Shift:
    """A shifted data set and the columns of a classifier that its classes have.

    Attributes:
        name: in the names of metrics.
        source: the images; its labels number its own classes.
        columns: column of the classifier's output for each class of the source.
        class_mask: the columns that compete; None: all.
    """

    name: str
    source: Source
    columns: tuple[int, ...]
    class_mask: tuple[int, ...] | None

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


def shift_name(data: str) -> str:
    """Returns the name of a shifted data set in metrics: a TFDS name, or the last part of a path without its suffix.

    Args:
        data: name of the data set, as in `sources.open_source`.
    """
    kind = kind_of(data)
    if kind.has_path:
        data = os.path.basename(os.path.normpath(data.partition(":")[2]))
        data = os.path.splitext(data)[0] if kind.suffix else data
    return re.sub(r"[^\w./-]+", "_", data)


def check_shifts(names: Collection[str], kind: str = "shifts") -> None:
    """Checks that shifted data sets have different names in metrics.

    Args:
        names: of the data sets.
        kind: argument that has the names, for messages.

    Raises:
        ValueError: two have the same.
    """
    first: dict[str, str] = {}
    for data in names:
        name = shift_name(data)
        if not name or name in first:
            other = f" and {first[name]}, both {name!r}" if name else ""
            raise ValueError(f"Expected {kind} with different names. Received: {data!r}{other}. Try: rename one of the folders or files")
        first[name] = data


def matched(source: Source, original: Source, *, name: str, subset: int = 0, image_fit: str = "crop", present: bool = False) -> Shift:
    """Returns a shifted data set with the image size of the original one and with its classes, or some of them.

    Classes correspond by their names; by their numbers where one of the two sets only has numbers; of a classifier of ImageNet's 1,000
    classes also by their WordNet ids.

    Args:
        source: the shifted images.
        original: the images that the model is evaluated on; its classes are the columns of the model's output.
        name: of the shift, as `shift_name` returns it.
        subset: largest number of images, a fixed stratified subset; 0: all.
        image_fit: how images of another size are resized, as in `sources.open_source`.
        present: whether only the classes present in the original compete or, where it has all, those present in the shifted set.

    Raises:
        ValueError: a class that the original does not have, or another number of channels.
    """
    source = with_size_of(source, original, image_fit)
    columns = _columns(source, original)
    mask = protocol_mask(source.name) if original.num_classes == IMAGENET_CLASSES else None
    if mask is None and original.class_mask and {*columns} <= {*original.class_mask}:
        mask = original.class_mask
    elif mask is None and present:
        mask = present_columns(source, columns)
    if 0 < subset < len(source):
        source = stratified_subset(source, subset)
    return Shift(name, source, columns, mask)


def missing_classes(shift: Shift, original: Source) -> list[str]:
    """Returns the names of the original's classes that have images there and none in the shifted set; none if either is a stream."""
    if not (shift.source.random_access and original.random_access):
        return []
    present = {shift.columns[label] for label in np.unique(shift.source.read_labels())}
    return [original.class_names[column] for column in np.unique(original.read_labels()) if column not in present]


def with_size_of(source: Source, original: Source, image_fit: str = "crop") -> Source:
    """Returns a source with the image size of another one. Arguments as in `matched`.

    Raises:
        ValueError: another number of channels.
    """
    if source.image_shape[2] != original.image_shape[2]:
        raise ValueError(
            f"Expected images with {original.image_shape[2]} channels, as {original.name} has them. Received: {source.name} with "
            f"{source.image_shape[2]}. Channels are neither repeated nor averaged automatically. Try: npz:FILE of converted images"
        )
    return source.resized(original.image_shape[:2], image_fit)


def _columns(source: Source, original: Source) -> tuple[int, ...]:
    """The column of the original's classes for each class of a shifted set."""
    names, known = source.class_names, original.class_names
    column_of = {name: column for column, name in enumerate(known)}
    if {*names} <= {*known}:
        return tuple(column_of[name] for name in names)
    if len(names) == len(known) and (_are_numbers(names) or _are_numbers(known)):
        return tuple(range(len(names)))
    if original.label_set == "imagenet" and {*names} <= columns_of_imagenet().keys():
        return tuple(columns_of_imagenet()[name] for name in names)
    missing = [name for name in names if name not in column_of]
    nearest = difflib.get_close_matches(missing[0], known, n=1, cutoff=0.7)
    raise ValueError(
        f"Expected in {source.name} classes of {original.name}: {', '.join(known[:5])}{', ...' if len(known) > 5 else ''} "
        f"({len(known)}). Received: {len(missing)} unknown: {', '.join(map(repr, missing[:3]))}{', ...' if len(missing) > 3 else ''}."
        f"{f' Did you mean {nearest[0]!r}?' if nearest else ' Try: class folders of the same names'}"
    )


def _are_numbers(names):
    return tuple(names) == tuple(map(str, range(len(names))))
