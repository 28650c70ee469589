"""Error messages: the nearest known names for an unknown one, the message of an error inside a graph, advice on system errors."""

import difflib
import errno
import os
import re
import sys
from collections.abc import Iterable

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130  # exit codes
FULL = "The disk is full. Files written before are complete. Try: free disk space, then run the same command again to resume"
_LISTED = 30  # known names, beside near ones


class RunFailed(ValueError):
    """Runs failed although the input is valid."""


class Exit(SystemExit):
    """Ends the process with an exit code and a message; `str` is the message."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


def exit_with(code: int, message: str) -> None:
    """Prints a message to the standard error and ends the process.

    Args:
        code: `FAILED`: a required bound is not met, nothing helped, or a run failed; `WRONG_INPUT`: wrong usage or bad input.
        message: of one or more lines.
    """
    print(message, file=sys.stderr, flush=True)
    raise Exit(code, message)


def unknown(kind: str, received: str, known: Iterable[str]) -> ValueError:
    """Returns an error for an unknown name, with the nearest known names and all of them, unless there are many.

    Args:
        kind: what the name refers to, such as "model".
        received: the unknown name.
        known: all known names.
    """
    known = sorted(known)
    begun = [name for name in known if len(received) > 2 and name.startswith(received)]
    near = list(dict.fromkeys([*begun, *difflib.get_close_matches(received, known, n=3, cutoff=0.5)]))[:3]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    names = f" Known: {', '.join(known)}" if len(known) <= _LISTED or not near else ""
    return ValueError(f"Unknown {kind}: {received!r}.{hint}{names}")


def message_of(error: BaseException) -> str:
    """Returns an error's message, with advice for a system error, and without the location for an error in a TensorFlow graph.

    In a graph our own checks appear as `assertion failed: [...]`, or as a ValueError `in user code`.

    Args:
        error: any error.
    """
    text = str(error)
    if isinstance(error, OSError) and error.errno and error.strerror == os.strerror(error.errno):
        return _advised(error)
    asserted = re.search(r"assertion failed: \[(Expected .*?)\]\n", text, re.DOTALL)
    if asserted:
        return asserted.group(1)
    return text.rsplit("\n    ValueError: ", 1)[-1].strip() if text.startswith("in user code:") else text


def _advised(error: OSError) -> str:
    """The system's message, the file, and what to do."""
    message = ": ".join(str(part) for part in (error.strerror, error.filename) if part)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{message}. {FULL}"
    return f"{message}. Try: change that, or use another path (--workdir for output)" if error.filename else message
