"""Decision boundary of a classifier of points in the plane: its length, the steepness of the model on it, and a figure.

Points are images [1, 2, 1] of two classes, see `points`; the plane is the square [-LIMIT, LIMIT]^2. The boundary is the zero level line
of the difference of the two logits, by marching squares on a grid.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import contourpy
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from research.noisymix_toy.points import LIMIT
from tf_robust.utils.files import save_figure

GRID = 301  # points per side, 0.02 apart
_POINTS = ("#0072B2", "#D55E00")  # colors of the classes
_SIDES = ListedColormap(["#cfe3f1", "#f8dccb"])


@dataclasses.dataclass(frozen=True)
class Boundary:
    """A decision boundary.

    Attributes:
        lines: its pieces, [points, 2] each, x and y.
        sides: bool [GRID, GRID], y by x over the square: whether class 1 is predicted.
        length: in units of the plane.
        gradient: mean over the boundary of the norm of the gradient of class 1's probability (a quarter of that of the difference of the
            logits), by central differences; NaN without a boundary.
    """

    lines: list[np.ndarray]
    sides: np.ndarray
    length: float
    gradient: float


def axis() -> np.ndarray:
    """Returns the coordinates of the grid, [GRID]."""
    return np.linspace(-LIMIT, LIMIT, GRID)


def grid() -> np.ndarray:
    """Returns the points of the grid as images, float32 [GRID * GRID, 1, 2, 1] in [0, 1], y by y."""
    y, x = np.meshgrid(axis(), axis(), indexing="ij")
    images = (np.stack([x, y], axis=-1).reshape(-1, 1, 2, 1) / LIMIT + 1.0) / 2.0
    return np.clip(images, 0.0, 1.0).astype(np.float32)


def find_boundary(logits: np.ndarray) -> Boundary:
    """Returns the boundary of a model with logits [GRID * GRID, 2] on the points of `grid`."""
    difference = (logits[:, 1] - logits[:, 0]).astype(np.float64).reshape(GRID, GRID)
    pieces = contourpy.contour_generator(axis(), axis(), difference).lines(0.0)
    steps = np.concatenate([np.diff(line, axis=0) for line in pieces]) if pieces else np.zeros((0, 2))
    lengths = np.linalg.norm(steps, axis=1)
    middles = np.concatenate([(line[1:] + line[:-1]) / 2 for line in pieces]) if pieces else steps
    slopes = np.stack([_interpolated(part, middles) for part in np.gradient(difference, axis(), axis())], axis=1)
    steepness = np.linalg.norm(slopes, axis=1) / 4.0
    length = float(lengths.sum())
    return Boundary(pieces, difference > 0, length, float(steepness @ lengths / length) if length else float("nan"))


def _interpolated(values, points):
    """Values on the grid [GRID, GRID] at points [N, 2] between its points, bilinear: [N]."""
    positions = (points[:, ::-1] + LIMIT) / (2 * LIMIT) * (GRID - 1)
    low = np.clip(positions.astype(int), 0, GRID - 2)
    (top, left), (down, right) = low.T, (positions - low).T
    above = (1 - right) * values[top, left] + right * values[top, left + 1]
    below = (1 - right) * values[top + 1, left] + right * values[top + 1, left + 1]
    return (1 - down) * above + down * below


def draw(path: str, boundaries: Mapping[str, Boundary], points: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> str:
    """Draws the points, then every model's boundary with the evaluated points. Returns the path.

    Args:
        path: of the PNG file.
        boundaries: {caption: boundary}.
        points: (caption, points [N, 2], labels [N]) of each part of the data, the evaluated one last.
    """
    count = 1 + len(boundaries)
    columns = min(4, count)
    lines = -(-count // columns)
    figure = Figure(figsize=(2.6 * columns, 2.9 * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).ravel())
    coordinates = [*(part[1] for part in points), *(line for one in boundaries.values() for line in one.lines)]
    extent = min(LIMIT, 1.05 * max(np.abs(part).max() for part in coordinates))
    for axes in panels:
        axes.set(xlim=(-extent, extent), ylim=(-extent, extent), aspect="equal", xticks=(), yticks=())
    for axes in panels[count:]:
        axes.axis("off")
    panels[0].set_xlabel("data: " + ", ".join(f"{len(labels)} {caption}" for caption, _, labels in points), fontsize=10)
    for _, part, labels in points:
        _scatter(panels[0], part, labels, 5)
    for axes, (caption, one) in zip(panels[1:], boundaries.items()):
        axes.set_xlabel(caption, fontsize=10)
        axes.imshow(one.sides, cmap=_SIDES, vmin=0, vmax=1, origin="lower", extent=(-LIMIT, LIMIT) * 2, interpolation="nearest")
        axes.set(xlim=(-extent, extent), ylim=(-extent, extent))
        for line in one.lines:
            axes.plot(*np.transpose(line), color="black", linewidth=1.3)
        _scatter(axes, *points[-1][1:], 3)
    return save_figure(figure, path)


def _scatter(axes, coordinates, labels, size):
    axes.scatter(*np.transpose(coordinates), s=size, c=[_POINTS[label] for label in labels], linewidths=0)
