"""The table for a paper: LaTeX for the package booktabs."""

from tf_robust.report import formatting
from tf_robust.report.tables import cells

_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", **{c: f"\\{c}" for c in "&%$#_{}"},
            "±": r"$\pm$", "†": r"\dag{}", "–": "--", "<": r"\textless{}", ">": r"\textgreater{}"}


def to_latex(table, title):
    """Mean and deviation of every row and measure, the best in bold, the paper's in small type beneath: a `table` environment."""
    best, found = formatting.best_cells(table), cells(table)
    lines = [" & ".join(["", *(_escaped(formatting.heading(table, measure)) for measure in table["measures"])]) + r" \\", r"\midrule"]
    for row in table["order"]:
        entries = [found.get((row, measure)) for measure in table["measures"]]
        texts = [_escaped(formatting.spread(entry["mean"], entry["std"])) if entry else "--" for entry in entries]
        bold = [rf"\textbf{{{text}}}" if (row, measure) in best else text for text, measure in zip(texts, table["measures"])]
        lines.append(" & ".join([_escaped(row), *bold]) + r" \\")
        if any(entry and entry["paper"] for entry in entries):
            papers = [rf"{{\footnotesize {_escaped(formatting.paper_text(entry))}}}" if entry and entry["paper"] else "" for entry in entries]
            lines.append(" & ".join(["", *papers]) + r" \\")
    body = "\n".join(lines)
    caption = _escaped(f"{formatting.values_caption(table)} Bold: the best mean. {formatting.unverified_note(table)}".rstrip())
    return (f"% \\usepackage{{booktabs}}\n\\begin{{table}}\n\\centering\n\\caption{{{_escaped(title)}. "
            f"{caption}}}\n\\begin{{tabular}}{{l{'r' * len(table['measures'])}}}\n"
            f"\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n")


def _escaped(text):
    return "".join(_SPECIAL.get(character, character) for character in text)
