"""Names of the previous version, which keep working with a warning for one release."""

import importlib
import warnings
from collections.abc import Callable, Mapping


def moved_names(package: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """Returns a module-level `__getattr__` (PEP 562) for names that have moved.

    Args:
        package: `__name__` of the module.
        names: {old name: new name below `tf_robust`}; the new one is a module, or an object in one.

    Returns:
        function (name) -> the object, which emits a `DeprecationWarning` with the new name.
    """

    def __getattr__(name):
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        new = f"tf_robust.{names[name]}"
        warnings.warn(f"{package}.{name} is now {new}. The old name will be removed in the next release.", DeprecationWarning, stacklevel=2)
        parent, _, last = new.rpartition(".")
        try:
            return importlib.import_module(new)
        except ModuleNotFoundError:
            return getattr(importlib.import_module(parent), last)

    return __getattr__
