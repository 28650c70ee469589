"""Evaluations -> results.json, Markdown, LaTeX, HTML with charts: one comparison over rows, seeds and the paper's numbers.

`aggregate` joins the evaluations of runs to a table; `summary_lines`, `to_text`, `to_markdown`, `to_latex` and `to_html` format it; `write`
writes all of them to a folder. Charts, and what needs them, are imported when they are used: altair takes more than half a second.
"""

import importlib
import typing

from tf_robust.report.images import captioned_images
from tf_robust.report.summary import evaluation_notes, summarize, summary_lines
from tf_robust.report.tables import Table, aggregate, to_frame

if typing.TYPE_CHECKING:
    from tf_robust.report.chart import Chart, save_png
    from tf_robust.report.curves import attack_curves, certified_curves, reliability_diagram, response_rate_curves
    from tf_robust.report.page import Additions, to_html, to_latex, to_markdown, to_text, write

_MODULES = {
    **dict.fromkeys(("Chart", "save_png"), "chart"),
    **dict.fromkeys(("attack_curves", "certified_curves", "reliability_diagram", "response_rate_curves"), "curves"),
    **dict.fromkeys(("Additions", "to_html", "to_latex", "to_markdown", "to_text", "write"), "page"),
}
__all__ = [
    "Table",
    "aggregate",
    "attack_curves",
    "captioned_images",
    "certified_curves",
    "reliability_diagram",
    "response_rate_curves",
    "save_png",
    "summary_lines",
    "to_html",
    "to_latex",
    "to_markdown",
    "to_text",
    "write",
]


def __getattr__(name: str) -> typing.Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"tf_robust.report.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'tf_robust.report' has no attribute {name!r}")
