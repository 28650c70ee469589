"""The table as Markdown for a file, and as plain text for the terminal."""

from collections.abc import Iterable, Sequence

from tf_robust.report import formatting, grids
from tf_robust.report.grids import ABSENT, Cell, Grid
from tf_robust.report.table_types import Table

_TERMINAL_MEASURES = 5


def to_markdown(table: Table, title: str, command: str | None = None, notes: Sequence[str] = ()) -> str:
    """Returns title, verdict, command, the table (best values in bold), paired differences and notes as Markdown.

    Args:
        table: as `aggregate` returns it.
        title: of the document.
        command: the command that made the runs; None: left out.
        notes: sentences.
    """
    parts = [f"# {title}", formatting.verdict(table)]
    if command:
        parts.append(f"```\n{command}\n```")
    values = grids.values(table)
    parts += [_grid(values), values.caption]
    if details := grids.by_corruption(table):
        parts += [f"## {details.heading}", _grid(details)]
    if differences := grids.differences(table):
        parts += [f"## {differences.heading}", _grid(differences), differences.caption]
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _grid(grid: Grid) -> str:
    lines = [[grid.corner, *grid.columns], ["---"] * (1 + len(grid.columns))]
    lines += [[name, *map(_cell, row)] for name, row in grid.rows.items()]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ABSENT
    text = f"**{cell.text}**" if cell.best else cell.text
    return f"{text} (paper {cell.paper})" if cell.paper else text


def to_text(table: Table) -> str:
    """Returns a compact aligned table without details, the paper's numbers in rows of their own.

    More than five measures are printed one per line.

    Args:
        table: as `aggregate` returns it.
    """
    grid = grids.values(table)
    lines: Iterable[Sequence[str]] = [["", *grid.columns], *(line for name, row in grid.rows.items() for line in _lines(name, row))]
    if len(grid.columns) > _TERMINAL_MEASURES:
        lines = list(zip(*lines))
    widths = [max(map(len, column)) for column in zip(*lines)]
    texts = ["  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([*texts, *filter(None, [formatting.unverified_note(table)])])


def _lines(name: str, row: list[Cell | None]) -> Iterable[list[str]]:
    yield [name, *(cell.text if cell else ABSENT for cell in row)]
    if any(cell and cell.paper for cell in row):
        yield ["  paper", *(cell.paper if cell and cell.paper else ABSENT for cell in row)]
