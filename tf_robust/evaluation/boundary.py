"""Length of the decision boundary of a classifier of points in the plane, and steepness of the model on it.

Points are images [1, 2, 1] of two classes, as `data.toy` makes them; the plane is the square [-LIMIT, LIMIT]^2. The
boundary is the zero level line of the difference of the two logits, by marching squares on a grid.
"""

import contourpy
import numpy as np
import tensorflow as tf

from tf_robust.data import toy
from tf_robust.data.source import Source
from tf_robust.utils.arrays import decoded, encoded

GRID = 301  # points per side, 0.02 apart
_BATCH = 4096


def check(source: Source) -> None:
    """Checks that a source's images are points in the plane, of two classes.

    Raises:
        ValueError: they are not.
    """
    if tuple(source.image_shape) != (1, 2, 1) or source.num_classes != 2:
        raise ValueError(
            f"Expected points in the plane, images 1x2x1 of two classes (data=toy or toy_band), for the evaluation "
            f"'boundary'. Received: {source.name}, {'x'.join(map(str, source.image_shape))}, "
            f"{source.num_classes} classes"
        )


def axis() -> np.ndarray:
    """Returns the coordinates of the grid, [GRID]."""
    return np.linspace(-toy.LIMIT, toy.LIMIT, GRID)


def grid() -> tf.data.Dataset:
    """Returns the grid as images: Dataset of (float32 [B, 1, 2, 1] in [0, 1], int64 [B] zeros), y by y."""
    y, x = np.meshgrid(axis(), axis(), indexing="ij")
    images = (np.stack([x, y], axis=-1).reshape(-1, 1, 2, 1) / toy.LIMIT + 1.0) / 2.0
    labels = np.zeros(len(images), np.int64)
    return tf.data.Dataset.from_tensor_slices((np.clip(images, 0.0, 1.0).astype(np.float32), labels)).batch(_BATCH)


def measure(logits: np.ndarray) -> dict:
    """Returns the record of a boundary, for JSON.

    Args:
        logits: [GRID * GRID, 2], on the points of `grid`.

    Returns:
        A dictionary with `length`, in units of the plane; `gradient`, the mean over the boundary of the norm of the gradient of class
        1's probability (on the boundary a quarter of that of the logits' difference), by central differences, None without a
        boundary; `sides` and `line`, which the functions `sides` and `lines` decode.
    """
    difference = (logits[:, 1] - logits[:, 0]).astype(np.float64).reshape(GRID, GRID)
    pieces = contourpy.contour_generator(axis(), axis(), difference).lines(0.0)
    steps = np.concatenate([np.diff(line, axis=0) for line in pieces]) if pieces else np.zeros((0, 2))
    lengths = np.linalg.norm(steps, axis=1)
    middles = np.concatenate([(line[1:] + line[:-1]) / 2 for line in pieces]) if pieces else steps
    slopes = np.stack([_interpolated(part, middles) for part in np.gradient(difference, axis(), axis())], axis=1)
    steepness = np.linalg.norm(slopes, axis=1) / 4.0
    return {
        "kind": "boundary",
        "count": GRID * GRID,
        "length": float(lengths.sum()),
        "gradient": float(np.average(steepness, weights=lengths)) if lengths.sum() else None,
        "sides": encoded(np.packbits(difference > 0)),
        "line": [encoded(line.astype(np.float32)) for line in pieces],
    }


def sides(record: dict) -> np.ndarray:
    """Returns the predicted class of the grid's points: bool [GRID, GRID], y by x, true for class 1."""
    bits = np.unpackbits(decoded(record["sides"], np.uint8), count=record["count"])
    return bits.reshape(GRID, GRID).astype(bool)


def lines(record: dict) -> list[np.ndarray]:
    """Returns the pieces of the boundary, float32 [points, 2] each, x and y."""
    return [decoded(line, np.float32).reshape(-1, 2) for line in record["line"]]


def _interpolated(values, points):
    """Values on the grid [GRID, GRID] at points [N, 2] between its points, bilinear: [N]."""
    positions = (points[:, ::-1] + toy.LIMIT) / (2 * toy.LIMIT) * (GRID - 1)
    low = np.clip(positions.astype(int), 0, GRID - 2)
    (top, left), (down, right) = low.T, (positions - low).T
    above = (1 - right) * values[top, left] + right * values[top, left + 1]
    below = (1 - right) * values[top + 1, left] + right * values[top + 1, left + 1]
    return (1 - down) * above + down * below
