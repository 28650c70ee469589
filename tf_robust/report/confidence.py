"""Fitted confidences in the report: a table over clean, corrupted and shifted images, and curves of risk over coverage."""

from collections.abc import Mapping, Sequence

import numpy as np

from tf_robust.evaluation.measure import CONFIDENCE_FAMILIES, parse_measure
from tf_robust.report.grids import Cell, Grid, Label
from tf_robust.report.table_types import Table
from tf_robust.report.tables import cells
from tf_robust.report.vega import COLORS, Chart, number, panels

_LINES = {
    "calibrated/temperature": "temperature",
    "calibrated/ece_before": "ECE before scaling",
    "calibrated/ece": "ECE after scaling",
    "abstention/threshold": "threshold of confidence",
    "abstention/coverage": "fraction answered",
    "abstention/accuracy": "accuracy among the answered",
    "conformal/coverage": "conformal coverage",
    "conformal/size": "conformal set size",
}

Bins = Mapping[str, Mapping[str, np.ndarray]]  # {model: {images: [3, B] number of images, of correct ones, sum of confidences}}


def by_severity(table: Table) -> Grid | None:
    """Returns the measures of fitted confidences, one column for each kind of images, or None if there are none."""
    entries = cells(table)
    fitted = [one for entry in table["rows"] if (one := parse_measure(entry["measure"])).family in CONFIDENCE_FAMILIES]
    groups = list(dict.fromkeys(one.name.rpartition("/")[0] for one in fitted))
    rows = {}
    for row in table["order"]:
        for line, text in _LINES.items():
            family, _, name = line.partition("/")
            found = [entries.get((row, "/".join(filter(None, (family, group, name))))) for group in groups]
            if any(found):
                label = Label(text if len(table["order"]) == 1 else f"{row}: {text}")
                rows[label] = [Cell(f"{one['mean']:.3f}", "", "", one["mean"]) if one else None for one in found]
    if not rows:
        return None
    columns = [Label(group.replace("_", " ").removeprefix("shift/") or "clean") for group in groups]
    caption = (
        "Fitted on validation images. The wanted accuracy among the answered (with 95% confidence) and the conformal coverage hold for "
        "clean images alone. The threshold is one of the largest probability after scaling. At a severity: over the 15 corruptions."
    )
    return Grid("Confidence on clean and corrupted images", "measure", columns, rows, caption)


def open_sets(table: Table) -> Grid | None:
    """Returns AUROC and FPR at 95 % TPR of every data set of other classes and score, or None if there are none."""
    entries, rows = cells(table), {}
    measures = {key: parse_measure(key[1]) for key in entries}
    models = [row for row in table["order"] if any(key[0] == row and one.family == "ood" for key, one in measures.items())]
    names = [one.name for one in measures.values() if one.family == "ood"]
    for name in dict.fromkeys(name.rpartition("/")[0] for name in names):
        values = [entries.get((row, f"ood/{name}/{kind}")) for row in models for kind in ("auroc", "fpr95")]
        rows[Label(name, f"ood/{name}/auroc")] = [Cell(f"{one['mean']:.3f}", "", "", one["mean"]) if one else None for one in values]
    columns = [Label(kind if len(table["order"]) == 1 else f"{row}: {kind}") for row in models for kind in ("AUROC", "FPR95")]
    caption = (
        "Clean images against data sets of other classes. NAME: by the largest probability, NAME/max_logit: the largest logit, "
        "NAME/energy: the energy, NAME/knn: nearest training images. "
        "FPR95: fraction of the others accepted where 95% of the clean images are."
    )
    return Grid("Images of other classes", "data and score", columns, rows, caption) if rows else None


def risk_coverage(models: Bins) -> Chart:
    """Draws the error among the answered images over the fraction answered, the most confident first, one line for each kind of images.

    Args:
        models: {model: {images: [3, B]}}, bins of increasing confidence.
    """
    values = []
    for model, kinds in models.items():
        for kind, (counts, correct, _) in kinds.items():
            answered, hits = (np.cumsum(one[::-1]) for one in (counts, correct))
            for n, hit in zip(answered, hits):
                if n >= 0.01 * answered[-1]:  # below, a few images decide
                    values.append({"model": model, "images": kind, "coverage": float(n / answered[-1]), "error": float(1 - hit / n)})
    return _panels("risk_coverage", models, values, ("coverage", "fraction answered"), ("error", "error among the answered"), False, _RISK)


def reliability_by_severity(models: Bins) -> Chart:
    """Draws accuracy over confidence, one line for each kind of images; below the dashed diagonal the model is overconfident.

    Args:
        models: as in `risk_coverage`.
    """
    values = []
    for model, kinds in models.items():
        for kind, (counts, correct, confidences) in kinds.items():
            for count, hit, confidence in zip(*_merged(counts, correct, confidences)):
                values.append({"model": model, "images": kind, "confidence": float(confidence / count), "accuracy": float(hit / count)})
    return _panels("reliability_severity", models, values, ("confidence", "mean confidence"), ("accuracy", "accuracy"), True, _RELIABILITY)


_RISK = "Error among the answered images over the fraction answered, the most confident first; severities are over the 15 corruptions."
_RELIABILITY = "Accuracy over confidence, after scaling if it was fitted; below the dashed line the model is overconfident."


def _merged(counts, correct, confidences, parts: int = 12):
    """Neighboring bins joined to at most `parts` of about equally many images: [3, P]."""
    part = np.minimum(parts * (np.cumsum(counts) - counts / 2) // counts.sum(), parts - 1).astype(int)
    merged = np.array([np.bincount(part, one, parts) for one in (counts, correct, confidences)])
    return merged[:, merged[0] > 0]


def _panels(name, models, values, x, y, diagonal, caption):
    kinds: Sequence[str] = list(dict.fromkeys(value["images"] for value in values))
    color = {"field": "images", "type": "nominal", "sort": None, "scale": {"domain": kinds, "range": list(COLORS[: len(kinds)])}}
    axes = {
        side: {"field": field, "type": "quantitative", "title": title, **({"scale": {"domain": [0, 1]}} if diagonal or side == "x" else {})}
        for side, (field, title) in (("x", x), ("y", y))
    }
    tips = [{"field": "images"}, *(number(field) for field, _ in (x, y))]
    lines: dict = {"mark": {"type": "line", "point": diagonal}, "encoding": {**axes, "color": color, "tooltip": tips}}
    ends = [{x[0]: 0, y[0]: 0}, {x[0]: 1, y[0]: 1}]
    dashed = {"data": {"values": ends}, "mark": {"type": "line", "strokeDash": [4, 3], "color": "currentColor"}, "encoding": axes}
    panel = {"width": 260, "height": 220, "layer": [dashed, lines] if diagonal else [lines]}
    return Chart(name, panels(values, "model", models, panel, 2), caption)
