"""Charts of a table of rows x metrics (as in `tables.aggregate`), of training, and of a data set's classes.

Color scales are readable with color vision deficiencies: viridis, and orange to blue for differences. A function returns None if the
table has no such metrics.
"""

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
import pandas

from tf_robust import metrics
from tf_robust.evaluation.metric_value import describe, parse_metric
from tf_robust.report.chart import (
    COLORS,
    INK,
    Chart,
    by_row,
    data,
    domain,
    finish,
    lines_by_row,
    panels,
    records,
    row_axis,
    row_step,
    span,
    tips,
)
from tf_robust.report.sections import shift_pairs
from tf_robust.report.tables import Entry, Table, cells, difference_intervals, kinds_of_robustness

_CORRUPTIONS = (
    *(f"corruptions/{name}" for name in (*metrics.BENCHMARK, *metrics.EXTRA)),
    *dict.fromkeys(f"corruptions_bar/{name}" for names in metrics.BAR.values() for name in names),
)
_LEAST_POINTS = 10  # at the ends of the scale of differences, so that small ones look small


def _table_frame(table: Table, unadapted: bool = False) -> pandas.DataFrame:
    """Returns one line for each row and metric: the parts of its name, mean, ends of its spread, and difference to the baseline in points.

    `unadapted`: a row that was measured with test-time adaptation alone has the names without it.
    """
    lines: dict[tuple[str, str], dict] = {}
    entries, intervals = table["rows"], difference_intervals(table)
    if unadapted:
        entries = sorted(entries, key=lambda entry: not parse_metric(entry["metric"]).adapted)
    for entry in entries:
        row, metric = entry["row"], parse_metric(entry["metric"]).unadapted if unadapted else entry["metric"]
        name, one = parse_metric(metric), intervals.get((row, metric))
        lines[row, metric] = {
            **{"row": row, "name": metric, "family": name.family, "member": name.name, "severity": name.severity},
            **{"mean": entry["mean"], **dict(zip(("low", "high"), _spread(entry)))},
            "points": 100 * entry["difference"]["mean"] if entry["difference"] else None,
            **{"points_low": 100 * one.low if one else None, "points_high": 100 * one.high if one else None},
        }
    return pandas.DataFrame([*lines.values()]).sort_values("row", key=lambda rows: rows.map(table["order"].index), kind="stable")


def _spread(entry: Entry) -> tuple[float | None, float | None]:
    """Returns `(mean - std, mean + std)` over seeds; with one seed the ends of its interval, or (None, None)."""
    std = entry["std"]
    return (entry["low"], entry["high"]) if std is None else (entry["mean"] - std, entry["mean"] + std)


def _spread_caption(table: Table) -> str:
    """Returns the meaning of the ends of `_spread`."""
    alone = [entry["std"] is None for entry in table["rows"]]
    return "95% interval" if all(alone) else "sample std over seeds, or 95% interval" if any(alone) else "sample std over seeds"


def of_table(table: Table) -> list[Chart]:
    """Returns all charts for which a table has metrics."""
    draw = (comparison, pareto, shift_chart, corruption_groups, severities, corruption_heat_map, difference_heat_map, flips, cost)
    return [chart for one in draw if (chart := one(table)) is not None]


def comparison(table: Table) -> Chart:
    """Draws one panel per headline: every row's mean, its std or interval, and the paper's mean."""
    values: list[dict] = []
    for metric in table["headlines"]:
        entries = [entry for entry in table["rows"] if entry["metric"] == metric]
        spreads, papers = [_spread(entry) for entry in entries], [entry["paper"][0] if entry["paper"] else None for entry in entries]
        start, end = domain(
            [*(entry["mean"] for entry in entries), *(end for ends in spreads for end in ends), *papers], describe(metric).is_fraction
        )
        for entry, (low, high), paper in zip(entries, spreads, papers):  # every point has the ends of the panel's axis
            names = {"row": entry["row"], "metric": _title(metric), "name": metric, "seeds": len(entry["seeds"])}
            values.append({**names, "mean": entry["mean"], "paper": paper, "start": start, "end": end, "low": low, "high": high})
    y = row_axis(table["order"], 22)

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", title=None, scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(tickCount=3, format=",~r"))

    base = alt.Chart().encode(y=y)
    printed = any(value["paper"] is not None for value in values)
    layers = [
        base.mark_rule(opacity=0).encode(x=x("start"), x2="end"),  # the ends of the axis
        base.mark_rule(strokeWidth=1.5, opacity=0.6).encode(x=x("low"), x2="high"),
        *[base.mark_point(shape="diamond", size=70, color=INK).encode(x=x("paper")).transform_filter("isValid(datum.paper)")] * printed,
        base.mark_point(filled=True, size=70, opacity=1).encode(
            x=x("mean"),
            color=by_row("color", table["order"], legend=None),
            tooltip=tips(("row", "metric", "name", "seeds"), ("mean", "low", "high", "paper")),
        ),
    ]
    panel = alt.layer(*layers).properties(width=170, height=row_step(table["order"]))
    chart = panels(panel, values, "metric", map(_title, table["headlines"]), 4, 170).resolve_scale(x="independent")
    diamonds = "; diamonds: the paper" * printed
    caption = f"Metrics of the first table; lines: {_spread_caption(table)}{diamonds}. The axes of fractions span at least 0.1."
    return finish(chart, "comparison", caption)


def _title(metric: str) -> str:
    return "\n".join([describe(metric).name, *["(lower is better)"] * parse_metric(metric).lower_is_better])


def pareto(table: Table) -> Chart | None:
    """Draws robust over clean accuracy with intervals; a line joins the rows that no other row surpasses in both."""
    clean = next((metric for metric in table["metrics"] if parse_metric(metric).is_clean), None)
    robust = next(iter(kinds_of_robustness(table).values()), None)
    if clean is None or robust is None or len(values := _pairs(table, {"clean": clean, "robust": robust})) < 2:
        return None
    points = np.array([(value["clean"], value["robust"]) for value in values])
    for value, point in zip(values, points):
        value["front"] = not bool(np.any(np.all(points >= point, axis=1) & np.any(points > point, axis=1)))
    line = "; the dashed line joins the models that no other surpasses in both" if sum(value["front"] for value in values) > 1 else ""
    title = describe(clean).name
    caption = f"{describe(robust).name} over {title[:1].lower()}{title[1:]}{line}. Both axes span at least 0.1."
    shape = by_row("shape", table["order"], [value["row"] for value in values])
    layers = _scatter(table, values, {"clean": title, "robust": describe(robust).name}, shape)
    return finish(alt.layer(*layers, data=data(values)), "pareto", caption, 340)


def shift_chart(table: Table) -> Chart | None:
    """Draws accuracy on each shifted data set over accuracy on the original images, one point per row and set, with the diagonal."""
    values = [
        {**value, "data": parse_metric(shift).name}
        for clean, shift in shift_pairs(table)
        for value in _pairs(table, {"original": clean, "shifted": shift})
    ]
    if not values:
        return None
    ends = domain([value[name] for value in values for name in ("original", "shifted", "left", "right", "low", "high")])
    titles = {"original": "accuracy on the original images", "shifted": "accuracy on the shifted images"}
    shape = alt.Shape("data:N", sort=None, title=None, legend=alt.Legend(orient="bottom"))
    layers = _scatter(table, values, titles, shape, ends, ("row", "data"))
    diagonal = alt.Chart(data({"original": end, "shifted": end} for end in ends)).mark_line(strokeDash=[4, 3], opacity=0.5, color=INK)
    diagonal = diagonal.encode(span(alt.X, "original", ends, titles["original"]), span(alt.Y, "shifted", ends, titles["shifted"]))
    caption = (
        "Accuracy on shifted data over accuracy on the original images, one point per model and data set; on the dashed line both are "
        f"equal. Lines: {_spread_caption(table)}."
    )
    return finish(alt.layer(diagonal, *layers, data=data(values)), "shifts", caption, 340)


def _pairs(table: Table, metrics: Mapping[str, str]) -> list[dict]:
    """Returns the means of two metrics {name: metric} of every row that has both, with the ends of their spreads."""
    entries, values = cells(table), []
    (x, across), (y, down) = metrics.items()
    for row in table["order"]:
        if (row, across) in entries and (row, down) in entries:
            first, second = entries[row, across], entries[row, down]
            (left, right), (low, high) = _spread(first), _spread(second)
            values.append({"row": row, x: first["mean"], y: second["mean"], "left": left, "right": right, "low": low, "high": high})
    return values


def _scatter(
    table: Table, values: Sequence[dict], titles: Mapping[str, str], shape: alt.Shape, ends: Sequence[float] = (), texts=("row",)
) -> list[alt.Chart]:
    """Returns the layers of points with intervals across (left, right) and down (low, high), and of the line of those with "front"."""
    (x, x_title), (y, y_title) = titles.items()
    x_ends = ends or domain([value[name] for value in values for name in (x, "left", "right")])
    y_ends = ends or domain([value[name] for value in values for name in (y, "low", "high")])
    color = by_row("color", table["order"], {value["row"] for value in values})

    def at(across: str = x, down: str = y) -> alt.Chart:
        return alt.Chart().encode(span(alt.X, across, x_ends, x_title), span(alt.Y, down, y_ends, y_title), color)

    line = at().mark_line(interpolate="step-before", strokeDash=[4, 3], opacity=0.5).encode(color=alt.value(INK))
    return [
        *[line.transform_filter("datum.front")] * ("front" in values[0]),
        at("left").mark_rule(opacity=0.5).encode(x2="right"),
        at(down="low").mark_rule(opacity=0.5).encode(y2="high"),
        at().mark_point(filled=True, size=80, opacity=1).encode(shape, tooltip=tips(texts, (x, y, "low", "high"))),
    ]


def corruption_groups(table: Table) -> Chart | None:
    """Draws bars for noise, blur, weather and digital corruptions."""
    frame = _table_frame(table, unadapted=True).rename(columns={"member": "group", "mean": "accuracy"})
    frame = frame[frame["name"].isin([f"corruptions/{group}" for group in metrics.GROUPS])]
    if frame.empty:
        return None
    x = alt.X("group:N", title=None, sort=list(metrics.GROUPS), axis=alt.Axis(labelAngle=0))
    base = alt.Chart().encode(x, alt.XOffset("row:N", sort=table["order"]), tooltip=tips(("row", "group"), ("accuracy", "low", "high")))
    bars = base.mark_bar().encode(span(alt.Y, "accuracy", (0, 1)), by_row("color", table["order"], frame["row"]))
    rules = base.mark_rule(opacity=0.7).encode(span(alt.Y, "low", (0, 1), "accuracy"), y2="high")
    caption = f"Mean accuracy by group of corruptions; lines: {_spread_caption(table)}."
    return finish(alt.layer(bars, rules, data=data(frame)), "groups", caption, 240)


def severities(table: Table) -> Chart | None:
    """Draws accuracy over at least two severities, the mean over the corruptions that all rows have."""
    frame = _by_severity(table, unadapted=True)
    levels = sorted(frame["severity"].unique().tolist())
    names = frame["name"].str.rsplit("/", n=1).str[0]
    frame = frame[frame.groupby(names)["mean"].transform("size") == len(levels) * frame["row"].nunique()]
    if frame.empty or len(levels) < 2:
        return None
    means = frame.groupby(["row", "severity"], sort=False, as_index=False)["mean"].mean().rename(columns={"mean": "accuracy"})
    chart = alt.Chart(data(means)).encode(
        alt.X("severity:Q", axis=alt.Axis(values=levels, format="d"), scale=alt.Scale(zero=False, padding=10)),
        span(alt.Y, "accuracy", domain(means["accuracy"])),
        tooltip=tips(("row", "severity"), ("accuracy",)),
        **lines_by_row(table["order"], means["row"]),
    )
    caption = f"Accuracy over severity, the mean over {names[frame.index].nunique()} corruptions."
    return finish(chart.mark_line(point=True), "severities", caption, 260)


def corruption_heat_map(table: Table) -> Chart | None:
    """Draws accuracies, the mean over seeds, one panel per row: corruptions down, the measured severities across."""
    frame = _by_severity(table).rename(columns={"mean": "accuracy"})
    if frame.empty:
        return None
    color = alt.Color("accuracy:Q", scale=alt.Scale(scheme="viridis", domain=[0, 1]))
    caption = f"Accuracy by corruption and severity{', mean over seeds' * _has_seeds(table)}."
    chart = _corruption_panels(frame, color, ".2f", "datum.accuracy > 0.45 ? 'black' : 'white'", 31, ("accuracy",))
    return finish(chart, "corruptions", caption)


def difference_heat_map(table: Table) -> Chart | None:
    """Draws the differences of accuracies to the baseline in percentage points, one panel per other row."""
    frame = _by_severity(table).dropna(subset="points")
    if frame.empty:
        return None
    largest = max(_LEAST_POINTS, float(frame["points"].abs().max()))
    color = alt.Color("points:Q", scale=alt.Scale(scheme="blueorange", reverse=True, domain=[-largest, largest]))
    caption = (
        f"Accuracy minus that of {table['baseline']}, in percentage points{', mean over common seeds' * _has_seeds(table)}: blue is "
        "better, orange is worse. Single cells vary more than the means over them."
    )
    ink = f"abs(datum.points) > {0.6 * largest:.6g} ? 'white' : 'black'"
    chart = _corruption_panels(frame, color, "+.1f", ink, 37, ("points", "points_low", "points_high"))
    return finish(chart, "corruption_differences", caption)


def _has_seeds(table: Table) -> bool:
    return any(len(entry["values"]) > 1 for entry in table["rows"])


def _by_severity(table: Table, unadapted: bool = False) -> pandas.DataFrame:
    """Returns the lines of `_table_frame` of single severities, with the names of their corruptions."""
    frame = _table_frame(table, unadapted).dropna(subset="severity").astype({"severity": int})
    return frame.assign(corruption=[describe(f"{one.family}/{one.member}").name for one in frame.itertuples()])


def _corruption_panels(frame: pandas.DataFrame, color: alt.Color, number: str, ink: str, width: int, numbers: Sequence[str]) -> Chart:
    known = {describe(name).name: place for place, name in enumerate(_CORRUPTIONS)}
    base = alt.Chart().encode(
        alt.X("severity:O", axis=alt.Axis(labelAngle=0)),
        alt.Y("corruption:N", title=None, sort=sorted(frame["corruption"].unique(), key=lambda name: known.get(name, len(known)))),
        tooltip=tips(("row", "corruption", "severity", "name"), numbers),
    )
    panel = _heat_map(base, color, number, ink).properties(width=alt.Step(width), height=alt.Step(17))
    return panels(panel, records(frame), "row", frame["row"].unique(), 4, 210)


def _heat_map(base: alt.Chart, color: alt.Color, number: str, ink: str) -> alt.LayerChart:
    """Returns colored cells and the numbers in them; `ink` is the expression of the numbers' color."""
    text = base.mark_text(fontSize=10, color=alt.ExprRef(ink)).encode(alt.Text(color.shorthand, format=number))
    return alt.layer(base.mark_rect().encode(color), text)


def flips(table: Table) -> Chart | None:
    """Draws flip probabilities: perturbations down, rows across."""
    frame = _table_frame(table)
    chosen = [name for name in table["details"] if parse_metric(name).family == "flips" and parse_metric(name).card_family == "flips"]
    frame = frame[frame["name"].isin(chosen)]
    if frame.empty:
        return None
    frame = frame.assign(flips=frame["mean"], perturbation=frame["member"].str.replace("_", " "))
    largest = max(0.1, float(frame["flips"].max()))
    base = alt.Chart(data(frame)).encode(
        alt.X("row:N", title=None, sort=table["order"], axis=alt.Axis(labelAngle=-40)),
        alt.Y("perturbation:N", title=None, sort=None),
        tooltip=tips(("row", "perturbation"), ("flips",)),
    )
    color = alt.Color("flips:Q", scale=alt.Scale(scheme="viridis", reverse=True, domain=[0, largest]))
    chart = _heat_map(base, color, ".3f", f"datum.flips < {0.55 * largest:.6g} ? 'black' : 'white'")
    chart = chart.properties(width=alt.Step(44), height=alt.Step(18))
    return finish(chart, "flips", "How often a prediction flips from frame to frame (lower is better).")


def cost(table: Table) -> Chart | None:
    """Draws the time of training, the median over seeds, of at least two rows."""
    seconds = table["training_seconds"]
    if len(seconds) < 2:
        return None
    unit, length = ("minutes", 60) if max(seconds.values()) >= 120 else ("seconds", 1)
    chart = alt.Chart(data({"row": row, unit: time / length} for row, time in seconds.items())).encode(
        alt.X(f"{unit}:Q", axis=alt.Axis(tickCount=5)),
        row_axis([*seconds], 40),
        by_row("color", [*seconds], legend=None),
        tooltip=tips(("row",), (unit,)),
    )
    caption = f"{unit.capitalize()} of training per run; other processes may have run on the same machine."
    return finish(chart.mark_bar(), "cost", caption, row_step(seconds))


def training_curves(histories: Mapping[str, Mapping[str, Sequence[float | None]]]) -> Chart:
    """Draws one panel per quantity, one line per row; values are None at epochs without one, and the others are then marked."""
    quantities = dict.fromkeys(name for history in histories.values() for name in history)
    values: list[dict] = []
    for row, history in histories.items():
        for name, series in history.items():
            shared = {"row": row, "quantity": name, "sparse": None in series or len(series) == 1}
            values += [{**shared, "epoch": epoch, "value": value} for epoch, value in enumerate(series, 1) if value is not None]
    longest = max(len(series) for history in histories.values() for series in history.values())
    base = alt.Chart().encode(
        alt.X("epoch:Q", scale=alt.Scale(domain=[0, longest]), axis=alt.Axis(tickMinStep=1)),
        alt.Y("value:Q", title=None, scale=alt.Scale(zero=False)),
        tooltip=tips(("row", "quantity", "epoch"), ("value",), ".4g"),
        **lines_by_row([*histories]),
    )
    panel = alt.layer(base.mark_line(), base.mark_point(filled=True, size=25).transform_filter("datum.sparse"))
    chart = panels(panel.properties(width=230, height=150), values, "quantity", quantities, 3, 230).resolve_scale(y="independent")
    return finish(chart, "training", "Training, first seed of each row.")


def class_histogram(counts: Mapping[str, Sequence[int] | np.ndarray], class_names: Sequence[str]) -> Chart:
    """Draws the images per class, [classes], one panel per split; logarithmic if the classes differ more than tenfold."""
    titles = {split: f"{split}: {sum(map(int, numbers)):,} images" for split, numbers in counts.items()}
    values = [
        {"split": titles[split], "class": str(name), "images": int(count)}
        for split, numbers in counts.items()
        for name, count in zip(class_names, numbers, strict=True)
    ]
    uneven = any(max(numbers) > 10 * max(1, min(numbers)) for numbers in counts.values())
    bars = alt.Chart(width=alt.Step(20), height=180).encode(
        alt.X("class:N", title=None, sort=[str(name) for name in class_names]),
        alt.Y("images:Q", scale=alt.Scale(type="symlog" if uneven else "linear")),
        tooltip=tips(("class",), ("images",), ","),
    )
    chart = panels(bars.mark_bar(color=COLORS[0]), values, "split", titles.values(), 2).resolve_scale(y="independent")
    return finish(chart, "classes", "Images per class.")
