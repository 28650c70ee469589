"""The table as Markdown for a file, and as plain text for the terminal."""

from collections.abc import Iterable, Sequence

from tf_robust.evaluation.descriptions import describe
from tf_robust.report import formatting, grids
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
    if details := grids.by_corruption(table):
        parts += [f"## {details.heading}", _grid(details)]
    if differences := grids.differences(table):
        parts += [f"## {differences.heading}", _grid(differences), differences.caption]
    if legend := [f"- {label.text} (`{label.measure}`): {describe(label.measure).meaning}" for label in grids.measures_in_words(table)]:
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

    Rows and columns change places where that makes a wide table narrower.

    Args:
        table: as `aggregate` returns it.
    """
    grid = grids.values(table)
    lines: list[Sequence[str]] = [["", *(label.text for label in grid.columns)]]
    lines += [line for label, row in grid.rows.items() for line in _lines(label.text, row)]
    aligned = min((_aligned(lines), _aligned(list(zip(*lines)))), key=lambda texts: max(_TERMINAL_WIDTH, *map(len, texts)))
    return "\n".join([*aligned, *filter(None, [formatting.unverified_note(table)])])


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines]


def _lines(name: str, row: list[Cell | None]) -> Iterable[list[str]]:
    yield [name, *(cell.line if cell else ABSENT for cell in row)]
    if any(cell and cell.paper for cell in row):
        yield ["  paper", *(cell.paper if cell and cell.paper else ABSENT for cell in row)]
