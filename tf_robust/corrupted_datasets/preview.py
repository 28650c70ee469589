"""An image sheet: one image under every corruption at every severity, as a PNG."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from tf_robust.corrupted_datasets.reader import open_corrupted
from tf_robust.metrics import SEVERITIES
from tf_robust.utils.files import save_figure

_INCHES = 0.9  # the side of an image


def draw(path: str, folder: str, names: Sequence[str], clean: np.ndarray, title: str) -> str:
    """Draws one row per corruption: the clean image, then severities 1 to 5, as stored in `folder`.

    Args:
        path: of the PNG.
        folder: of a corrupted set.
        names: of corruptions in the set.
        clean: uint8 [H, W, C], the first image of the clean set.
        title: of the figure.

    Returns:
        path
    """
    lines = [[clean, *(_first(folder, name, severity) for severity in SEVERITIES)] for name in names]
    height, width = clean.shape[:2]
    gap = 1 + width // 16
    cells = np.pad(np.array(lines), [(0, 0), (0, 0), (0, gap), (0, gap), (0, 0)], constant_values=255)
    count, columns, row, column, channels = cells.shape
    mosaic = cells.transpose(0, 2, 1, 3, 4).reshape(count * row, columns * column, channels)
    figure = Figure(figsize=(_INCHES * columns + 2.0, _INCHES * count * height / width + 0.8), layout="constrained")
    figure.suptitle(title, fontsize=10)
    axes = figure.subplots()
    axes.imshow(np.broadcast_to(mosaic, (*mosaic.shape[:2], 3)), interpolation="nearest")
    axes.set_xticks(np.arange(columns) * column + width / 2, ["clean", *map(str, SEVERITIES)])
    axes.set_yticks(np.arange(count) * row + height / 2, [name.replace("_", " ") for name in names])
    axes.set_xlabel("severity")
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    return save_figure(figure, path)


def _first(folder, name, severity):
    images, _ = next(open_corrupted(folder, None, name, severity).ordered(1).take(1).as_numpy_iterator())
    return images[0]
