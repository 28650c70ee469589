"""Charts as Vega-Lite specifications: drawn by Vega in the report, with hover values, and as PNG files by the same library.

Values and names occur in a chart's data only, never in an expression. `currentColor` follows the page, light or dark.
"""

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence

from tf_robust.utils.files import atomic_file
from tf_robust.utils.plotting import wrapped

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A900", "#808080")  # after Okabe and Ito
NOMINAL: dict = {"type": "nominal", "title": None, "sort": None}
_LETTER = 6  # mean width of a letter of a panel's title, in pixels
_BETWEEN = ",(?! )"  # the values in the name of a sweep's point
_LEAST_FRACTIONS, _LEAST_RELATIVE = 0.1, 0.2  # smallest spans of axes
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
_INK: dict = {"labelColor": "currentColor", "titleColor": "currentColor"}
_CONFIG = {
    "background": None,
    "font": "system-ui, 'DejaVu Sans', sans-serif",
    "view": {"stroke": None},
    "axis": {
        **_INK,
        "domainColor": "currentColor",
        "domainOpacity": 0.4,
        "tickColor": "currentColor",
        "tickOpacity": 0.4,
        "gridColor": "currentColor",
        "gridOpacity": 0.12,
        "labelLimit": 260,
        "titleFontWeight": "normal",
    },
    "legend": {**_INK, "orient": "top", "title": None, "symbolLimit": 0, "labelLimit": 0, "columns": 6},
    "header": {**_INK, "titleFontSize": 0, "labelFontWeight": "bold", "labelLimit": 300},
    "title": {"color": "currentColor", "anchor": "start", "fontSize": 12},
    "text": {"color": "currentColor"},
    "rule": {"color": "currentColor"},
}
_PNG: dict = {"container": 640, "currentColor": "#1d2329"}  # in a page these depend on the page


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart of a report.

    Attributes:
        name: of its PNG file.
        spec: Vega-Lite specification.
        caption: description in plain text.
    """

    name: str
    spec: dict
    caption: str

    def embedded(self) -> str:
        """Returns the specification as JSON that is safe inside a script element."""
        return json.dumps({**self.spec, "config": _CONFIG}, allow_nan=False).replace("<", "\\u003c")

    def standalone(self) -> dict:
        """Returns the specification of the PNG file."""
        return _standalone({**self.spec, "config": {**_CONFIG, "background": "white"}})

    def png(self) -> bytes:
        """Returns the chart as the bytes of a PNG file."""
        import vl_convert  # a large JavaScript engine: imported only when needed

        return vl_convert.vegalite_to_png(self.standalone(), scale=_SCALE)

    def save(self, folder: str) -> str:
        """Writes `folder`/NAME.png and returns its path."""
        return _write(self, folder, self.png())

    def _repr_png_(self) -> bytes:  # shown by notebooks
        return self.png()


def save_all(charts: Sequence[Chart], folder: str) -> None:
    """Writes `folder`/NAME.png of each chart; in a command that called `prepare` another process draws them, which needs 60 to 80 MB."""
    for chart, png in zip(charts, (_drawn(charts) if _started else []) or [chart.png() for chart in charts]):
        _write(chart, folder, png)


def _drawn(charts):
    """Returns the PNG files of charts, drawn by another process; empty if it failed."""
    specs = "\n".join(json.dumps(chart.standalone()) for chart in charts)
    done = subprocess.run([sys.executable, "-c", _DRAW], input=specs.encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    pngs, rest = [], done.stdout
    while rest and not done.returncode:
        end = 8 + int.from_bytes(rest[:8], "big")
        pngs.append(rest[8:end])
        rest = rest[end:]
    return pngs


def _write(chart, folder, png):
    path = os.path.join(folder, f"{chart.name}.png")
    with atomic_file(path, "wb") as file:
        file.write(png)
    return path


def _standalone(part):
    """Fills in the values of a specification that depend on the page; data are unchanged."""
    if isinstance(part, dict):
        return {key: value if key == "values" else _standalone(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_standalone(value) for value in part]
    return _PNG.get(part, part) if isinstance(part, str) else part


_SCALE = 1.5  # of PNG files
_DRAW = f"""
import json, sys, vl_convert
for line in sys.stdin:
    png = vl_convert.vegalite_to_png(json.loads(line), scale={_SCALE})
    sys.stdout.buffer.write(len(png).to_bytes(8, "big") + png)
"""
_BUNDLE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"
_started: list = []  # the process that makes the library, and the file to which it writes


def prepare() -> None:
    """Starts to make `library()` in another process: it takes a second and 75 MB, and no thread of this process would run meanwhile."""
    if not _started:
        file = tempfile.TemporaryFile()
        command = [sys.executable, "-c", _BUNDLE]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL)
        _started.extend([process, file])


@functools.cache
def library() -> str:
    """Returns Vega, Vega-Lite and Vega-Embed as one script, 0.9 MB."""
    return (_prepared() or _bundle()).replace("</script", "<\\/script")


def _prepared() -> str:
    """Returns the result of the process that `prepare` started; empty if there is none or it failed."""
    if not _started:
        return ""
    process, file = _started
    failed = process.wait()
    file.seek(0)
    return "" if failed else file.read().decode()


def _bundle() -> str:
    import vl_convert

    return vl_convert.javascript_bundle()


def lines_by_row(order: Iterable[str], values: Iterable[Mapping] | None = None) -> dict[str, dict]:
    """Returns the encoding of lines by row, color and dashes: the same for a row in every chart.

    Args:
        order: names of the rows.
        values: as in `by_row`.
    """
    order = list(order)
    return {channel: by_row(order, values, channel, "stroke") for channel in ("color", "strokeDash")}


def by_row(order: Iterable[str], values: Iterable[Mapping] | None = None, channel: str = "color", symbol: str = "circle") -> dict:
    """Returns the encoding of rows in one channel.

    Args:
        order: names of the rows.
        values: of the chart, with the field "row": the legend has only their rows; None: all rows.
        channel: `color` or `strokeDash`.
        symbol: of the legend, `circle` or `stroke`.
    """
    order = list(order)
    cycle = len(COLORS)
    shown = set(order) if values is None else {value["row"] for value in values}
    range_ = [COLORS[i % cycle] if channel == "color" else DASHES[(i + i // cycle) % len(DASHES)] for i in range(len(order))]
    return {
        "field": "row",
        "type": "nominal",
        "sort": None,
        "scale": {"domain": order, "range": range_},
        "legend": {
            "symbolType": symbol,
            "symbolSize": 200 if symbol == "stroke" else 80,
            "values": [row for row in order if row in shown],
        },
    }


def row_axis(order: Sequence[str], letters: int) -> dict:
    """Returns the encoding of rows as lines of a chart. The values in the names of a sweep's points have a line each, with their end.

    Args:
        order: names of the rows.
        letters: of a line of a name; longer ones lose their beginning.
    """
    shortened = f"replace(datum.label, regexp('[^,]{{2,}}(?=[^,]{{{letters - 1}}}(,|$))', 'g'), '…')"
    return {
        "field": "row",
        **NOMINAL,
        "sort": list(order),
        "axis": {"labelExpr": f"split({shortened}, regexp('{_BETWEEN}'))", "labelLimit": 0},
    }


def row_step(order: Iterable[str]) -> dict:
    """Returns the height of a chart whose lines are those of `row_axis`."""
    return {"step": 5 + 13 * (1 + max(len(re.findall(_BETWEEN, name)) for name in order))}


def panels(values: Sequence[dict], field: str, names: Iterable[str], panel: dict, columns: int, independent: Iterable[str] = ()) -> dict:
    """Returns the specification of one panel for each name, which is broken in lines as long as the panel is wide.

    Args:
        values: data, one dictionary for each point.
        field: of the data, with the panel's name.
        names: of the panels, in order.
        panel: specification of one panel.
        columns: number of panels side by side.
        independent: channels with a separate scale for each panel.
    """
    titles = _titles(list(names), panel["width"], columns)
    return {
        "data": {"values": [{**value, field: titles[value[field]]} for value in values]},
        "facet": {"field": field, "type": "nominal", "sort": list(titles.values()), "header": {"labelExpr": "split(datum.label, '\\n')"}},
        "columns": columns,
        "spec": panel,
        "resolve": {"scale": dict.fromkeys(independent, "independent")},
    }


def _titles(names, width, columns):
    """{name: title in lines}; those of panels side by side have equally many, or the panels would not be aligned."""
    titles = {name: wrapped(name, width // _LETTER) if isinstance(width, int) else name for name in names}
    for first in range(0, len(names), columns):
        row = names[first : first + columns]
        most = max(titles[name].count("\n") for name in row)
        titles |= {name: "\n" * (most - titles[name].count("\n")) + titles[name] for name in row}
    return titles


def number(field: str, title: str | None = None) -> dict:
    """Returns the encoding of a number in a tooltip.

    Args:
        field: of the data.
        title: None: the field.
    """
    return {"field": field, "type": "quantitative", "format": ".4f", "title": title or field}


def domain(values: Iterable[float | None], fractions: bool = True) -> list[float]:
    """Returns the ends of an axis on which small differences look small.

    Fractions span at least 0.1 within [0, 1], other numbers at least a fifth of the largest magnitude.

    Args:
        values: numbers that the axis contains; None is ignored.
        fractions: whether the numbers are in [0, 1].
    """
    known = [value for value in values if value is not None]
    low, high = min(known), max(known)
    least = _LEAST_FRACTIONS if fractions else _LEAST_RELATIVE * max(abs(low), abs(high)) or 1.0
    margin = max((least - (high - low)) / 2, 0.05 * (high - low))
    start, end = low - margin, high + margin
    if fractions and end > 1 >= high:
        start, end = start - (end - 1), 1.0
    if start < 0 <= low:
        start, end = 0.0, end - start
    return [start, min(end, 1.0) if fractions and high <= 1 else end]
