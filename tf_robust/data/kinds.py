"""The kinds of data, `DATA_KINDS`: how the names of data sets begin, and how they are opened. Without TensorFlow until then.

A kind of your own is one entry. Its images are read as `mine:PATH` everywhere, and are divided in three if they have no splits:

    def open_mine(name, split, options):
        images, labels = read_my_format(path_of(name))
        return tfr.data.from_arrays(images, labels, name, num_classes=options.num_classes)

    DATA_KINDS["mine"] = DataKind("mine:PATH", "images in my format", open_mine)
"""

import dataclasses
import functools
import importlib.metadata
import importlib.resources
import json
import os
import re
import sys
import typing
from collections.abc import Callable, Collection

from tf_robust.utils.lazy import lazy

if typing.TYPE_CHECKING:
    from tf_robust.data.source import Source

__all__ = ["DATA_KINDS", "DataKind", "ReadOptions", "path_of"]

SPLITS = ("train", "validation", "test")
_FRACTION_WITHOUT_SPLITS = 0.1  # of the images of a data set without splits, for validation and for test
_FILE = "tfds_names.json"  # {"version": of TFDS, "names": [...]}, written by `python -m tf_robust.data.kinds`


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """How images are read: arguments of `data.open_source`, of which `examples` is 0 unless a kind may read only these many.

    size: (height, width) of images from files of any size; (): their own.
    channels: 1 or 3, of image files.

    Examples:
        >>> from tf_robust.data.kinds import ReadOptions
        >>> options = ReadOptions(size=(32, 32), num_classes=3)
        >>> options.size, options.image_fit, options.num_classes
        ((32, 32), 'crop', 3)
    """

    data_dir: str | None = None
    size: tuple[int, ...] = ()
    image_fit: str = "crop"
    validation_fraction: float = 0.0
    examples: int = 0
    download: bool = False
    data_range: str = ""
    num_classes: int = 0
    channels: int = 3


@dataclasses.dataclass(frozen=True)
class DataKind:
    """A kind of data.

    Attributes:
        form: how its names are written: KEY, or KEY:PATH for data in files.
        help: one line.
        open: (name, split, `ReadOptions`) -> `Source`; split is one of `SPLITS`, or `all` if the data have no splits.
        splits: (name) -> those of `SPLITS` that the data have; data without splits are divided in three.
        has_validation: (name, data_dir, validation_fraction) -> whether there are validation images, if that depends on more than `splits`.
        user_files: whether the data are files of the user, which may change.
        class_folders: whether the classes are subfolders.
        has_range: whether the pixel scale of the images may be given, as `data_range`.
        suffix: of the file, such as ".csv"; empty: not a file.
        package: optional package, and extra of this package, that reads the data; empty: none.

    Examples:
        >>> def open_blank(name, split, options):
        ...     return tfr.data.from_arrays(np.zeros([30, 8, 8, 1], np.uint8), np.arange(30) % 3, name)
        >>> tfr.data.DATA_KINDS["blank"] = tfr.data.DataKind("blank", "30 black images", open_blank)
        >>> [len(tfr.data.open_source("blank", split)) for split in ("train", "validation", "test")]
        [24, 3, 3]
        >>> del tfr.data.DATA_KINDS["blank"]
    """

    form: str
    help: str
    open: "Callable[[str, str, ReadOptions], Source]"
    splits: Callable[[str], Collection[str]] = lambda name: ()
    has_validation: Callable[[str, str | None, float], bool] | None = None
    user_files: bool = True
    class_folders: bool = False
    has_range: bool = False
    suffix: str = ""
    package: str = ""

    @property
    def has_path(self) -> bool:
        """Whether names contain a path."""
        return ":" in self.form


_DIGITS, _ARRAYS, _FOLDERS = "tf_robust.data.corner_digits", "tf_robust.data.arrays", "tf_robust.data.folders"
_HF, _TFDS = "tf_robust.data.hugging_face", "tf_robust.data.tfds_sets"
_EMBEDDED = {
    "digits": "scikit-learn's digits, enlarged, 10 classes; needs no download",
    "synthetic_digits": "corner digits from scikit-learn's digits, 15 classes; needs no download",
    "synthetic_mnist": "FCL's corner digits from MNIST, 15 classes",
}

DATA_KINDS: dict[str, DataKind] = {
    **{
        name: DataKind(name, help, lazy(f"{_DIGITS}:open_digits"), splits=lambda name: SPLITS, user_files=False)
        for name, help in _EMBEDDED.items()
    },
    "folder": DataKind(
        "folder:DIR",
        "images, one subfolder per class, or DIR/train and DIR/test with such subfolders",
        lazy(f"{_FOLDERS}:open_folder"),
        splits=lazy(f"{_FOLDERS}:splits"),
        class_folders=True,
    ),
    "csv": DataKind(
        "csv:FILE",
        "image files in a table with the columns path, label and, optionally, a group",
        lazy(f"{_FOLDERS}:open_csv"),
        suffix=".csv",
    ),
    "npz": DataKind(
        "npz:FILE",
        "the arrays x and y, or images and labels, of an .npz file; or x_train, y_train, x_test, y_test",
        lazy(f"{_ARRAYS}:open_npz"),
        splits=lazy(f"{_ARRAYS}:npz_splits"),
        has_range=True,
        suffix=".npz",
    ),
    "hf": DataKind(
        "hf:NAME_OR_DIR",
        "a data set of Hugging Face's package datasets (extra [datasets])",
        lazy(f"{_HF}:open_hf"),
        splits=lazy(f"{_HF}:splits"),
        user_files=False,
        package="datasets",
    ),
    "tfds": DataKind(
        "mnist, cifar10, cifar100, imagenet2012, ...",
        "any image-classification set of TFDS by its name, in --data_dir",
        lazy(f"{_TFDS}:open_tfds"),
        splits=lambda name: ("train", "test"),
        has_validation=lazy(f"{_TFDS}:has_validation"),
        user_files=False,
    ),
}  # {name, which is the prefix of those with a path: kind}


def kind_of(name: str) -> DataKind:
    """Returns the kind of a data set by its name or prefix; TFDS has all other names."""
    key, colon, _ = name.partition(":")
    kind = DATA_KINDS.get(key)
    return kind if kind and kind.has_path == bool(colon) else DATA_KINDS["tfds"]


def path_of(name: str) -> str:
    """Returns the path in the name of a data set, such as `folder:DIR`.

    Examples:
        >>> from tf_robust.data.kinds import path_of
        >>> path_of("folder:photos")
        'photos'
    """
    return os.path.expanduser(name.partition(":")[2])


def has_splits(name: str) -> bool:
    """Returns whether a data set has splits of its own; `open_source` divides others in three."""
    return bool(kind_of(name).splits(name))


def has_training(name: str) -> bool:
    """Returns whether a data set has training images: a folder may have test/ alone."""
    return not (splits := kind_of(name).splits(name)) or "train" in splits


def has_validation(name: str, data_dir: str | None = None, validation_fraction: float = 0.0) -> bool:
    """Returns whether `open_source(name, "validation", ...)` has examples."""
    kind = kind_of(name)
    if kind.has_validation:
        return kind.has_validation(name, data_dir, validation_fraction)
    splits = kind.splits(name)
    return not splits or "validation" in splits or "train" in splits and validation_fraction > 0


def held_out_fraction(name: str, validation_fraction: float) -> float:
    """Returns the fraction that `open_source` holds out for validation: of a data set without splits at least some."""
    return validation_fraction or (0.0 if has_splits(name) else _FRACTION_WITHOUT_SPLITS)


def data_names() -> set[str]:
    """Returns the names of the embedded data sets and the recorded names of TFDS."""
    return {*(name for name, kind in DATA_KINDS.items() if kind.form == name), *_recorded()["names"]}


def knows_all_data() -> bool:
    """Returns whether the recorded names are those of the installed TFDS, and no program has added others."""
    installed = importlib.metadata.version("tensorflow-datasets")
    return "tensorflow_datasets" not in sys.modules and installed == _recorded()["version"]


def data_of(name: str | os.PathLike) -> str:
    """Returns the name of a data set: folder:DIR, csv:FILE or npz:FILE of a path that exists, unless it is the name of a known set."""
    path = os.fspath(name)
    existing, suffix = os.path.expanduser(path), os.path.splitext(path)[1]
    if isinstance(name, str) and name in data_names():
        return path
    if os.path.isdir(existing):
        return f"folder:{path.rstrip(os.sep) or path}"
    keys = [key for key, kind in DATA_KINDS.items() if suffix and kind.suffix == suffix and os.path.isfile(existing)]
    return f"{keys[0]}:{path}" if keys else path


def shift_data(name: str) -> str:
    """Returns the data of target=shift=NAME, where a folder of images may stand without folder:."""
    return f"folder:{name.rstrip(os.sep)}" if name.startswith((os.sep, ".", "~")) else data_of(name)


def shift_name(data: str) -> str:
    """Returns the name of a shifted data set in metrics: a TFDS name, or the last part of a path without its suffix."""
    if kind_of(data).has_path:
        file = os.path.basename(os.path.normpath(data.partition(":")[2]))
        data = os.path.splitext(file)[0] if kind_of(data).suffix else file
    return re.sub(r"[^\w./-]+", "_", data)


def check_shifts(names: Collection[str], kind: str = "shifts") -> None:
    """Raises ValueError unless data sets have different names in metrics. kind: the argument that has the names, for messages."""
    first: dict[str, str] = {}
    for data in names:
        name = shift_name(data)
        if not name or name in first:
            other = f" and {first[name]}, both {name!r}" if name else ""
            raise ValueError(f"Expected {kind} with different names. Received: {data!r}{other}. Try: rename one of the folders or files")
        first[name] = data


@functools.cache
def _recorded():
    return json.loads(importlib.resources.files(__package__).joinpath(_FILE).read_text("utf-8"))


if __name__ == "__main__":
    import tensorflow_datasets as tfds

    recorded = {"version": tfds.__version__, "names": tfds.list_builders(with_community_datasets=False)}
    with open(str(importlib.resources.files(__package__).joinpath(_FILE)), "w", encoding="utf-8") as file:
        file.write(json.dumps(recorded, indent=1) + "\n")
