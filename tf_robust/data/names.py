"""Names of data sets, and of the files and folders that are data. Importing this module does not import TensorFlow."""

import functools
import importlib.metadata
import importlib.resources
import json
import os
import sys

from tf_robust.data.kinds import DATA_KINDS

_FILE = "tfds_names.json"  # {"version": of TFDS, "names": [...]}, written by `python -m tf_robust.data.names`


def data_names() -> set[str]:
    """Returns the names of the embedded data sets, and of those of TFDS as recorded."""
    return {*(name for name, kind in DATA_KINDS.items() if kind.form == name), *_recorded()["names"]}


def knows_all_data() -> bool:
    """Returns whether the recorded names are those of the installed TFDS, and no program has added others."""
    installed = importlib.metadata.version("tensorflow-datasets")
    return "tensorflow_datasets" not in sys.modules and installed == _recorded()["version"]


def data_of(name: str | os.PathLike) -> str:
    """Returns the name of a data set: folder:DIR, csv:FILE or npz:FILE of a path that exists, unless it is the name of a known set."""
    path, known = os.fspath(name), isinstance(name, str) and name in data_names()
    existing = os.path.expanduser(path)
    if not known and os.path.isdir(existing):
        return f"folder:{path.rstrip(os.sep) or path}"
    if known or not os.path.isfile(existing):
        return path
    suffix = os.path.splitext(path)[1]
    return next((f"{key}:{path}" for key, kind in DATA_KINDS.items() if suffix and kind.suffix == suffix), path)


def shift_data(name: str) -> str:
    """Returns the data of target=shift=NAME, where a folder of images may stand without folder:."""
    return f"folder:{name.rstrip(os.sep)}" if name.startswith((os.sep, ".", "~")) else data_of(name)


@functools.cache
def _recorded() -> dict:
    return json.loads(importlib.resources.files(__package__).joinpath(_FILE).read_text("utf-8"))


if __name__ == "__main__":
    import tensorflow_datasets as tfds

    recorded = {"version": tfds.__version__, "names": tfds.list_builders(with_community_datasets=False)}
    with open(str(importlib.resources.files(__package__).joinpath(_FILE)), "w", encoding="utf-8") as file:
        file.write(json.dumps(recorded, indent=1) + "\n")
