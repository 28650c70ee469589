"""The tables of a report, each a pandas frame of cells: page, Markdown, LaTeX and terminal only add their syntax."""

import dataclasses
from collections.abc import Mapping, Sequence

import pandas

from tf_robust.evaluation.metric_value import CONFIDENCE_FAMILIES, describe, parse_metric
from tf_robust.evaluation.values import MIN_IMAGES
from tf_robust.report.tables import (
    ADAPTED,
    Entry,
    Interval,
    Table,
    cells,
    difference_intervals,
    difference_of,
    gain,
    separate_interval,
    without_adaptation,
)

ABSENT = "–"  # in place of a cell that was not measured
_SLICES = ("class", "group")  # families of metrics
_OWN_TABLES = (*_SLICES, *CONFIDENCE_FAMILIES, "ood", "checks")
_COLUMNS = 6  # metrics side by side
_ENDS = 20  # slices of the lowest and of the highest accuracy that are shown where there are many
_MEMBERS = {"clean": "clean", "apgd_ce": "APGD-CE", "apgd_t": "APGD-T", "fab_t": "FAB-T", "square": "Square"}  # of AutoAttack
_CONFIDENCE = {
    "calibrated/temperature": "temperature",
    "calibrated/ece_before": "ECE before scaling",
    "calibrated/ece": "ECE after scaling",
    "abstention/threshold": "threshold of confidence",
    "abstention/coverage": "fraction answered",
    "abstention/accuracy": "accuracy among the answered",
    "conformal/coverage": "conformal coverage",
    "conformal/size": "conformal set size",
}
_CHANGES = ("worse", "no interval", "better", "not significant")  # in the order in which they are shown


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    value: float  # to sort by
    text: str  # of the number
    uncertainty: str = ""  # its interval or std
    paper: str = ""  # the paper's mean and std
    best: bool = False  # of its metric

    def __str__(self) -> str:
        return f"{self.text} {self.uncertainty}".rstrip()


@dataclasses.dataclass(frozen=True)
class Section:
    """A table of a report."""

    heading: str
    frame: pandas.DataFrame  # of cells; None stands for a cell that was not measured. The name of the index heads its first column
    caption: str  # plain text
    metrics: Mapping[str, str] = dataclasses.field(default_factory=dict)  # {heading of a line or column: metric}, explained by the page
    folded: pandas.DataFrame | None = None  # further lines, which the page shows on request


def main(table: Table) -> list[Section]:
    """Returns the values of the headlines, and their differences to the baseline if there are any."""
    return [section for section in (values(table), differences(table)) if section]


def others(table: Table, details: bool = True) -> list[Section]:
    """Returns all other tables; `details`: also those of further metrics and of single corruptions."""
    found = [shifts(table), adaptation(table), attack_members(table), confidence(table), open_sets(table)]
    found += [*(_further(table) if details else ()), by_slice(table), by_corruption(table) if details else None]
    return [section for section in found if section]


def values(table: Table, metrics: Sequence[str] | None = None) -> Section:
    """Returns the means of every row and metric, with the paper's; `metrics` None: the headlines."""
    best = best_cells(table)
    shown = {key: _mean(entry, key in best) for key, entry in cells(table).items()}
    seeds = [len(entry["seeds"]) for entry in table["rows"]]
    if max(seeds) == 1:
        caption = "One seed; in brackets the 95% interval for the number of test images."
    else:
        alone = " A row with one seed has the 95% interval for the number of test images." if min(seeds) == 1 else ""
        caption = f"Mean ± sample std over {number_range(seeds)} seeds.{alone}"
    caption = f"{caption}{' Bold: the best mean.' * bool(best)} {unverified_note(table)}".rstrip()
    return _by_model("Results", table, table["headlines"] if metrics is None else metrics, table["order"], shown, caption)


def best_cells(table: Table) -> set[tuple[str, str]]:
    """Returns the (row, metric) of each metric's best mean as printed, ties included; none where only one row was measured."""
    best: set[tuple[str, str]] = set()
    for metric in table["metrics"]:
        means = {e["row"]: round(e["mean"], 3) for e in table["rows"] if e["metric"] == metric}
        top = min(means.values()) if parse_metric(metric).lower_is_better else max(means.values())
        best |= {(row, metric) for row, mean in means.items() if mean == top and len(means) > 1}
    return best


def differences(table: Table, metrics: Sequence[str] | None = None) -> Section | None:
    """Returns the differences of every row and metric to the baseline, or None if there are none; arguments as in `values`."""
    intervals, rows = difference_intervals(table), [row for row in table["order"] if row != table["baseline"]]
    compared = {key: entry for key, entry in cells(table).items() if entry["difference"]}
    shown = {key: _difference(entry, intervals.get(key)) for key, entry in compared.items()}
    metrics = [one for one in (table["headlines"] if metrics is None else metrics) if any(key[1] == one for key in compared)]
    if not metrics:
        return None
    pairs = [difference_of(entry)["pairs"] for key, entry in compared.items() if key[1] in metrics]
    over_images = [bool(difference_of(compared[key])["images"]) for key in intervals if key[1] in metrics] if min(pairs) == 1 else []
    kinds = {
        "Student's t over the seeds": max(pairs) > 1,
        "paired over the images": any(over_images),
        "Newcombe's where results of the same images are missing": not all(over_images),
    }
    used = ", ".join(kind for kind, is_used in kinds.items() if is_used)
    adjusted = f", for {len(rows)} models at once (Bonferroni)" if len(rows) > 1 else ""
    caption = (
        f"Difference to {table['baseline']}, {number_range(pairs)} common seed{'s' * (max(pairs) > 1)}"
        f"{f'; in brackets the 95% interval ({used}){adjusted}' if used else ''}. "
        "▲ better, ▼ worse: the interval excludes 0."
    )
    return _by_model(f"Against {table['baseline']}", table, metrics, rows, shown, caption)


def _further(table: Table) -> list[Section]:
    """Returns the values and differences of the metrics that are not headlines."""
    metrics = table["metrics"][len(table["headlines"]) :]
    if not metrics:
        return []
    titles = ("Further metrics", f"Further metrics against {table['baseline']}")
    sections = (values(table, metrics), differences(table, metrics))
    return [dataclasses.replace(section, heading=title) for section, title in zip(sections, titles) if section]


def _members(table: Table) -> list[str]:
    """Returns the details that are no values of one severity."""
    return [metric for metric in table["details"] if parse_metric(metric).severity is None]


def by_corruption(table: Table) -> Section | None:
    """Returns the means of single corruptions and perturbations, one per line, or None if none was measured."""
    shown = {key: _mean(entry, plain=True) for key, entry in cells(table).items()}
    metrics = [metric for metric in _members(table) if parse_metric(metric).family not in _OWN_TABLES]
    for adapted, plain in without_adaptation(metrics).items():  # of a row that was measured with adaptation alone: in the same line
        metrics.remove(adapted)
        shown = {**{(row, plain): cell for (row, metric), cell in shown.items() if metric == adapted}, **shown}
    caption = "Accuracy, mean over severities; for flips the flip probability (lower is better)."
    return _by_metric("By corruption and perturbation", table, metrics, table["order"], shown, caption) if metrics else None


def by_slice(table: Table) -> Section | None:
    """Returns the accuracy on each class and group, the lowest of the first row first, or None if none was measured."""
    shown = {key: _mean(entry) for key, entry in cells(table).items()}
    metrics = [metric for metric in _members(table) if parse_metric(metric).family in _SLICES]
    if not metrics:
        return None
    first = table["order"][0]
    metrics.sort(key=lambda metric: shown[first, metric].value if (first, metric) in shown else 1.0)
    caption, listed = "Accuracy on clean images, with 95% intervals over the images; the lowest first.", metrics
    if len(metrics) > 2 * _ENDS:
        large = [metric for metric in metrics if table["images"][metric] >= MIN_IMAGES] or metrics
        listed = large if len(large) <= 2 * _ENDS else large[:_ENDS] + large[-_ENDS:]
        caption += (
            f" Up to {_ENDS} of the lowest and of the highest of {len(metrics):,}, with at least {MIN_IMAGES} images if there are such."
        )
    section = _by_metric("By class and group", table, metrics, table["order"], shown, caption)
    is_listed = pandas.Index(metrics).isin(listed)
    folded = section.frame[~is_listed]
    return dataclasses.replace(section, frame=section.frame[is_listed], folded=folded if len(folded) else None)


def shifts(table: Table) -> Section | None:
    """Returns the difference of every row's accuracy on each shifted data set to its clean accuracy, or None if none was measured."""
    pairs, entries = shift_pairs(table), cells(table)

    def fall(row: str, clean: str, shift: str) -> Cell | None:
        if (row, clean) not in entries or (row, shift) not in entries:
            return None
        original, shifted = entries[row, clean], entries[row, shift]
        difference = shifted["mean"] - original["mean"]
        return Cell(difference, f"{difference:+z.3f}", interval(*separate_interval(shifted, original), "+"))

    lines = {parse_metric(shift).name: [fall(row, clean, shift) for row in table["order"]] for clean, shift in pairs}
    caption = (
        "Accuracy on the shifted images minus accuracy on the original ones, with its 95% interval: over seeds, or with one seed "
        "Newcombe's for two separate sets of images."
    )
    names = {parse_metric(shift).name: shift for _, shift in pairs}
    return Section("Shifted data against the original", frame_of("data", lines, table["order"]), caption, names) if lines else None


def shift_pairs(table: Table) -> list[tuple[str, str]]:
    """Returns the accuracies on clean images and on a shifted set of models that were trained and adapted alike."""
    clean = {parse_metric(m).prefix: m for m in table["metrics"] if parse_metric(m).is_clean}
    shifted = [m for m in table["metrics"] if parse_metric(m).family == "shift"]
    return [(clean[prefix], m) for m in shifted if (prefix := parse_metric(m).prefix) in clean]


def adaptation(table: Table) -> Section | None:
    """Returns the metrics with adaptation beside the same without it, or None if there are not both."""
    entries, plain = cells(table), table["adapted"]
    columns: dict[str, list[Entry | None]] = {}
    for suffix, metrics in (("", plain.values()), (ADAPTED, plain.keys())):
        for row in table["order"]:
            if any(column := [entries.get((row, metric)) for metric in metrics]):
                columns[row.removesuffix(ADAPTED) + suffix] = column
    if not columns:
        return None
    names = {describe(one).name: metric for metric, one in plain.items()}
    lines = {name: [one and _mean(one) for one in line] for name, line in zip(names, zip(*columns.values()))}
    caption = "Adapted: batch normalization with the statistics of each batch of test images; the notes describe the batches."
    return Section("Test-time adaptation", frame_of("metric", lines, [*columns]), caption, names)


def attack_members(table: Table) -> Section | None:
    """Returns accuracy after each member of AutoAttack and under Square alone, with budgets and warnings, or None if none was measured."""
    lines: dict[str, list[Cell | None]] = {}
    names: dict[str, str] = {}
    budgets: dict[str, None] = {}
    warnings: dict[str, list[str]] = {}
    for (row, metric), result in table["attacks"].items():
        name = describe(metric).name
        label = _label(table, row, name)
        after = [result["accuracy_after"].get(member) for member in _MEMBERS]
        positive = [accuracy is None or accuracy > 0 for accuracy in after]  # a member after accuracy 0 has no images
        lines[label] = [number(accuracy if all(positive[:place]) else None) for place, accuracy in enumerate(after)]
        names[label] = metric
        budgets.setdefault(f"{name.partition(',')[0]}: {result['budget']}")
        for warning in result["warnings"]:
            warnings.setdefault(warning, []).append(f"{row}, {name}")
    if not lines:
        return None
    found = [f"Warning ({'; '.join(where)}): {warning}" for warning, where in warnings.items()] or ["No warnings."]
    caption = (
        "Accuracy on the attacked images, first without attack, then after each member of the attack and those before it. The last one is "
        "the result; a member that has no number was not run, or no image was left for it. First seed of each row. "
        f"Budget per image: {'; '.join(budgets)}. {' '.join(found)}"
    )
    return Section("Attacks, member by member", frame_of("attack", lines, [*_MEMBERS.values()]), caption, names)


def confidence(table: Table) -> Section | None:
    """Returns the metrics of fitted confidences, one column for each kind of images, or None if there are none."""
    entries = cells(table)
    fitted = [one for entry in table["rows"] if (one := parse_metric(entry["metric"])).family in CONFIDENCE_FAMILIES]
    groups = list(dict.fromkeys(one.name.rpartition("/")[0] for one in fitted))
    lines = {}
    for row in table["order"]:
        for metric, text in _CONFIDENCE.items():
            family, _, name = metric.partition("/")
            found = [entries.get((row, "/".join(filter(None, (family, group, name))))) for group in groups]
            if any(found):
                lines[_label(table, row, text)] = [one and number(one["mean"]) for one in found]
    columns = [group.replace("_", " ").removeprefix("shift/") or "clean" for group in groups]
    caption = (
        "Fitted on validation images. The wanted accuracy among the answered (with 95% confidence) and the conformal coverage hold for "
        "clean images alone. The threshold is one of the largest probability after scaling. At a severity: over the 15 corruptions."
    )
    return Section("Confidence on clean and corrupted images", frame_of("metric", lines, columns), caption) if lines else None


def open_sets(table: Table) -> Section | None:
    """Returns AUROC and FPR at 95 % TPR of every data set of other classes and score, or None if there are none."""
    entries = {key: entry for key, entry in cells(table).items() if parse_metric(key[1]).family == "ood"}
    models = [row for row in table["order"] if any(key[0] == row for key in entries)]
    sets = dict.fromkeys(parse_metric(metric).name.rpartition("/")[0] for _, metric in entries)
    kinds = [(row, kind) for row in models for kind in ("auroc", "fpr95")]
    lines = {name: [(one := entries.get((row, f"ood/{name}/{kind}"))) and number(one["mean"]) for row, kind in kinds] for name in sets}
    columns = [_label(table, row, kind.upper()) for row, kind in kinds]
    caption = (
        "Clean images against data sets of other classes. NAME: by the largest probability, NAME/max_logit: the largest logit, "
        "NAME/energy: the energy, NAME/knn: nearest training images. "
        "FPR95: fraction of the others accepted where 95% of the clean images are."
    )
    names = {name: f"ood/{name}/auroc" for name in sets}
    return Section("Images of other classes", frame_of("data and score", lines, columns), caption, names) if lines else None


def changes(table: Table) -> list[Section]:
    """Returns the differences of two models, what got worse first: of the headlines and all that got worse, then of all other metrics."""
    intervals, order = difference_intervals(table), [*table["metrics"], *table["details"]]
    found: list[tuple[int, str, list[Cell | None]]] = []
    for entry in table["rows"]:
        if entry["difference"] and entry["metric"] in order:
            mean, one = entry["difference"]["mean"], intervals.get((entry["row"], entry["metric"]))
            rank = 1 if one is None else 3 if not one.significant else 0 if gain(entry) < 0 else 2
            ends = Cell(mean, interval(one.low, one.high, "+") if one else ABSENT)
            numbers = [number(entry["mean"] - mean), number(entry["mean"]), Cell(mean, value(mean, "+")), ends]
            found.append((rank, entry["metric"], [*numbers, Cell(rank, _CHANGES[rank])]))
    found.sort(key=lambda one: (one[0], order.index(one[1])))
    columns = [table["baseline"], next(row for row in table["order"] if row != table["baseline"]), "difference", "95% interval", "change"]
    caption = "Paired over the test images, with 95% intervals. What got worse comes first. Not significant: the interval includes 0."
    names = {heading(table, metric): metric for _, metric, _ in found}
    sections = []
    for title, is_first in (("What changed", True), ("What changed, further metrics", False)):
        shown = [one for one in found if (one[0] == 0 or one[1] in table["headlines"]) == is_first]
        lines = {heading(table, metric): line for _, metric, line in shown}
        sections += [Section(title, frame_of("metric", lines, columns), caption, names)] if lines else []
    return sections


def legend(table: Table) -> list[tuple[str, str, str]]:
    """Returns (long name, metric, meaning) of the metrics of the tables that have a description."""
    return [(heading(table, metric), metric, meaning) for metric in table["metrics"] if (meaning := describe(metric).meaning)]


def _label(table: Table, row: str, name: str) -> str:
    """Returns a name, after that of its row if there are several."""
    return name if len(table["order"]) == 1 else f"{row}: {name}"


def _mean(entry: Entry, best: bool = False, plain: bool = False) -> Cell:
    """Returns the cell of a mean with its std or interval; `plain`: without an interval over the images."""
    ends = "" if plain else interval(entry["low"], entry["high"])
    paper = ""
    if entry["paper"]:
        mean, std = entry["paper"]
        paper = value(mean) if std is None else f"{value(mean)} ± {std:.3f}"
    return Cell(entry["mean"], value(entry["mean"]), ends if entry["std"] is None else f"± {entry['std']:.3f}", paper, best)


def _difference(entry: Entry, one: Interval | None) -> Cell:
    mean = difference_of(entry)["mean"]
    mark = ("▲ " if gain(entry) > 0 else "▼ ") if one and one.significant else ""
    return Cell(mean, f"{mark}{value(mean, '+')}", interval(one.low, one.high, "+") if one else "")


def _by_metric(title: str, table: Table, metrics: Sequence[str], rows: Sequence[str], shown: Mapping, caption: str) -> Section:
    """Returns a section with one line per metric and one column per row."""
    names = {heading(table, metric): metric for metric in metrics}
    lines = [[shown.get((row, metric)) for row in rows] for metric in metrics]
    frame = pandas.DataFrame(lines, index=[heading(table, metric) for metric in metrics], columns=[*rows], dtype=object)
    return Section(title, frame.rename_axis("metric"), caption, names)


def _by_model(title: str, table: Table, metrics: Sequence[str], rows: Sequence[str], shown: Mapping, caption: str) -> Section:
    """Returns a section with one line per model; one line per metric if there are many metrics, and fewer models."""
    section = _by_metric(title, table, metrics, rows, shown, caption)
    frame = section.frame.dropna(axis=1, how="all")
    if len(metrics) <= max(_COLUMNS, len(frame.columns)):
        frame = frame.T.rename_axis("model")
    return dataclasses.replace(section, frame=frame)


def frame_of(corner: str, lines: Mapping[str, Sequence[Cell | None]], columns: Sequence[str]) -> pandas.DataFrame:
    """Returns a frame of cells, one line for each name; `corner` heads the names."""
    frame = pandas.DataFrame([*lines.values()], index=[*lines], columns=[*columns], dtype=object)
    return frame.rename_axis(corner)


def number(one: float | None) -> Cell | None:
    """Returns the cell of a number with three decimals, or of an integer; None of None."""
    return None if one is None else Cell(one, f"{one:,}" if isinstance(one, int) else value(one))


def value(number: float, sign: str = "") -> str:
    """Returns a number with three decimals; a large one, such as a size in bytes, without."""
    return f"{number:{sign}z.3f}" if abs(number) < 10000 else f"{number:{sign},.0f}"


def interval(low: float | None, high: float | None, sign: str = "", decimals: int = 3) -> str:
    """Returns `[low, high]`, or an empty text where there is no interval; an end that is not 0 is not printed as 0."""
    if low is None or high is None:
        return ""
    shown = next((n for n in (decimals, decimals + 1) if all(round(end, n) or not end for end in (low, high))), decimals + 2)
    return f"[{low:{sign}z.{shown}f}, {high:{sign}z.{shown}f}]"


def number_range(counts: Sequence[int]) -> str:
    """Returns the smallest and the largest of some numbers, as one number if they are equal."""
    return f"{max(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"


def heading(table: Table, metric: str) -> str:
    """Returns a metric's long name, with a dagger if it is based on a reference table that was not verified."""
    return f"{describe(metric).name}{' †' if metric in table['unverified'] else ''}"


def unverified_note(table: Table) -> str:
    """Returns the explanation of the dagger; empty if no metric has one."""
    sources = dict.fromkeys(table["unverified"].values())
    return f"† Divided by a reference network's numbers that were not verified ({'; '.join(sources)})." if sources else ""
