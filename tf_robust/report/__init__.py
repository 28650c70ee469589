"""Evaluations -> results.json, Markdown, LaTeX, HTML with charts: one comparison over rows, seeds and the paper's numbers.

`aggregate` joins the evaluations of runs to a table; `summary_lines`, `to_text`, `to_markdown`, `to_latex` and `to_html` format it; `write`
writes all of them to a folder.
"""

from tf_robust.report.chart import Chart, save_png
from tf_robust.report.charts import class_histogram, training_curves
from tf_robust.report.curves import (
    attack_curves,
    certified_curves,
    reliability_by_severity,
    reliability_diagram,
    response_rate_curves,
    risk_coverage,
)
from tf_robust.report.images import attacked_images, captioned_images, noise_samples, utility_by_class
from tf_robust.report.page import Additions, Image, to_html, to_latex, to_markdown, to_text, write
from tf_robust.report.summary import evaluation_notes, summarize, summary_lines
from tf_robust.report.tables import Evaluation, Paper, PerImage, Table, aggregate, results, to_frame

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
