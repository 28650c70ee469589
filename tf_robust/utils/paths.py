"""What a path is. Importing this module does not import TensorFlow."""

import os


def is_url(path: str) -> bool:
    """Returns whether a path is the URL of an object store."""
    return "://" in path


def is_run(folder: str) -> bool:
    """Returns whether a folder is the workdir of a run."""
    return bool(folder) and os.path.exists(os.path.join(folder, "flags.txt"))
