"""A report as one self-contained HTML file, as Markdown, as a LaTeX table and as text for the terminal.

The HTML has charts, images and scripts inside and needs no network. The LaTeX table is for the package booktabs.
"""

import base64
import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import jinja2
import markupsafe
import pandas

from tf_robust.evaluation.metric_value import describe
from tf_robust.report import charts as table_charts
from tf_robust.report import sections
from tf_robust.report.chart import Chart, embed, library, save_png
from tf_robust.report.sections import ABSENT, Cell, Section
from tf_robust.report.summary import evaluation_notes, summarize, summary_lines
from tf_robust.report.tables import Evaluation, Paper, PerImage, Table, aggregate, results
from tf_robust.utils.files import atomic_file, write_json

Image = tuple[str, str]  # path of a PNG file, caption

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


@dataclasses.dataclass(frozen=True)
class Additions:
    """Extra parts of a report.

    Attributes:
        lines: below the summary.
        first: a table in place of those of values and differences; None: these. `tables` then has those of further metrics.
        charts: before all others.
        images: (path of a PNG file, caption) of images whose predictions changed.
        tables: after the charts.
        code: lines of Python that reproduce the result; empty: none.
    """

    lines: Sequence[str] = ()
    first: Section | None = None
    charts: Sequence[Chart] = ()
    images: Sequence[Image] = ()
    tables: Sequence[Section] = ()
    code: str = ""


def write(
    folder: str,
    evaluations: Iterable[Evaluation],
    *,
    title: str,
    command: str,
    commit: str,
    paper: Paper | None = None,
    baseline: str | None = None,
    examples: Image | None = None,
    figures: Sequence[Chart | Image] = (),
    notes: Iterable[str] = (),
    per_image: PerImage | None = None,
    additions: Additions = Additions(),
) -> Table:
    """Writes `report.html`, `report.md`, `report.tex`, `results.json` and every chart as `figures/NAME.png` into a folder.

    Args:
        folder: created if missing.
        evaluations: as in `aggregate`.
        title: of the report.
        command: the command that made the runs.
        commit: of the source tree.
        paper: as in `aggregate`.
        baseline: as in `aggregate`.
        examples: images on which the rows differ, (path of a PNG file, caption), shown before the charts.
        figures: further figures: charts, and images as (path of a PNG file, caption).
        notes: sentences.
        per_image: as in `aggregate`.
        additions: to `report.html`.

    Returns:
        The table, as in `aggregate`.
    """
    evaluations = list(evaluations)
    table = aggregate(evaluations, paper, baseline, per_image)
    charts = [*table_charts.of_table(table), *(figure for figure in figures if not isinstance(figure, tuple))]
    for chart in (*additions.charts, *charts):
        save_png(chart, os.path.join(folder, "figures"))
    differing = [field for field in ("data", "data_dir", "model", "split", "commit") if len({e.get(field) for e in evaluations}) > 1]
    warnings = [f"The runs differ in {field}: {_distinct(e.get(field) for e in evaluations)}." for field in differing]
    notes = [*notes, *warnings, *evaluation_notes(evaluations)]
    packages = dict.fromkeys(name for e in evaluations for name in e.get("versions", {}))
    versions = {name: _distinct(e.get("versions", {}).get(name) for e in evaluations) for name in packages}
    seconds = sum(e.get("training", {}).get("seconds", 0) for e in evaluations)
    details = {
        "command": command,
        "commit": commit,
        "data": _distinct(e.get("data") for e in evaluations),
        "model": _distinct(e.get("model") for e in evaluations),
        "seeds": ", ".join(map(str, sorted({e["seed"] for e in evaluations}))),
        **({"training": f"{len(evaluations)} runs, {seconds / 60:.1f} minutes in all"} if seconds else {}),
        "date": _distinct(e.get("date") for e in evaluations),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    images = [figure for figure in figures if isinstance(figure, tuple)]
    page = to_html(
        table,
        title,
        charts=charts,
        examples=[examples] if examples else [],
        images=images,
        notes=notes,
        details=details,
        additions=additions,
    )
    texts = {
        "report.html": page,
        "report.md": to_markdown(table, title, command, notes),
        "report.tex": to_latex(table, title),
    }
    for name, text in texts.items():
        with atomic_file(os.path.join(folder, name), "wb") as file:
            file.write(text.encode("utf-8"))
    date = max((e["date"] for e in evaluations if e.get("date")), default=None)
    write_json(os.path.join(folder, "results.json"), results(table, command, commit, versions, date))
    return table


def _distinct(values: Iterable) -> str:
    return ", ".join(dict.fromkeys("unknown" if value is None else str(value) for value in values))


def to_html(
    table: Table,
    title: str,
    *,
    charts: Sequence[Chart] = (),
    examples: Sequence[Image] = (),
    images: Sequence[Image] = (),
    notes: Sequence[str] = (),
    details: Mapping[str, str] = MappingProxyType({}),
    additions: Additions = Additions(),
) -> str:
    """Returns the report as HTML: summary, tables, examples, charts, metrics, images, notes, details. All text is escaped.

    Args:
        table: as `aggregate` returns it.
        title: of the page.
        charts: drawn by Vega in the page.
        examples: images on which the rows differ, (path of a PNG file, caption).
        images: further images.
        notes: sentences.
        details: {name: text}, such as command, versions, seeds.
        additions: extra parts.
    """
    loader = jinja2.PackageLoader("tf_robust.report", ".")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "spec": lambda chart: markupsafe.Markup(embed(chart)),
        "base64": lambda path: base64.b64encode(pathlib.Path(path).read_bytes()).decode(),
        "nobreak": lambda text: text.replace(" ", "\xa0").replace("],\xa0", "], "),  # breaks after an interval only
        "meaning": lambda metric: f"{describe(metric).meaning} Name in files and flags: {metric}".lstrip(),
    }
    return environment.get_template("page.html.j2").render(
        absent=ABSENT,
        title=title,
        summary=summarize(table),
        first=[additions.first] if additions.first else sections.main(table),
        others=sections.others(table, details=not additions.first),
        additions=additions,
        charts=charts,
        examples=examples,
        images=images,
        metrics=sections.legend(table),
        notes=notes,
        details=details,
        library=markupsafe.Markup(library()),
    )


def to_markdown(table: Table, title: str, command: str | None = None, notes: Sequence[str] = ()) -> str:
    """Returns title, summary, command, all tables (best values in bold), the meaning of the metrics and notes as Markdown."""
    parts = [f"# {title}", "\n".join(f"- {line}" for line in summary_lines(table)), *([f"```\n{command}\n```"] if command else [])]
    for section in (*sections.main(table), *sections.others(table)):
        parts += [f"## {section.heading}", _markdown(section.frame), section.caption]
    if legend := [f"- {name} (`{metric}`): {meaning}" for name, metric, meaning in sections.legend(table)]:
        parts += ["## Metrics", "\n".join(legend)]
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
    return "\n".join([*lines, *filter(None, [sections.unverified_note(table)])])


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
