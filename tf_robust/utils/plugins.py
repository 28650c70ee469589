"""Modules of users that add methods, corruptions, attacks, formats, ... to the dictionaries of this package (`--plugin`)."""

import importlib
import importlib.metadata
import sys
from collections.abc import Iterable

GROUP = "tf_robust.plugins"  # of the entry points of installed packages, which need no flag
named: dict[str, None] = {}  # modules that were named, in their order


def load(modules: Iterable[str]) -> None:
    """Imports modules by name, once; raises ValueError for one that cannot be imported."""
    for name in filter(None, modules):
        if name not in named:
            _import(name)
            named[name] = None


def load_installed() -> None:
    """Imports the entry points of installed packages; raises ValueError for one that cannot be imported."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        _import(entry.value)


def _import(name):
    if "" not in sys.path:
        sys.path.insert(0, "")  # the folder of the command
    try:
        importlib.import_module(name)
    except ImportError as error:
        received = f"{name} ({error}). Try: its folder in PYTHONPATH"
        raise ValueError(f"Expected --plugin=MODULE that can be imported. Received: {received}") from error
