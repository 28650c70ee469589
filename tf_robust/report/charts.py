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
from tf_robust.report.chart import COLORS, INK, Chart, by_row, data, domain, finish, lines_by_row, panels, row_axis, row_step, span, tips
from tf_robust.report.sections import shift_pairs
from tf_robust.report.tables import Table, kinds_of_robustness

_CORRUPTIONS = (
    *(f"corruptions/{name}" for name in (*metrics.BENCHMARK, *metrics.EXTRA)),
    *dict.fromkeys(f"corruptions_bar/{name}" for names in metrics.BAR.values() for name in names),
)
_LEAST_POINTS = 10  # at the ends of the scale of differences, so that small ones look small


def _frame_of(table: Table, unadapted: bool = False) -> pandas.DataFrame:
    """Returns one line for each row and metric: the parts of its name, mean, ends of its spread, and difference to the baseline in points.

    `unadapted`: a row that was measured with test-time adaptation alone has the names without it.
    """
    lines = {}
    for (row, metric), entry in sorted(table["cells"].items(), key=lambda cell: unadapted and not parse_metric(cell[0][1]).adapted):
        name = parse_metric(parse_metric(metric).unadapted if unadapted else metric)
        mean, std, change = entry["mean"], entry["std"], table["differences"].get((row, str(name)), (None, None, None))
        low, high = (entry["low"], entry["high"]) if std is None else (mean - std, mean + std)
        lines[row, str(name)] = {
            **{"row": row, "name": str(name), "family": name.family, "member": name.name, "severity": name.severity},
            **{"mean": mean, "low": low, "high": high},
            **{"paper": entry["paper"][0] if entry["paper"] else None, "seeds": len(entry["seeds"])},
            **{field: None if end is None else 100 * end for field, end in zip(("points", "points_low", "points_high"), change)},
        }
    return pandas.DataFrame([*lines.values()]).sort_values("row", key=lambda rows: rows.map(table["order"].index), kind="stable")


def _spread_caption(table: Table) -> str:
    """Returns the meaning of `low` and `high` in `_frame_of`."""
    alone = [entry["std"] is None for entry in table["cells"].values()]
    return "95% interval" if all(alone) else "sample std over seeds, or 95% interval" if any(alone) else "sample std over seeds"


def of_table(table: Table) -> list[Chart]:
    """Returns all charts for which a table has metrics."""
    draw = (comparison, pareto, shift_chart, corruption_groups, severities, corruption_heat_map, difference_heat_map, flips, cost)
    return [chart for one in draw if (chart := one(table)) is not None]


def comparison(table: Table) -> Chart:
    """Draws one panel per headline: every row's mean, its std or interval, and the paper's mean."""
    frame = _frame_of(table)
    frame = frame[frame["name"].isin(table["headlines"])]
    titles = {name: describe(name).name + "\n(lower is better)" * parse_metric(name).lower_is_better for name in table["headlines"]}
    parts = []
    for name, part in frame.groupby("name"):  # every point has the ends of its panel's axis
        start, end = domain(part[["mean", "low", "high", "paper"]].stack(), describe(name).is_fraction)
        parts.append(part.assign(metric=titles[name], start=start, end=end))
    frame = pandas.concat(parts).sort_index()

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", title=None, scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(tickCount=3, format=",~r"))

    base = alt.Chart().encode(y=row_axis(table["order"], 22))
    printed = bool(frame["paper"].notna().any())
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
    chart = panels(panel, frame, "metric", titles.values(), 4, 170).resolve_scale(x="independent")
    diamonds = "; diamonds: the paper" * printed
    caption = f"Metrics of the first table; lines: {_spread_caption(table)}{diamonds}. The axes of fractions span at least 0.1."
    return finish(chart, "comparison", caption)


def pareto(table: Table) -> Chart | None:
    """Draws robust over clean accuracy with intervals; a line joins the rows that no other row surpasses in both."""
    clean = next((metric for metric in table["metrics"] if parse_metric(metric).is_clean), None)
    robust = next(iter(kinds_of_robustness(table).values()), None)
    if clean is None or robust is None or len(frame := _pairs(table, {"clean": clean, "robust": robust})) < 2:
        return None
    points = frame[["clean", "robust"]].to_numpy()
    frame["front"] = [not np.any(np.all(points >= point, axis=1) & np.any(points > point, axis=1)) for point in points]
    line = "; the dashed line joins the models that no other surpasses in both" * bool(frame["front"].sum() > 1)
    title, robust_title = describe(clean).name, describe(robust).name
    caption = f"{robust_title} over {title[:1].lower()}{title[1:]}{line}. Both axes span at least 0.1."
    layers = _scatter(table, frame, {"clean": title, "robust": robust_title}, by_row("shape", table["order"], frame["row"]))
    return finish(alt.layer(*layers, data=data(frame)), "pareto", caption, 340)


def shift_chart(table: Table) -> Chart | None:
    """Draws accuracy on each shifted data set over accuracy on the original images, one point per row and set, with the diagonal."""
    frames = [
        _pairs(table, {"original": clean, "shifted": shift}).assign(data=parse_metric(shift).name) for clean, shift in shift_pairs(table)
    ]
    if not frames or (frame := pandas.concat(frames)).empty:
        return None
    ends = domain(frame[["original", "shifted", "left", "right", "low", "high"]].stack())
    titles = {"original": "accuracy on the original images", "shifted": "accuracy on the shifted images"}
    shape = alt.Shape("data:N", sort=None, title=None, legend=alt.Legend(orient="bottom"))
    diagonal = alt.Chart(data({"original": end, "shifted": end} for end in ends)).mark_line(strokeDash=[4, 3], opacity=0.5, color=INK)
    diagonal = diagonal.encode(*(span(channel, *title[:1], ends, title[1]) for channel, title in zip((alt.X, alt.Y), titles.items())))
    caption = (
        "Accuracy on shifted data over accuracy on the original images, one point per model and data set; on the dashed line both are "
        f"equal. Lines: {_spread_caption(table)}."
    )
    layers = _scatter(table, frame, titles, shape, ends, ("row", "data"))
    return finish(alt.layer(diagonal, *layers, data=data(frame)), "shifts", caption, 340)


def _pairs(table: Table, metrics: Mapping[str, str]) -> pandas.DataFrame:
    """Returns the means of two metrics {name: metric} of every row that has both, with the ends of their spreads."""
    frame = _frame_of(table)
    ends = (("left", "right"), ("low", "high"))
    first, second = (
        frame[frame["name"] == metric].set_index("row")[["mean", "low", "high"]].set_axis([name, *of_metric], axis=1)
        for (name, metric), of_metric in zip(metrics.items(), ends)
    )
    return first.join(second, how="inner").reset_index()


def _scatter(
    table: Table, frame: pandas.DataFrame, titles: Mapping[str, str], shape: alt.Shape, ends: Sequence[float] = (), texts=("row",)
) -> list[alt.Chart]:
    """Returns the layers of points with intervals across (left, right) and down (low, high), and of the line of those with "front"."""
    (x, x_title), (y, y_title) = titles.items()
    x_ends = ends or domain(frame[[x, "left", "right"]].stack())
    y_ends = ends or domain(frame[[y, "low", "high"]].stack())
    color = by_row("color", table["order"], frame["row"])

    def at(across: str = x, down: str = y) -> alt.Chart:
        return alt.Chart().encode(span(alt.X, across, x_ends, x_title), span(alt.Y, down, y_ends, y_title), color)

    line = at().mark_line(interpolate="step-before", strokeDash=[4, 3], opacity=0.5).encode(color=alt.value(INK))
    return [
        *[line.transform_filter("datum.front")] * ("front" in frame),
        at("left").mark_rule(opacity=0.5).encode(x2="right"),
        at(down="low").mark_rule(opacity=0.5).encode(y2="high"),
        at().mark_point(filled=True, size=80, opacity=1).encode(shape, tooltip=tips(texts, (x, y, "low", "high"))),
    ]


def corruption_groups(table: Table) -> Chart | None:
    """Draws bars for noise, blur, weather and digital corruptions."""
    frame = _frame_of(table, unadapted=True).rename(columns={"member": "group", "mean": "accuracy"})
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
    color = alt.Color("accuracy:Q", scale=alt.Scale(scheme="viridis", domain=[0, 1]))
    caption = f"Accuracy by corruption and severity{', mean over seeds' * bool((frame['seeds'] > 1).any())}."
    return _corruption_panels(frame, color, ".2f", "datum.accuracy > 0.45 ? 'black' : 'white'", 31, ("accuracy",), "corruptions", caption)


def difference_heat_map(table: Table) -> Chart | None:
    """Draws the differences of accuracies to the baseline in percentage points, one panel per other row."""
    frame = _by_severity(table).dropna(subset="points")
    largest = max([_LEAST_POINTS, *frame["points"].abs()])
    color = alt.Color("points:Q", scale=alt.Scale(scheme="blueorange", reverse=True, domain=[-largest, largest]))
    caption = (
        f"Accuracy minus that of {table['baseline']}, in percentage points{', mean over common seeds' * bool((frame['seeds'] > 1).any())}: "
        "blue is better, orange is worse. Single cells vary more than the means over them."
    )
    ink = f"abs(datum.points) > {0.6 * largest:.6g} ? 'white' : 'black'"
    return _corruption_panels(frame, color, "+.1f", ink, 37, ("points", "points_low", "points_high"), "corruption_differences", caption)


def _by_severity(table: Table, unadapted: bool = False) -> pandas.DataFrame:
    """Returns the lines of `_frame_of` of single severities, with the names of their corruptions."""
    frame = _frame_of(table, unadapted).dropna(subset="severity").astype({"severity": int})
    return frame.assign(corruption=[describe(f"{one.family}/{one.member}").name for one in frame.itertuples()])


def _corruption_panels(
    frame: pandas.DataFrame, color: alt.Color, number: str, ink: str, width: int, numbers: Sequence[str], name: str, caption: str
) -> Chart | None:
    if frame.empty:
        return None
    known = {describe(corruption).name: place for place, corruption in enumerate(_CORRUPTIONS)}
    base = alt.Chart().encode(
        alt.X("severity:O", axis=alt.Axis(labelAngle=0)),
        alt.Y("corruption:N", title=None, sort=sorted(frame["corruption"].unique(), key=lambda one: known.get(one, len(known)))),
        tooltip=tips(("row", "corruption", "severity", "name"), numbers),
    )
    panel = _heat_map(base, color, number, ink).properties(width=alt.Step(width), height=alt.Step(17))
    return finish(panels(panel, frame, "row", frame["row"].unique(), 4, 210), name, caption)


def _heat_map(base: alt.Chart, color: alt.Color, number: str, ink: str) -> alt.LayerChart:
    """Returns colored cells and the numbers in them; `ink` is the expression of the numbers' color."""
    text = base.mark_text(fontSize=10, color=alt.ExprRef(ink)).encode(alt.Text(color.shorthand, format=number))
    return alt.layer(base.mark_rect().encode(color), text)


def flips(table: Table) -> Chart | None:
    """Draws flip probabilities: perturbations down, rows across."""
    chosen = [name for name in table["details"] if parse_metric(name).family == "flips" and parse_metric(name).card_family == "flips"]
    frame = _frame_of(table).rename(columns={"mean": "flips"})
    frame = frame[frame["name"].isin(chosen)]
    if frame.empty:
        return None
    frame = frame.assign(perturbation=frame["member"].str.replace("_", " "))
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
    values = [
        {"row": row, "quantity": name, "sparse": None in series or len(series) == 1, "epoch": epoch, "value": value}
        for row, history in histories.items()
        for name, series in history.items()
        for epoch, value in enumerate(series, 1)
        if value is not None
    ]
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
