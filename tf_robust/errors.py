"""Messages that help: the nearest names for a misspelt one."""

import difflib


def unknown(what, received, known):
    """A ValueError that names the nearest of `known`, and all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(received, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ValueError(f"Unknown {what}: {received!r}.{hint} Known: {', '.join(known)}")
