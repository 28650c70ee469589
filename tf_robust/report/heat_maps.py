"""Accuracy by corruption and severity as a heat map, a panel a row."""

import numpy as np
from matplotlib.figure import Figure

from tf_robust.report.figures import save
from tf_robust.report.tables import cells

_PANELS = 6


def corruption_heat_map(path, table):
    """Mean accuracy over seeds of the first six rows of a table: corruptions down, severities across.

    Returns:
        The path, or None if no row was measured by severity.
    """
    found = cells(table)
    names = list(dict.fromkeys(m.split("/")[1] for m in table["details"] if m.count("/") == 2))
    rows = [row for row in table["order"] if any((row, f"corruptions/{name}/1") in found for name in names)][:_PANELS]
    if not rows:
        return None
    figure = Figure(figsize=(1.9 + 2.6 * len(rows), 0.9 + 0.27 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(rows), squeeze=False, sharey=True)[0]
    for axes, row in zip(panels, rows):
        values = np.array([[found[row, f"corruptions/{name}/{s}"]["mean"] if (row, f"corruptions/{name}/{s}") in found
                            else np.nan for s in range(1, 6)] for name in names])
        drawn = axes.imshow(values, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        for (line, column), value in np.ndenumerate(values):
            axes.text(column, line, "–" if np.isnan(value) else f"{value:.2f}", ha="center", va="center", fontsize=7,
                      color="black" if value > 0.6 else "white")
        axes.set_xticks(range(5), range(1, 6))
        axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        axes.set(title=row, xlabel="severity")
    figure.colorbar(drawn, ax=panels, label="accuracy", fraction=0.05)
    return save(figure, path)
