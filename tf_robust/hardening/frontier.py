"""The chart of a search: clean accuracy against the target, of the initial model and all interpolations."""

from collections.abc import Sequence

import altair as alt

from tf_robust.hardening.trials import Point
from tf_robust.report.chart import COLORS, INK, Chart, data, domain, finish, span, tips

MIN_CLEAN_RANGE = 0.05
_REESTIMATED = "batch norm re-estimated"


def frontier_chart(start: Point, points: Sequence[Point], chosen: Point | None, target: str, max_clean_loss: float) -> Chart:
    """Draws every point by clean and target accuracy on the validation images, one line per fine-tuned model from the initial model.

    Points that lose much more than `max_clean_loss` are left out, so that the others can be distinguished; the chosen one is marked.
    """
    limit = start.clean - max(MIN_CLEAN_RANGE, 3 * max_clean_loss)
    shown = [(_REESTIMATED if point.reestimated else point.line, point) for point in points if point.clean >= limit]
    names = [*dict.fromkeys(name for name, point in shown if not point.reestimated)]
    shown += [(name, start) for name in names or ["initial model"]]
    numbers = [{key: round(float(value), 5) for key, value in point.values.items()} for _, point in shown]
    values = [{"model": name, "chosen": point is chosen, **one} for (name, point), one in zip(shown, numbers)]
    x, y = (
        span(channel, key, domain([one[key] for one in numbers]), title)
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
    caption = (
        "Validation images. A line goes from the initial model (square) to a fine-tuned model, by interpolation of their weights. "
        "The ring is the chosen model, if something helps. "
        + "Re-estimated: batch normalization, on unchanged and changed images. " * any(one.reestimated for one in points)
        + f"Points with a clean accuracy below {limit:.2f} are not shown."
    )
    return finish(chart, "frontier", caption, 380)
