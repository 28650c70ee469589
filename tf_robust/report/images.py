"""Images and plots as PNG files, drawn without pyplot's global state. Each function returns the path of the file.

Images are [N, H, W, C], uint8 or float in [0, 1] (clipped for display), C = 1 or 3.
"""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tf_robust.utils.files import save_figure, wrapped

_HEAT = "magma"
_LETTERS = 16  # of a text under an image


def captioned_images(path: str, lines: Sequence[tuple[str, np.ndarray, Sequence[str] | None]]) -> str:
    """Draws lines of images, (title, images [N, H, W, C], a text under each image or None)."""
    longest = max(len(images) for _, images, _ in lines)
    texts = [[wrapped(text, _LETTERS) for text in given or ()] for _, _, given in lines]
    text_lines = max(text.count("\n") for of_line in texts for text in of_line or ("",))
    figure = Figure(figsize=(max(5.0, 0.95 * longest), (1.35 + 0.2 * text_lines) * len(lines)), layout="constrained")
    for axes, (title, images, _), of_line in zip(figure.subplots(len(lines), 1, squeeze=False)[:, 0], lines, texts):
        height, width = images.shape[1:3]
        _show(axes, _strip(images), title)
        axes.set_xlim(-0.5, longest * (width + 1 + width // 16) - 0.5)
        for position, text in enumerate(of_line):
            axes.text(position * (width + 1 + width // 16) + width / 2, height + 1, text, ha="center", va="top", fontsize=7)
    return save_figure(figure, path)


def noise_samples(path: str, clean: np.ndarray, noised: Mapping[str, np.ndarray], probabilities: Mapping[str, np.ndarray]) -> str:
    """Draws clean images above the same images with each noise, and the probability of noise at each location, [H, W]."""
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
    return save_figure(figure, path)


def utility_by_class(path: str, mean_images: np.ndarray, mean_utilities: np.ndarray, captions: Sequence[str]) -> str:
    """Draws one panel per class: its mean image, and next to it the mean utility of each pixel, [classes, H, W, C] each."""
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
    for axes, image, utility, caption in zip(panels, mean_images, mean_utilities, captions):
        gray, utility = (values / max(values.max(), np.finfo(np.float32).tiny) for values in (image, utility.mean(axis=-1)))
        heat = matplotlib.colormaps[_HEAT](utility)[..., :3]
        _show(axes, _strip(np.stack([np.broadcast_to(gray, heat.shape), heat])), caption)
    for axes in panels[len(mean_images) :]:
        axes.axis("off")
    return save_figure(figure, path)


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
    """Draws clean images, and for each attack its perturbations and the attacked images with their captions."""
    lines: list[tuple[str, np.ndarray, Sequence[str] | None]] = [("clean", clean, None)]
    for name, images in attacked.items():
        changes = images - clean
        scale = max(float(np.abs(changes).max()), np.finfo(np.float32).tiny)
        lines += [
            (f"{name}: perturbation, {1 / (2 * scale):.3g} times as strong, on gray", 0.5 + changes / (2 * scale), None),
            (f"{name}: attacked", images, captions[name]),
        ]
    return captioned_images(path, lines)
