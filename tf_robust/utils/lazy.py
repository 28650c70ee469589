"""Imports at the time of use: functions by name, for tables that are read without TensorFlow, and optional packages."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any


def lazy(name: str) -> Callable[..., Any]:
    """Returns a function that imports `package.module:function` at each call, and calls it.

    Example:

    >>> lazy("math:sqrt")(9.0)
    3.0
    """
    module, _, function = name.partition(":")

    def call(*args, **kwargs):
        return getattr(importlib.import_module(module), function)(*args, **kwargs)

    return call


def import_extra(module: str, extra: str) -> ModuleType:
    """Returns a module of an optional package, which an extra of this package installs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"Expected the package {module.partition('.')[0]}, which reads this model. It cannot be imported: {error}. "
            f"Try: pip install 'tf_robust[{extra}]'"
        ) from error
