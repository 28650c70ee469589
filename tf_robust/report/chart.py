"""The look of all charts: altair specifications with one theme and one color per row.

A chart is an altair chart whose `name` is that of its PNG file and whose `description` is its caption. `currentColor` follows the page.
"""

import functools
import json
import os
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import altair as alt
import pandas

from tf_robust.utils.files import atomic_file, wrapped

Chart: typing.TypeAlias = alt.TopLevelMixin

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A900", "#808080")  # after Okabe and Ito
_LOOKS: dict[str, Sequence] = {
    "strokeDash": ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3]),
    "shape": ("circle", "square", "triangle-up", "diamond"),
}
_CHANNELS = {"color": alt.Color, "strokeDash": alt.StrokeDash, "shape": alt.Shape}
INK = "currentColor"
WIDTH = 640  # of a PNG file; in a page the chart is as wide as the page
_SCALE = 1.5  # pixels of a PNG file
_LETTER = 6  # mean width of a letter of a panel's title, in pixels
_BETWEEN = ",(?! )"  # the values in the name of a sweep's point
_MIN_FRACTIONS, _MIN_RELATIVE = 0.1, 0.2  # smallest spans of axes
_TEXT = {"labelColor": INK, "titleColor": INK}
_CONFIG: dict = {
    "font": "system-ui, 'DejaVu Sans', sans-serif",
    "view": {"stroke": None},
    "axis": {
        **_TEXT,
        "domainColor": INK,
        "domainOpacity": 0.4,
        "tickColor": INK,
        "tickOpacity": 0.4,
        "gridColor": INK,
        "gridOpacity": 0.12,
        "labelLimit": 260,
        "titleFontWeight": "normal",
    },
    "legend": {**_TEXT, "orient": "top", "symbolLimit": 0, "symbolOpacity": 1, "labelLimit": 0, "columns": 6},
    "header": {**_TEXT, "labelFontWeight": "bold", "labelLimit": 300},
    "title": {"color": INK, "anchor": "start", "fontSize": 12},
    "text": {"color": INK},
    "rule": {"color": INK},
}


def finish(chart: Chart, name: str, caption: str, height: int | alt.Step | None = None) -> Chart:
    """Returns a chart with its name, caption and theme. One view with a height is as wide as the page."""
    if height is not None:
        chart = chart.properties(width=WIDTH, height=height, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    return chart.properties(name=name, description=caption).configure(**_CONFIG)


def embed(chart: Chart) -> str:
    """Returns the Vega-Lite specification as JSON that is safe inside a script element."""
    spec = {name: value for name, value in chart.to_dict().items() if name != "$schema"}  # an address
    return json.dumps(spec, allow_nan=False).replace("<", "\\u003c")


def save_png(chart: Chart, folder: str) -> str:
    """Writes `folder`/NAME.png and returns its path.

    Examples:
        >>> chart = tfr.report.response_rate_curves({"plain": ([0.9, 0.8, 0.6, 0.4], [1, 1, 0, 1])})
        >>> tfr.report.save_png(chart, ".")
        './response_rate.png'
    """
    path = os.path.join(folder, f"{chart.name}.png")
    with atomic_file(path, "wb") as file:
        chart.save(file, format="png", scale_factor=_SCALE)
    return path


@functools.cache
def library() -> str:
    """Returns Vega, Vega-Lite and Vega-Embed as one script, 0.9 MB."""
    import vl_convert  # a large JavaScript engine: imported only when needed

    version = "_".join(alt.SCHEMA_VERSION.split(".")[:2])
    return vl_convert.javascript_bundle(vl_version=version).replace("</script", "<\\/script")


def data(values: Iterable[Mapping] | pandas.DataFrame) -> alt.Data:
    """Returns inline data, of which altair allows any number of lines; missing values become None."""
    if isinstance(values, pandas.DataFrame):
        return alt.Data(values=values.astype(object).where(values.notna(), None).to_dict("records"))
    return alt.Data(values=list(values))


def by_row(channel: str, order: Sequence[str], shown: Iterable[str] | None = None, legend: Mapping | None = MappingProxyType({})):
    """Returns the encoding of rows as `color`, `strokeDash` or `shape`; `shown`: rows in the legend, None: all; `legend` None: no legend.

    A row looks the same in every chart; up to 32 rows look different.
    """
    order, cycle = list(order), len(COLORS)
    names = order if shown is None else [row for row in order if row in set(shown)]
    looks = _LOOKS.get(channel)
    range_ = [looks[(i + i // cycle) % len(looks)] if looks else COLORS[i % cycle] for i in range(len(order))]
    columns = WIDTH // (40 + _LETTER * max(map(len, names), default=0))
    shown_as = None if legend is None else alt.Legend(values=names, columns=max(1, min(6, columns)), **legend)
    return _CHANNELS[channel]("row:N", sort=None, title=None, scale=alt.Scale(domain=order, range=range_), legend=shown_as)


def lines_by_row(order: Sequence[str], shown: Iterable[str] | None = None) -> dict:
    """Returns the encoding of lines by row; arguments as in `by_row`."""
    stroke = {"symbolType": "stroke", "symbolSize": 200}
    return {channel: by_row(channel, order, shown, stroke) for channel in ("color", "strokeDash")}


def row_axis(order: Sequence[str], letters: int) -> alt.Y:
    """Returns the encoding of rows as lines of a chart, whose names lose their beginning; the values in a name have a line each."""
    shortened = f"replace(datum.label, regexp('[^,]{{2,}}(?=[^,]{{{letters - 1}}}(,|$))', 'g'), '…')"
    axis = alt.Axis(labelExpr=f"split({shortened}, regexp('{_BETWEEN}'))", labelLimit=0)
    return alt.Y("row:N", title=None, sort=list(order), axis=axis)


def row_step(order: Iterable[str]) -> alt.Step:
    """Returns the height of a chart whose lines are those of `row_axis`."""
    return alt.Step(5 + 13 * (1 + max(len(re.findall(_BETWEEN, name)) for name in order)))


def panels(
    chart: Chart, values: Sequence[Mapping] | pandas.DataFrame, field: str, names: Iterable[str], columns: int, width: int | None = None
) -> Chart:
    """Returns one panel for each name, the value of a field of the data; titles are broken in lines if the panel has a width."""
    titles = {name: wrapped(re.sub(_BETWEEN, ",\n", name), width // _LETTER) if width else name for name in names}
    for first in range(0, len(titles), columns):  # panels side by side have titles of equally many lines, or they would not be aligned
        beside = [*titles][first : first + columns]
        most = max(titles[name].count("\n") for name in beside)
        titles |= {name: "\n" * (most - titles[name].count("\n")) + titles[name] for name in beside}
    header = alt.Header(labelExpr="split(datum.label, '\\n')", title=None)
    facet = alt.Facet(f"{field}:N", sort=list(titles.values()), header=header, title=None)
    return chart.facet(facet, data=data({**value, field: titles[value[field]]} for value in data(values).values), columns=columns)


def tips(texts: Iterable[str], numbers: Iterable[str] = (), number_format: str = ".4f") -> list[alt.Tooltip]:
    """Returns the encoding of a tooltip of some fields; a row is called a model."""
    named = [alt.Tooltip(f"{field}:N", title="model" if field == "row" else field.replace("_", " ")) for field in texts]
    return [*named, *(alt.Tooltip(f"{field}:Q", format=number_format, title=field.replace("_", " ")) for field in numbers)]


def domain(values: Iterable[float | None] | pandas.Series, fractions: bool = True) -> list[float]:
    """Returns the ends of an axis on which small differences look small.

    Fractions span at least 0.1 within [0, 1], other numbers at least a fifth of the largest magnitude.
    """
    known = pandas.Series([*values], dtype=float).dropna()
    low, high = float(known.min()), float(known.max())
    least = _MIN_FRACTIONS if fractions else _MIN_RELATIVE * max(abs(low), abs(high)) or 1.0
    margin = max((least - (high - low)) / 2, 0.05 * (high - low))
    start, end = low - margin, high + margin
    if fractions and end > 1 >= high:
        start, end = start - (end - 1), 1.0
    if start < 0 <= low:
        start, end = 0.0, end - start
    return [start, min(end, 1.0) if fractions and high <= 1 else end]


def span(channel: type, field: str, ends: Sequence[float], title: str | None = None):
    """Returns the encoding of a number on an axis with fixed ends."""
    return channel(f"{field}:Q", title=title or field, scale=alt.Scale(domain=list(ends), nice=False), axis=alt.Axis(tickCount=6))
