"""A report as Markdown, its table as LaTeX for the package booktabs, and as aligned text for the terminal."""

from collections.abc import Sequence

import pandas

from tf_robust.evaluation.metric_value import describe
from tf_robust.report import formatting, sections
from tf_robust.report.sections import ABSENT, Cell
from tf_robust.report.summary import summary_lines
from tf_robust.report.table_types import Table

_TERMINAL_WIDTH = 100
_LATEX = {
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


def to_markdown(table: Table, title: str, command: str | None = None, notes: Sequence[str] = ()) -> str:
    """Returns title, summary, command, all tables (best values in bold), the meaning of the metrics and notes as Markdown."""
    parts = [f"# {title}", "\n".join(f"- {line}" for line in summary_lines(table)), *([f"```\n{command}\n```"] if command else [])]
    for section in (*sections.main(table), *sections.others(table)):
        parts += [f"## {section.heading}", _markdown(section.frame), section.caption]
    if shown := sections.shown_metrics(table):
        lines = [f"- {formatting.heading(table, one)} (`{one}`): {describe(one).meaning}" for one in shown]
        parts += ["## Metrics", "\n".join(lines)]
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _markdown(frame: pandas.DataFrame) -> str:
    lines = [[frame.index.name, *frame.columns], ["---"] * (1 + len(frame.columns))]
    lines += [[name, *map(_markdown_cell, line)] for name, *line in frame.itertuples(name=None)]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return ABSENT
    return f"{f'**{cell}**' if cell.best else cell}{f' (paper {cell.paper})' if cell.paper else ''}"


def to_text(table: Table) -> str:
    """Returns a compact aligned table without details, the paper's numbers in rows of their own.

    A wide table has its rows and columns exchanged if that is narrower, or the headlines only.
    """
    lines = _narrowest(sections.values(table, table["metrics"]).frame)
    rest = len(table["metrics"]) - len(table["headlines"])
    if max(map(len, lines)) > _TERMINAL_WIDTH and rest:
        lines = [*_narrowest(sections.values(table).frame), f"{rest} more metrics are in the report."]
    return "\n".join([*lines, *filter(None, [formatting.unverified_note(table)])])


def _narrowest(frame: pandas.DataFrame) -> list[str]:
    """Returns the aligned table; if that is too wide and narrower so, with rows and columns exchanged."""
    lines = [["", *frame.columns]]
    for name, *cells in frame.itertuples(name=None):
        lines.append([name, *(str(cell) if cell else ABSENT for cell in cells)])
        if any(cell and cell.paper for cell in cells):
            lines.append(["  paper", *(cell.paper if cell and cell.paper else ABSENT for cell in cells)])
    return min((_aligned(lines), _aligned([*zip(*lines)])), key=lambda texts: max(_TERMINAL_WIDTH, *map(len, texts)))


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines]


def to_latex(table: Table, title: str) -> str:
    """Returns mean and std of every model and metric, the best in bold, the paper's in small type beneath: a `table` environment."""
    section = sections.values(table, table["metrics"])
    lines = [["", *map(_escape, section.frame.columns)]]
    for name, *cells in section.frame.itertuples(name=None):
        lines.append([_escape(name), *map(_latex_cell, cells)])
        if any(cell and cell.paper for cell in cells):
            papers = (cell.paper if cell else "" for cell in cells)
            lines.append(["", *(rf"{{\footnotesize paper {_escape(paper)}}}" if paper else "" for paper in papers)])
    head, *body = [" & ".join(line) + r" \\" for line in lines]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape(title)}. {_escape(section.caption)}}}",
            rf"\begin{{tabular}}{{l{'r' * len(section.frame.columns)}}}",
            *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
            *(r"\end{tabular}", r"\end{table}", ""),
        ]
    )


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return _escape(ABSENT)
    text = _escape(str(cell) if cell.uncertainty.startswith("±") else cell.text)
    return rf"\textbf{{{text}}}" if cell.best else text


def _escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
