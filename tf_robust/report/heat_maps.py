"""Heat maps of a table: accuracy by corruption and severity, its difference to the baseline, and flip probabilities.

The color scales are readable with color vision deficiencies: viridis, and orange to blue for differences.
"""

from collections.abc import Sequence

from tf_robust import metrics
from tf_robust.evaluation.measure import Measure, describe, parse_measure
from tf_robust.report.formatting import difference_text
from tf_robust.report.table_types import Entry, Table
from tf_robust.report.tables import difference_of
from tf_robust.report.vega import NOMINAL, Chart, number, panels

_ORDER = (
    *(f"corruptions/{name}" for name in (*metrics.BENCHMARK, *metrics.EXTRA)),
    *dict.fromkeys(f"corruptions_bar/{name}" for names in metrics.BAR.values() for name in names),
)
_COLUMNS = 4
_WIDE = 37  # pixels of a cell with a number such as +10.2
_LEAST_POINTS = 10  # at the ends of the scale of differences, so that small ones look small


def corruption_heat_map(table: Table) -> Chart | None:
    """Draws accuracies, the mean over seeds, one panel per row: corruptions down, the measured severities across."""
    values = [{**_cell(entry), "accuracy": entry["mean"]} for entry in _at_severities(table)]
    if not values:
        return None
    color = {"field": "accuracy", "type": "quantitative", "scale": {"scheme": "viridis", "domain": [0, 1]}}
    tips = [number("accuracy")]
    panel = _panel(values, color, ".2f", "datum.accuracy > 0.45 ? 'black' : 'white'", tips)
    return Chart(
        "corruptions",
        panels(values, "row", list(dict.fromkeys(value["row"] for value in values)), panel, _COLUMNS),
        f"Accuracy by corruption and severity{_over_seeds(table, 'mean over seeds')}.",
    )


def difference_heat_map(table: Table) -> Chart | None:
    """Draws the differences of accuracies to the baseline in percentage points, one panel per other row."""
    values = [
        {**_cell(entry), "points": 100 * difference_of(entry)["mean"], "difference": difference_text(difference_of(entry))}
        for entry in _at_severities(table)
        if entry["difference"]
    ]
    if not values:
        return None
    largest = max(_LEAST_POINTS, *(abs(value["points"]) for value in values))
    color = {
        "field": "points",
        "type": "quantitative",
        "title": "points",
        "scale": {"scheme": "blueorange", "reverse": True, "domain": [-largest, largest]},
    }
    panel = _panel(values, color, "+.1f", f"abs(datum.points) > {0.6 * largest:.6g} ? 'white' : 'black'", [{"field": "difference"}], _WIDE)
    return Chart(
        "corruption_differences",
        panels(values, "row", list(dict.fromkeys(value["row"] for value in values)), panel, _COLUMNS),
        f"Accuracy minus that of {table['baseline']}, in percentage points{_over_seeds(table, 'mean over common seeds')}: blue is better, "
        "orange is worse. Single cells vary more than the means over them.",
    )


def _over_seeds(table: Table, text: str) -> str:
    return f", {text}" if any(len(entry["values"]) > 1 for entry in table["rows"]) else ""


def flips(table: Table) -> Chart | None:
    """Draws flip probabilities: perturbations down, rows across."""
    measured = [(entry, parse_measure(entry["measure"])) for entry in table["rows"] if entry["measure"] in table["details"]]
    values: list[dict] = [
        {"row": entry["row"], "perturbation": name.name.replace("_", " "), "flips": entry["mean"]}
        for entry, name in measured
        if name.family == "flips" and not name.is_flip_rate
    ]
    if not values:
        return None
    largest = max(0.1, *(value["flips"] for value in values))
    color = {"field": "flips", "type": "quantitative", "scale": {"scheme": "viridis", "reverse": True, "domain": [0, largest]}}
    ink = f"datum.flips < {0.55 * largest:.6g} ? 'black' : 'white'"
    return Chart(
        "flips",
        {
            "data": {"values": values},
            "width": {"step": 44},
            "height": {"step": 18},
            "encoding": {
                "x": {"field": "row", **NOMINAL, "sort": table["order"], "axis": {"labelAngle": -40}},
                "y": {"field": "perturbation", **NOMINAL},
            },
            "layer": _layers(color, ".3f", ink, [{"field": "row", "title": "model"}, {"field": "perturbation"}, number("flips")]),
        },
        "How often a prediction flips from frame to frame (lower is better).",
    )


def _at_severities(table: Table) -> list[Entry]:
    return [entry for entry in table["rows"] if parse_measure(entry["measure"]).severity is not None]


def _cell(entry: Entry) -> dict:
    name = parse_measure(entry["measure"])
    return {
        "row": entry["row"],
        "corruption": _words(name),
        "severity": name.severity,
        "measure": entry["measure"],
    }


def _words(name: Measure) -> str:
    return describe(f"{name.family}/{name.name}").name


def _panel(values: Sequence[dict], color: dict, text_format: str, ink: str, tips: Sequence[dict], width: int = 31) -> dict:
    known = [describe(name).name for name in _ORDER]
    names = sorted({value["corruption"] for value in values}, key=lambda name: known.index(name) if name in known else len(known))
    tooltip = [{"field": "row", "title": "model"}, {"field": "corruption"}, {"field": "severity"}, *tips, {"field": "measure"}]
    return {
        "width": {"step": width},
        "height": {"step": 17},
        "encoding": {
            "x": {"field": "severity", "type": "ordinal", "axis": {"labelAngle": 0}},
            "y": {"field": "corruption", **NOMINAL, "sort": names},
        },
        "layer": _layers(color, text_format, ink, tooltip),
    }


def _layers(color: dict, text_format: str, ink: str, tooltip: Sequence[dict]) -> list[dict]:
    """Colored cells and the numbers in them; `ink` is the expression of the numbers' color."""
    text = {key: value for key, value in color.items() if key not in ("scale", "title")}
    return [
        {"mark": "rect", "encoding": {"color": color, "tooltip": list(tooltip)}},
        {"mark": {"type": "text", "fontSize": 10, "color": {"expr": ink}}, "encoding": {"text": {**text, "format": text_format}}},
    ]
