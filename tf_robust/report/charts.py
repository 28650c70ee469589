"""Charts of a table of rows x measures (as in `tables.aggregate`) and of the training of its rows.

A function returns None if the table has no such measures.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tf_robust import metrics
from tf_robust.evaluation.measure import parse_measure
from tf_robust.report.comparison_charts import comparison, pareto
from tf_robust.report.formatting import spread, spread_caption
from tf_robust.report.heat_maps import corruption_heat_map, difference_heat_map, flips
from tf_robust.report.shifts import shift_chart
from tf_robust.report.table_types import Table
from tf_robust.report.tables import unadapted_cells
from tf_robust.report.vega import COLORS, NOMINAL, Chart, by_row, domain, lines_by_row, number, panels, row_axis, row_step


def corruption_groups(table: Table) -> Chart | None:
    """Draws bars for noise, blur, weather and digital corruptions."""
    entries = unadapted_cells(table)
    values = [
        {"row": row, "group": group, "accuracy": entry["mean"], **dict(zip(("low", "high"), spread(entry)))}
        for row in table["order"]
        for group in metrics.GROUPS
        if (entry := entries.get((row, f"corruptions/{group}")))
    ]
    if not values:
        return None
    x = {"field": "group", **NOMINAL, "axis": {"labelAngle": 0}}
    offset = {"field": "row", "sort": table["order"]}
    y = {"type": "quantitative", "scale": {"domain": [0, 1]}, "axis": {"tickCount": 5}, "title": "accuracy"}
    tips = [{"field": "row", "title": "model"}, {"field": "group"}, *(number(field) for field in ("accuracy", "low", "high"))]
    return Chart(
        "groups",
        {
            "data": {"values": values},
            "width": "container",
            "height": 240,
            "encoding": {"x": x, "xOffset": offset},
            "layer": [
                {"mark": "bar", "encoding": {"y": {"field": "accuracy", **y}, "color": by_row(table["order"], values), "tooltip": tips}},
                {"mark": {"type": "rule", "opacity": 0.7}, "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}}},
            ],
        },
        f"Mean accuracy by group of corruptions; lines: {spread_caption(table)}.",
    )


def severities(table: Table) -> Chart | None:
    """Draws accuracy over at least two severities, the mean over the corruptions that all rows have."""
    entries = unadapted_cells(table)
    by_severity = [measure for _, measure in entries if parse_measure(measure).severity is not None]
    rows = [row for row in table["order"] if any((row, m) in entries for m in by_severity)]
    levels = sorted({level for m in by_severity if (level := parse_measure(m).severity) is not None})
    names = [
        name
        for name in dict.fromkeys(m.rpartition("/")[0] for m in by_severity)
        if all((row, f"{name}/{s}") in entries for row in rows for s in levels)
    ]
    if not names or len(levels) < 2:
        return None
    values: list[dict] = [
        {"row": row, "severity": s, "accuracy": float(np.mean([entries[row, f"{name}/{s}"]["mean"] for name in names]))}
        for row in rows
        for s in levels
    ]
    scale = {"domain": domain([value["accuracy"] for value in values]), "nice": False}
    return Chart(
        "severities",
        {
            "data": {"values": values},
            "width": "container",
            "height": 260,
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": {
                    "field": "severity",
                    "type": "quantitative",
                    "axis": {"values": levels, "format": "d"},
                    "scale": {"zero": False, "padding": 10},
                },
                "y": {"field": "accuracy", "type": "quantitative", "scale": scale},
                **lines_by_row(table["order"], values),
                "tooltip": [{"field": "row", "title": "model"}, {"field": "severity"}, number("accuracy")],
            },
        },
        f"Accuracy over severity, the mean over {len(names)} corruptions.",
    )


def cost(table: Table) -> Chart | None:
    """Draws the time of training, the median over seeds, of at least two rows."""
    of_rows = table["training_seconds"]
    if len(of_rows) < 2:
        return None
    unit, length = ("minutes", 60) if max(of_rows.values()) >= 120 else ("seconds", 1)
    values: list[dict] = [{"row": row, unit: seconds / length} for row, seconds in of_rows.items()]
    return Chart(
        "cost",
        {
            "data": {"values": values},
            "width": "container",
            "height": row_step(of_rows),
            "mark": "bar",
            "encoding": {
                "y": row_axis(list(of_rows), 40),
                "x": {"field": unit, "type": "quantitative", "axis": {"tickCount": 5}},
                "color": {**by_row(of_rows), "legend": None},
                "tooltip": [{"field": "row", "title": "model"}, number(unit)],
            },
        },
        f"{unit.capitalize()} of training per run; other processes may have run on the same machine.",
    )


def training_curves(histories: Mapping[str, Mapping[str, Sequence[float | None]]]) -> Chart:
    """Draws one panel per quantity, one line per row.

    Args:
        histories: {row: {quantity: [per epoch]}}, None at epochs without a value; the others are then marked.
    """
    quantities: list[str] = list(dict.fromkeys(name for history in histories.values() for name in history))
    if not quantities:
        raise ValueError(f"Expected histories with at least one quantity. Received rows: {list(histories)}")
    values = [
        {"row": row, "quantity": name, "epoch": epoch, "value": value, "sparse": None in series or len(series) == 1}
        for row, history in histories.items()
        for name, series in history.items()
        for epoch, value in enumerate(series, 1)
        if value is not None
    ]
    longest = max(len(series) for history in histories.values() for series in history.values())
    tips = [{"field": "row"}, {"field": "quantity"}, {"field": "epoch"}, {"field": "value", "type": "quantitative", "format": ".4g"}]
    encoding = {
        "x": {"field": "epoch", "type": "quantitative", "scale": {"domain": [0, longest]}, "axis": {"tickMinStep": 1}},
        "y": {"field": "value", "type": "quantitative", "title": None, "scale": {"zero": False}},
        **lines_by_row(histories),
        "tooltip": tips,
    }
    panel = {
        "width": 230,
        "height": 150,
        "encoding": encoding,
        "layer": [{"mark": "line"}, {"mark": {"type": "point", "filled": True, "size": 25}, "transform": [{"filter": "datum.sparse"}]}],
    }
    return Chart("training", panels(values, "quantity", quantities, panel, 3, ("y",)), "Training, first seed of each row.")


def class_histogram(counts: Mapping[str, Sequence[int] | np.ndarray], class_names: Sequence[str]) -> Chart:
    """Draws the images per class, one panel per split; logarithmic if the classes differ more than tenfold.

    Args:
        counts: {split: int [classes]}.
        class_names: labels of the bars.
    """
    for split, numbers in counts.items():
        if len(numbers) != len(class_names):
            raise ValueError(f"Expected {len(class_names)} counts, one per class, of {split!r}. Received: {len(numbers)}")
    titles = {split: f"{split}: {sum(map(int, numbers)):,} images" for split, numbers in counts.items()}
    values = [
        {"split": titles[split], "class": str(name), "images": int(count)}
        for split, numbers in counts.items()
        for name, count in zip(class_names, numbers)
    ]
    uneven = any(max(numbers) > 10 * max(1, min(numbers)) for numbers in counts.values())
    panel = {
        "width": {"step": 20},
        "height": 180,
        "mark": {"type": "bar", "color": COLORS[0]},
        "encoding": {
            "x": {"field": "class", **NOMINAL, "sort": [str(name) for name in class_names]},
            "y": {"field": "images", "type": "quantitative", "scale": {"type": "symlog" if uneven else "linear"}},
            "tooltip": [{"field": "class"}, {"field": "images"}],
        },
    }
    return Chart("classes", panels(values, "split", titles.values(), panel, 2, ("y",)), "Examples per class.")


def of_table(table: Table) -> list[Chart]:
    """Returns all charts for which a table has measures."""
    draw = (comparison, pareto, shift_chart, corruption_groups, severities, corruption_heat_map, difference_heat_map, flips, cost)
    return [chart for chart in (one(table) for one in draw) if chart]
