"""Arrays as base64 text, for JSON."""

import base64

import numpy as np
import numpy.typing as npt


def encoded(array: np.ndarray) -> str:
    """Returns the bytes of an array as base64 text."""
    return base64.b64encode(array.tobytes()).decode()


def decoded(text: str, dtype: npt.DTypeLike) -> np.ndarray:
    """Returns the array of a base64 text.

    Args:
        text: as `encoded` returns it.
        dtype: of the array.

    Returns:
        array [N], read-only; the shape is not in the text.
    """
    return np.frombuffer(base64.b64decode(text), dtype)
