"""Error messages: the nearest known names for an unknown one, the cause of an error in a graph or in a model, advice on system errors."""

import contextlib
import difflib
import errno
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130  # exit codes; failed: a bound is not met, nothing helped, or a run failed
FULL = "The disk is full. Files written before are complete. Try: free disk space, then run the same command again to resume"
_LISTED = 30  # known names, beside near ones
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # of this package
_INSTALLED = tuple(os.path.join(path, "") for path in (_ROOT, sysconfig.get_path("stdlib")))
_GENERATED = ("<frozen ", "__autograph_generated_file", f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class RunFailed(ValueError):
    """Runs failed although the input is valid."""


class Exit(SystemExit):
    """Ends the process with an exit code and a message; `str` is the message."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


def exit_with(code: int, message: str) -> None:
    """Prints a message to the standard error and ends the process."""
    print(message, file=sys.stderr, flush=True)
    raise Exit(code, message)


def unknown(kind: str, received: str, known: Iterable[str]) -> ValueError:
    """Returns an error for an unknown name of a kind, such as "model": with the nearest known names, and with all unless they are many."""
    known = sorted(filter(None, known))  # not the empty default of a flag
    begun = [name for name in known if len(received) > 2 and name.startswith(received)]
    near = list(dict.fromkeys([*begun, *difflib.get_close_matches(received, known, n=3, cutoff=0.5)]))[:3]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    names = f" Known: {', '.join(known)}" if len(known) <= _LISTED or not near else ""
    return ValueError(f"Unknown {kind}: {received!r}.{hint}{names}")


def message_of(error: BaseException) -> str:
    """Returns an error's message, with advice for a system error, and without the location for an error in a TensorFlow graph.

    In a graph our own checks appear as `assertion failed: [...]`, or as a ValueError `in user code`.
    """
    text = str(error)
    if isinstance(error, OSError) and error.errno and error.strerror == os.strerror(error.errno):
        message = ": ".join(str(part) for part in (error.strerror, error.filename) if part)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"{message}. {FULL}"
        return f"{message}. Try: change that, or use another path (--workdir for output)" if error.filename else message
    if asserted := re.search(r"assertion failed: \[(Expected .*?)\]\n", text, re.DOTALL):
        return asserted[1]
    return text.rsplit("\n    ValueError: ", 1)[-1].strip() if text.startswith("in user code:") else text


def cause(error: BaseException) -> str:
    """Returns the message of an error in one line, shortened and without colors, and the type of the error."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", " ".join(str(error).split()))
    text = text if len(text) < 500 else f"{text[:200]} ... {text[-300:]}"  # long messages of Keras end with the cause
    return f"{text} ({type(error).__name__})"


def line_of_user(error: BaseException) -> str:
    """Returns the last line of code that an error passed outside of installed packages, with its file and function; empty: none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        installed = any(part in frame.filename for part in _GENERATED) or os.path.abspath(frame.filename).startswith(_INSTALLED)
        if frame.line and not installed:
            return f"In {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"
    return ""


@contextlib.contextmanager
def readable(path: str, advice: str | Callable[[Exception], str]) -> Iterator[None]:
    """Context in which errors become a ValueError with the path of the model and advice, or what a function of the error advises."""
    try:
        yield
    except Exception as error:  # damaged files raise OSError, ValueError, KeyError, IndexError, RuntimeError, ...
        ending = advice if isinstance(advice, str) else advice(error)
        raise ValueError(f"Expected a model that can be loaded. Received: {path}: {cause(error)}. {ending}") from error
