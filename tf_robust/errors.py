"""Messages that help: the nearest names for a misspelt one, and what was said inside a graph."""

import difflib
import re


def unknown(what, received, known):
    """A ValueError that names the nearest of `known`, and all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(received, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ValueError(f"Unknown {what}: {received!r}.{hint} Known: {', '.join(known)}")


def message_of(error):
    """An error's message; of one that arose in a TensorFlow graph without where in the graph that was.

    Our own checks speak there as `assertion failed: [...]`, or as a ValueError `in user code`.
    """
    text = str(error)
    asserted = re.search(r"assertion failed: \[(Expected .*?)\]\n", text, re.DOTALL)
    if asserted:
        return asserted.group(1)
    return text.rsplit("\n    ValueError: ", 1)[-1].strip() if text.startswith("in user code:") else text
