"""What changed from one model to another, measure by measure: what got worse comes first."""

from collections.abc import Iterable, Sequence

from tf_robust.evaluation.measure import parse_measure
from tf_robust.report import formatting
from tf_robust.report.grids import Cell, Grid, Label
from tf_robust.report.table_types import Entry, Table
from tf_robust.report.tables import difference_of, gain
from tf_robust.report.verdict import is_separated

_WORSE, _BETTER, _UNSEPARATED, _NO_INTERVAL = range(4)
_VERDICTS = ("worse", "better", "not separated", "no interval")
_LISTED = 6  # in a sentence


def changes(table: Table) -> Grid | None:
    """Returns the difference of every headline measure to the baseline: what got worse first, then what got better.

    Args:
        table: of two models; None is returned if nothing can be compared.
    """
    return _grid(table, "What changed", _compared(table, table["headlines"]))


def further_changes(table: Table) -> Grid | None:
    """Returns the differences of all other measures, such as single corruptions, in the order of `changes`, or None."""
    others = set(table["measures"]) | set(table["details"])
    return _grid(table, "What changed, further measures", _compared(table, others - set(table["headlines"])))


def change_sentences(table: Table) -> list[str]:
    """Returns sentences that list the headline measures that got worse, those without an interval, and those that got better."""
    entries = sorted(_compared(table, table["headlines"]), key=lambda entry: table["headlines"].index(entry["measure"]))
    by_rank = {rank: [entry for entry in entries if _rank(table, entry) == rank] for rank in (_WORSE, _BETTER, _NO_INTERVAL)}
    sentences = [f"Worse: {_listed(table, by_rank[_WORSE])}.", f"Better: {_listed(table, by_rank[_BETTER])}."]
    return [*sentences, *([f"Without an interval: {_listed(table, by_rank[_NO_INTERVAL])}."] if by_rank[_NO_INTERVAL] else [])]


def _compared(table: Table, measures: Iterable[str]) -> list[Entry]:
    chosen = {measure for measure in measures if parse_measure(measure).severity is None}
    entries = [entry for entry in table["rows"] if entry["difference"] and entry["measure"] in chosen]
    return sorted(entries, key=lambda entry: (_rank(table, entry), -abs(gain(entry))))


def _rank(table: Table, entry: Entry) -> int:
    if formatting.paired_interval(difference_of(entry))[0] is None:
        return _NO_INTERVAL
    return _UNSEPARATED if not is_separated(table, entry) else _BETTER if gain(entry) > 0 else _WORSE


def _grid(table: Table, heading: str, entries: Sequence[Entry]) -> Grid | None:
    if not entries:
        return None
    columns = [Label(table["baseline"]), Label(entries[0]["row"]), Label("difference"), Label("95% interval"), Label("verdict")]
    rows = {Label(formatting.heading(table, entry["measure"]), entry["measure"]): _cells(table, entry) for entry in entries}
    caption = "Paired over the test images. What got worse comes first; not separated: the interval of the difference includes 0."
    return Grid(heading, "measure", columns, rows, caption)


def _cells(table: Table, entry: Entry) -> list[Cell | None]:
    mean = difference_of(entry)["mean"]
    interval, verdict = formatting.interval(*formatting.paired_interval(difference_of(entry)), "+"), _VERDICTS[_rank(table, entry)]
    numbers = [(f"{value:.3f}", value) for value in (entry["mean"] - mean, entry["mean"])]
    texts = [*numbers, (f"{mean:+z.3f}", mean), (interval, mean), (verdict, _rank(table, entry))]
    return [Cell(text, "", text, value) for text, value in texts]


def _listed(table: Table, entries: Sequence[Entry]) -> str:
    more = f"; and {len(entries) - _LISTED} more" if len(entries) > _LISTED else ""
    return f"{'; '.join(_text(table, entry) for entry in entries[:_LISTED]) or 'nothing, outside its interval'}{more}"


def _text(table: Table, entry: Entry) -> str:
    before = entry["mean"] - difference_of(entry)["mean"]
    interval = formatting.interval(*formatting.paired_interval(difference_of(entry)), "+")
    return f"{formatting.heading(table, entry['measure'])} {before:.3f} to {entry['mean']:.3f} {interval}".rstrip()
