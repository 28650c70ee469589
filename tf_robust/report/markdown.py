"""The table as Markdown for a file, and as plain text for the terminal."""

from tf_robust.report import formatting
from tf_robust.report.tables import cells, members

_TERMINAL_MEASURES = 5


def to_markdown(table, title, command=None, notes=()):
    """Title, verdict, command, the table (best values in bold), paired differences, notes: Markdown text."""
    parts = [f"# {title}", formatting.verdict(table)]
    if command:
        parts.append(f"```\n{command}\n```")
    parts += [_grid(table, table["order"], _value_cells(table)),
              f"{formatting.values_caption(table)} Bold: the best mean. {formatting.unverified_note(table)}".rstrip()]
    details = members(table)
    if details:
        parts += ["## By corruption and perturbation", _transposed(table, details)]
    differences = _difference_cells(table)
    if differences:
        rows = [row for row in table["order"] if row != table["baseline"]]
        parts += [f"## Against {table['baseline']}", _grid(table, rows, differences),
                  f"{formatting.difference_caption(table)} {formatting.clear_note(table)}"]
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _value_cells(table):
    best, texts = formatting.best_cells(table), {}
    for key, entry in cells(table).items():
        text = formatting.value_text(entry)
        text = f"**{text}**" if key in best else text
        texts[key] = f"{text} ({formatting.paper_text(entry)})" if entry["paper"] else text
    return texts


def _difference_cells(table):
    return {key: formatting.marked_difference(table, entry) for key, entry in cells(table).items() if entry["difference"]}


def _grid(table, rows, texts):
    """A Markdown table; a cell that was not measured holds a dash."""
    lines = [["row", *(formatting.heading(table, measure) for measure in table["measures"])], ["---"] * (1 + len(table["measures"]))]
    lines += [[row, *(texts.get((row, measure), "–") for measure in table["measures"])] for row in rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _transposed(table, measures):
    """A line a measure, a column a row of the table."""
    texts = {key: formatting.spread(entry["mean"], entry["std"]) + (f" ({formatting.paper_text(entry)})" if entry["paper"] else "")
             for key, entry in cells(table).items()}
    lines = [["measure", *table["order"]], ["---"] * (1 + len(table["order"]))]
    lines += [[formatting.heading(table, measure), *(texts.get((row, measure), "–") for row in table["order"])] for measure in measures]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def to_text(table):
    """A compact aligned table, without details; the paper's numbers in a line of their own. Many measures stand one a line."""
    lines = [["", *(formatting.heading(table, measure) for measure in table["measures"])]]
    found = cells(table)
    for row in table["order"]:
        entries = [found.get((row, measure)) for measure in table["measures"]]
        lines.append([row, *(formatting.value_text(e) if e else "–" for e in entries)])
        if any(e and e["paper"] for e in entries):
            lines.append(["  paper", *(formatting.spread(*e["paper"]) if e and e["paper"] else "–" for e in entries)])
    if len(table["measures"]) > _TERMINAL_MEASURES:
        lines = list(zip(*lines))
    widths = [max(map(len, column)) for column in zip(*lines)]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([*texts, *filter(None, [formatting.unverified_note(table)])])
