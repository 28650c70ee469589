"""The table as Markdown for a file, and as plain text for the terminal."""

from collections.abc import Iterable, Sequence

from tf_robust.evaluation.measure import describe
from tf_robust.report import adaptation, attacks, confidence, formatting, grids, shifts
from tf_robust.report.grids import ABSENT, Cell, Grid
from tf_robust.report.table_types import Table
from tf_robust.report.verdict import verdict

_TERMINAL_WIDTH = 100


def to_markdown(table: Table, title: str, command: str | None = None, notes: Sequence[str] = ()) -> str:
    """Returns title, verdict, command, the table (best values in bold), paired differences, measures and notes as Markdown.

    Args:
        table: as `aggregate` returns it.
        title: of the document.
        command: the command that made the runs; None: left out.
        notes: sentences.
    """
    parts = [f"# {title}", verdict(table)]
    if command:
        parts.append(f"```\n{command}\n```")
    values = grids.values(table)
    parts += [_grid(values), values.caption]
    details = (
        adaptation.beside_plain(table),
        attacks.by_member(table),
        confidence.by_severity(table),
        confidence.open_sets(table),
        *grids.further(table),
        grids.by_slice(table),
        grids.by_corruption(table),
    )
    for grid in filter(None, (grids.differences(table), shifts.falls(table), *details)):
        parts += [f"## {grid.heading}", _grid(grid), grid.caption]
    if legend := [f"- {label.text} (`{label.measure}`): {describe(label.measure).meaning}" for label in grids.measure_labels(table)]:
        parts += [f"## {grids.LEGEND}", "\n".join(legend)]
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _grid(grid: Grid) -> str:
    lines = [[grid.corner, *(label.text for label in grid.columns)], ["---"] * (1 + len(grid.columns))]
    lines += [[label.text, *map(_cell, row)] for label, row in grid.rows.items()]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ABSENT
    text = f"**{cell.line}**" if cell.best else cell.line
    return f"{text} (paper {cell.paper})" if cell.paper else text


def to_text(table: Table) -> str:
    """Returns a compact aligned table without details, the paper's numbers in rows of their own.

    A wide table has its rows and columns exchanged if that is narrower, or the headlines only.

    Args:
        table: as `aggregate` returns it.
    """
    lines = _narrowest(grids.values(table, table["measures"]))
    rest = len(table["measures"]) - len(table["headlines"])
    if max(map(len, lines)) > _TERMINAL_WIDTH and rest:
        lines = [*_narrowest(grids.values(table)), f"{rest} more measures are in the report."]
    return "\n".join([*lines, *filter(None, [formatting.unverified_note(table)])])


def _narrowest(grid: Grid) -> list[str]:
    """The aligned table; if that is too wide and narrower so, with rows and columns exchanged."""
    lines: list[Sequence[str]] = [["", *(label.text for label in grid.columns)]]
    lines += [line for label, row in grid.rows.items() for line in _lines(label.text, row)]
    return min((_aligned(lines), _aligned(list(zip(*lines)))), key=lambda texts: max(_TERMINAL_WIDTH, *map(len, texts)))


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines]


def _lines(name: str, row: list[Cell | None]) -> Iterable[list[str]]:
    yield [name, *(cell.line if cell else ABSENT for cell in row)]
    if any(cell and cell.paper for cell in row):
        yield ["  paper", *(cell.paper if cell and cell.paper else ABSENT for cell in row)]
