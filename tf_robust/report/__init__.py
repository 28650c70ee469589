"""Evaluations -> results.json, Markdown, LaTeX, HTML with charts: one comparison over rows, seeds and the paper's numbers.

`aggregate` joins the evaluations of runs to a table; `summary_lines`, `to_text`, `to_markdown`, `to_latex` and `to_html` format it; `write`
writes all of them to a folder.
"""

import os
from collections.abc import Iterable, Iterator, Sequence

from tf_robust.report import charts
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
from tf_robust.report.images import (
    attacked_images,
    captioned_images,
    noise_samples,
    utility_by_class,
)
from tf_robust.report.notes import evaluation_notes
from tf_robust.report.page import Additions, Image, to_html
from tf_robust.report.summary import summarize, summary_lines
from tf_robust.report.table_types import Evaluation, Paper, PerImage, Table
from tf_robust.report.tables import aggregate, difference_intervals, results, to_frame
from tf_robust.report.text import to_latex, to_markdown, to_text
from tf_robust.utils.files import atomic_file, write_json


def write(
    folder: str,
    evaluations: Iterable[Evaluation],
    *,
    title: str,
    command: str,
    commit: str,
    paper: Paper | None = None,
    baseline: str | None = None,
    examples: Image | None = None,
    figures: Sequence[Chart | Image] = (),
    notes: Iterable[str] = (),
    per_image: PerImage | None = None,
    additions: Additions = Additions(),
) -> Table:
    """Writes `report.html`, `report.md`, `report.tex`, `results.json` and every chart as `figures/NAME.png` into a folder.

    Args:
        folder: created if missing.
        evaluations: as in `aggregate`.
        title: of the report.
        command: the command that made the runs.
        commit: of the source tree.
        paper: as in `aggregate`.
        baseline: as in `aggregate`.
        examples: images on which the rows differ, (path of a PNG file, caption), shown before the charts.
        figures: further figures: charts, and images as (path of a PNG file, caption).
        notes: sentences.
        per_image: as in `aggregate`.
        additions: to `report.html`.

    Returns:
        The table, as in `aggregate`.
    """
    evaluations = list(evaluations)
    table = aggregate(evaluations, paper, baseline, per_image)
    drawn = [*charts.of_table(table), *(figure for figure in figures if not isinstance(figure, tuple))]
    png_files = [figure for figure in figures if isinstance(figure, tuple)]
    for chart in (*additions.charts, *drawn):
        save_png(chart, os.path.join(folder, "figures"))
    notes = [*notes, *_mismatches(evaluations), *evaluation_notes(evaluations)]
    versions = {
        name: _distinct(e.get("versions", {}).get(name) for e in evaluations)
        for name in dict.fromkeys(name for e in evaluations for name in e.get("versions", {}))
    }
    date = max((e["date"] for e in evaluations if e.get("date")), default=None)
    details = _details(evaluations, command, commit, versions)
    texts = {
        "report.html": to_html(
            table,
            title,
            charts=drawn,
            examples=[examples] if examples else [],
            images=png_files,
            notes=notes,
            details=details,
            additions=additions,
        ),
        "report.md": to_markdown(table, title, command, notes),
        "report.tex": to_latex(table, title),
    }
    for name, text in texts.items():
        with atomic_file(os.path.join(folder, name), "wb") as file:
            file.write(text.encode("utf-8"))
    write_json(os.path.join(folder, "results.json"), results(table, command, commit, versions, date))
    return table


def _mismatches(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """Yields warnings about runs in one report that differ in data, model, split or commit."""
    for field in ("data", "data_dir", "model", "split", "commit"):
        if len({e.get(field) for e in evaluations}) > 1:
            yield f"The runs differ in {field}: {_distinct(e.get(field) for e in evaluations)}."


def _details(evaluations: Sequence[Evaluation], command: str, commit: str, versions: dict[str, str]) -> dict[str, str]:
    seconds = sum(e.get("training", {}).get("seconds", 0) for e in evaluations)
    return {
        "command": command,
        "commit": commit,
        "data": _distinct(e.get("data") for e in evaluations),
        "model": _distinct(e.get("model") for e in evaluations),
        "seeds": ", ".join(map(str, sorted({e["seed"] for e in evaluations}))),
        **({"training": f"{len(evaluations)} runs, {seconds / 60:.1f} minutes in all"} if seconds else {}),
        "date": _distinct(e.get("date") for e in evaluations),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _distinct(values: Iterable) -> str:
    return ", ".join(dict.fromkeys("unknown" if value is None else str(value) for value in values))
