"""Figures of a search: the frontier of clean accuracy against the target, and the table of trials."""

from collections.abc import Sequence

import numpy as np

from tf_robust.hardening.choice import Choice, Point, best_point
from tf_robust.hardening.trials import Trial
from tf_robust.report.grids import Cell, Grid, Label
from tf_robust.report.vega import Chart, domain, number

LEAST_CLEAN_RANGE = 0.05  # of the frontier


def frontier(start: Point, points: Sequence[Point], choice: Choice | None, target: str, max_clean_loss: float) -> Chart:
    """Draws every point by clean and target accuracy on the validation images, one line per fine-tuned model from the start.

    Args:
        start: the model as it was given.
        points: the others.
        choice: the chosen one is marked; None: none is.
        target: its name, for the axis.
        max_clean_loss: of the search. Points that lose much more are left out, so that the others can be distinguished.
    """
    limit = start.clean - max(LEAST_CLEAN_RANGE, 3 * max_clean_loss)
    shown = [point for point in points if point.clean >= limit]
    hidden = len(points) - len(shown)
    left_out = f" {hidden} points with a clean accuracy below {limit:.2f} are not shown." if hidden else ""
    points, chosen = shown, choice.point if choice and choice.helps else None
    names = list(dict.fromkeys(point.line for point in points if not point.reestimated))
    values = []
    for name in names:
        line = [start, *(point for point in points if point.line == name and not point.reestimated)]
        values += [_value(point, name, point is chosen) for point in sorted(line, key=lambda point: point.coefficient)]
    reestimated = "batch norm re-estimated"
    values += [_value(point, reestimated, point is chosen) for point in points if point.reestimated]
    values = values or [_value(start, "start", False)]
    domains = {key: domain([value[key] for value in values]) for key in ("clean", "target")}
    titles = {"clean": "accuracy on unchanged images", "target": f"accuracy, {target}"}
    x, y = (
        {"field": key, "type": "quantitative", "scale": {"domain": domains[key], "nice": False}, "title": titles[key]}
        for key in ("clean", "target")
    )
    tips = [{"field": "model"}, number("coefficient", "coefficient"), number("clean", titles["clean"]), number("target", titles["target"])]
    color = {
        "field": "model",
        "type": "nominal",
        "sort": [*names, reestimated],
        "legend": {"columns": 1, "orient": "bottom", "title": None},
    }
    shared = {"x": x, "y": y, "tooltip": tips}
    layer = [
        {
            "transform": [{"filter": f"datum.model !== '{reestimated}'"}],
            "mark": {"type": "line", "opacity": 0.6},
            "encoding": {**shared, "color": color, "order": {"field": "coefficient"}},
        },
        {"mark": {"type": "point", "filled": True, "size": 40}, "encoding": {**shared, "color": color}},
        {
            "transform": [{"filter": "datum.chosen"}],
            "mark": {"type": "point", "size": 260, "strokeWidth": 2.5, "color": "currentColor"},
            "encoding": shared,
        },
        {
            "transform": [{"filter": f"datum.coefficient === 0 && datum.model !== '{reestimated}'"}],
            "mark": {"type": "point", "shape": "square", "filled": True, "size": 90, "color": "currentColor", "opacity": 1},
            "encoding": shared,
        },
    ]
    caption = (
        "Validation images. A line goes from the start (square) to a fine-tuned model, by interpolation of their weights"
        f"{'; the ring is the chosen model' if chosen else ''}."
        f"{' Re-estimated: moving averages of batch normalization from AugMix images.' * any(p.reestimated for p in points)}{left_out}"
    )
    return Chart("frontier", {"data": {"values": values}, "width": "container", "height": 380, "layer": layer}, caption)


def trials_table(start: Point, trials: Sequence[Trial], choice: Choice | None, max_clean_loss: float) -> Grid:
    """Returns the table of trials: steps, and clean and target accuracy of each trial's better interpolation.

    Args:
        start: the model as it was given.
        trials: in their order.
        choice: the chosen point, shown below the start; None: there is none.
        max_clean_loss: of the search.
    """
    columns = [Label("rung"), Label("steps"), Label("seconds"), Label("clean"), Label("target"), Label("coefficient")]
    rows: dict[Label, list[Cell | None]] = {Label("start"): [None, None, None, _number(start.clean), _number(start.target), None]}
    if choice and choice.helps:
        point = choice.point
        rows[Label(f"chosen: {point.name}")] = [None, None, None, *map(_number, (point.clean, point.target, point.coefficient))]
    for trial in trials:
        best = best_point(start, trial.points, max_clean_loss)
        numbers = [None, None, None] if trial.diverged else [*map(_number, (best.clean, best.target, best.coefficient))]
        note = ", diverged" if trial.diverged else ""
        rows[Label(f"{trial.candidate.name}{note} (rung {trial.rung + 1})")] = [*_effort(trial), *numbers]
    caption = (
        "Accuracies on validation images, of the interpolation that attains more within the allowed clean loss. Every trial starts from "
        "the model's own weights."
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
