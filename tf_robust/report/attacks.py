"""Attacks in the report: a table of the members of AutoAttack, curves over the size of perturbations, attacked images as a PNG file."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from tf_robust.evaluation.measure import describe
from tf_robust.report.figures import captioned_images
from tf_robust.report.formatting import value
from tf_robust.report.grids import Cell, Grid, Label
from tf_robust.report.table_types import Table
from tf_robust.report.vega import Chart, lines_by_row

_COLUMNS = 2
_POINTS = 300  # per curve
_UNITS = {"l0": "values changed", "l1": "sum of changes", "l2": "length", "linf": "largest change"}
_MEMBERS = {"clean": "clean", "apgd_ce": "APGD-CE", "apgd_t": "APGD-T", "fab_t": "FAB-T", "square": "Square"}

Distances = Mapping[str, Mapping[str, ArrayLike]]  # {model: {"ATTACK_NORM": [N]}}


def by_member(table: Table) -> Grid | None:
    """Returns accuracy after each member of AutoAttack and under Square alone, with budgets and warnings, or None if none was measured."""
    rows: dict[Label, list[Cell | None]] = {}
    budgets: dict[str, None] = {}
    warnings: dict[str, list[str]] = {}
    for (row, measure), result in table["attacks"].items():
        name = describe(measure).name
        after = _until_none_is_left([result["accuracy_after"].get(member) for member in _MEMBERS])
        rows[Label(name if len(table["order"]) == 1 else f"{row}: {name}", measure)] = [
            None if one is None else Cell(value(one), "", "", one) for one in after
        ]
        budgets.setdefault(f"{name.partition(',')[0]}: {result['budget']}")
        for warning in result["warnings"]:
            warnings.setdefault(warning, []).append(f"{row}, {name}")
    if not rows:
        return None
    members = (
        "Accuracy on the attacked images, first without attack, then after each member of the attack and those before it. The last one is "
        "the result; a member that has no number was not run, or no image was left for it. First seed of each row."
    )
    found = [f"Warning ({'; '.join(where)}): {warning}" for warning, where in warnings.items()] or ["No warnings."]
    caption = " ".join([members, f"Budget per image: {'; '.join(budgets)}.", *found])
    return Grid("Attacks, member by member", "attack", list(map(Label, _MEMBERS.values())), rows, caption)


def _until_none_is_left(accuracies):
    """Accuracies up to the first 0, then None."""
    positive = [accuracy is None or accuracy > 0 for accuracy in accuracies]
    return [accuracy if all(positive[:number]) else None for number, accuracy in enumerate(accuracies)]


def attack_curves(models: Distances, panels: Mapping[str, Sequence[str]] | None = None) -> Chart:
    """Draws the fraction of misclassified images over the size of the perturbation, one panel per attack and one line per model.

    Args:
        models: {name: {"ATTACK_NORM": distances [N]}}; 0 for images that are already misclassified, infinity where the attack failed.
        panels: {title: [names]}, the models of each row of panels; None: one row with all models.
    """
    attacks = list(dict.fromkeys(attack for distances in models.values() for attack in distances))
    if not attacks:
        raise ValueError("Expected at least one model with distances. Received: none")
    panels = {f"{title}, ": names for title, names in (panels or {}).items() if set(names) & set(models)} or {"": list(models)}
    specs = [_attack_panel(f"{title}{attack}", attack, models, names) for title, names in panels.items() for attack in attacks]
    return Chart(
        "attacks",
        {"concat": specs, "columns": _COLUMNS},
        "Misclassified images over the size of the smallest perturbation that the attack found, first seed of each row.",
    )


def _attack_panel(title: str, attack: str, models: Distances, names: Iterable[str]) -> dict:
    values: list[dict] = []
    largest, norm = 0.0, attack.partition("_")[2]
    for name in names:
        by_attack = models.get(name, {})
        if attack in by_attack:
            distances = np.sort(np.asarray(by_attack[attack], np.float64))
            finite = distances[np.isfinite(distances)]
            largest = max(largest, float(np.quantile(finite, 0.98)) if len(finite) else 0.0)
            indices = np.unique(np.linspace(0, len(finite) - 1, min(_POINTS, len(finite))).astype(int)) if len(finite) else []
            median = float(np.median(distances))
            values += [
                {"row": name, "size": size, "misclassified": fraction, "median": median if np.isfinite(median) else None}
                for size, fraction in (
                    (0.0, float(np.mean(distances <= 0))),
                    *((float(finite[i]), (int(i) + 1) / len(distances)) for i in indices),
                )
            ]
    tips = [{"field": field, "type": "quantitative", "format": ".3g"} for field in ("size", "misclassified", "median")]
    return {
        "title": title,
        "width": 300,
        "height": 200,
        "data": {"values": values},
        "encoding": {
            "x": {
                "field": "size",
                "type": "quantitative",
                "title": f"size of the perturbation, {norm} ({_UNITS[norm]})",
                "scale": {"domain": [0, largest or 1.0]},
            },
            "y": {"field": "misclassified", "type": "quantitative", "scale": {"domain": [0, 1]}},
            **lines_by_row(models),
            "tooltip": [{"field": "row"}, *tips],
        },
        "mark": {"type": "line", "interpolate": "step-after", "clip": True},
    }


def attacked_images(path: str, clean: np.ndarray, attacked: Mapping[str, np.ndarray], captions: Mapping[str, Sequence[str]]) -> str:
    """Draws clean images, and for each attack its perturbations and the attacked images. Returns the path.

    Args:
        path: of the PNG file.
        clean: [N, H, W, C] in [0, 1].
        attacked: {attack: [N, H, W, C] in [0, 1]}.
        captions: {attack: [N] texts, such as predictions of the model}.
    """
    lines: list[tuple[str, np.ndarray, Sequence[str] | None]] = [("clean", clean, None)]
    for name, images in attacked.items():
        changes = images - clean
        scale = max(float(np.abs(changes).max()), np.finfo(np.float32).tiny)
        lines += [
            (f"{name}: perturbation, {1 / (2 * scale):.3g} times as strong, on gray", 0.5 + changes / (2 * scale), None),
            (f"{name}: attacked", images, captions[name]),
        ]
    return captioned_images(path, lines)
