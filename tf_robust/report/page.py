"""The report as one self-contained HTML file: charts, images and scripts inside, no network, light and dark."""

import base64
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import jinja2
import markupsafe

from tf_robust.evaluation.metric_value import describe
from tf_robust.report import formatting, sections
from tf_robust.report.chart import Chart, embed, library
from tf_robust.report.sections import ABSENT, Section
from tf_robust.report.summary import summarize
from tf_robust.report.table_types import Table

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
    return _template().render(
        title=title,
        summary=summarize(table),
        first=[additions.first] if additions.first else sections.main(table),
        others=sections.others(table, details=not additions.first),
        additions=additions,
        charts=charts,
        examples=examples,
        images=images,
        metrics=[(formatting.heading(table, one), one, describe(one).meaning) for one in sections.shown_metrics(table)],
        notes=notes,
        details=details,
        library=markupsafe.Markup(library()),
    )


def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("tf_robust.report", ".")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "spec": lambda chart: markupsafe.Markup(embed(chart)),
        "base64": lambda path: base64.b64encode(pathlib.Path(path).read_bytes()).decode(),
        "nobreak": lambda text: text.replace(" ", "\xa0").replace("],\xa0", "], "),  # breaks after an interval only
        "meaning": lambda metric: f"{describe(metric).meaning} Name in files and flags: {metric}".lstrip(),
    }
    environment.globals["absent"] = ABSENT
    return environment.get_template("page.html.j2")
