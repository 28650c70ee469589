"""Matplotlib figures as files, and text that fits into figures."""

import textwrap

from matplotlib.figure import Figure

from tf_robust.utils.files import atomic_file


def save(figure: Figure, path: str) -> str:
    """Writes a figure as a PNG file, atomically, and returns the path."""
    with atomic_file(path, "wb") as file:
        figure.savefig(file, format="png", dpi=120, bbox_inches="tight", facecolor="white")
    return path


def wrapped(text: str, letters: int) -> str:
    """Returns a text whose lines are broken to at most so many letters."""
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, letters) or [""])
