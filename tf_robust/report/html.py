"""The report as one self-contained HTML file: charts, images and scripts inside, no network, light and dark."""

import base64
import dataclasses
import html
import importlib.resources
import pathlib
from collections.abc import Iterable, Sequence

from tf_robust.evaluation.measure import describe
from tf_robust.report import adaptation, attacks, confidence, grids, shifts, vega
from tf_robust.report.grids import ABSENT, Cell, Grid, Label
from tf_robust.report.table_types import Table
from tf_robust.report.verdict import verdict_sentences

_FEW = 3  # columns with room for a number and its interval side by side

Image = tuple[str, str]  # path of a PNG file, caption


@dataclasses.dataclass(frozen=True)
class Additions:
    """What a report with a subject of its own has besides the sections of all reports.

    Attributes:
        sentences: in place of the verdict; none: the verdict.
        first: a table in place of those of values and differences; None: these. `tables` then has those of further measures.
        charts: before all others.
        images: (path of a PNG file, caption) of images whose predictions changed.
        tables: after the charts.
        code: lines of Python that reproduce the result; empty: none.
    """

    sentences: Sequence[str] = ()
    first: Grid | None = None
    charts: Sequence[vega.Chart] = ()
    images: Sequence[Image] = ()
    tables: Sequence[Grid] = ()
    code: str = ""


def to_html(
    table: Table,
    title: str,
    examples: Image | None,
    charts: Iterable[vega.Chart],
    images: Iterable[Image],
    details: dict[str, str],
    notes: Iterable[str] = (),
    additions: Additions = Additions(),
) -> str:
    """Returns the report as HTML: verdict, table, paired differences, examples, charts, measures, images, notes, details.

    Args:
        table: as `aggregate` returns it.
        title: plain text; like all text here, it is escaped.
        examples: images on which the rows differ, (path of a PNG file, caption).
        charts: drawn by Vega in the page.
        images: (path of a PNG file, caption) of each.
        details: {name: text}, such as command, versions, seeds.
        notes: plain sentences.
        additions: of a report with a subject of its own.
    """
    style, script = (importlib.resources.files(__package__).joinpath(f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    sections = [
        *map(_grid, [additions.first] if additions.first else [grids.values(table), grids.differences(table)]),
        _figures("Examples", [_image(*examples)] if examples else []),
        _figures("", map(_chart, additions.charts)),
        _figures("Changed predictions", (_image(*image) for image in additions.images)),
        _figures("Charts", map(_chart, charts)),
        _grid(shifts.falls(table)),
        _grid(adaptation.beside_plain(table)),
        _grid(attacks.by_member(table)),
        _grid(confidence.by_severity(table)),
        _grid(confidence.open_sets(table)),
        *map(_grid, additions.tables),
        _code(additions.code),
        *map(_grid, [] if additions.first else grids.further(table)),
        _grid(grids.by_slice(table)),
        _grid(None if additions.first else grids.by_corruption(table)),
        _legend(table),
        _figures("Images", (_image(*image) for image in images)),
        _notes(notes),
        _details(details),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<div class="verdict">
{"".join(f"<p>{html.escape(sentence)}</p>" for sentence in additions.sentences or verdict_sentences(table))}
</div>
{"".join(sections)}<script>
{vega.library()}
</script>
<script>
{script}</script>
</body>
</html>
"""


def _section(heading: str, body: str) -> str:
    title = f"<h2>{html.escape(heading)}</h2>\n" if heading else ""
    return f"<section>\n{title}{body}</section>\n"


def _grid(grid: Grid | None) -> str:
    """A table that is sorted by its headings; on narrow pages one block per line."""
    if grid is None:
        return ""
    labels = (Label(grid.corner), *grid.columns)
    head = "".join(f'<th scope="col"{_title(label)}><button type="button">{html.escape(label.text)}</button></th>' for label in labels)
    few = ' class="few"' if len(grid.columns) <= _FEW else ""

    def lines(rows):
        body = "".join(
            f'<tr><th scope="row"{_title(label)}>{html.escape(label.text)}</th>{"".join(map(_cell, row, grid.columns))}</tr>\n'
            for label, row in rows.items()
        )
        return f'<div class="scroll" tabindex="0"><table{few}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n'

    folded = f"<details><summary>All others: {len(grid.folded):,}</summary>\n{lines(grid.folded)}</details>\n" if grid.folded else ""
    return _section(grid.heading, f'{lines(grid.rows)}<p class="caption">{html.escape(grid.caption)}</p>\n{folded}')


def _title(label: Label) -> str:
    return f' title="{html.escape(label.meaning)}"' if label.measure else ""


def _cell(cell: Cell | None, column: Label) -> str:
    heading = f'data-heading="{html.escape(column.text)}"'
    if cell is None:
        return f'<td {heading} data-value="">{ABSENT}</td>'
    text = html.escape(cell.text).replace(" ", "&nbsp;")  # a mark stays next to its number
    text = f"<strong>{text}</strong>" if cell.best else text
    parts = html.escape(cell.uncertainty).replace(" ", "&nbsp;").replace("],&nbsp;", "], ")  # breaks after the interval only
    uncertainty = f" <small>{parts}</small>" if cell.uncertainty else ""
    paper = f" <small>paper {html.escape(cell.paper)}</small>" if cell.paper else ""
    return f'<td {heading} data-value="{cell.value:.6g}"><span>{text}{uncertainty}{paper}</span></td>'


def _legend(table: Table) -> str:
    items = "".join(
        f"<dt>{html.escape(label.text)} <code>{html.escape(label.measure)}</code></dt>"
        f"<dd>{html.escape(describe(label.measure).meaning)}</dd>\n"
        for label in grids.measure_labels(table)
    )
    return _section(grids.LEGEND, f'<dl class="legend">\n{items}</dl>\n') if items else ""


def _figures(heading: str, figures: Iterable[str]) -> str:
    body = "".join(figures)
    return _section(heading, body) if body else ""


def _chart(chart: vega.Chart) -> str:
    caption = html.escape(chart.caption)
    return (
        f'<figure><div class="scroll" tabindex="0"><div class="chart"></div>'
        f'<script type="application/json">{chart.embedded()}</script></div><figcaption>{caption}</figcaption></figure>\n'
    )


def _image(path: str, caption: str) -> str:
    data = base64.b64encode(pathlib.Path(path).read_bytes()).decode()
    caption = html.escape(caption)
    return (
        f'<figure><div class="scroll image" tabindex="0"><img alt="{caption}" src="data:image/png;base64,{data}"></div>'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def _code(lines: str) -> str:
    body = f'<div class="scroll" tabindex="0"><pre><code>{html.escape(lines)}</code></pre></div>\n'
    return _section("The same without the search", body) if lines else ""


def _notes(notes: Iterable[str]) -> str:
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return _section("Notes", f"<ul>{items}</ul>\n") if items else ""


def _details(details: dict[str, str]) -> str:
    items = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>\n" for name, text in details.items())
    return _section("How it was made", f'<dl class="details">\n{items}</dl>\n') if items else ""
