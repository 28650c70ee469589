"""Attacks as PNG files: curves over the size of perturbations, and a sheet of attacked pictures."""

import numpy as np
from matplotlib.figure import Figure

from tf_robust.report.charts import _COLOURS, _LINES, _pick, _quiet
from tf_robust.report.figures import _show, _strip, save

_COLUMNS = 2
_UNITS = {"l0": "values changed", "l1": "sum of changes", "l2": "length", "linf": "largest change"}


def attack_curves(path, models):
    """The share of pictures that is misclassified over the size of the perturbation, a panel an attack, a line a model.

    Args:
        models: {name: {"ATTACK_NORM": distances [N]}}: 0 of what is misclassified anyway, infinity where nothing was found.
    """
    attacks = list(dict.fromkeys(attack for found in models.values() for attack in found))
    if not attacks:
        raise ValueError("Expected at least one model with distances. Received none")
    columns = min(_COLUMNS, len(attacks))
    lines = -(-len(attacks) // columns)
    figure = Figure(figsize=(max(4.5, 4.2 * columns), 3.4 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, attack in zip(panels, attacks):
        farthest = 0.0
        for number, (name, found) in enumerate(models.items()):
            if attack in found:
                distances = np.sort(np.asarray(found[attack], np.float64))
                median = np.median(distances)
                axes.step([0.0, *distances], np.arange(len(distances) + 1) / len(distances), _pick(_LINES, number), where="post",
                          color=_pick(_COLOURS, number), label=f"{name}, median {median:.3g}")
                finite = distances[np.isfinite(distances)]
                farthest = max(farthest, *np.quantile(finite, [0.98]) if len(finite) else [0.0])
        norm = attack.partition("_")[2]
        axes.set(title=attack, xlabel=f"size of the perturbation, {norm} ({_UNITS[norm]})", ylabel="misclassified",
                 xlim=(0, farthest or None), ylim=(0, 1.02))
        axes.legend(frameon=False, fontsize=8, loc="lower right")
        _quiet(axes)
    for axes in panels[len(attacks):]:
        axes.axis("off")
    return save(figure, path)


def attacked_pictures(path, clean, attacked, captions):
    """A line of pictures, and for each attack a line of its perturbations and one of what it made of the pictures.

    Args:
        clean: [N, H, W, C] in [0, 1]. attacked: {attack: the same}. captions: {attack: [N] texts, what the model says}.
    """
    lines = [("clean", clean, None)]
    for name, pictures in attacked.items():
        changes = pictures - clean
        scale = max(float(np.abs(changes).max()), np.finfo(np.float32).tiny)
        lines += [(f"{name}: perturbation, {1 / (2 * scale):.3g} times as strong, on grey", 0.5 + changes / (2 * scale), None),
                  (f"{name}: attacked", pictures, captions[name])]
    side = clean.shape[2] + 1 + clean.shape[2] // 16
    figure = Figure(figsize=(max(5.0, 0.95 * len(clean)), 1.35 * len(lines)), layout="constrained")
    for axes, (title, pictures, texts) in zip(figure.subplots(len(lines), 1, squeeze=False)[:, 0], lines):
        _show(axes, _strip(pictures), title)
        for place, text in enumerate(texts or ()):
            axes.text(place * side + clean.shape[2] / 2, clean.shape[1] + 1, text, ha="center", va="top", fontsize=7)
    return save(figure, path)
