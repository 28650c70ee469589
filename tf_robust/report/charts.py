"""Charts of a table of rows x measures (as in `tables.aggregate`) and of the training of its rows.

A function returns None if the table has no such measures.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tf_robust import metrics
from tf_robust.evaluation.measure import parse_measure
from tf_robust.report.table_types import Evaluation, Table
from tf_robust.report.tables import cells
from tf_robust.report.vega import COLORS, Chart, by_row, lines_by_row, panels

_ROBUST = ("corruptions/mean15", "corruptions/mean19", "robust/", "nun", "un")  # robust accuracy of the Pareto chart: the first available
_NAME_SIDES: dict[str, dict] = {
    "right": {"align": "left", "dx": 7, "dy": -4},
    "left": {"align": "right", "dx": -7, "dy": -4},
    "above": {"align": "center", "dy": -14},
    "below": {"align": "center", "dy": 14},
}
_TEXT: dict = {"type": "nominal", "title": None, "sort": None}

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


def comparison(table: Table) -> Chart:
    """Draws one panel per measure: every row's mean, its std or interval, and the paper's mean."""
    names = {
        measure: f"{measure} (lower is better)" if parse_measure(measure).lower_is_better else measure for measure in table["measures"]
    }
    values = []
    for entry in (e for e in table["rows"] if e["measure"] in names):
        std = entry["std"]
        low, high = (entry["low"], entry["high"]) if std is None else (entry["mean"] - std, entry["mean"] + std)
        values.append(
            {
                "row": entry["row"],
                "measure": names[entry["measure"]],
                "mean": entry["mean"],
                "low": low,
                "high": high,
                "seeds": len(entry["seeds"]),
                "paper": entry["paper"][0] if entry["paper"] else None,
            }
        )
    y = {"field": "row", **_TEXT, "sort": table["order"], "axis": {"labelLimit": 220}}
    x = {"type": "quantitative", "scale": {"zero": False}, "axis": {"tickCount": 4, "title": None}}
    tips = [
        {"field": "row"},
        {"field": "measure"},
        *({"field": f, "type": "quantitative", "format": ".4f"} for f in ("mean", "low", "high", "paper")),
        {"field": "seeds"},
    ]
    interval = {
        "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6},
        "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}, "y": y},
    }
    paper = {
        "mark": {"type": "point", "shape": "diamond", "size": 70, "filled": False, "color": "currentColor"},
        "transform": [{"filter": "isValid(datum.paper)"}],
        "encoding": {"x": {"field": "paper", **x}, "y": y},
    }
    mean = {
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
        "encoding": {"x": {"field": "mean", **x}, "y": y, "color": {**by_row(table["order"]), "legend": None}, "tooltip": tips},
    }
    printed = any(value["paper"] is not None for value in values)
    panel = {"width": 190, "height": {"step": 18}, "layer": [interval, *[paper] * printed, mean]}
    alone = [entry["std"] is None for entry in table["rows"]]
    lines = "95% interval" if all(alone) else "sample std over seeds, or 95% interval" if any(alone) else "sample std over seeds"
    caption = f"Every row and measure; lines: {lines}{'; diamonds: the paper' * printed}."
    return Chart("comparison", panels(values, "measure", names.values(), panel, 3, ("x",)), caption)


def pareto(table: Table) -> Chart | None:
    """Draws robust over clean accuracy; a line joins the rows that no other row surpasses in both."""
    clean = next((measure for measure in table["measures"] if parse_measure(measure).is_clean), None)
    robust = next((measure for start in _ROBUST for measure in table["measures"] if measure.startswith(start)), None)
    entries = cells(table)
    both = [row for row in table["order"] if (row, clean) in entries and (row, robust) in entries]
    if clean is None or robust is None or len(both) < 2:
        return None
    points = {row: (entries[row, clean]["mean"], entries[row, robust]["mean"]) for row in both}
    front = [row for row in both if not any(np.all(np.subtract(p, points[row]) >= 0) and p != points[row] for p in points.values())]
    sides = _name_sides(points, front)
    values = [{"row": row, "clean": x, "robust": y, "front": row in front, "side": sides[row]} for row, (x, y) in points.items()]
    x, y = (
        {"field": field, "type": "quantitative", "scale": {"zero": False, "padding": 30}, "title": title}  # room for names
        for field, title in (("clean", clean), ("robust", robust))
    )
    tips = [
        {"field": "row"},
        {"field": "clean", "format": ".4f", "type": "quantitative", "title": clean},
        {"field": "robust", "format": ".4f", "type": "quantitative", "title": robust},
    ]
    return Chart(
        "pareto",
        {
            "data": {"values": values},
            "width": "container",
            "height": 340,
            "encoding": {"x": x, "y": y},
            "layer": [
                {
                    "transform": [{"filter": "datum.front"}],
                    "mark": {"type": "line", "interpolate": "step-before", "strokeDash": [4, 3], "opacity": 0.5, "color": "currentColor"},
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
                    "encoding": {"color": {**by_row(table["order"]), "legend": None}, "tooltip": tips},
                },
                *(
                    {
                        "transform": [{"filter": f"datum.side === '{side}'"}],
                        "mark": {"type": "text", **_NAME_SIDES[side]},
                        "encoding": {"text": {"field": "row"}},
                    }
                    for side in dict.fromkeys(sides.values())
                ),
            ],
        },
        f"{robust} over {clean}; the dashed line joins the rows that no other surpasses in both.",
    )


def _name_sides(points: Mapping[str, tuple[float, float]], front: Sequence[str]) -> dict[str, str]:
    """Returns {row: the side of its point where its name covers least of other names, points and lines}, at a common chart width."""
    (left, right), (bottom, top) = ((min(side), max(side)) for side in zip(*points.values()))
    pixels = {row: (700 * (x - left) / ((right - left) or 1), 280 * (top - y) / ((top - bottom) or 1)) for row, (x, y) in points.items()}
    occupied, sides = [(x - 5, y - 5, x + 5, y + 5) for x, y in pixels.values()], {}
    corners = sorted(pixels[row] for row in front)
    for (x, y), (next_x, next_y) in zip(corners, corners[1:]):  # the line goes down or up first, then to the right
        occupied += [(x - 2, min(y, next_y), x + 2, max(y, next_y)), (x, next_y - 2, next_x, next_y + 2)]
    for row, (x, y) in pixels.items():
        width = 6.5 * len(row)
        middle = x - width / 2
        starts = {"right": (x + 7, y - 10), "left": (x - 7 - width, y - 10), "above": (middle, y - 20), "below": (middle, y + 8)}
        boxes = {side: (across, down, across + width, down + 12) for side, (across, down) in starts.items()}
        covered = {side: sum(_overlap(box, other) for other in occupied) + _outside(box) for side, box in boxes.items()}
        sides[row] = min(boxes, key=lambda side: covered[side])
        occupied.append(boxes[sides[row]])
    return sides


def _outside(box: Box) -> float:
    """The area of a box outside of the plot."""
    return (box[2] - box[0]) * (box[3] - box[1]) - _overlap(box, (-30, -30, 730, 310))


def _overlap(one: Box, other: Box) -> float:
    across, down = (min(one[i + 2], other[i + 2]) - max(one[i], other[i]) for i in (0, 1))
    return max(0, across) * max(0, down)


def corruption_groups(table: Table) -> Chart | None:
    """Draws bars for noise, blur, weather and digital corruptions."""
    entries = cells(table)
    values = [
        {"row": row, "group": group, "accuracy": entries[row, f"corruptions/{group}"]["mean"]}
        for row in table["order"]
        for group in metrics.GROUPS
        if (row, f"corruptions/{group}") in entries
    ]
    if not values:
        return None
    return Chart(
        "groups",
        {
            "data": {"values": values},
            "width": "container",
            "height": 240,
            "mark": "bar",
            "encoding": {
                "x": {"field": "group", **_TEXT, "axis": {"labelAngle": 0}},
                "xOffset": {"field": "row", "sort": table["order"]},
                "y": {"field": "accuracy", "type": "quantitative"},
                "color": by_row(table["order"]),
                "tooltip": [{"field": "row"}, {"field": "group"}, {"field": "accuracy", "type": "quantitative", "format": ".4f"}],
            },
        },
        "Mean accuracy by group of corruptions.",
    )


def severities(table: Table) -> Chart | None:
    """Draws accuracy over severity, the mean over the corruptions that all rows have."""
    entries = cells(table)
    by_severity = [e["measure"] for e in table["rows"] if parse_measure(e["measure"]).severity is not None]
    rows = [row for row in table["order"] if any((row, m) in entries for m in by_severity)]
    names = [
        name
        for name in dict.fromkeys(parse_measure(m).name for m in by_severity)
        if all((row, f"corruptions/{name}/{s}") in entries for row in rows for s in range(1, 6))
    ]
    if not names:
        return None
    values = [
        {"row": row, "severity": s, "accuracy": np.mean([entries[row, f"corruptions/{name}/{s}"]["mean"] for name in names])}
        for row in rows
        for s in range(1, 6)
    ]
    return Chart(
        "severities",
        {
            "data": {"values": values},
            "width": "container",
            "height": 260,
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": {"field": "severity", "type": "ordinal", "axis": {"labelAngle": 0}},
                "y": {"field": "accuracy", "type": "quantitative", "scale": {"zero": False}},
                **lines_by_row(table["order"]),
                "tooltip": [{"field": "row"}, {"field": "severity"}, {"field": "accuracy", "type": "quantitative", "format": ".4f"}],
            },
        },
        f"Accuracy over severity, the mean over {len(names)} corruptions.",
    )


def corruption_heat_map(table: Table) -> Chart | None:
    """Draws mean accuracy over seeds, one panel per row: corruptions down, severities across."""
    measured = [(entry, parse_measure(entry["measure"])) for entry in table["rows"]]
    values: list[dict] = [
        {"row": entry["row"], "corruption": name.name.replace("_", " "), "severity": name.severity, "accuracy": entry["mean"]}
        for entry, name in measured
        if name.severity is not None
    ]
    if not values:
        return None
    rows = list(dict.fromkeys(value["row"] for value in values))
    panel = {
        "width": {"step": 30},
        "height": {"step": 16},
        "encoding": {"x": {"field": "severity", "type": "ordinal", "axis": {"labelAngle": 0}}, "y": {"field": "corruption", **_TEXT}},
        "layer": [
            {
                "mark": "rect",
                "encoding": {
                    "color": {"field": "accuracy", "type": "quantitative", "scale": {"scheme": "viridis", "domain": [0, 1]}},
                    "tooltip": [
                        {"field": "row"},
                        {"field": "corruption"},
                        {"field": "severity"},
                        {"field": "accuracy", "type": "quantitative", "format": ".4f"},
                    ],
                },
            },
            {
                "mark": {"type": "text", "fontSize": 9},
                "encoding": {
                    "text": {"field": "accuracy", "type": "quantitative", "format": ".2f"},
                    "color": {"condition": {"test": "datum.accuracy > 0.6", "value": "black"}, "value": "white"},
                },
            },
        ],
    }
    return Chart("corruptions", panels(values, "row", rows, panel, 4), "Accuracy by corruption and severity, mean over seeds.")


def flips(table: Table) -> Chart | None:
    """Draws flip probabilities: perturbations down, rows across."""
    measured = [(entry, parse_measure(entry["measure"])) for entry in table["rows"] if entry["measure"] in table["details"]]
    values = [
        {"row": entry["row"], "perturbation": name.name.replace("_", " "), "flips": entry["mean"]}
        for entry, name in measured
        if name.family == "flips" and not name.is_flip_rate
    ]
    if not values:
        return None
    return Chart(
        "flips",
        {
            "data": {"values": values},
            "width": {"step": 44},
            "height": {"step": 18},
            "encoding": {
                "x": {"field": "row", **_TEXT, "sort": table["order"], "axis": {"labelAngle": -40}},
                "y": {"field": "perturbation", **_TEXT},
            },
            "layer": [
                {
                    "mark": "rect",
                    "encoding": {
                        "color": {"field": "flips", "type": "quantitative", "scale": {"scheme": "viridis", "reverse": True}},
                        "tooltip": [
                            {"field": "row"},
                            {"field": "perturbation"},
                            {"field": "flips", "type": "quantitative", "format": ".4f"},
                        ],
                    },
                },
                {
                    "mark": {"type": "text", "fontSize": 9, "color": "white", "stroke": "black", "strokeWidth": 0.3},
                    "encoding": {"text": {"field": "flips", "type": "quantitative", "format": ".3f"}},
                },
            ],
        },
        "How often a prediction flips from frame to frame (lower is better).",
    )


def cost(evaluations: Iterable[Evaluation]) -> Chart | None:
    """Draws minutes of training, the mean over seeds."""
    minutes: dict[str, list[float]] = {}
    for evaluation in evaluations:
        minutes.setdefault(evaluation["row"], []).append(evaluation.get("training", {}).get("seconds", 0) / 60)
    values: list[dict] = [{"row": row, "minutes": float(np.mean(each))} for row, each in minutes.items() if sum(each)]
    if not values:
        return None
    return Chart(
        "cost",
        {
            "data": {"values": values},
            "width": "container",
            "height": {"step": 18},
            "mark": "bar",
            "encoding": {
                "y": {"field": "row", **_TEXT},
                "x": {"field": "minutes", "type": "quantitative"},
                "color": {**by_row([value["row"] for value in values]), "legend": None},
                "tooltip": [{"field": "row"}, {"field": "minutes", "type": "quantitative", "format": ".2f"}],
            },
        },
        "Minutes of training per run; other processes may have run on the same machine.",
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
            "x": {"field": "class", **_TEXT, "sort": [str(name) for name in class_names]},
            "y": {"field": "images", "type": "quantitative", "scale": {"type": "symlog" if uneven else "linear"}},
            "tooltip": [{"field": "class"}, {"field": "images"}],
        },
    }
    return Chart("classes", panels(values, "split", titles.values(), panel, 2, ("y",)), "Examples per class.")


def of_table(table: Table, evaluations: Sequence[Evaluation]) -> list[Chart]:
    """Returns all charts for which a table has measures."""
    return [
        chart
        for chart in itertools.chain(
            (draw(table) for draw in (comparison, pareto, corruption_groups, severities, corruption_heat_map, flips)), [cost(evaluations)]
        )
        if chart
    ]
