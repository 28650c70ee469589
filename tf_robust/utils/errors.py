"""Messages that help: the nearest names for a misspelt one, what was said inside a graph, what to do about the system's errors."""

import difflib
import errno
import os
import re

FULL = "The disk is full. What was written before stays whole; make room, and the same command goes on"


def unknown(what, received, known):
    """A ValueError that names the nearest of `known`, and all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(received, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ValueError(f"Unknown {what}: {received!r}.{hint} Known: {', '.join(known)}")


def message_of(error):
    """An error's message; of the system's with advice, of one that arose in a TensorFlow graph without where in the graph that was.

    Our own checks speak there as `assertion failed: [...]`, or as a ValueError `in user code`.
    """
    text = str(error)
    if isinstance(error, OSError) and error.errno and error.strerror == os.strerror(error.errno):
        return _advised(error)
    asserted = re.search(r"assertion failed: \[(Expected .*?)\]\n", text, re.DOTALL)
    if asserted:
        return asserted.group(1)
    return text.rsplit("\n    ValueError: ", 1)[-1].strip() if text.startswith("in user code:") else text


def _advised(error):
    """What the system says, of what, and what to do."""
    said = ": ".join(str(part) for part in (error.strerror, error.filename) if part)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{said}. {FULL}"
    return f"{said}. Change that, or name another path (--workdir for what is written)" if error.filename else said
