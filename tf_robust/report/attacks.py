"""What attacks do: curves over the size of perturbations, and a sheet of attacked images as a PNG file."""

import numpy as np

from tf_robust.report.figures import captioned_images
from tf_robust.report.vega import Chart, lines_by_row

_COLUMNS = 2
_POINTS = 300  # of a curve
_UNITS = {"l0": "values changed", "l1": "sum of changes", "l2": "length", "linf": "largest change"}


def attack_curves(models, panels=None):
    """The share of images that is misclassified over the size of the perturbation, a panel an attack, a line a model.

    Args:
        models: {name: {"ATTACK_NORM": distances [N]}}: 0 of what is misclassified anyway, infinity where nothing was found.
        panels: {title: [names]}: those models only in a panel, an attack a column; None: all models in one panel an attack.
    """
    attacks = list(dict.fromkeys(attack for found in models.values() for attack in found))
    if not attacks:
        raise ValueError("Expected at least one model with distances. Received none")
    panels = {f"{title}, ": names for title, names in (panels or {}).items() if set(names) & set(models)} or {"": list(models)}
    drawn = [_attack_panel(f"{title}{attack}", attack, models, names) for title, names in panels.items() for attack in attacks]
    return Chart("attacks", {"concat": drawn, "columns": _COLUMNS},
                 "Misclassified images over the size of the smallest perturbation that the attack found, first seed of each row.")


def _attack_panel(title, attack, models, names):
    values, farthest, norm = [], 0.0, attack.partition("_")[2]
    for name in names:
        found = models.get(name, {})
        if attack in found:
            distances = np.sort(np.asarray(found[attack], np.float64))
            finite = distances[np.isfinite(distances)]
            farthest = max(farthest, np.quantile(finite, 0.98) if len(finite) else 0.0)
            places = np.unique(np.linspace(0, len(finite) - 1, min(_POINTS, len(finite))).astype(int)) if len(finite) else []
            median = float(np.median(distances))
            values += [{"row": name, "size": size, "misclassified": share, "median": median if np.isfinite(median) else None}
                       for size, share in ((0.0, float(np.mean(distances <= 0))),
                                           *((float(finite[i]), (int(i) + 1) / len(distances)) for i in places))]
    tips = [{"field": field, "type": "quantitative", "format": ".3g"} for field in ("size", "misclassified", "median")]
    return {"title": title, "width": 300, "height": 200, "data": {"values": values}, "encoding": {
        "x": {"field": "size", "type": "quantitative", "title": f"size of the perturbation, {norm} ({_UNITS[norm]})",
              "scale": {"domain": [0, float(farthest) or 1.0]}},
        "y": {"field": "misclassified", "type": "quantitative", "scale": {"domain": [0, 1]}}, **lines_by_row(models),
        "tooltip": [{"field": "row"}, *tips]}, "mark": {"type": "line", "interpolate": "step-after", "clip": True}}


def attacked_images(path, clean, attacked, captions):
    """A line of images, and for each attack a line of its perturbations and one of what it made of the images.

    Args:
        clean: [N, H, W, C] in [0, 1]. attacked: {attack: the same}. captions: {attack: [N] texts, what the model says}.
    """
    lines = [("clean", clean, None)]
    for name, images in attacked.items():
        changes = images - clean
        scale = max(float(np.abs(changes).max()), np.finfo(np.float32).tiny)
        lines += [(f"{name}: perturbation, {1 / (2 * scale):.3g} times as strong, on gray", 0.5 + changes / (2 * scale), None),
                  (f"{name}: attacked", images, captions[name])]
    return captioned_images(path, lines)
