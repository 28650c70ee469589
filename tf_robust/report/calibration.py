"""Charts of calibration: reliability of confidences, and accuracy of a model that may abstain.

Models are {name: (confidences [N] in [0, 1], correct [N])}, as in `tf_robust.metrics`.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from tf_robust import metrics
from tf_robust.report.vega import COLORS, Chart, domain, lines_by_row, panels

_COLUMNS = 4
_POINTS = 200  # per curve
_LOWEST_RATE = 0.02  # at lower response rates accuracies depend on a few examples, and curves may leave the chart

Outcomes = Mapping[str, tuple[ArrayLike, ArrayLike]]  # {model: (confidences, correct)}


def reliability_diagram(models: Outcomes, bin_size: int = 100) -> Chart:
    """Draws accuracy over confidence, one panel per model, one dot per bin of equally many examples.

    The gray band contains 95 % of the bins of a calibrated model; dots below it are overconfident.

    Args:
        models: {name: (confidences, correct)}.
        bin_size: examples per bin.
    """
    _check(models)
    values: list[dict] = []
    titles = []
    for name, (confidences, correct) in models.items():
        means, accuracies, counts = metrics.reliability_bins(confidences, correct, bin_size)
        error = metrics.rms_calibration_error(confidences, correct, bin_size)
        titles.append(f"{name}: RMS error {error:.3f}")
        values += [
            {"model": titles[-1], "confidence": float(x), "accuracy": float(y), "examples": int(n)}
            for x, y, n in zip(means, accuracies, counts)
        ]
        chance = np.linspace(0, 1, 51)
        half = 1.96 * np.sqrt(chance * (1 - chance) / counts[0])
        values += [
            {"model": titles[-1], "chance": float(c), "low": max(0.0, float(c - h)), "high": min(1.0, float(c + h))}
            for c, h in zip(chance, half)
        ]
    x, y = ({"type": "quantitative", "scale": {"domain": [0, 1]}, "title": title} for title in ("mean confidence", "accuracy"))
    calibrated = {"transform": [{"filter": "isValid(datum.chance)"}]}
    panel = {
        "width": 190,
        "height": 190,
        "layer": [
            {
                **calibrated,
                "mark": {"type": "area", "color": "currentColor", "opacity": 0.15},
                "encoding": {"x": {"field": "chance", **x}, "y": {"field": "low", **y}, "y2": {"field": "high"}},
            },
            {
                **calibrated,
                "mark": {"type": "line", "color": "currentColor", "opacity": 0.5, "strokeDash": [4, 3], "strokeWidth": 1},
                "encoding": {"x": {"field": "chance", **x}, "y": {"field": "chance", **y}},
            },
            {
                "transform": [{"filter": "isValid(datum.confidence)"}],
                "mark": {"type": "point", "filled": True, "size": 30, "color": COLORS[0]},
                "encoding": {
                    "x": {"field": "confidence", **x},
                    "y": {"field": "accuracy", **y},
                    "tooltip": [
                        *({"field": field, "type": "quantitative", "format": ".3f"} for field in ("confidence", "accuracy")),
                        {"field": "examples"},
                    ],
                },
            },
        ],
    }
    return Chart(
        "reliability",
        panels(values, "model", titles, panel, _COLUMNS),
        f"Accuracy by confidence: bins of {bin_size} clean images, first seed of each row. 95 % of the bins of a calibrated "
        f"model lie in the gray band.",
    )


def response_rate_curves(models: Outcomes) -> Chart:
    """Draws accuracy over the fraction of examples answered, the most confident first; one line per model, with its AURRA."""
    _check(models)
    values: list[dict] = []
    for name, outcomes in models.items():
        rates, accuracies = metrics.response_rate_curve(*outcomes)
        first = np.flatnonzero(rates >= _LOWEST_RATE)[0]
        indices = np.unique(np.linspace(first, len(rates) - 1, _POINTS).astype(int))
        values += [
            {"row": name, "rate": float(rates[i]), "accuracy": float(accuracies[i]), "AURRA": metrics.aurra(*outcomes)} for i in indices
        ]
    scale = {"domain": domain([value["accuracy"] for value in values]), "nice": False}
    encoding = {
        "x": {"field": "rate", "type": "quantitative", "title": "response rate", "scale": {"domain": [0, 1]}},
        "y": {"field": "accuracy", "type": "quantitative", "title": "accuracy among the answered", "scale": scale},
        **lines_by_row(models),
        "tooltip": [
            {"field": "row"},
            *({"field": field, "type": "quantitative", "format": ".3f"} for field in ("rate", "accuracy", "AURRA")),
        ],
    }
    return Chart(
        "response_rate",
        {
            "data": {"values": values},
            "width": "container",
            "height": 280,
            "encoding": encoding,
            "mark": {"type": "line", "point": len(values) == len(models)},
        },
        "Accuracy on the clean images with the highest confidences; AURRA is the mean of the curve.",
    )


def _check(models):
    if not models:
        raise ValueError("Expected at least one model with its confidences and correct. Received: none")
