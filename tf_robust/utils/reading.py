"""Optional packages, and messages of failures while reading models."""

import contextlib
import importlib
from collections.abc import Iterator
from types import ModuleType


def import_extra(module: str, extra: str) -> ModuleType:
    """Returns a module of an optional package.

    Args:
        module: name of the module.
        extra: of this package, which installs it.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"Expected the package {module.partition('.')[0]}, which reads this model. It cannot be imported: {error}. "
            f"Try: pip install 'tf_robust[{extra}]'"
        ) from error


@contextlib.contextmanager
def readable(path: str, advice: str) -> Iterator[None]:
    """Context in which errors become a ValueError that names the model.

    Args:
        path: of the model, or its name.
        advice: ends the message.
    """
    try:
        yield
    except Exception as error:  # damaged files raise OSError, ValueError, KeyError, IndexError, RuntimeError, ...
        text = " ".join(str(error).split())
        text = text if len(text) < 500 else f"{text[:200]} ... {text[-300:]}"  # long messages of Keras end with the cause
        raise ValueError(f"Expected a model that can be loaded. Received: {path}: {text} ({type(error).__name__}). {advice}") from error
