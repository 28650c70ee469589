"""Decision boundaries of classifiers of points in the plane, a panel a model."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from tf_robust.utils.plotting import save

_POINTS = ("#0072B2", "#D55E00")  # of the two classes
_SIDES = ListedColormap(["#cfe3f1", "#f8dccb"])
_COLUMNS = 4


def decision_boundaries(path, models, points=(), limit=3.0):
    """The points, then every model's boundary over the points that it is measured on; accuracies stand beneath.

    Args:
        models: {name: {"sides": bool [G, G], y by x over the square, "lines": list of [points, 2], "accuracy": a number
            or None}}.
        points: (caption, points [N, 2], labels [N]) of each part of the data, last the one measured on; or none.
        limit: the square is [-limit, limit]^2; its empty margins are cut off.
    """
    if not models:
        raise ValueError("Expected at least one model with its boundary. Received none")
    count = len(models) + bool(points)
    columns = min(_COLUMNS, count)
    lines = -(-count // columns)
    figure = Figure(figsize=(2.6 * columns, 2.9 * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for axes in panels:
        axes.axis("off")
    shown = _reach(models, points, limit)
    if points:
        _data(panels.pop(0), points, shown)
    for axes, (name, model) in zip(panels, models.items()):
        _frame(axes, shown, name if model["accuracy"] is None else f"{name} ({model['accuracy']:.1%})")
        axes.imshow(model["sides"], cmap=_SIDES, vmin=0, vmax=1, origin="lower", extent=(-limit, limit) * 2,
                    interpolation="nearest")
        for line in model["lines"]:
            axes.plot(*np.transpose(line), color="black", linewidth=1.3)
        if points:
            _scatter(axes, *points[-1][1:], size=3)
    return save(figure, path)


def _reach(models, points, limit):
    """Half the side of what is shown: all points and lines, at most the square."""
    places = [*(part[1] for part in points), *(line for model in models.values() for line in model["lines"])]
    return min(limit, 1.05 * max((np.abs(part).max() for part in places), default=limit))


def _data(axes, points, shown):
    _frame(axes, shown, "data: " + ", ".join(f"{len(labels)} {caption}" for caption, _, labels in points))
    for _, places, labels in points:
        _scatter(axes, places, labels, size=5)


def _scatter(axes, points, labels, size):
    axes.scatter(*np.transpose(points), s=size, c=[_POINTS[label] for label in labels], linewidths=0)


def _frame(axes, shown, caption):
    axes.axis("on")
    axes.set(xlim=(-shown, shown), ylim=(-shown, shown), aspect="equal", xticks=(), yticks=())
    axes.set_xlabel(caption, fontsize=10)
