"""A report as one self-contained HTML file, as Markdown, as a LaTeX table and as text for the terminal.

The HTML has charts, images and scripts inside and needs no network. The LaTeX table is for the package booktabs.
"""

import base64
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import jinja2
import markupsafe
import pandas

from tf_robust.evaluation.metric_value import describe
from tf_robust.report import charts as table_charts
from tf_robust.report import sections
from tf_robust.report.chart import Chart, embed, library, save_png
from tf_robust.report.images import Image
from tf_robust.report.sections import ABSENT, Cell, Section
from tf_robust.report.summary import evaluation_notes, summarize, summary_lines
from tf_robust.report.tables import Evaluation, Paper, PerImage, Table, aggregate, results
from tf_robust.utils.files import atomic_file, write_json

_TERMINAL_WIDTH = 100
_LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"}
    | {"±": r"$\pm$", "†": r"\dag{}", "–": "--", "∞": r"$\infty$"}
    | {character: f"\\{character}" for character in "&%$#_{}"}
)


@dataclasses.dataclass(frozen=True)
class Additions:
    """Extra parts of `report.html`."""

    lines: Sequence[str] = ()  # below the summary
    first: Section | None = None  # in place of the tables of values and differences, also of further metrics
    charts: Sequence[Chart] = ()  # before all others
    images: Sequence[Image] = ()  # of which predictions changed
    tables: Sequence[Section] = ()  # after the charts
    code: str = ""  # lines of Python that reproduce the result


def write(
    folder: str,
    evaluations: Iterable[Evaluation],
    *,
    title: str,
    command: str,
    commit: str,
    paper: Paper | None = None,
    baseline: str | None = None,
    examples: Sequence[Image] = (),
    figures: Sequence[Chart | Image] = (),
    notes: Iterable[str] = (),
    per_image: PerImage | None = None,
    additions: Additions = Additions(),
) -> Table:
    """Writes `report.html`, `report.md`, `report.tex`, `results.json` and every chart as `figures/NAME.png` into a folder.

    Args:
        folder: created if missing.
        evaluations: as in `aggregate`, like `paper`, `baseline` and `per_image`.
        title: of the report.
        command: the command that made the runs.
        commit: of the source tree.
        examples: images on which the rows differ, (path of a PNG file, caption), shown before the charts.
        figures: further figures: charts, and images as (path of a PNG file, caption).
        notes: sentences.
        additions: to `report.html`.

    Returns:
        The table, as in `aggregate`.

    Examples:
        >>> import os
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> settings = {"title": "Digits", "command": "python evaluate.py", "commit": "unknown"}
        >>> table = tfr.report.write("out", [result.evaluation], **settings)  # doctest: +SKIP
        >>> sorted(os.listdir("out"))  # doctest: +SKIP
        ['figures', 'report.html', 'report.md', 'report.tex', 'results.json']
    """
    evaluations = list(evaluations)
    table = aggregate(evaluations, paper, baseline, per_image)
    charts = [*table_charts.of_table(table), *(figure for figure in figures if not isinstance(figure, tuple))]
    for chart in (*additions.charts, *charts):
        save_png(chart, os.path.join(folder, "figures"))

    def distinct(field: str) -> list[str]:
        return list(dict.fromkeys("unknown" if e.get(field) is None else str(e[field]) for e in evaluations))

    differing = {field: distinct(field) for field in ("data", "data_dir", "model", "split", "commit")}
    warnings = [f"The runs differ in {field}: {', '.join(values)}." for field, values in differing.items() if len(values) > 1]
    notes = [*notes, *warnings, *evaluation_notes(evaluations)]
    found: dict[str, dict[str, None]] = {}  # {package: versions}
    for name, version in ((name, version) for e in evaluations for name, version in e.get("versions", {}).items()):
        found.setdefault(name, {})[str(version)] = None
    versions = {name: ", ".join(of_package) for name, of_package in found.items()}
    seconds = sum(e.get("training", {}).get("seconds", 0) for e in evaluations)
    details = {
        "command": command,
        "commit": commit,
        "data": ", ".join(distinct("data")),
        "model": ", ".join(distinct("model")),
        "seeds": ", ".join(map(str, sorted({e["seed"] for e in evaluations}))),
        **({"training": f"{len(evaluations)} runs, {seconds / 60:.1f} minutes in all"} if seconds else {}),
        "date": ", ".join(distinct("date")),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    images = [figure for figure in figures if isinstance(figure, tuple)]
    page = to_html(table, title, charts=charts, examples=examples, images=images, notes=notes, details=details, additions=additions)
    texts = {"report.html": page, "report.md": to_markdown(table, title, command, notes), "report.tex": to_latex(table, title)}
    for name, text in texts.items():
        with atomic_file(os.path.join(folder, name), "wb") as file:
            file.write(text.encode("utf-8"))
    date = max((e["date"] for e in evaluations if e.get("date")), default=None)
    write_json(os.path.join(folder, "results.json"), results(table, command, commit, versions, date))
    return table


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

    Arguments are as in `write`; `details` is {name: text}, such as command, versions, seeds.

    Examples:
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> table = tfr.report.aggregate([result.evaluation])
        >>> tfr.report.to_html(table, "Digits")[:15]  # doctest: +SKIP
        '<!DOCTYPE html>'
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
    """Returns title, summary, command, all tables (best values in bold), the meaning of the metrics and notes as Markdown.

    Examples:
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> lines = tfr.report.to_markdown(tfr.report.aggregate([result.evaluation]), "Digits").splitlines()
        >>> lines[0], lines[2]
        ('# Digits', '- Clean accuracy: lenet_augmix 97.0% [91.5, 99.0].')
    """
    parts = [f"# {title}", "\n".join(f"- {line}" for line in summary_lines(table)), f"```\n{command}\n```" if command else ""]
    for section in (*sections.main(table), *sections.others(table)):
        frame = section.frame
        lines = [[frame.index.name, *frame.columns], ["---"] * (1 + len(frame.columns))]
        lines += [[name, *map(_markdown_cell, cells)] for name, *cells in frame.itertuples(name=None)]
        rows = "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)
        parts += [f"## {section.heading}", rows, section.caption]
    legend = [f"- {name} (`{metric}`): {meaning}" for name, metric, meaning in sections.legend(table)]
    parts += ["## Metrics", "\n".join(legend)] if legend else []
    parts += ["## Notes", "\n".join(f"- {note}" for note in notes)] if notes else []
    return "\n\n".join(filter(None, parts)) + "\n"


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return ABSENT
    return f"{f'**{cell}**' if cell.best else cell}{f' (paper {cell.paper})' if cell.paper else ''}"


def to_text(table: Table) -> str:
    """Returns a compact aligned table without details, the paper's numbers in rows of their own.

    A wide table has its rows and columns exchanged if that is narrower, or the headlines only.

    Examples:
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> print(tfr.report.to_text(tfr.report.aggregate([result.evaluation])))
                      Clean accuracy        Clean accuracy, mean over classes
        lenet_augmix  0.970 [0.915, 0.990]  0.970
    """
    lines = _narrowest(sections.values(table, table["metrics"]).frame)
    rest = len(table["metrics"]) - len(table["headlines"])
    if max(map(len, lines)) > _TERMINAL_WIDTH and rest:
        lines = [*_narrowest(sections.values(table).frame), f"{rest} more metrics are in the report."]
    return "\n".join(filter(None, [*lines, sections.unverified_note(table)]))


def _narrowest(frame: pandas.DataFrame) -> list[str]:
    """Returns the lines of the aligned table; if that is too wide and narrower so, with rows and columns exchanged."""
    lines, shapes = _lines_of(frame, str), []
    for shape in (lines, [*zip(*lines)]):
        widths = [max(map(len, column)) for column in zip(*shape)]
        shapes.append(["  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in shape])
    return min(shapes, key=lambda texts: max(_TERMINAL_WIDTH, *map(len, texts)))


def _lines_of(frame: pandas.DataFrame, show: Callable[[Cell], str], escape: Callable[[str], str] = str) -> list[list[str]]:
    """Returns the texts of a table, the paper's numbers in lines of their own."""
    lines, absent = [["", *map(escape, frame.columns)]], escape(ABSENT)
    for name, *cells in frame.itertuples(name=None):
        lines.append([escape(name), *(show(cell) if cell else absent for cell in cells)])
        if any(cell and cell.paper for cell in cells):
            lines.append(["  paper", *(escape(cell.paper) if cell and cell.paper else absent for cell in cells)])
    return lines


def to_latex(table: Table, title: str) -> str:
    r"""Returns mean and std of every model and metric, the best in bold, the paper's in lines beneath: a `table` environment.

    Examples:
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> lines = tfr.report.to_latex(tfr.report.aggregate([result.evaluation]), "Digits").splitlines()
        >>> print("\n".join(lines[4:-2]))
        \begin{tabular}{lrr}
        \toprule
         & Clean accuracy & Clean accuracy, mean over classes \\
        \midrule
        lenet\_augmix & 0.970 & 0.970 \\
        \bottomrule
    """
    section = sections.values(table, table["metrics"])

    def escape(text: str) -> str:
        return text.translate(_LATEX)

    def show(cell: Cell) -> str:
        text = escape(str(cell) if cell.uncertainty.startswith("±") else cell.text)
        return rf"\textbf{{{text}}}" if cell.best else text

    head, *body = [" & ".join(line) + r" \\" for line in _lines_of(section.frame, show, escape)]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(f'{title}. {section.caption}')}}}",
            rf"\begin{{tabular}}{{l{'r' * len(section.frame.columns)}}}",
            *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
            *(r"\end{tabular}", r"\end{table}", ""),
        ]
    )
