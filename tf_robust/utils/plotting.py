"""Writing matplotlib figures."""

from matplotlib.figure import Figure

from tf_robust.utils.files import atomic_file


def save(figure: Figure, path: str) -> str:
    """Writes a figure as a PNG file, atomically, and returns the path."""
    with atomic_file(path, "wb") as file:
        figure.savefig(file, format="png", dpi=120, bbox_inches="tight", facecolor="white")
    return path
