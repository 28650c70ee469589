"""The tables of a report as text, independent of the format: `markdown`, `html` and `latex` only add their syntax."""

import dataclasses
from collections.abc import Iterable, Sequence

from tf_robust.evaluation.measure import CONFIDENCE_FAMILIES, describe, parse_measure
from tf_robust.evaluation.slices import MIN_IMAGES
from tf_robust.report import formatting
from tf_robust.report.measure_order import without_adaptation
from tf_robust.report.table_types import Entry, Table
from tf_robust.report.tables import cells, members

ABSENT = "–"  # in place of a cell that was not measured


LEGEND = "What the measures mean"
SLICES = ("class", "group")  # families of measures
_OWN_TABLES = (*SLICES, *CONFIDENCE_FAMILIES, "ood")
_COLUMNS = 6  # measures side by side
_ENDS = 20  # slices of the lowest and of the highest accuracy that are shown where there are many


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: the number; a difference with its mark.
        uncertainty: its interval or std; may be empty.
        mean: mean and std alone.
        value: the number to sort by.
        paper: the paper's mean and std; empty if the paper has none.
        best: whether the mean is the best of its measure.
    """

    text: str
    uncertainty: str
    mean: str
    value: float
    paper: str = ""
    best: bool = False

    @property
    def line(self) -> str:
        """The number and its uncertainty."""
        return f"{self.text} {self.uncertainty}".rstrip()


@dataclasses.dataclass(frozen=True)
class Label:
    """The heading of a row or column: of a model, or of a measure.

    Attributes:
        text: of the heading.
        measure: name of the measure; empty for a model.
    """

    text: str
    measure: str = ""

    @property
    def meaning(self) -> str:
        """The measure's definition and its name in JSON files; empty for a model."""
        return f"{describe(self.measure).meaning} Name in files and flags: {self.measure}".lstrip() if self.measure else ""


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        heading: of the section.
        corner: heading of the column of names.
        columns: headings of the other columns.
        rows: {heading: cells}; None stands for a cell that was not measured.
        caption: plain text.
        folded: further rows, which are shown on request.
    """

    heading: str
    corner: str
    columns: list[Label]
    rows: dict[Label, list[Cell | None]]
    caption: str
    folded: dict[Label, list[Cell | None]] = dataclasses.field(default_factory=dict)


def values(table: Table, measures: Sequence[str] | None = None) -> Grid:
    """Returns the means of every row and measure, with the paper's.

    Args:
        table: as `aggregate` returns it.
        measures: names; None: the headlines.
    """
    best = formatting.best_cells(table)
    texts = {
        key: dataclasses.replace(_mean_cell(entry), uncertainty=formatting.value_uncertainty(entry), best=key in best)
        for key, entry in cells(table).items()
    }
    caption = f"{formatting.values_caption(table)}{' Bold: the best mean.' * bool(best)} {formatting.unverified_note(table)}".rstrip()
    return _models_by_measures("Results", table, measures, table["order"], texts, caption)


def differences(table: Table, measures: Sequence[str] | None = None) -> Grid | None:
    """Returns the differences of every row and measure to the baseline, or None if there are none; arguments as in `values`."""
    texts = {
        key: Cell(
            formatting.marked_difference(table, entry),
            formatting.difference_uncertainty(entry["difference"]),
            "",
            entry["difference"]["mean"],
        )
        for key, entry in cells(table).items()
        if entry["difference"]
    }
    rows = [row for row in table["order"] if row != table["baseline"]]
    compared = {measure for _, measure in texts}
    measures = [one for one in (table["headlines"] if measures is None else measures) if one in compared]
    if not measures:
        return None
    caption = f"{formatting.difference_caption(table)} {formatting.clear_note(table)}"
    return _models_by_measures(f"Against {table['baseline']}", table, measures, rows, texts, caption)


def further(table: Table) -> list[Grid]:
    """Returns the values and differences of the measures that are not headlines."""
    measures = table["measures"][len(table["headlines"]) :]
    if not measures:
        return []
    grids = [values(table, measures), differences(table, measures)]
    titles = ("Further measures", f"Further measures against {table['baseline']}")
    return [dataclasses.replace(grid, heading=title) for grid, title in zip(grids, titles) if grid]


def by_corruption(table: Table) -> Grid | None:
    """Returns the means of single corruptions and perturbations, one per line, or None if none was measured."""
    texts = {key: _mean_cell(entry) for key, entry in cells(table).items()}
    measures = [measure for measure in members(table) if parse_measure(measure).family not in _OWN_TABLES]
    for adapted, plain in without_adaptation(measures).items():  # of a row that was measured with adaptation alone: in the same line
        measures.remove(adapted)
        texts = {**{(row, plain): cell for (row, measure), cell in texts.items() if measure == adapted}, **texts}
    rows = _rows(table, texts, measures)
    caption = "Accuracy, mean over severities; for flips the flip probability (lower is better)."
    return Grid("By corruption and perturbation", "measure", list(map(Label, table["order"])), rows, caption) if rows else None


def by_slice(table: Table) -> Grid | None:
    """Returns the accuracy on each class and group, the lowest of the first row first, or None if none was measured."""
    texts = {
        key: dataclasses.replace(_mean_cell(entry), uncertainty=formatting.value_uncertainty(entry)) for key, entry in cells(table).items()
    }
    measures = [measure for measure in members(table) if parse_measure(measure).family in SLICES]
    first = table["order"][0]
    measures.sort(key=lambda measure: texts[first, measure].value if (first, measure) in texts else 1.0)
    caption = "Accuracy on clean images, with 95% intervals over the images; the lowest first."
    shown = measures
    if len(measures) > 2 * _ENDS:
        large = [measure for measure in measures if table["images"][measure] >= MIN_IMAGES] or measures
        shown = large if len(large) <= 2 * _ENDS else large[:_ENDS] + large[-_ENDS:]
        caption += (
            f" Up to {_ENDS} of the lowest and of the highest of {len(measures):,}, with at least {MIN_IMAGES} images if there are such."
        )
    rows, folded = (_rows(table, texts, chosen) for chosen in (shown, [one for one in measures if one not in shown]))
    return Grid("By class and group", "slice", list(map(Label, table["order"])), rows, caption, folded) if rows else None


def _rows(table, texts, measures):
    return {_label(table, measure): [texts.get((row, measure)) for row in table["order"]] for measure in measures}


def measure_labels(table: Table) -> list[Label]:
    """Returns the measures of the tables that have a description, for a legend."""
    return [_label(table, measure) for measure in table["measures"] if describe(measure).meaning]


def _mean_cell(entry: Entry) -> Cell:
    mean = formatting.mean_and_std(entry["mean"], entry["std"])
    std = "" if entry["std"] is None else formatting.value_uncertainty(entry)
    paper = formatting.mean_and_std(*entry["paper"]) if entry["paper"] else ""
    return Cell(formatting.value(entry["mean"]), std, mean, entry["mean"], paper)


def _models_by_measures(
    heading: str, table: Table, chosen: Sequence[str] | None, rows: Iterable[str], texts: dict[tuple[str, str], Cell], caption: str
) -> Grid:
    """One line per model; one line per measure if there are many measures, and fewer models."""
    measures = table["headlines"] if chosen is None else chosen
    models = {Label(row): line for row in rows if any(line := [texts.get((row, measure)) for measure in measures])}
    labels = [_label(table, measure) for measure in measures]
    if len(measures) <= max(_COLUMNS, len(models)):
        return Grid(heading, "model", labels, models, caption)
    return Grid(heading, "measure", list(models), dict(zip(labels, map(list, zip(*models.values())))), caption)


def _label(table: Table, measure: str) -> Label:
    return Label(formatting.heading(table, measure), measure)
