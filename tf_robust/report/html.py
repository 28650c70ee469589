"""The report as one self-contained HTML file: charts, images and scripts inside, no network, light and dark."""

import base64
import html
import importlib.resources
import pathlib

from tf_robust.report import formatting, vega
from tf_robust.report.tables import cells, members


def to_html(table, title, charts, images, details, notes=()):
    """The report: verdict, table, paired differences, charts, images, notes, details.

    Args:
        table: as `aggregate` gives. title: plain text; like all text here it is escaped.
        charts: [`vega.Chart`]. images: [(path of a PNG file, caption)]. details: {name: text}, such as command, versions, seeds.
        notes: plain sentences.

    Returns:
        HTML text.
    """
    style, script = (importlib.resources.files(__package__).joinpath(f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    sections = [_values(table), _differences(table), _figures("Charts", map(_chart, charts)), _by_corruption(table),
                _figures("Images", (_image(*image) for image in images)), _notes(notes), _details(details)]
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
<p class="verdict">{html.escape(formatting.verdict(table))}</p>
{"".join(sections)}<script>
{vega.library()}
</script>
<script>
{script}</script>
</body>
</html>
"""


def _section(heading, body):
    return f"<section>\n<h2>{html.escape(heading)}</h2>\n{body}</section>\n"


def _values(table):
    best, texts = formatting.best_cells(table), {}
    for key, entry in cells(table).items():
        texts[key] = _emphasize(formatting.value_text(entry), key in best) + _paper(entry)
    caption = f"{formatting.values_caption(table)} Bold: the best mean. {formatting.unverified_note(table)}".rstrip()
    means = {key: entry["mean"] for key, entry in cells(table).items()}
    return _section("Results", _grid(table, table["order"], texts, caption, means))


def _differences(table):
    texts = {key: html.escape(formatting.marked_difference(table, entry)) for key, entry in cells(table).items() if entry["difference"]}
    if not texts:
        return ""
    rows = [row for row in table["order"] if row != table["baseline"]]
    caption = f"{formatting.difference_caption(table)} {formatting.clear_note(table)}"
    means = {key: entry["difference"]["mean"] for key, entry in cells(table).items() if entry["difference"]}
    return _section(f"Against {table['baseline']}", _grid(table, rows, texts, caption, means))


def _by_corruption(table):
    """A line a corruption or perturbation, a column a row of the table."""
    details = members(table)
    if not details:
        return ""
    texts = {(formatting.heading(table, measure), row): html.escape(formatting.spread(entry["mean"], entry["std"])) + _paper(entry)
             for (row, measure), entry in cells(table).items()}
    caption = "Accuracy, mean over 5 severities; for flips the flip probability (lower is better)."
    means = {(formatting.heading(table, measure), row): entry["mean"] for (row, measure), entry in cells(table).items()}
    columns = {"measures": table["order"], "unverified": {}}
    return _section("By corruption and perturbation",
                    _grid(columns, [formatting.heading(table, measure) for measure in details], texts, caption, means))


def _paper(entry):
    return f"<small>{html.escape(formatting.paper_text(entry))}</small>" if entry["paper"] else ""


def _emphasize(text, strong):
    return f"<strong>{html.escape(text)}</strong>" if strong else html.escape(text)


def _grid(table, rows, texts, caption, values=None):
    """A table that scrolls inside its box and is sorted by its headings; a cell that was not measured holds a dash.

    Args:
        texts: {(row, measure): HTML}. values: {(row, measure): the number to sort by}.
    """
    head = "".join(f'<th scope="col"><button type="button">{html.escape(name)}</button></th>'
                   for name in ("row", *(formatting.heading(table, measure) for measure in table["measures"])))

    def cell(key):
        value = (values or {}).get(key)
        return f'<td data-value="{"" if value is None else f"{value:.6g}"}">{texts.get(key, "–")}</td>'
    body = "".join(f'<tr><th scope="row">{html.escape(row)}</th>' + "".join(cell((row, measure)) for measure in table["measures"])
                   + "</tr>\n" for row in rows)
    return (f'<div class="scroll" tabindex="0"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n'
            f'</table></div>\n<p class="caption">{html.escape(caption)}</p>\n')


def _figures(heading, figures):
    body = "".join(figures)
    return _section(heading, body) if body else ""


def _chart(chart):
    caption = html.escape(chart.caption)
    return (f'<figure><div class="scroll" tabindex="0"><div class="chart"></div>'
            f'<script type="application/json">{chart.embedded()}</script></div><figcaption>{caption}</figcaption></figure>\n')


def _image(path, caption):
    data = base64.b64encode(pathlib.Path(path).read_bytes()).decode()
    caption = html.escape(caption)
    return (f'<figure><div class="scroll image" tabindex="0"><img alt="{caption}" src="data:image/png;base64,{data}"></div>'
            f"<figcaption>{caption}</figcaption></figure>\n")


def _notes(notes):
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return _section("Notes", f"<ul>{items}</ul>\n") if items else ""


def _details(details):
    items = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>\n" for name, text in details.items())
    return _section("How it was made", f"<dl>\n{items}</dl>\n") if items else ""
