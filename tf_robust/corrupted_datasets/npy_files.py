"""`.npy` files of images that do not fit in memory: checked before reading, read a few rows at a time."""

import math
import os
import typing

import numpy as np

_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,
}  # differs in the names of fields


class ArrayHeader(typing.NamedTuple):
    """Header of a .npy file.

    Attributes:
        shape: of the array.
        dtype: of the array.
        offset: byte at which its values begin.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int


def array_header(path: str) -> ArrayHeader:
    """Returns the `ArrayHeader` of a .npy file.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it is not a .npy file of rows of numbers, or its length is not that of its header, as for an incomplete copy.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"Expected a .npy file. Not found: {path}")
    with open(path, "rb") as file:
        try:
            shape, columns_first, dtype = _READERS[np.lib.format.read_magic(file)](file)
        except Exception as error:  # NumPy reads the header as Python: TypeError, SyntaxError, tokenize.TokenError...
            raise ValueError(f"Expected a .npy file. Received: {path}, damaged ({error}). Try: create or download it again") from error
        offset = file.tell()
    if dtype.hasobject or columns_first or not shape or min(shape) < 0:
        raise ValueError(
            f"Expected rows of numbers. Received: {path} of shape {shape}, type {dtype}, {'columns' if columns_first else 'rows'} first"
        )
    expected, size = offset + math.prod(shape) * dtype.itemsize, os.path.getsize(path)
    if size != expected:
        raise ValueError(
            f"Expected {expected:,} bytes in {path} by its header (shape {shape}, {dtype}). "
            f"Received: {size:,}, an incomplete file. Try: create or download it again"
        )
    return ArrayHeader(shape, dtype, offset)


def rows(path: str, indices: slice | np.ndarray) -> np.ndarray:
    """Returns some rows of a .npy file. It is mapped anew for each call: no page stays resident."""
    return np.array(np.load(path, mmap_mode="r", allow_pickle=False)[indices])
