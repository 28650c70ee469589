"""The report as one self-contained HTML file: charts, images and scripts inside, no network, light and dark."""

import base64
import dataclasses
import pathlib
from collections.abc import Iterable, Sequence

import jinja2
import markupsafe

from tf_robust.evaluation.descriptions import describe
from tf_robust.report import formatting, sections
from tf_robust.report.chart import Chart, embed, library
from tf_robust.report.sections import ABSENT, Section
from tf_robust.report.summary import summarize
from tf_robust.report.table_types import Table
from tf_robust.report.text import all_sections

Image = tuple[str, str]  # path of a PNG file, caption


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


def to_html(
    table: Table,
    title: str,
    examples: Image | None,
    charts: Iterable[Chart],
    images: Iterable[Image],
    details: dict[str, str],
    notes: Iterable[str] = (),
    additions: Additions = Additions(),
) -> str:
    """Returns the report as HTML: summary, tables, examples, charts, metrics, images, notes, details.

    Args:
        table: as `aggregate` returns it.
        title: plain text; like all text here, it is escaped.
        examples: images on which the rows differ, (path of a PNG file, caption).
        charts: drawn by Vega in the page.
        images: (path of a PNG file, caption) of each.
        details: {name: text}, such as command, versions, seeds.
        notes: plain sentences.
        additions: extra parts.
    """
    found = all_sections(table)
    first = [section for section in found if section.heading == "Results" or section.heading == f"Against {table['baseline']}"]
    others = [section for section in found if section not in first]
    if additions.first:
        known = {section.heading for section in (*sections.further(table), sections.by_corruption(table)) if section}
        first, others = [additions.first], [section for section in others if section.heading not in known]
    return _template().render(
        title=title,
        summary=summarize(table),
        lines=additions.lines,
        first=first,
        examples=[examples] if examples else [],
        main_charts=additions.charts,
        changed=additions.images,
        charts=list(charts),
        tables=[*additions.tables, *others],
        code=additions.code,
        metrics=[(formatting.heading(table, one), one, describe(one).meaning) for one in sections.shown_metrics(table)],
        images=list(images),
        notes=list(notes),
        details=details,
        library=markupsafe.Markup(library()),
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tf_robust.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"spec": _spec, "base64": _base64, "nobreak": _nobreak, "meaning": _meaning}
    environment.globals["absent"] = ABSENT
    return environment.get_template("page.html.j2")


def _spec(chart: Chart) -> markupsafe.Markup:
    return markupsafe.Markup(embed(chart))


def _base64(path: str) -> str:
    return base64.b64encode(pathlib.Path(path).read_bytes()).decode()


def _nobreak(text: str) -> str:
    """Returns a text that breaks after an interval only: a mark stays next to its number."""
    return text.replace(" ", "\xa0").replace("],\xa0", "], ")


def _meaning(metric: str) -> str:
    """Returns a metric's definition and its name in JSON files."""
    return f"{describe(metric).meaning} Name in files and flags: {metric}".lstrip()
