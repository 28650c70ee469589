"""Keeps TensorFlow's own log lines off the standard error stream of a command-line program, unless `--verbosity` asks for them.

TensorFlow reads `TF_CPP_MIN_LOG_LEVEL` when it is imported, and its libraries log a few lines during that import whatever its value.
Import this module, which imports no TensorFlow, first.
"""

import contextlib
import os
import re
import sys
import tempfile
import typing
from collections.abc import Iterator, Sequence

LOG_LINE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\)|To enable the following instructions: |"
    rb"(?:[IWE]\d{4} \d\d:\d\d:\d+\.\d+ +\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d+\.\d+: [IWE]) \S+\.(?:cc|h|cpp):\d+\]"
)
_VERBOSE = re.compile(r"(?:^|\s)--?v(?:erbosity)?[=\s](?:\d+|info|debug)(?:\s|$)")


@contextlib.contextmanager
def importing(arguments: Sequence[str]) -> Iterator[None]:
    """Opens a context in which `import tensorflow` prints no log lines, then or later; other output appears when the block ends.

    Nothing is suppressed if the arguments of the command line have `--verbosity` of 0 or more, or if the environment sets
    `TF_CPP_MIN_LOG_LEVEL` to less than 2.
    """
    verbose = _VERBOSE.search(" ".join(arguments)) or os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") in ("0", "1")
    if verbose or "tensorflow" in sys.modules:
        yield
        return
    with tempfile.TemporaryFile() as captured:
        try:
            with native_output(captured):
                yield
        finally:
            captured.seek(0)
            for line in captured:
                if not LOG_LINE.match(line):
                    os.write(2, line)


@contextlib.contextmanager
def native_output(file: typing.IO | None = None) -> Iterator[None]:
    """Opens a context in which what Python and libraries write to standard error goes to a file; None: it is discarded."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with open(os.devnull, "wb") as discarded:
        os.dup2((file or discarded).fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
