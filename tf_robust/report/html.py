"""The report as one self-contained HTML file: no script, no network, pictures inside, light and dark."""

import base64
import html
import importlib.resources
import pathlib

from tf_robust.report import wording
from tf_robust.report.tables import cells, is_clear


def to_html(table, title, figures, details, notes=()):
    """The report: verdict, table, paired differences, figures, notes, details.

    Args:
        table: as `aggregate` gives. title: plain text; like all text here it is escaped.
        figures: [(path of a PNG file, caption)]. details: {name: text}, such as command, versions, seeds.
        notes: plain sentences.

    Returns:
        HTML text.
    """
    style = importlib.resources.files(__package__).joinpath("report.css").read_text("utf-8")
    sections = [_values(table), _differences(table), _by_corruption(table), _figures(figures), _notes(notes), _details(details)]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p class="verdict">{html.escape(wording.verdict(table))}</p>
{"".join(sections)}</body>
</html>
"""


def _section(heading, body):
    return f"<section>\n<h2>{html.escape(heading)}</h2>\n{body}</section>\n"


def _values(table):
    best, texts = wording.best_cells(table), {}
    for key, entry in cells(table).items():
        paper = f"<small>{html.escape(wording.paper_text(entry))}</small>" if entry["paper"] else ""
        texts[key] = _emphasize(wording.value_text(entry), key in best) + paper
    caption = f"{wording.values_caption(table)} Bold: the best mean."
    return _section("Results", _grid(table, table["order"], texts, caption))


def _differences(table):
    texts = {key: _emphasize(wording.difference_text(entry["difference"]), is_clear(table, entry))
             for key, entry in cells(table).items() if entry["difference"]}
    if not texts:
        return ""
    rows = [row for row in table["order"] if row != table["baseline"]]
    caption = f"{wording.difference_caption(table)} {wording.CLEAR_NOTE}"
    return _section(f"Against {table['baseline']}", _grid(table, rows, texts, caption))


def _by_corruption(table):
    """A line a corruption or perturbation, a column a row of the table."""
    details = [measure for measure in table["details"] if measure.count("/") == 1]
    if not details:
        return ""
    texts = {(measure, row): html.escape(wording.spread(entry["mean"], entry["std"]))
             for (row, measure), entry in cells(table).items()}
    caption = "Accuracy, mean over 5 severities; for flips the flip probability (lower is better)."
    return _section("By corruption and perturbation", _grid({"measures": table["order"]}, details, texts, caption))


def _emphasize(text, strong):
    return f"<strong>{html.escape(text)}</strong>" if strong else html.escape(text)


def _grid(table, rows, texts, caption):
    """A table that scrolls inside its box. texts: {(row, measure): HTML}; a cell that was not measured holds a dash."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in ("", *table["measures"]))
    body = "".join(
        f'<tr><th scope="row">{html.escape(row)}</th>'
        + "".join(f"<td>{texts.get((row, measure), '–')}</td>" for measure in table["measures"]) + "</tr>\n"
        for row in rows)
    return (f'<div class="scroll" tabindex="0"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n'
            f'</table></div>\n<p class="caption">{html.escape(caption)}</p>\n')


def _figures(figures):
    return _section("Figures", "".join(_figure(path, caption) for path, caption in figures)) if figures else ""


def _figure(path, caption):
    data = base64.b64encode(pathlib.Path(path).read_bytes()).decode()
    caption = html.escape(caption)
    return (f'<figure><div class="scroll" tabindex="0"><img alt="{caption}" src="data:image/png;base64,{data}"></div>'
            f"<figcaption>{caption}</figcaption></figure>\n")


def _notes(notes):
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return _section("Notes", f"<ul>{items}</ul>\n") if items else ""


def _details(details):
    items = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>\n" for name, text in details.items())
    return _section("How it was made", f"<dl>\n{items}</dl>\n") if items else ""
