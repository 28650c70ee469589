"""Images and plots as PNG files, drawn without pyplot's global state. Each function returns the path of the file.

Images are [N, H, W, C], uint8 or float in [0, 1] (clipped for display), C = 1 or 3.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from tf_robust.utils.plotting import save, wrapped

_HEAT = "magma"
_LETTERS = 16  # of a text under an image
_POINTS = ("#0072B2", "#D55E00")  # of two classes of points
_SIDES = ListedColormap(["#cfe3f1", "#f8dccb"])
_COLUMNS = 4  # decision boundaries side by side

Part = tuple[str, np.ndarray, np.ndarray]  # caption, points [N, 2], labels [N]


class Boundary(TypedDict):
    """The decision boundary of a classifier of points in the plane.

    Attributes:
        sides: bool [G, G], y by x over the square: the predicted class.
        lines: the pieces of the boundary, [points, 2] each.
        accuracy: of the model, or None.
    """

    sides: np.ndarray
    lines: list[np.ndarray]
    accuracy: float | None


def image_groups(path: str, groups: Mapping[str, np.ndarray], title: str) -> str:
    """Draws one line of example images per group.

    Args:
        path: of the PNG file.
        groups: {caption: [N, H, W, C]}.
        title: of the figure.
    """
    if not groups:
        raise ValueError("Expected at least one group of images. Received: none")
    longest = max(len(images) for images in groups.values())
    figure = Figure(figsize=(max(5.0, 0.95 * longest), 1.2 * len(groups) + 0.4), layout="constrained")
    figure.suptitle(title)
    for axes, (caption, images) in zip(_column(figure, len(groups)), groups.items()):
        _show(axes, _strip(images), caption)
    return save(figure, path)


def captioned_images(path: str, lines: Sequence[tuple[str, np.ndarray, Sequence[str] | None]]) -> str:
    """Draws lines of images with a text under each image.

    Args:
        path: of the PNG file.
        lines: (title, images [N, H, W, C], [N] texts or None) of each line.
    """
    longest = max(len(images) for _, images, _ in lines)
    texts = [[wrapped(text, _LETTERS) for text in given or ()] for _, _, given in lines]
    text_lines = max(text.count("\n") for of_line in texts for text in of_line or ("",))
    figure = Figure(figsize=(max(5.0, 0.95 * longest), (1.35 + 0.2 * text_lines) * len(lines)), layout="constrained")
    for axes, (title, images, _), of_line in zip(_column(figure, len(lines)), lines, texts):
        height, width = images.shape[1:3]
        _show(axes, _strip(images), title)
        axes.set_xlim(-0.5, longest * (width + 1 + width // 16) - 0.5)
        for position, text in enumerate(of_line):
            axes.text(position * (width + 1 + width // 16) + width / 2, height + 1, text, ha="center", va="top", fontsize=7)
    return save(figure, path)


def noise_samples(path: str, clean: np.ndarray, noised: Mapping[str, np.ndarray], probabilities: Mapping[str, np.ndarray]) -> str:
    """Draws clean images above the same images with each noise, and the probability of noise at each location.

    Args:
        path: of the PNG file.
        clean: [N, H, W, C].
        noised: {name: [N, H, W, C]}.
        probabilities: {name: [H, W] in [0, 1]}, for some or all names of `noised`.
    """
    lines = {"clean": clean, **noised}
    figure = Figure(figsize=(max(5.0, 0.9 * len(clean)) + 2.2, 1.3 * len(lines)), layout="constrained")
    panels = figure.subplots(len(lines), 2, squeeze=False, width_ratios=[max(3, len(clean)), 1.6])
    for (left, right), (name, images) in zip(panels, lines.items()):
        _show(left, _strip(images), name)
        right.axis("off")
        if name in probabilities:
            heat_map = right.imshow(probabilities[name], cmap=_HEAT, vmin=0)
            right.set_title("probability of noise", fontsize=9)
            figure.colorbar(heat_map, ax=right)
    return save(figure, path)


def utility_by_class(path: str, mean_images: np.ndarray, mean_utilities: np.ndarray, captions: Sequence[str]) -> str:
    """Draws one panel per class: its mean image, and next to it the mean utility of each pixel.

    Args:
        path: of the PNG file.
        mean_images: [classes, H, W, C], not negative.
        mean_utilities: [classes, H, W, C], not negative.
        captions: a text for each class.
    """
    if np.shape(mean_images) != np.shape(mean_utilities) or np.ndim(mean_images) != 4:
        raise ValueError(
            "Expected mean images and utilities of one shape [classes, H, W, C]. Received shapes: "
            f"{np.shape(mean_images)}, {np.shape(mean_utilities)}"
        )
    lines = -(-len(mean_images) // 5)
    figure = Figure(figsize=(10, 1.2 * lines + 0.4), layout="constrained")
    figure.suptitle("Mean image (left) and mean utility over channels (right), each divided by its own maximum", fontsize=11)
    figure.get_layout_engine().set(wspace=0.12)
    panels = figure.subplots(lines, 5, squeeze=False).ravel()
    for label, (image, utility) in enumerate(zip(mean_images, mean_utilities)):
        heat = matplotlib.colormaps[_HEAT](_scaled_to_maximum(utility.mean(axis=-1)))[..., :3]
        gray = np.broadcast_to(_scaled_to_maximum(image), heat.shape)
        _show(panels[label], _strip(np.stack([gray, heat])), captions[label])
    for axes in panels[len(mean_images) :]:
        axes.axis("off")
    return save(figure, path)


def _scaled_to_maximum(values: np.ndarray) -> np.ndarray:
    return values / max(values.max(), np.finfo(np.float32).tiny)


def _column(figure: Figure, count: int) -> Iterable[Axes]:
    return figure.subplots(count, 1, squeeze=False)[:, 0]


def _show(axes: Axes, image: np.ndarray, caption: str) -> None:
    axes.imshow(image, interpolation="nearest")
    axes.set_title(caption, loc="left", fontsize=10)
    axes.axis("off")


def _strip(images: np.ndarray) -> np.ndarray:
    """Returns images [N, H, W, C] side by side with white gaps, [H, N * W + gaps, 3] in [0, 1]."""
    images = np.asarray(images)
    if images.ndim != 4 or not len(images) or images.shape[-1] not in (1, 3):
        raise ValueError(f"Expected images [N, H, W, 1 or 3]. Received shape: {images.shape}")
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    count, height, width, _ = images.shape
    colored = np.broadcast_to(np.clip(images / scale, 0.0, 1.0), (count, height, width, 3))
    gap = 1 + width // 16
    spaced = np.pad(colored, [(0, 0), (0, 0), (0, gap), (0, 0)], constant_values=1.0)
    return np.concatenate(spaced, axis=1)[:, :-gap]


def attacked_images(path: str, clean: np.ndarray, attacked: Mapping[str, np.ndarray], captions: Mapping[str, Sequence[str]]) -> str:
    """Draws clean images, and for each attack its perturbations and the attacked images. Returns the path.

    Args:
        path: of the PNG file.
        clean: [N, H, W, C] in [0, 1].
        attacked: {attack: [N, H, W, C] in [0, 1]}.
        captions: {attack: [N] texts, such as predictions of the model}.
    """
    lines: list[tuple[str, np.ndarray, Sequence[str] | None]] = [("clean", clean, None)]
    for name, images in attacked.items():
        changes = images - clean
        scale = max(float(np.abs(changes).max()), np.finfo(np.float32).tiny)
        lines += [
            (f"{name}: perturbation, {1 / (2 * scale):.3g} times as strong, on gray", 0.5 + changes / (2 * scale), None),
            (f"{name}: attacked", images, captions[name]),
        ]
    return captioned_images(path, lines)


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
