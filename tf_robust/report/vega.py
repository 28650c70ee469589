"""Charts as Vega-Lite descriptions: drawn by Vega in the report, with hover values, and as PNG files by the same library.

Values and names stand in a chart's data only, never in an expression. What is `currentColor` follows the page, light or dark.
"""

import dataclasses
import functools
import json
import os

from tf_robust.utils.files import atomic_file

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A900", "#808080")  # after Okabe and Ito
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
_INK = {"labelColor": "currentColor", "titleColor": "currentColor"}
_CONFIG = {
    "background": None, "font": "system-ui, 'DejaVu Sans', sans-serif", "view": {"stroke": None},
    "axis": {**_INK, "domainColor": "currentColor", "domainOpacity": 0.4, "tickColor": "currentColor", "tickOpacity": 0.4,
             "gridColor": "currentColor", "gridOpacity": 0.12, "labelLimit": 260, "titleFontWeight": "normal"},
    "legend": {**_INK, "orient": "top", "title": None, "symbolLimit": 0, "labelLimit": 0, "columns": 6},
    "header": {**_INK, "titleFontSize": 0, "labelFontWeight": "bold", "labelLimit": 300},
    "title": {"color": "currentColor", "anchor": "start", "fontSize": 12},
    "text": {"color": "currentColor"}, "rule": {"color": "currentColor"}}
_PNG = {"container": 640, "currentColor": "#1d2329"}  # what a page decides


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart of a report.

    Attributes:
        name: of its PNG file. spec: Vega-Lite. caption: what it shows, in words.
    """
    name: str
    spec: dict
    caption: str

    def embedded(self):
        """The description as JSON that may stand inside a page's script element."""
        return json.dumps({**self.spec, "config": _CONFIG}, allow_nan=False).replace("<", "\\u003c")

    def png(self):
        """The chart as the bytes of a PNG file."""
        import vl_convert  # an engine for JavaScript, which only this needs
        return vl_convert.vegalite_to_png(_alone({**self.spec, "config": {**_CONFIG, "background": "white"}}), scale=1.5)

    def save(self, folder):
        """Writes `folder`/NAME.png; returns its path."""
        path = os.path.join(folder, f"{self.name}.png")
        with atomic_file(path, "wb") as file:
            file.write(self.png())
        return path

    def _repr_png_(self):  # how a notebook shows it
        return self.png()


def _alone(part):
    """A description with what otherwise the page decides; data stay as they are."""
    if isinstance(part, dict):
        return {key: value if key == "values" else _alone(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_alone(value) for value in part]
    return _PNG.get(part, part) if isinstance(part, str) else part


@functools.cache
def library():
    """Vega, Vega-Lite and Vega-Embed as one script, 0.9 MB."""
    import vl_convert
    return vl_convert.javascript_bundle().replace("</script", "<\\/script")


def lines_by_row(order):
    """The channels of an encoding that tell lines apart: the same for a row in every chart."""
    return {channel: by_row(order, channel, "stroke") for channel in ("color", "strokeDash")}


def by_row(order, channel="color", symbol="circle"):
    """A channel, `color` or `strokeDash`, that tells rows apart, and the symbol of its legend."""
    cycle = len(COLORS)
    range_ = [COLORS[i % cycle] if channel == "color" else DASHES[(i + i // cycle) % len(DASHES)] for i in range(len(order))]
    return {"field": "row", "type": "nominal", "sort": None, "scale": {"domain": list(order), "range": range_},
            "legend": {"symbolType": symbol, "symbolSize": 200 if symbol == "stroke" else 80}}


def panels(values, field, names, panel, columns, independent=()):
    """A panel for each name, with scales of its own along the independent channels."""
    return {"data": {"values": values}, "facet": {"field": field, "type": "nominal", "sort": list(names)}, "columns": columns,
            "spec": panel, "resolve": {"scale": dict.fromkeys(independent, "independent")}}
