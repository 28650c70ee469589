"""Rows of evaluations -> JSON, Markdown, LaTeX, HTML with charts: one comparison over rows, seeds and the paper's numbers.

`aggregate` joins what runs left behind to a table; `verdict`, `to_text`, `to_markdown`, `to_latex` and `to_html` say it; `write`
leaves a folder with all of it.
"""

import os

from tf_robust.report import charts
from tf_robust.report.attacks import attack_curves, attacked_images
from tf_robust.report.boundaries import decision_boundaries
from tf_robust.report.calibration import reliability_diagram, response_rate_curves
from tf_robust.report.charts import class_histogram, training_curves
from tf_robust.report.figures import captioned_images, noise_samples, image_groups, utility_by_class
from tf_robust.report.formatting import size_notes, verdict
from tf_robust.report.html import to_html
from tf_robust.report.latex import to_latex
from tf_robust.report.markdown import to_markdown, to_text
from tf_robust.report.tables import aggregate, results, to_frame
from tf_robust.report.vega import Chart
from tf_robust.utils.files import atomic_file, write_json

__all__ = ["Chart", "aggregate", "attack_curves", "attacked_images", "captioned_images", "class_histogram",
           "decision_boundaries", "noise_samples", "image_groups", "reliability_diagram", "response_rate_curves", "results", "size_notes",
           "to_frame", "to_html", "to_latex", "to_markdown", "to_text", "training_curves", "utility_by_class", "verdict", "write"]


def write(folder, evaluations, *, title, command, commit, paper=None, baseline=None, figures=(), notes=(),
          per_image=None):
    """Writes `report.html`, `report.md`, `report.tex`, `results.json` and every chart as `figures/NAME.png` into a folder.

    Args:
        folder: made if it is missing. evaluations, paper, baseline, per_image: as for `aggregate`.
        command, commit: what made the runs. notes: sentences.
        figures: what is shown besides: `Chart`s, and images as (path of a PNG file, caption).

    Returns:
        The table, as `aggregate` gives.
    """
    evaluations = list(evaluations)
    table = aggregate(evaluations, paper, baseline, per_image)
    drawn = [*charts.of_table(table, evaluations), *(figure for figure in figures if isinstance(figure, Chart))]
    images = [figure for figure in figures if not isinstance(figure, Chart)]
    for chart in drawn:
        chart.save(os.path.join(folder, "figures"))
    notes = [*notes, *_mixtures(evaluations), *size_notes(evaluations)]
    versions = {name: _distinct(e.get("versions", {}).get(name) for e in evaluations)
                for name in dict.fromkeys(name for e in evaluations for name in e.get("versions", {}))}
    date = max((e["date"] for e in evaluations if e.get("date")), default=None)
    _write_text(os.path.join(folder, "report.html"), to_html(
        table, title, drawn, images, _details(evaluations, command, commit, versions), notes))
    _write_text(os.path.join(folder, "report.md"), to_markdown(table, title, command, notes))
    _write_text(os.path.join(folder, "report.tex"), to_latex(table, title))
    write_json(os.path.join(folder, "results.json"), results(table, command, commit, versions, date))
    return table


def _mixtures(evaluations):
    """Warnings where runs that stand side by side were not made alike."""
    for field in ("data", "data_dir", "model", "split", "commit"):
        if len({e.get(field) for e in evaluations}) > 1:
            yield f"The runs differ in {field}: {_distinct(e.get(field) for e in evaluations)}."


def _details(evaluations, command, commit, versions):
    seconds = sum(e.get("training", {}).get("seconds", 0) for e in evaluations)
    return {"command": command, "commit": commit,
            "data": _distinct(e.get("data") for e in evaluations),
            "model": _distinct(e.get("model") for e in evaluations),
            "seeds": ", ".join(map(str, sorted({e["seed"] for e in evaluations}))),
            "training": f"{len(evaluations)} runs, {seconds / 60:.1f} minutes in all",
            "date": _distinct(e.get("date") for e in evaluations),
            "versions": ", ".join(f"{name} {version}" for name, version in versions.items())}


def _distinct(values):
    return ", ".join(dict.fromkeys("unknown" if value is None else str(value) for value in values))


def _write_text(path, text):
    with atomic_file(path, "wb") as file:
        file.write(text.encode("utf-8"))
