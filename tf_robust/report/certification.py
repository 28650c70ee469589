"""Chart of certified accuracy over the radius, beside the accuracy of the smoothed model under attack."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from tf_robust.report.vega import Chart, by_row, lines_by_row

_POINTS = 300  # per curve

Radii = Mapping[str, ArrayLike]  # {model: certified radii [N], 0 for images that are misclassified or without a decision}
Attacked = Mapping[str, Mapping[float, float]]  # {model: {radius: accuracy of the smoothed model under attack}}


def certified_curves(models: Radii, attacked: Attacked) -> Chart:
    """Draws the fraction of images that are correct and certified over the radius, and dots for accuracies under attack.

    Args:
        models: {name: certified radii [N]}.
        attacked: {name: {radius: accuracy}}; models may be missing.

    Raises:
        ValueError: there is no model.
    """
    if not models:
        raise ValueError("Expected at least one model with certified radii. Received: none")
    values: list[dict] = []
    for row, radii in models.items():
        sorted_radii = np.sort(np.asarray(radii, np.float64))
        ends = np.unique(sorted_radii[sorted_radii > 0])
        ends = ends[np.unique(np.linspace(0, len(ends) - 1, min(_POINTS, len(ends))).astype(int))] if len(ends) else ends
        values.append({"row": row, "radius": 0.0, "accuracy": float(np.mean(sorted_radii > 0)), "kind": "certified"})
        values += [{"row": row, "radius": float(r), "accuracy": float(np.mean(sorted_radii >= r)), "kind": "certified"} for r in ends]
        values += [{"row": row, "radius": r, "accuracy": a, "kind": "PGD"} for r, a in sorted(attacked.get(row, {}).items())]
    x = {"field": "radius", "type": "quantitative", "title": "radius, l2 (length of the change)", "scale": {"zero": True}}
    y = {"field": "accuracy", "type": "quantitative", "title": "accuracy", "scale": {"domain": [0, 1]}}
    tips = [{"field": "row"}, *({"field": field, "type": "quantitative", "format": ".3f"} for field in ("radius", "accuracy"))]
    return Chart(
        "certified",
        {
            "data": {"values": values},
            "width": "container",
            "height": 280,
            "layer": [
                {
                    "transform": [{"filter": "datum.kind == 'certified'"}],
                    "mark": {"type": "line", "interpolate": "step-before"},
                    "encoding": {"x": x, "y": y, **lines_by_row(models), "tooltip": tips},
                },
                {
                    "transform": [{"filter": "datum.kind == 'PGD'"}],
                    "mark": {"type": "point", "filled": True, "size": 60},
                    "encoding": {"x": x, "y": y, "color": by_row(models), "tooltip": tips},
                },
            ],
        },
        "Randomized smoothing. Lines: images that are classified correctly and certified at a radius, a lower bound of robust accuracy. "
        "Dots: accuracy of the smoothed model under PGD, an upper bound, and at radius 0 without attack. First seed of each row.",
    )
