"""The tables of a report as text, independent of the format: `markdown`, `html` and `latex` only add their syntax."""

import dataclasses
from collections.abc import Iterable

from tf_robust.report import formatting
from tf_robust.report.table_types import Entry, Table
from tf_robust.report.tables import cells, members

ABSENT = "–"  # in place of a cell that was not measured


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: all of it but the paper's number.
        mean: mean and std alone.
        value: the number to sort by.
        paper: the paper's mean and std; empty if the paper has none.
        best: whether the mean is the best of its measure.
    """

    text: str
    mean: str
    value: float
    paper: str = ""
    best: bool = False


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        heading: of the section.
        corner: heading of the column of names.
        columns: headings of the other columns.
        rows: {name: cells}; None stands for a cell that was not measured.
        caption: plain text.
    """

    heading: str
    corner: str
    columns: list[str]
    rows: dict[str, list[Cell | None]]
    caption: str


def values(table: Table) -> Grid:
    """Returns the means of every row and measure, with the paper's."""
    best = formatting.best_cells(table)
    texts = {
        key: dataclasses.replace(_mean_cell(entry), text=formatting.value_text(entry), best=key in best)
        for key, entry in cells(table).items()
    }
    caption = f"{formatting.values_caption(table)} Bold: the best mean. {formatting.unverified_note(table)}".rstrip()
    return _by_row("Results", table, table["order"], texts, caption)


def differences(table: Table) -> Grid | None:
    """Returns the differences of every row and measure to the baseline, or None if there are none."""
    texts = {
        key: Cell(formatting.marked_difference(table, entry), "", entry["difference"]["mean"])
        for key, entry in cells(table).items()
        if entry["difference"]
    }
    if not texts:
        return None
    rows = [row for row in table["order"] if row != table["baseline"]]
    return _by_row(
        f"Against {table['baseline']}", table, rows, texts, f"{formatting.difference_caption(table)} {formatting.clear_note(table)}"
    )


def by_corruption(table: Table) -> Grid | None:
    """Returns the means of single corruptions and perturbations, one per line, or None if none was measured."""
    texts = {key: _mean_cell(entry) for key, entry in cells(table).items()}
    rows = {formatting.heading(table, measure): [texts.get((row, measure)) for row in table["order"]] for measure in members(table)}
    return (
        Grid(
            "By corruption and perturbation",
            "measure",
            table["order"],
            rows,
            "Accuracy, mean over 5 severities; for flips the flip probability (lower is better).",
        )
        if rows
        else None
    )


def _mean_cell(entry: Entry) -> Cell:
    mean = formatting.mean_and_std(entry["mean"], entry["std"])
    return Cell(mean, mean, entry["mean"], formatting.mean_and_std(*entry["paper"]) if entry["paper"] else "")


def _by_row(heading: str, table: Table, rows: Iterable[str], texts: dict[tuple[str, str], Cell], caption: str) -> Grid:
    return Grid(
        heading,
        "row",
        [formatting.heading(table, measure) for measure in table["measures"]],
        {row: [texts.get((row, measure)) for measure in table["measures"]] for row in rows},
        caption,
    )
