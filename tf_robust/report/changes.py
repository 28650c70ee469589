"""What changed from one model to another, measure by measure: what got worse comes first."""

from collections.abc import Iterable, Sequence

from tf_robust.evaluation.measure import describe, parse_measure
from tf_robust.report import formatting
from tf_robust.report.grids import ABSENT, Cell, Grid, Label
from tf_robust.report.table_types import Entry, Table
from tf_robust.report.tables import difference_of, gain
from tf_robust.report.verdict import is_separated

_WORSE, _PERHAPS_WORSE, _BETTER, _PERHAPS_BETTER, _UNSEPARATED = range(5)
_VERDICTS = ("worse", "worse, no interval", "better", "better, no interval", "not separated")
_LISTED = 6  # in a sentence


def changes(table: Table) -> Grid | None:
    """Returns the difference of every headline measure to the baseline: what got worse first, with all other measures that did.

    Args:
        table: of two models; None is returned if nothing can be compared.
    """
    return _grid(table, "What changed", _compared(table, _first(table)))


def further_changes(table: Table) -> Grid | None:
    """Returns the differences of all other measures, such as single corruptions, in the order of `changes`, or None."""
    others = set(table["measures"]) | set(table["details"])
    return _grid(table, "What changed, further measures", _compared(table, others - _first(table)))


def _first(table: Table) -> set[str]:
    """The measures that are shown first."""
    others = _compared(table, set(table["measures"]) | set(table["details"]))
    return {*table["headlines"], *(entry["measure"] for entry in others if _rank(table, entry) == _WORSE)}


def change_sentences(table: Table) -> list[str]:
    """Returns sentences: all measures that got worse, and the headline measures that got better, did neither, or have no interval."""
    entries = sorted(_compared(table, table["measures"]), key=lambda entry: table["measures"].index(entry["measure"]))
    details = _compared(table, table["details"])
    headlines = [entry for entry in entries if entry["measure"] in table["headlines"]]
    worse = [entry for entry in (*entries, *details) if _rank(table, entry) == _WORSE]
    better = [entry for entry in headlines if _rank(table, entry) == _BETTER]
    better.sort(key=lambda entry: not describe(entry["measure"]).images)  # accuracies first
    unsure = [entry for entry in headlines if _rank(table, entry) in (_PERHAPS_WORSE, _PERHAPS_BETTER)]
    sentences = [f"Worse: {_listed(table, list({e['measure']: e for e in worse}.values()))}.", f"Better: {_listed(table, better)}."]
    open_ = [entry for entry in headlines if _rank(table, entry) == _UNSEPARATED]
    if open_:
        sentences.append(f"No separated difference: {_listed(table, open_)}.")
    return [*sentences, *([f"Without an interval: {_listed(table, unsure)}."] if unsure else [])]


def _compared(table: Table, measures: Iterable[str]) -> list[Entry]:
    chosen = {measure for measure in measures if parse_measure(measure).severity is None}
    entries = [entry for entry in table["rows"] if entry["difference"] and entry["measure"] in chosen]
    return sorted(entries, key=lambda entry: (_rank(table, entry), -abs(gain(entry))))


def _rank(table: Table, entry: Entry) -> int:
    if formatting.paired_interval(difference_of(entry))[0] is None:
        return _UNSEPARATED if not gain(entry) else _PERHAPS_BETTER if gain(entry) > 0 else _PERHAPS_WORSE
    return _UNSEPARATED if not is_separated(table, entry) else _BETTER if gain(entry) > 0 else _WORSE


def _grid(table: Table, heading: str, entries: Sequence[Entry]) -> Grid | None:
    if not entries:
        return None
    columns = [Label(table["baseline"]), Label(entries[0]["row"]), Label("difference"), Label("95% interval"), Label("verdict")]
    rows = {Label(formatting.heading(table, entry["measure"]), entry["measure"]): _cells(table, entry) for entry in entries}
    caption = (
        "Paired over the test images, with 95% intervals. What got worse comes first; not separated: the interval of the difference "
        "includes 0, or p of the paired test is not below 0.05."
    )
    return Grid(heading, "measure", columns, rows, caption)


def _cells(table: Table, entry: Entry) -> list[Cell | None]:
    mean = difference_of(entry)["mean"]
    interval, verdict = formatting.interval(*formatting.paired_interval(difference_of(entry)), "+"), _VERDICTS[_rank(table, entry)]
    numbers = [(formatting.value(value), value) for value in (entry["mean"] - mean, entry["mean"])]
    texts = [*numbers, (formatting.value(mean, "+"), mean), (interval or ABSENT, mean), (verdict, _rank(table, entry))]
    return [Cell(text, "", text, value) for text, value in texts]


def _listed(table: Table, entries: Sequence[Entry]) -> str:
    more = f"; and {len(entries) - _LISTED} more" if len(entries) > _LISTED else ""
    return f"{'; '.join(_text(table, entry) for entry in entries[:_LISTED]) or 'no measure, as far as these images can tell'}{more}"


def _text(table: Table, entry: Entry) -> str:
    change = difference_of(entry)["mean"]
    interval = formatting.interval(*formatting.paired_interval(difference_of(entry)), "+")
    direction = f"({_VERDICTS[_rank(table, entry)].partition(',')[0]})"  # for some measures lower is better
    values = " to ".join(map(formatting.value, (entry["mean"] - change, entry["mean"]))) + f", {formatting.value(change, '+')}"
    return f"{formatting.heading(table, entry['measure'])} {values} {interval or direction}"
