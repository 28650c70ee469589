"""Calibration as figures: how far confidence can be trusted, and what abstaining gains. Each function returns its path.

Models are {name: (confidences [N] in [0, 1], correct [N])}, as the measures of `tf_robust.metrics` take them.
"""

import numpy as np
from matplotlib.figure import Figure

from tf_robust import metrics
from tf_robust.report.charts import _COLOURS, _LINES, _pick, _quiet
from tf_robust.report.figures import save

_COLUMNS = 4
_STEADY = 0.02  # below this response rate a few examples decide, and curves may leave the figure


def reliability_diagram(path, models, bin_size=100):
    """Accuracy over confidence, a panel a model, a dot a bin of equally many examples.

    The grey band is where 95 % of the bins of a calibrated model fall; dots below it are overconfident.

    Args:
        models: {name: (confidences, correct)}. bin_size: examples a bin.
    """
    _check(models)
    columns = min(_COLUMNS, len(models))
    lines = -(-len(models) // columns)
    figure = Figure(figsize=(max(3.4, 2.9 * columns), 3.2 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, (name, (confidences, correct)) in zip(panels, models.items()):
        means, accuracies, counts = metrics.reliability_bins(confidences, correct, bin_size)
        _diagonal(axes, counts[0])
        axes.plot(means, accuracies, "o", color=_COLOURS[0], markersize=4, alpha=0.7)
        error = metrics.rms_calibration_error(confidences, correct, bin_size)
        axes.set_title(f"{name}\nRMS error {error:.3f}, accuracy {np.mean(correct):.3f}", fontsize=10)
        axes.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal", xlabel="mean confidence", ylabel="accuracy")
        _quiet(axes)
    for axes in panels[len(models):]:
        axes.axis("off")
    return save(figure, path)


def _diagonal(axes, count):
    """Perfect calibration, and what chance does to bins of `count` examples."""
    chance = np.linspace(0, 1, 201)
    half = 1.96 * np.sqrt(chance * (1 - chance) / count)
    axes.fill_between(chance, np.clip(chance - half, 0, 1), np.clip(chance + half, 0, 1), color="#dddddd", linewidth=0)
    axes.plot([0, 1], [0, 1], "--", color="#666666", linewidth=1)


def response_rate_curves(path, models):
    """Accuracy over the share of examples answered, the most confident first; a line a model, with its AURRA."""
    _check(models)
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    lowest = 1.0
    for number, (name, outcomes) in enumerate(models.items()):
        rates, accuracies = metrics.response_rate_curve(*outcomes)
        axes.plot(rates, accuracies, _pick(_LINES, number), color=_pick(_COLOURS, number),
                  marker="o" if len(rates) == 1 else None, label=f"{name} (AURRA {metrics.aurra(*outcomes):.3f})")
        lowest = min(lowest, accuracies[rates >= _STEADY].min())
    axes.set(xlabel="response rate", ylabel="accuracy among the answered", xlim=(0, 1),
             ylim=(max(0.0, lowest - 0.05), 1.0 + 0.05 * (1.05 - lowest)))
    axes.legend(frameon=False, fontsize=9)
    _quiet(axes)
    return save(figure, path)


def _check(models):
    if not models:
        raise ValueError("Expected at least one model with its confidences and correct. Received none")
