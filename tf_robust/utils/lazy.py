"""Functions that are imported when they are called, for tables that are read without importing TensorFlow."""

import importlib
from collections.abc import Callable
from typing import Any


def lazy(name: str) -> Callable[..., Any]:
    """Returns a function that imports another one at each call, and calls it.

    Args:
        name: `package.module:function`.

    Example:

    >>> lazy("math:sqrt")(9.0)
    3.0
    """
    module, _, function = name.partition(":")

    def call(*args, **kwargs):
        return getattr(importlib.import_module(module), function)(*args, **kwargs)

    return call
