"""The table for a paper: LaTeX for the package booktabs."""

from tf_robust.report import grids
from tf_robust.report.grids import ABSENT, Cell
from tf_robust.report.table_types import Table

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "±": r"$\pm$",
    "†": r"\dag{}",
    "–": "--",
    "∞": r"$\infty$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def to_latex(table: Table, title: str) -> str:
    """Returns mean and std of every model and measure, the best in bold, the paper's in small type beneath: a `table` environment.

    Args:
        table: as `aggregate` returns it.
        title: of the caption, plain text.
    """
    grid = grids.values(table, table["measures"])
    lines = [_line("", (_escaped(label.text) for label in grid.columns)), r"\midrule"]
    for label, row in grid.rows.items():
        lines.append(_line(_escaped(label.text), map(_cell, row)))
        if any(cell and cell.paper for cell in row):
            lines.append(_line("", (rf"{{\footnotesize paper {_escaped(cell.paper)}}}" if cell and cell.paper else "" for cell in row)))
    body = "\n".join(lines)
    return (
        f"% \\usepackage{{booktabs}}\n\\begin{{table}}\n\\centering\n\\caption{{{_escaped(title)}. "
        f"{_escaped(grid.caption)}}}\n\\begin{{tabular}}{{l{'r' * len(grid.columns)}}}\n"
        f"\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def _line(name, texts):
    return " & ".join([name, *texts]) + r" \\"


def _cell(cell: Cell | None) -> str:
    text = _escaped(cell.mean if cell else ABSENT)
    return rf"\textbf{{{text}}}" if cell and cell.best else text


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)
