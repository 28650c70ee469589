"""Charts of the results of single images: calibration, abstention, attacks and certificates.

Models are {name: (confidences [N] in [0, 1], correct [N])}, as in `tf_robust.metrics`, unless stated otherwise.
"""

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
from numpy.typing import ArrayLike

from tf_robust import metrics
from tf_robust.report.chart import COLORS, INK, Chart, by_row, data, domain, finish, lines_by_row, panels, span, tips

_POINTS = 300  # per curve
_PARTS = 12  # joined bins
_LOWEST_RATE = 0.02  # at lower response rates accuracies depend on a few examples, and curves may leave the chart
_LOWEST_COVERAGE = 0.01  # likewise
_UNITS = {"l0": "values changed", "l1": "sum of changes", "l2": "length", "linf": "largest change"}

Outcomes = Mapping[str, tuple[ArrayLike, ArrayLike]]  # {model: (confidences, correct)}
Bins = Mapping[str, Mapping[str, np.ndarray]]  # {model: {images: [3, B] number of images, of correct ones, sum of confidences}}
Distances = Mapping[str, Mapping[str, ArrayLike]]  # {model: {"ATTACK_NORM": [N]}}


def reliability_diagram(models: Outcomes, bin_size: int = 100, name: str = "reliability") -> Chart:
    """Draws accuracy over confidence, one panel per model, one dot per bin; 95 % of the bins of a calibrated model are in the gray band.

    Examples:
        >>> chart = tfr.report.reliability_diagram({"plain": ([0.9, 0.9, 0.6, 0.6], [1, 1, 1, 0])}, bin_size=2)
        >>> chart.name, chart.description[:48]
        ('reliability', 'Accuracy by confidence: bins of 2 clean images, ')
    """
    values: list[dict] = []
    titles = []
    for model, (confidences, correct) in models.items():
        means, accuracies, counts = metrics.reliability_bins(confidences, correct, bin_size)
        titles.append(f"{model}: RMS error {metrics.rms_calibration_error(confidences, correct, bin_size):.3f}")
        for x, y, n in zip(means, accuracies, counts):
            values.append({"model": titles[-1], "confidence": float(x), "accuracy": float(y), "examples": int(n)})
        chance = np.linspace(0, 1, 51)
        half = 1.96 * np.sqrt(chance * (1 - chance) / counts[0])
        for c, low, high in zip(chance, np.maximum(0, chance - half), np.minimum(1, chance + half)):
            values.append({"model": titles[-1], "chance": float(c), "low": float(low), "high": float(high)})

    def at(across: str, down: str) -> alt.Chart:
        x, y = span(alt.X, across, (0, 1), "mean confidence"), span(alt.Y, down, (0, 1), "accuracy")
        return alt.Chart().encode(x, y).transform_filter(f"isValid(datum.{across})")

    dots = at("confidence", "accuracy").mark_point(filled=True, size=30, color=COLORS[0])
    panel = alt.layer(
        at("chance", "low").mark_area(color=INK, opacity=0.15).encode(y2="high"),
        at("chance", "chance").mark_line(color=INK, opacity=0.5, strokeDash=[4, 3], strokeWidth=1),
        dots.encode(tooltip=tips(("examples",), ("confidence", "accuracy"), ".3f")),
    )
    caption = (
        f"Accuracy by confidence: bins of {bin_size} clean images, first seed of each row. 95 % of the bins of a calibrated "
        "model lie in the gray band."
    )
    return finish(panels(panel.properties(width=190, height=190), values, "model", titles, 4, 190), name, caption)


def response_rate_curves(models: Outcomes) -> Chart:
    """Draws accuracy over the fraction of examples answered, the most confident first; one line per model, with its AURRA.

    Examples:
        >>> outcomes = {"plain": ([0.9, 0.8, 0.6, 0.4], [1, 1, 0, 1]), "robust": ([0.9, 0.9, 0.7, 0.2], [1, 1, 1, 0])}
        >>> chart = tfr.report.response_rate_curves(outcomes)
        >>> chart.name, [round(tfr.metrics.aurra(*one), 2) for one in outcomes.values()]
        ('response_rate', [0.85, 0.94])
    """
    values: list[dict] = []
    for name, outcomes in models.items():
        rates, accuracies = metrics.response_rate_curve(*outcomes)
        first, area = np.flatnonzero(rates >= _LOWEST_RATE)[0], metrics.aurra(*outcomes)
        for i in _thin(first, len(rates), 200):
            values.append({"row": name, "rate": float(rates[i]), "accuracy": float(accuracies[i]), "AURRA": area})
    chart = alt.Chart(data(values)).encode(
        span(alt.X, "rate", (0, 1), "response rate"),
        span(alt.Y, "accuracy", domain([value["accuracy"] for value in values]), "accuracy among the answered"),
        tooltip=tips(("row",), ("rate", "accuracy", "AURRA"), ".3f"),
        **lines_by_row([*models]),
    )
    caption = "Accuracy on the clean images with the highest confidences; AURRA is the mean of the curve."
    return finish(chart.mark_line(point=len(values) == len(models)), "response_rate", caption, 280)


def _thin(first: int, end: int, points: int) -> np.ndarray:
    """Returns at most so many indices, evenly spaced."""
    return np.unique(np.linspace(first, end - 1, points).astype(int))


def risk_coverage(models: Bins) -> Chart:
    """Draws the error among the answered images over the fraction answered, the most confident first, one line for each kind of images."""
    values = []
    for model, kinds in models.items():
        for kind, (counts, correct, _) in kinds.items():
            answered, hits = (np.cumsum(one[::-1]) for one in (counts, correct))
            for n, hit in zip(answered, hits):
                if n >= _LOWEST_COVERAGE * answered[-1]:
                    values.append({"model": model, "images": kind, "coverage": float(n / answered[-1]), "error": float(1 - hit / n)})
    x, y = span(alt.X, "coverage", (0, 1), "fraction answered"), alt.Y("error:Q", title="error among the answered")
    caption = "Error among the answered images over the fraction answered, the most confident first; a severity: 15 corruptions."
    return finish(_by_images(values, x, y, models), "risk_coverage", caption)


def reliability_by_severity(models: Bins) -> Chart:
    """Draws accuracy over confidence, one line for each kind of images; below the dashed diagonal the model is overconfident."""
    values = []
    for model, kinds in models.items():
        for kind, bins in kinds.items():
            counts = bins[0]  # neighboring bins are joined to at most 12 of about equally many images
            part = np.minimum(_PARTS * (np.cumsum(counts) - counts / 2) // counts.sum(), _PARTS - 1).astype(int)
            merged = np.array([np.bincount(part, one, _PARTS) for one in bins])
            for count, hit, confidence in merged[:, merged[0] > 0].T:
                values.append({"model": model, "images": kind, "confidence": float(confidence / count), "accuracy": float(hit / count)})
    x, y = span(alt.X, "confidence", (0, 1), "mean confidence"), span(alt.Y, "accuracy", (0, 1))
    diagonal = alt.Chart(data({"confidence": end, "accuracy": end} for end in (0, 1))).mark_line(strokeDash=[4, 3], color=INK)
    caption = "Accuracy over confidence, after scaling if it was fitted; below the dashed line the model is overconfident."
    return finish(_by_images(values, x, y, models, diagonal.encode(x, y)), "reliability_severity", caption)


def _by_images(values: Sequence[dict], x: alt.X, y: alt.Y, models: Bins, diagonal: alt.Chart | None = None) -> Chart:
    """Returns one panel per model, with a line for each kind of images."""
    kinds = list(dict.fromkeys(value["images"] for value in values))
    color = alt.Color("images:N", sort=None, title=None, scale=alt.Scale(domain=kinds, range=list(COLORS[: len(kinds)])))
    numbers = [axis.shorthand.removesuffix(":Q") for axis in (x, y)]
    lines = alt.Chart().mark_line(point=diagonal is not None).encode(x, y, color, tooltip=tips(("images",), numbers))
    panel = lines if diagonal is None else alt.layer(diagonal, lines)
    return panels(panel.properties(width=260, height=220), values, "model", models, 2, 260)


def attack_curves(models: Distances, groups: Mapping[str, Sequence[str]] | None = None) -> Chart:
    """Draws the fraction of misclassified images over the size of the perturbation, one panel per attack and one line per model.

    Examples:
        >>> distances = {"plain": {"pgd_l2": [0.1, 0.2, 0.4]}, "robust": {"pgd_l2": [0.3, 0.5, 0.9]}}
        >>> chart = tfr.report.attack_curves(distances)
        >>> chart.name, chart.concat[0].title
        ('attacks', 'pgd_l2')
    """
    attacks = list(dict.fromkeys(attack for distances in models.values() for attack in distances))
    groups = {f"{title}, ": names for title, names in (groups or {}).items() if set(names) & set(models)} or {"": list(models)}
    charts = [_attack_panel(f"{title}{attack}", attack, models, names) for title, names in groups.items() for attack in attacks]
    caption = "Misclassified images over the size of the smallest perturbation that the attack found, first seed of each row."
    return finish(alt.concat(*charts, columns=2), "attacks", caption)


def _attack_panel(title: str, attack: str, models: Distances, names: Sequence[str]) -> alt.Chart:
    values: list[dict] = []
    largest, norm = 0.0, attack.partition("_")[2]
    for name in names:
        if attack in models.get(name, {}):
            distances = np.sort(np.asarray(models[name][attack], np.float64))
            wrong, median = int(np.sum(distances <= 0)), float(np.median(distances))  # misclassified without an attack
            finite = distances[wrong:][np.isfinite(distances[wrong:])]
            steps = [(0.0, wrong / len(distances))]
            if len(finite):
                largest = max(largest, float(np.quantile(finite, 0.98)))
                chosen = _thin(0, len(finite), min(_POINTS, len(finite)))
                steps += [(float(finite[i]), (wrong + int(i) + 1) / len(distances)) for i in chosen]
            shown = median if np.isfinite(median) else None
            values += [{"row": name, "size": size, "misclassified": fraction, "median": shown} for size, fraction in steps]
    chart = alt.Chart(data(values), title=title, width=300, height=200).encode(
        span(alt.X, "size", (0, largest or 1.0), f"size of the perturbation, {norm} ({_UNITS[norm]})"),
        span(alt.Y, "misclassified", (0, 1)),
        tooltip=tips(("row",), ("size", "misclassified", "median"), ".3g"),
        **lines_by_row([*models]),
    )
    return chart.mark_line(interpolate="step-after", clip=True)


def certified_curves(models: Mapping[str, ArrayLike], attacked: Mapping[str, Mapping[float, float]]) -> Chart:
    """Draws the fraction of images that are correct and certified over the radius, and dots for accuracies under attack.

    Examples:
        >>> radii = tfr.metrics.certified_radii([1000, 900, 500], samples=1000, sigma=0.25, alpha=0.001)
        >>> chart = tfr.report.certified_curves({"smoothed": radii}, {"smoothed": {0.25: 0.6}})  # accuracy under PGD at a radius
        >>> chart.name
        'certified'
    """
    values: list[dict] = []
    for row, given in models.items():
        radii = np.asarray(given, np.float64)
        ends = np.unique(radii[radii > 0])
        ends = ends[_thin(0, len(ends), min(_POINTS, len(ends)))] if len(ends) else ends
        certified = [(0.0, float(np.mean(radii > 0))), *((float(end), float(np.mean(radii >= end))) for end in ends)]
        for kind, points in (("certified", certified), ("PGD", sorted(attacked.get(row, {}).items()))):
            values += [{"row": row, "radius": radius, "accuracy": accuracy, "kind": kind} for radius, accuracy in points]
    base = alt.Chart().encode(
        alt.X("radius:Q", title="radius, l2 (length of the change)", axis=alt.Axis(tickCount=6)),
        span(alt.Y, "accuracy", (0, 1)),
        tooltip=tips(("row",), ("radius", "accuracy"), ".3f"),
    )
    order = [*models]
    lines = base.mark_line(interpolate="step-before").encode(**lines_by_row(order)).transform_filter("datum.kind == 'certified'")
    dots = base.mark_point(filled=True, size=60).encode(by_row("color", order, legend=None)).transform_filter("datum.kind == 'PGD'")
    caption = (
        "Randomized smoothing. Lines: images that are classified correctly and certified at a radius, a lower bound of robust accuracy. "
        "Dots: accuracy of the smoothed model under PGD, an upper bound, and at radius 0 without attack. First seed of each row."
    )
    return finish(alt.layer(lines, dots, data=data(values)), "certified", caption, 280)
