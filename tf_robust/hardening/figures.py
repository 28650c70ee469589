"""Figures of a search: the frontier of clean accuracy against the target, and the table of candidates."""

import numpy as np

from tf_robust.hardening.choice import Point
from tf_robust.hardening.search import SearchResult, Trial
from tf_robust.report.grids import Cell, Grid, Label
from tf_robust.report.vega import Chart, domain, number


def frontier(result: SearchResult, target: str) -> Chart:
    """Draws every point by clean and target accuracy on the validation images, one line per fine-tuned model from the start.

    Args:
        result: of the search.
        target: its name, for the axis.
    """
    chosen = result.choice.point if result.choice and result.choice.helps else None
    names = list(dict.fromkeys(point.name for point in result.frontier))
    values = []
    for name in names:
        line = [result.start, *(point for point in result.frontier if point.name == name)]
        values += [_value(point, name, point is chosen) for point in sorted(line, key=lambda point: point.coefficient)]
    domains = {key: domain([value[key] for value in values]) for key in ("clean", "target")}
    titles = {"clean": "accuracy on unchanged images", "target": f"accuracy, {target}"}
    x, y = (
        {"field": key, "type": "quantitative", "scale": {"domain": domains[key], "nice": False}, "title": titles[key]}
        for key in ("clean", "target")
    )
    tips = [{"field": "model"}, number("coefficient", "coefficient"), number("clean", titles["clean"]), number("target", titles["target"])]
    color = {"field": "model", "type": "nominal", "sort": names, "legend": {"columns": 1, "orient": "bottom"}}
    shared = {"x": x, "y": y, "tooltip": tips}
    layer = [
        {"mark": {"type": "line", "opacity": 0.6}, "encoding": {**shared, "color": color, "order": {"field": "coefficient"}}},
        {"mark": {"type": "point", "filled": True, "size": 40}, "encoding": {**shared, "color": color}},
        {
            "transform": [{"filter": "datum.chosen"}],
            "mark": {"type": "point", "size": 260, "strokeWidth": 2.5, "color": "currentColor"},
            "encoding": shared,
        },
        {
            "transform": [{"filter": "datum.coefficient === 0"}],
            "mark": {"type": "point", "shape": "square", "filled": True, "size": 90, "color": "currentColor", "opacity": 1},
            "encoding": shared,
        },
    ]
    caption = (
        "Validation images. A line goes from the start (square) to a fine-tuned model, by interpolation of their weights"
        f"{'; the ring is the chosen model' if chosen else ''}."
    )
    return Chart("frontier", {"data": {"values": values}, "width": "container", "height": 380, "layer": layer}, caption)


def candidates_table(result: SearchResult) -> Grid:
    """Returns the table of trials: steps, and clean and target accuracy of each trial's better interpolation."""
    columns = [Label("rung"), Label("steps"), Label("seconds"), Label("clean"), Label("target"), Label("coefficient")]
    start = [None, None, None, _number(result.start.clean), _number(result.start.target), None]
    rows: dict[Label, list[Cell | None]] = {Label("start"): start}
    for trial in result.trials:
        best = max(trial.points, key=lambda point: point.target)
        numbers = map(_number, (best.clean, best.target, best.coefficient))
        rows[Label(f"{trial.candidate.name} (rung {trial.rung + 1})")] = [*_effort(trial), *numbers]
    caption = (
        "Accuracies on validation images, of the interpolation with the higher target. Every trial starts from the model's own weights."
    )
    return Grid("Candidates", "candidate", columns, rows, caption)


def _value(point: Point, name: str, chosen: bool) -> dict:
    values = {"clean": point.clean, "target": point.target, "coefficient": point.coefficient}
    return {"model": name, "chosen": chosen, **{key: float(np.round(value, 5)) for key, value in values.items()}}


def _effort(trial: Trial) -> list[Cell]:
    return [_count(trial.rung + 1), _count(trial.steps), _count(round(trial.seconds))]


def _number(value: float) -> Cell:
    return Cell(f"{value:.3f}", "", f"{value:.3f}", value)


def _count(value: int) -> Cell:
    return Cell(f"{value:,}", "", f"{value:,}", value)
