"""Figures of a search: the frontier of clean accuracy against the target, and the table of trials."""

from collections.abc import Sequence

import altair as alt

from tf_robust.hardening.choice import Choice, Point, best_point
from tf_robust.hardening.trials import Trial
from tf_robust.report.chart import COLORS, INK, Chart, data, domain, finish, span, tips
from tf_robust.report.sections import Cell, Section, frame_of, number

MIN_CLEAN_RANGE = 0.05  # of the frontier
_REESTIMATED = "batch norm re-estimated"


def frontier(start: Point, points: Sequence[Point], choice: Choice | None, target: str, max_clean_loss: float) -> Chart:
    """Draws every point by clean and target accuracy on the validation images, one line per fine-tuned model from the initial model.

    Args:
        start: the initial model.
        points: the others.
        choice: the chosen one is marked; None: none is.
        target: its name, for the axis.
        max_clean_loss: of the search. Points that lose much more are left out, so that the others can be distinguished.
    """
    limit = start.clean - max(MIN_CLEAN_RANGE, 3 * max_clean_loss)
    shown = [point for point in points if point.clean >= limit]
    chosen = choice.point if choice and choice.helps else None
    names = list(dict.fromkeys(point.line for point in shown if not point.reestimated))
    values = [
        _value(point, name, point is chosen)
        for name in names
        for point in sorted([start, *(p for p in shown if p.line == name and not p.reestimated)], key=lambda one: one.coefficient)
    ]
    values += [_value(point, _REESTIMATED, point is chosen) for point in shown if point.reestimated]
    values = values or [_value(start, "initial model", False)]
    x, y = (
        span(channel, key, domain([value[key] for value in values]), title)
        for channel, key, title in ((alt.X, "clean", "accuracy on unchanged images"), (alt.Y, "target", f"accuracy, {target}"))
    )
    legend = alt.Legend(columns=1, orient="bottom", labelFontSize=9, labelExpr="split(datum.label, regexp(' (?=and )'))")
    color = alt.Color("model:N", sort=[*names, _REESTIMATED], title=None, legend=legend, scale=alt.Scale(range=list(COLORS)))
    base = alt.Chart().encode(x, y, tooltip=tips(("model",), ("coefficient", "clean", "target")))
    is_line = f"datum.model !== '{_REESTIMATED}'"
    chart = alt.layer(
        base.mark_line(opacity=0.6).encode(color, order="coefficient:Q").transform_filter(is_line),
        base.mark_point(filled=True, size=40).encode(color),
        base.mark_point(size=260, strokeWidth=2.5, color=INK).transform_filter("datum.chosen"),
        base.mark_point(shape="square", filled=True, size=90, color=INK, opacity=1).transform_filter(f"{is_line} && !datum.coefficient"),
        data=data(values),
    )
    parts = [
        "Validation images. A line goes from the initial model (square) to a fine-tuned model, by interpolation of their weights.",
        *["The ring is the chosen model."] * bool(chosen),
        *["Re-estimated: moving averages of batch normalization from AugMix images."] * any(p.reestimated for p in shown),
        *[f"{len(points) - len(shown)} points with a clean accuracy below {limit:.2f} are not shown."] * (len(shown) < len(points)),
    ]
    return finish(chart, "frontier", " ".join(parts), 380)


def trials_table(start: Point, trials: Sequence[Trial], choice: Choice | None, max_clean_loss: float) -> Section:
    """Returns the table of trials: steps, and clean and target accuracy of each trial's better interpolation.

    Args:
        start: the initial model.
        trials: in their order.
        choice: the chosen point, shown below the initial model; None: there is none.
        max_clean_loss: of the search.
    """
    columns = ["rung", "steps", "seconds", "clean", "target", "coefficient"]
    lines: dict[str, list[Cell | None]] = {"initial model": [None, None, None, number(start.clean), number(start.target), None]}
    if choice and choice.helps:
        point = choice.point
        lines[f"chosen: {point.name}"] = [None, None, None, *map(number, (point.clean, point.target, point.coefficient))]
    for trial in trials:
        best = best_point(start, trial.points, max_clean_loss)
        numbers = (None, None, None) if trial.diverged else (best.clean, best.target, best.coefficient)
        name = f"{trial.candidate.name}{', diverged' if trial.diverged else ''} (rung {trial.rung + 1})"
        lines[name] = [*map(number, (trial.rung + 1, trial.steps, round(trial.seconds), *numbers))]
    caption = (
        "Accuracies on validation images, of the interpolation that attains more within the allowed clean loss. Every trial starts from "
        "the model's own weights."
    )
    return Section("Candidates", frame_of("candidate", lines, columns), caption)


def _value(point: Point, name: str, chosen: bool) -> dict:
    values = {"clean": point.clean, "target": point.target, "coefficient": point.coefficient}
    return {"model": name, "chosen": chosen, **{key: round(float(value), 5) for key, value in values.items()}}
