"""Arrays in files: as base64 text for JSON, and of types that NumPy's files do not know."""

import base64

import numpy as np
import numpy.typing as npt


def storable(array: npt.ArrayLike) -> np.ndarray:
    """Returns an array for `np.savez`: bfloat16 and other types that its files do not know as float32, which holds their values exactly."""
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


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
