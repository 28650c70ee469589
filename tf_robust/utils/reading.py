"""Optional packages, and messages of failures while reading models."""

import contextlib
import importlib
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # of this package
_INSTALLED = tuple(os.path.join(path, "") for path in (_ROOT, sysconfig.get_path("stdlib")))


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


def cause(error: BaseException) -> str:
    """Returns the message of an error in one line, shortened and without colors, and the type of the error."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", " ".join(str(error).split()))
    text = text if len(text) < 500 else f"{text[:200]} ... {text[-300:]}"  # long messages of Keras end with the cause
    return f"{text} ({type(error).__name__})"


def line_of_user(error: BaseException) -> str:
    """Returns the last line of code that an error passed outside of installed packages, with its file and function; empty: none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.line and not _is_installed(frame.filename)]
    return f"In {frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}: {frames[-1].line}" if frames else ""


def _is_installed(file):
    parts = ("<frozen ", "__autograph_generated_file", f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
    return any(part in file for part in parts) or os.path.abspath(file).startswith(_INSTALLED)


@contextlib.contextmanager
def readable(path: str, advice: str | Callable[[Exception], str]) -> Iterator[None]:
    """Context in which errors become a ValueError that names the model.

    Args:
        path: of the model, or its name.
        advice: ends the message; or a function of the error that returns it.
    """
    try:
        yield
    except Exception as error:  # damaged files raise OSError, ValueError, KeyError, IndexError, RuntimeError, ...
        ending = advice if isinstance(advice, str) else advice(error)
        raise ValueError(f"Expected a model that can be loaded. Received: {path}: {cause(error)}. {ending}") from error
