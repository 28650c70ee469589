"""Charts that compare the rows of a table: its headlines, and robust over clean accuracy."""

from collections.abc import Sequence

import numpy as np

from tf_robust.evaluation.measure import describe, parse_measure
from tf_robust.report.formatting import spread, spread_caption
from tf_robust.report.label_placement import SIDES, name_sides
from tf_robust.report.measure_order import kinds_of_robustness
from tf_robust.report.table_types import Table
from tf_robust.report.tables import cells
from tf_robust.report.vega import Chart, by_row, domain, number, panels, row_axis, row_step

_NAMED = 10  # models, whose names are all shown beside their points


def comparison(table: Table) -> Chart:
    """Draws one panel per headline: every row's mean, its std or interval, and the paper's mean."""
    values = [value for measure in table["headlines"] for value in _points(table, measure)]
    y = row_axis(table["order"], 22)
    x = {"type": "quantitative", "scale": {"zero": False, "nice": False}, "axis": {"tickCount": 3, "title": None, "format": ",~r"}}
    tips = [
        {"field": "row", "title": "model"},
        {"field": "measure"},
        {"field": "name", "title": "name in files"},
        *(number(field) for field in ("mean", "low", "high", "paper")),
        {"field": "seeds"},
    ]
    axis = {"mark": {"type": "rule", "opacity": 0}, "encoding": {"x": {"field": "start", **x}, "x2": {"field": "end"}, "y": y}}
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
    panel = {"width": 170, "height": row_step(table["order"]), "layer": [axis, interval, *[paper] * printed, mean]}
    lines = spread_caption(table)
    caption = f"Measures of the first table; lines: {lines}{'; diamonds: the paper' * printed}. The axes of fractions span at least 0.1."
    return Chart("comparison", panels(values, "measure", _titles(table), panel, 4, ("x",)), caption)


def _titles(table: Table) -> list[str]:
    return [_title(measure) for measure in table["headlines"]]


def _title(measure: str) -> str:
    direction = ["(lower is better)"] if parse_measure(measure).lower_is_better else []
    return "\n".join([describe(measure).name, *direction])


def _points(table: Table, measure: str) -> list[dict]:
    """The data of one panel; every point has the ends of the panel's axis."""
    entries = [entry for entry in table["rows"] if entry["measure"] == measure]
    papers = {entry["row"]: entry["paper"][0] if entry["paper"] else None for entry in entries}
    numbers = [number for e in entries for number in (e["mean"], *spread(e), papers[e["row"]])]
    start, end = domain(numbers, describe(measure).is_fraction)
    return [
        {
            "row": entry["row"],
            "measure": _title(measure),
            "name": measure,
            "mean": entry["mean"],
            "low": spread(entry)[0],
            "high": spread(entry)[1],
            "seeds": len(entry["seeds"]),
            "paper": papers[entry["row"]],
            "start": start,
            "end": end,
        }
        for entry in entries
    ]


def pareto(table: Table) -> Chart | None:
    """Draws robust over clean accuracy with intervals; a line joins the rows that no other row surpasses in both."""
    clean = next((measure for measure in table["measures"] if parse_measure(measure).is_clean), None)
    robust = next(iter(kinds_of_robustness(table).values()), None)
    entries = cells(table)
    both = [row for row in table["order"] if (row, clean) in entries and (row, robust) in entries]
    if clean is None or robust is None or len(both) < 2:
        return None
    points = {row: (entries[row, clean]["mean"], entries[row, robust]["mean"]) for row in both}
    front = [row for row in both if not any(np.all(np.subtract(p, points[row]) >= 0) and p != points[row] for p in points.values())]
    ends = {measure: {row: spread(entries[row, measure]) for row in both} for measure in (clean, robust)}
    domains = [domain([value for row in both for value in (points[row][i], *ends[m][row])]) for i, m in enumerate((clean, robust))]
    sides = name_sides(points, both if len(both) <= _NAMED else front, front, *domains)
    values = []
    for row, (x, y) in points.items():
        (left, right), (bottom, top) = ends[clean][row], ends[robust][row]
        values.append({"row": row, "clean": x, "robust": y, "left": left, "right": right, "bottom": bottom, "top": top})
        values[-1] |= {"front": row in front, "side": sides.get(row, "")}
    name = describe(clean).name
    line = "; the dashed line joins the models that no other surpasses in both" if len(front) > 1 else ""
    line += "; the best are named" if len(both) > _NAMED else ""
    caption = f"{describe(robust).name} over {name[0].lower()}{name[1:]}{line}. Both axes span at least 0.1."
    encoding = {channel: _axis(*axis) for channel, axis in zip("xy", (("clean", clean, domains[0]), ("robust", robust, domains[1])))}
    layer = _pareto_layers(encoding, table["order"], list(dict.fromkeys(sides.values())))
    return Chart("pareto", {"data": {"values": values}, "width": "container", "height": 340, "encoding": encoding, "layer": layer}, caption)


def _axis(field: str, measure: str, ends: Sequence[float]) -> dict:
    scale = {"domain": ends, "nice": False}
    return {"field": field, "type": "quantitative", "scale": scale, "title": describe(measure).name, "axis": {"tickCount": 6}}


def _pareto_layers(encoding: dict, order: Sequence[str], sides: Sequence[str]) -> list[dict]:
    """The front, the intervals, the points and their names."""
    x, y, color = encoding["x"], encoding["y"], {**by_row(order), "legend": None}
    tips = [{"field": "row", "title": "model"}, number("clean", x["title"]), number("robust", y["title"])]
    interval = {"type": "rule", "opacity": 0.5}
    return [
        {
            "transform": [{"filter": "datum.front"}],
            "mark": {"type": "line", "interpolate": "step-before", "strokeDash": [4, 3], "opacity": 0.5, "color": "currentColor"},
        },
        {"mark": interval, "encoding": {"x": {**x, "field": "left"}, "x2": {"field": "right"}, "color": color}},
        {"mark": interval, "encoding": {"y": {**y, "field": "bottom"}, "y2": {"field": "top"}, "color": color}},
        {"mark": {"type": "point", "filled": True, "size": 80, "opacity": 1}, "encoding": {"color": color, "tooltip": tips}},
        *(
            {
                "transform": [{"filter": f"datum.side === '{side}'"}],
                "mark": {"type": "text", **SIDES[side]},
                "encoding": {"text": {"field": "row"}},
            }
            for side in sides
        ),
    ]
