"""Imports at the time of use: functions by name, for tables that are read without TensorFlow, and optional packages."""

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any


def lazy(name: str) -> Callable[..., Any]:
    """Returns a function that imports `package.module:function` at each call, and calls it.

    >>> lazy("math:sqrt")(9.0)
    3.0
    """
    return lambda *args, **kwargs: pkgutil.resolve_name(name)(*args, **kwargs)


def import_extra(module: str, extra: str) -> ModuleType:
    """Returns a module of an optional package, which an extra of this package installs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"Expected the package {module.partition('.')[0]}, which reads this model. It cannot be imported: {error}. "
            f"Try: pip install 'tf_robust[{extra}]'"
        ) from error
