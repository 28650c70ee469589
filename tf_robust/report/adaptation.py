"""Test-time adaptation in the report: accuracies with and without it, side by side."""

from tf_robust.evaluation.measure import describe
from tf_robust.report.formatting import value, value_uncertainty
from tf_robust.report.grids import Cell, Grid, Label
from tf_robust.report.table_types import Entry, Table
from tf_robust.report.tables import cells

ADAPTED = ", adapted"  # at the end of the name of a row that was measured with adaptation


def beside_plain(table: Table) -> Grid | None:
    """Returns the measures with adaptation beside the same without it, or None if there are not both."""
    entries, plain = cells(table), table["adapted"]
    columns: dict[Label, list[Entry | None]] = {}
    for suffix, measures in (("", plain.values()), (ADAPTED, plain.keys())):
        for row in table["order"]:
            if any(column := [entries.get((row, measure)) for measure in measures]):
                columns[Label(row.removesuffix(ADAPTED) + suffix)] = column
    if not columns:
        return None
    lines = zip(*columns.values())
    rows = {Label(describe(one).name, measure): list(map(_cell, line)) for (measure, one), line in zip(plain.items(), lines)}
    caption = "Adapted: batch normalization with the statistics of each batch of test images; the notes describe the batches."
    return Grid("Test-time adaptation", "measure", list(columns), rows, caption)


def _cell(entry: Entry | None) -> Cell | None:
    return Cell(value(entry["mean"]), value_uncertainty(entry), "", entry["mean"]) if entry else None
