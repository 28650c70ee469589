"""Pictures and plots as PNG files, drawn without pyplot's global state. Each function returns the path that it wrote.

Pictures are [N, H, W, C], uint8 or float in [0, 1] (clipped for display), C = 1 or 3.
"""

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from tf_robust.utils.plotting import save

_HEAT = "magma"


def picture_groups(path, groups, title):
    """One line of example pictures a group. groups: {caption: [N, H, W, C]}."""
    if not groups:
        raise ValueError("Expected at least one group of pictures. Received none")
    longest = max(len(pictures) for pictures in groups.values())
    figure = Figure(figsize=(max(5.0, 0.95 * longest), 1.2 * len(groups) + 0.4), layout="constrained")
    figure.suptitle(title)
    for axes, (caption, pictures) in zip(_column(figure, len(groups)), groups.items()):
        _show(axes, _strip(pictures), caption)
    return save(figure, path)


def captioned_pictures(path, lines):
    """Lines of pictures with words under each. lines: [(title, [N, H, W, C], [N] texts, or None)]."""
    longest = max(len(pictures) for _, pictures, _ in lines)
    figure = Figure(figsize=(max(5.0, 0.95 * longest), 1.35 * len(lines)), layout="constrained")
    for axes, (title, pictures, texts) in zip(_column(figure, len(lines)), lines):
        height, width = pictures.shape[1:3]
        _show(axes, _strip(pictures), title)
        axes.set_xlim(-0.5, longest * (width + 1 + width // 16) - 0.5)
        for place, text in enumerate(texts or ()):
            axes.text(place * (width + 1 + width // 16) + width / 2, height + 1, text, ha="center", va="top", fontsize=7)
    return save(figure, path)


def noise_samples(path, clean, noised, probabilities):
    """Clean pictures above the same pictures with each noise, and where the noise falls.

    Args:
        clean: [N, H, W, C]. noised: {name: [N, H, W, C]}.
        probabilities: {name: [H, W] in [0, 1]}, the chance of noise per location; names from `noised`, not all needed.
    """
    lines = {"clean": clean, **noised}
    figure = Figure(figsize=(max(5.0, 0.9 * len(clean)) + 2.2, 1.3 * len(lines)), layout="constrained")
    panels = figure.subplots(len(lines), 2, squeeze=False, width_ratios=[max(3, len(clean)), 1.6])
    for (left, right), (name, pictures) in zip(panels, lines.items()):
        _show(left, _strip(pictures), name)
        right.axis("off")
        if name in probabilities:
            drawn = right.imshow(probabilities[name], cmap=_HEAT, vmin=0)
            right.set_title("chance of noise", fontsize=9)
            figure.colorbar(drawn, ax=right)
    return save(figure, path)


def utility_by_class(path, mean_pictures, mean_utilities, captions):
    """A panel a class: its mean picture, and beside it the mean utility of each pixel.

    Args:
        mean_pictures, mean_utilities: [classes, H, W, C], not negative. captions: a text for each class.
    """
    if np.shape(mean_pictures) != np.shape(mean_utilities) or np.ndim(mean_pictures) != 4:
        raise ValueError("Expected mean pictures and utilities of one shape [classes, H, W, C]. Received shapes: "
                         f"{np.shape(mean_pictures)}, {np.shape(mean_utilities)}")
    lines = -(-len(mean_pictures) // 5)
    figure = Figure(figsize=(10, 1.2 * lines + 0.4), layout="constrained")
    figure.suptitle("Mean picture (left) and mean utility over channels (right), each divided by its own maximum",
                    fontsize=11)
    figure.get_layout_engine().set(wspace=0.12)
    panels = figure.subplots(lines, 5, squeeze=False).ravel()
    for label, (picture, utility) in enumerate(zip(mean_pictures, mean_utilities)):
        heat = matplotlib.colormaps[_HEAT](_to_maximum(utility.mean(axis=-1)))[..., :3]
        grey = np.broadcast_to(_to_maximum(picture), heat.shape)
        _show(panels[label], _strip(np.stack([grey, heat])), captions[label])
    for axes in panels[len(mean_pictures):]:
        axes.axis("off")
    return save(figure, path)


def _to_maximum(values):
    return values / max(values.max(), np.finfo(np.float32).tiny)


def _column(figure, count):
    return figure.subplots(count, 1, squeeze=False)[:, 0]


def _show(axes, picture, caption):
    axes.imshow(picture, interpolation="nearest")
    axes.set_title(caption, loc="left", fontsize=10)
    axes.axis("off")


def _strip(pictures):
    """[N, H, W, C] -> [H, N * W + gaps, 3] in [0, 1], side by side with white gaps."""
    pictures = np.asarray(pictures)
    if pictures.ndim != 4 or not len(pictures) or pictures.shape[-1] not in (1, 3):
        raise ValueError(f"Expected pictures [N, H, W, 1 or 3]. Received shape: {pictures.shape}")
    scale = 255.0 if pictures.dtype == np.uint8 else 1.0
    count, height, width, _ = pictures.shape
    coloured = np.broadcast_to(np.clip(pictures / scale, 0.0, 1.0), (count, height, width, 3))
    gap = 1 + width // 16
    spaced = np.pad(coloured, [(0, 0), (0, 0), (0, gap), (0, 0)], constant_values=1.0)
    return np.concatenate(spaced, axis=1)[:, :-gap]
