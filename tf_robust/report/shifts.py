"""Accuracy on shifted data sets against accuracy on the original images: a chart and a table."""

from tf_robust import metrics
from tf_robust.evaluation.measure import parse_measure
from tf_robust.report.formatting import interval, spread, spread_caption
from tf_robust.report.grids import Cell, Grid, Label
from tf_robust.report.table_types import Entry, Table
from tf_robust.report.tables import cells, t_interval
from tf_robust.report.vega import NOMINAL, Chart, by_row, domain, number


def falls(table: Table) -> Grid | None:
    """Returns the difference of every row's accuracy on each shifted data set to its clean accuracy, or None if none was measured."""
    rows = {
        Label(parse_measure(shift).name, shift): [_fall(table, row, clean, shift) for row in table["order"]]
        for clean, shift in _pairs(table)
    }
    if not rows:
        return None
    caption = (
        "Accuracy on the shifted images minus accuracy on the original ones, with its 95% interval: over seeds, or with one seed "
        "Newcombe's for two separate sets of images."
    )
    return Grid("Shifted data against the original", "data", list(map(Label, table["order"])), rows, caption)


def difference_interval(shifted: Entry, clean: Entry) -> tuple[float | None, float | None]:
    """Returns the 95 % interval of the difference of two accuracies on separate sets of images.

    Over several seeds it is Student's t of the differences; with one seed Newcombe's (1998, method 10) from the two Wilson intervals.

    Args:
        shifted: accuracy of a row on one set.
        clean: its accuracy on the other.
    """
    if len(shifted["values"]) > 1 and shifted["seeds"] == clean["seeds"]:
        return t_interval([one - other for one, other in zip(shifted["values"], clean["values"])])
    if shifted["low"] is None or shifted["high"] is None or clean["low"] is None or clean["high"] is None:
        return None, None
    return metrics.newcombe_interval((shifted["mean"], shifted["low"], shifted["high"]), (clean["mean"], clean["low"], clean["high"]))


def shift_chart(table: Table) -> Chart | None:
    """Draws accuracy on each shifted data set over accuracy on the original images, one point per row and set, with the diagonal."""
    entries, values = cells(table), list[dict]()
    for clean, shift in _pairs(table):
        for row in table["order"]:
            if (row, clean) in entries and (row, shift) in entries:
                original, shifted = entries[row, clean], entries[row, shift]
                (left, right), (low, high) = spread(original), spread(shifted)
                means = {"original": original["mean"], "shifted": shifted["mean"]}
                values.append(
                    {"row": row, "data": parse_measure(shift).name, **means, "left": left, "right": right, "low": low, "high": high}
                )
    if not values:
        return None
    names = ("original", "shifted", "left", "right", "low", "high")
    start, end = domain([value[name] for value in values for name in names])
    x, y = (
        {"field": name, "type": "quantitative", "scale": {"domain": [start, end], "nice": False}, "title": title, "axis": {"tickCount": 6}}
        for name, title in (("original", "accuracy on the original images"), ("shifted", "accuracy on the shifted images"))
    )
    color, rule = by_row(table["order"], values), {"type": "rule", "opacity": 0.5}
    tips = [{"field": "row", "title": "model"}, {"field": "data"}, *(number(name) for name in ("original", "shifted", "low", "high"))]
    layer = [
        {
            "data": {"values": [{"original": start, "shifted": start}, {"original": end, "shifted": end}]},
            "mark": {"type": "line", "strokeDash": [4, 3], "opacity": 0.5, "color": "currentColor"},
            "encoding": {"x": x, "y": y},
        },
        {"mark": rule, "encoding": {"x": {**x, "field": "left"}, "x2": {"field": "right"}, "y": y, "color": color}},
        {"mark": rule, "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": color}},
        {
            "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": color, "shape": {"field": "data", **NOMINAL}, "tooltip": tips},
        },
    ]
    caption = (
        "Accuracy on shifted data over accuracy on the original images, one point per model and data set; on the dashed line both are "
        f"equal. Lines: {spread_caption(table)}."
    )
    return Chart("shifts", {"data": {"values": values}, "width": "container", "height": 340, "layer": layer}, caption)


def _pairs(table: Table) -> list[tuple[str, str]]:
    """The accuracies on clean images and on a shifted set of models that were trained and adapted alike."""
    clean = {parse_measure(m).prefix: m for m in table["measures"] if parse_measure(m).is_clean}
    shifted = [m for m in table["measures"] if parse_measure(m).family == "shift"]
    return [(clean[prefix], m) for m in shifted if (prefix := parse_measure(m).prefix) in clean]


def _fall(table: Table, row: str, clean: str, shift: str) -> Cell | None:
    entries = cells(table)
    if (row, clean) not in entries or (row, shift) not in entries:
        return None
    original, shifted = entries[row, clean], entries[row, shift]
    difference = shifted["mean"] - original["mean"]
    return Cell(f"{difference:+z.3f}", interval(*difference_interval(shifted, original), "+"), "", difference)
