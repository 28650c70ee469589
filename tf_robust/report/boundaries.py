"""Decision boundaries of classifiers of points in the plane, one panel per model."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from tf_robust.utils.plotting import save

_POINTS = ("#0072B2", "#D55E00")  # of the two classes
_SIDES = ListedColormap(["#cfe3f1", "#f8dccb"])
_COLUMNS = 4

Part = tuple[str, np.ndarray, np.ndarray]  # caption, points [N, 2], labels [N]


class Boundary(TypedDict):
    """The decision boundary of a model.

    Attributes:
        sides: bool [G, G], y by x over the square: the predicted class.
        lines: the pieces of the boundary, [points, 2] each.
        accuracy: of the model, or None.
    """

    sides: np.ndarray
    lines: list[np.ndarray]
    accuracy: float | None


def decision_boundaries(path: str, models: Mapping[str, Boundary], points: Sequence[Part] = (), limit: float = 3.0) -> str:
    """Draws the points, then every model's boundary with the evaluated points and its accuracy. Returns the path.

    Args:
        path: of the PNG file.
        models: {name: boundary}.
        points: (caption, points [N, 2], labels [N]) of each part of the data, the evaluated one last; may be empty.
        limit: the square is [-limit, limit]^2; its empty margins are cut off.
    """
    if not models:
        raise ValueError("Expected at least one model with its boundary. Received: none")
    count = len(models) + bool(points)
    columns = min(_COLUMNS, count)
    lines = -(-count // columns)
    figure = Figure(figsize=(2.6 * columns, 2.9 * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for axes in panels:
        axes.axis("off")
    extent = _extent(models, points, limit)
    if points:
        _draw_points(panels.pop(0), points, extent)
    for axes, (name, model) in zip(panels, models.items()):
        _frame(axes, extent, name if model["accuracy"] is None else f"{name} ({model['accuracy']:.1%})")
        axes.imshow(model["sides"], cmap=_SIDES, vmin=0, vmax=1, origin="lower", extent=(-limit, limit) * 2, interpolation="nearest")
        for line in model["lines"]:
            axes.plot(*np.transpose(line), color="black", linewidth=1.3)
        if points:
            _scatter(axes, *points[-1][1:], size=3)
    return save(figure, path)


def _extent(models: Mapping[str, Boundary], points: Sequence[Part], limit: float) -> float:
    """Half the side of the visible square: it contains all points and lines, up to the limit."""
    coordinates = [*(part[1] for part in points), *(line for model in models.values() for line in model["lines"])]
    return min(limit, 1.05 * max((np.abs(part).max() for part in coordinates), default=limit))


def _draw_points(axes: Axes, points: Sequence[Part], extent: float) -> None:
    _frame(axes, extent, "data: " + ", ".join(f"{len(labels)} {caption}" for caption, _, labels in points))
    for _, coordinates, labels in points:
        _scatter(axes, coordinates, labels, size=5)


def _scatter(axes: Axes, points: np.ndarray, labels: np.ndarray, size: float) -> None:
    axes.scatter(*np.transpose(points), s=size, c=[_POINTS[label] for label in labels], linewidths=0)


def _frame(axes: Axes, extent: float, caption: str) -> None:
    axes.axis("on")
    axes.set(xlim=(-extent, extent), ylim=(-extent, extent), aspect="equal", xticks=(), yticks=())
    axes.set_xlabel(caption, fontsize=10)
