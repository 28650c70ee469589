"""What changed from one model to another, measure by measure: what got worse comes first."""

from tf_robust.evaluation.measure import parse_measure
from tf_robust.report import formatting
from tf_robust.report.grids import Cell, Grid, Label
from tf_robust.report.table_types import Entry, Table
from tf_robust.report.tables import difference_of, gain
from tf_robust.report.verdict import is_separated

_LISTED = 6  # in a sentence


def changes(table: Table) -> Grid | None:
    """Returns the difference of every measure to the baseline: worse ones first, then better ones, then those that are not separated.

    Args:
        table: of two models; None is returned if nothing can be compared.
    """
    ordered = _ordered(table)
    if not ordered:
        return None
    columns = [Label(table["baseline"]), Label(ordered[0]["row"]), Label("difference"), Label("95% interval"), Label("verdict")]
    rows = {Label(formatting.heading(table, entry["measure"]), entry["measure"]): _cells(table, entry) for entry in ordered}
    caption = (
        "Paired over the test images. What got worse comes first, then what got better, the largest difference first; last the measures "
        "whose difference is not separated from 0."
    )
    return Grid("What changed", "measure", columns, rows, caption)


def change_sentences(table: Table) -> list[str]:
    """Returns sentences that list the measures that got worse and those that got better, of two models."""
    separated = [entry for entry in _ordered(table) if is_separated(table, entry) and entry["measure"] not in table["details"]]
    worse, better = ([entry for entry in separated if sign * gain(entry) > 0] for sign in (-1, 1))
    return [f"Worse: {_listed(worse)}.", f"Better: {_listed(better)}."]


def _listed(entries):
    more = f"; and {len(entries) - _LISTED} more" if len(entries) > _LISTED else ""
    return f"{'; '.join(map(_text, entries[:_LISTED])) or 'nothing, outside its interval'}{more}"


def _ordered(table):
    entries = [entry for entry in table["rows"] if entry["difference"] and parse_measure(entry["measure"]).severity is None]
    return sorted(entries, key=lambda entry: (_rank(table, entry), -abs(gain(entry))))


def _rank(table, entry):
    return 2 if not is_separated(table, entry) else int(gain(entry) > 0)


def _cells(table: Table, entry: Entry) -> list[Cell | None]:
    difference = difference_of(entry)
    before, interval = entry["mean"] - difference["mean"], formatting.interval(*formatting.paired_interval(difference), "+")
    verdict = ("worse", "better", "not separated")[_rank(table, entry)]
    return [
        *(Cell(f"{value:.3f}", "", f"{value:.3f}", value) for value in (before, entry["mean"])),
        Cell(f"{difference['mean']:+z.3f}", "", f"{difference['mean']:+z.3f}", difference["mean"]),
        Cell(interval, "", interval, difference["mean"]),
        Cell(verdict, "", verdict, _rank(table, entry)),
    ]


def _text(entry):
    before = entry["mean"] - difference_of(entry)["mean"]
    interval = formatting.interval(*formatting.paired_interval(difference_of(entry)), "+")
    return f"{entry['measure']} {before:.3f} to {entry['mean']:.3f} {interval}".rstrip()
