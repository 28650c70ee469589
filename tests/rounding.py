"""Tolerance of results that are computed in another order: in another batch, in another graph, or by another CPU's instructions.

Each operation in float32 has a relative error of at most 2^-24. A sum of n products, in any order, is off by at most n 2^-24 times the
sum of their sizes (Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, section 3.1); two orders differ by at most twice that.
"""

import math

import numpy as np

ROUNDING = 2.0**-24


def tolerance(operations: int, size: float = 1.0) -> float:
    """Returns the largest difference of two float32 results of the same formula.

    Args:
        operations: in a row that lead to one value: of several sums, one after the other, the total number of their terms.
        size: of the largest intermediate result: 1 for weighted means of pixels, the height in pixels for positions.
    """
    return 2 * operations * ROUNDING * size


def fourier_tolerance(values: int, transforms: int = 3) -> float:
    """Returns the same for Fourier transforms in a row of `values` numbers in [0, 1].

    Each has an error of about 6 log2(n) roundings in the root of the mean square (Higham, 2002, section 24.1); the factor 4 is that
    of the largest of many independent errors.
    """
    return tolerance(transforms * 6 * math.ceil(math.log2(values)), size=4.0)


def assert_equal_levels(first: np.ndarray, second: np.ndarray) -> None:
    """Asserts that images of 256 levels, float in [0, 1], agree: a value at the border of two levels may be rounded to either."""
    difference = np.abs(np.round(255 * np.asarray(first)) - np.round(255 * np.asarray(second)))
    assert difference.max() <= 1 and np.mean(difference > 0) < 1e-3, (
        f"{np.mean(difference > 0):.2%} of the levels differ, by up to {difference.max()}"
    )
