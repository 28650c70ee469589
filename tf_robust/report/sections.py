"""The tables of a report, each a pandas frame of cells: page, Markdown, LaTeX and terminal only add their syntax."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import pandas

from tf_robust.evaluation.adversarial import MEMBERS
from tf_robust.evaluation.metric_table import COUNT
from tf_robust.evaluation.metric_value import CONFIDENCE_FAMILIES, describe, parse_metric
from tf_robust.evaluation.values import MIN_IMAGES
from tf_robust.report.tables import ADAPTED, Difference, Entry, Key, Table, fall, without_adaptation

ABSENT = "–"  # in place of a cell that was not measured
_SLICES = ("class", "group")  # families of metrics
_OWN_TABLES = (*_SLICES, *CONFIDENCE_FAMILIES, "ood", "checks")
_COLUMNS = 6  # metrics side by side
_ENDS = 20  # slices of the lowest and of the highest accuracy that are shown where there are many
_MEMBERS = {"clean": "clean", **MEMBERS}
_CONFIDENCE = {
    "calibrated/{}temperature": "temperature",
    "calibrated/{}ece_before": "ECE before scaling",
    "calibrated/{}ece": "ECE after scaling",
    "abstention/{}threshold": "threshold of confidence",
    "abstention/{}coverage": "fraction answered",
    "abstention/{}accuracy": "accuracy among the answered",
    "conformal/{}coverage": "conformal coverage",
    "conformal/{}size": "conformal set size",
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
    further = table["metrics"][len(table["headlines"]) :]
    if details and further:
        found += [values(table, further, "Further metrics")]
        found += [differences(table, further, f"Further metrics against {table['baseline']}")]
    found += [by_slice(table), by_corruption(table) if details else None]
    return [section for section in found if section]


def values(table: Table, metrics: Sequence[str] | None = None, title: str = "Results") -> Section:
    """Returns the means of every row and metric, with the paper's; `metrics` None: the headlines."""
    best = best_cells(table)
    shown = {key: _mean(entry, key in best) for key, entry in table["cells"].items()}
    seeds = [len(entry["seeds"]) for entry in table["cells"].values()]
    caption = "" if max(seeds) == 1 else f"Mean ± sample std over {number_range(seeds)} seeds. "
    caption += "One seed: in brackets the 95% interval over the images. " * (min(seeds) == 1)
    caption = f"{caption}{'Bold: the best mean. ' * bool(best)}{unverified_note(table)}".rstrip()
    return _by_model(title, table, table["headlines"] if metrics is None else metrics, table["order"], shown, caption)


def best_cells(table: Table) -> set[Key]:
    """Returns the (row, metric) of each metric's best mean as printed, ties included; none where only one row was measured."""
    best: set[Key] = set()
    for metric in table["metrics"]:
        means = {row: round(entry["mean"], 3) for (row, name), entry in table["cells"].items() if name == metric}
        top = min(means.values()) if parse_metric(metric).lower_is_better else max(means.values())
        best |= {(row, metric) for row, mean in means.items() if mean == top and len(means) > 1}
    return best


def differences(table: Table, metrics: Sequence[str] | None = None, title: str = "") -> Section | None:
    """Returns the differences of every row and metric to the baseline, or None if there are none; arguments as in `values`."""
    rows = [row for row in table["order"] if row != table["baseline"]]
    names = {name for _, name in table["differences"]}
    metrics = [metric for metric in (table["headlines"] if metrics is None else metrics) if metric in names]
    if not metrics:
        return None
    shown = {key: _difference(one, marked=True) for key, one in table["differences"].items()}
    compared = [one for (_, metric), one in table["differences"].items() if metric in metrics]
    caption = f"Difference to {table['baseline']}; {intervals_of(compared, len(rows))}. ▲ better, ▼ worse: the interval excludes 0."
    return _by_model(title or f"Against {table['baseline']}", table, metrics, rows, shown, caption)


def intervals_of(compared: Collection[Difference], num_rows: int) -> str:
    """Returns in words the number of seeds and the kinds of the intervals of some differences."""
    pairs = [one.pairs for one in compared]
    kinds = {
        "paired over the seeds and the images": any(one.num_images and one.pairs > 1 for one in compared),
        "paired over the seeds": any(not one.num_images and one.pairs > 1 for one in compared),
        "paired over the images": any(one.num_images and one.pairs == 1 for one in compared),
        "unpaired (Newcombe's)": any(one.low is not None and not one.num_images and one.pairs == 1 for one in compared),
    }
    used = ", ".join(kind for kind, is_used in kinds.items() if is_used) or "none"
    return f"{seeds_of(pairs)}; 95% intervals: {used}{f'; for {num_rows} models at once' if num_rows > 1 else ''}"


def seeds_of(numbers: Sequence[int]) -> str:
    """Returns `1 seed`, `3 seeds` or `1 to 3 seeds`."""
    return f"{number_range(numbers)} seed{'s' * (max(numbers) > 1)}"


def by_corruption(table: Table) -> Section | None:
    """Returns the means of single corruptions and perturbations, one per line, or None if none was measured."""
    shown = {key: _mean(entry) for key, entry in table["cells"].items()}
    names = {metric: parse_metric(metric) for metric in table["details"]}
    metrics = [metric for metric, name in names.items() if name.severity is None and name.family not in _OWN_TABLES]
    for adapted, plain in without_adaptation(metrics).items():  # of a row that was measured with adaptation alone: in the same line
        metrics.remove(adapted)
        shown = {**{(row, plain): cell for (row, metric), cell in shown.items() if metric == adapted}, **shown}
    flips = any(names[metric].family == "flips" for metric in metrics)
    caption = f"Accuracy, mean over severities{'; for flips the flip probability (lower is better)' * flips}."
    return _by_metric("By corruption and perturbation", table, metrics, table["order"], shown, caption) if metrics else None


def by_slice(table: Table) -> Section | None:
    """Returns the accuracy on each class and group, the lowest of the first row first, or None if none was measured."""
    shown = {key: _mean(entry) for key, entry in table["cells"].items()}
    metrics = [metric for metric in table["details"] if parse_metric(metric).family in _SLICES]
    if not metrics:
        return None
    first = table["order"][0]
    metrics.sort(key=lambda metric: shown[first, metric].value if (first, metric) in shown else 1.0)
    caption = "Accuracy on clean images, with 95% intervals over the images; the lowest first."
    section = _by_metric("By class and group", table, metrics, table["order"], shown, caption)
    if len(metrics) <= 2 * _ENDS:
        return section
    large = [metric for metric in metrics if table["images"][metric] >= MIN_IMAGES] or metrics
    listed = large if len(large) <= 2 * _ENDS else large[:_ENDS] + large[-_ENDS:]
    caption += f" {len(listed)} of {len(metrics):,}, with at least {MIN_IMAGES} images if there are such."
    is_listed = pandas.Index(metrics).isin(listed)
    return dataclasses.replace(section, frame=section.frame[is_listed], folded=section.frame[~is_listed], caption=caption)


def shifts(table: Table) -> Section | None:
    """Returns the difference of every row's accuracy on each shifted data set to its clean accuracy, or None if none was measured."""
    pairs, cells, order = shift_pairs(table), table["cells"], table["order"]
    lines = {
        parse_metric(shift).name: [
            _difference(fall(table, row, clean, shift)) if {(row, clean), (row, shift)} <= cells.keys() else None for row in order
        ]
        for clean, shift in pairs
    }
    caption = "Accuracy on shifted minus accuracy on original images; 95% interval over seeds, with one seed Newcombe's of separate images."
    names = {parse_metric(shift).name: shift for _, shift in pairs}
    return Section("Shifted data against the original", frame_of("data", lines, order), caption, names) if lines else None


def shift_pairs(table: Table) -> list[tuple[str, str]]:
    """Returns the accuracies on clean images and on a shifted set of models that were trained and adapted alike."""
    clean = {parse_metric(m).prefix: m for m in table["metrics"] if parse_metric(m).is_clean}
    shifted = [m for m in table["metrics"] if parse_metric(m).family == "shift"]
    return [(clean[prefix], m) for m in shifted if (prefix := parse_metric(m).prefix) in clean]


def adaptation(table: Table) -> Section | None:
    """Returns the metrics with adaptation beside the same without it, or None if there are not both."""
    columns: dict[str, list[Entry | None]] = {}
    for suffix, metrics in (("", table["adapted"].values()), (ADAPTED, table["adapted"].keys())):
        for row in table["order"]:
            if any(column := [table["cells"].get((row, metric)) for metric in metrics]):
                columns[row.removesuffix(ADAPTED) + suffix] = column
    names = {describe(plain).name: adapted for adapted, plain in table["adapted"].items()}
    lines = {name: [one and _mean(one) for one in line] for name, line in zip(names, zip(*columns.values()))}
    caption = "Adapted: batch normalization with the statistics of each batch of test images; the notes describe the batches."
    return Section("Test-time adaptation", frame_of("metric", lines, [*columns]), caption, names) if columns else None


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
    caption = (
        "Accuracy on the attacked images, first without attack, then after each member of the attack and those before it. A member without "
        f"number was not run, or no image was left for it. First seed of each row. Budget per image: {'; '.join(budgets)}. "
        + (" ".join(f"Warning ({'; '.join(where)}): {warning}" for warning, where in warnings.items()) or "No warnings.")
    )
    return Section("Attacks, member by member", frame_of("attack", lines, [*_MEMBERS.values()]), caption, names) if lines else None


def confidence(table: Table) -> Section | None:
    """Returns the metrics of fitted confidences, one column for each kind of images, or None if there are none."""
    names = [parse_metric(metric) for _, metric in table["cells"]]
    groups = dict.fromkeys(one.name.rpartition("/")[0] for one in names if one.family in CONFIDENCE_FAMILIES)
    lines = {}
    for row in table["order"]:
        for metric, text in _CONFIDENCE.items():
            found = [table["cells"].get((row, metric.format(group and f"{group}/"))) for group in groups]
            if any(found):
                lines[_label(table, row, text)] = [one and number(one["mean"]) for one in found]
    columns = [*map(group_name, groups)]
    caption = (
        "Fitted on validation images. The wanted accuracy among the answered (with 95% confidence) and the conformal coverage hold for "
        "clean images alone. The threshold is one of the largest probability after scaling. At a severity: over the 15 corruptions."
    )
    return Section("Confidence on clean and corrupted images", frame_of("metric", lines, columns), caption) if lines else None


def group_name(group: str) -> str:
    """Returns the name of a group of images with fitted confidences, such as `severity_3` or `shift/night`; "": clean images."""
    return group.replace("_", " ").removeprefix("shift/") or "clean"


def open_sets(table: Table) -> Section | None:
    """Returns AUROC and FPR at 95 % TPR of every data set of other classes and score, or None if there are none."""
    measured = {key: parse_metric(key[1]).name for key in table["cells"] if parse_metric(key[1]).family == "ood"}
    models = [row for row in table["order"] if any(key[0] == row for key in measured)]
    names = {name.rpartition("/")[0]: f"ood/{name.rpartition('/')[0]}/auroc" for name in measured.values()}
    kinds = [(row, kind) for row in models for kind in ("auroc", "fpr95")]
    lines = {
        name: [(one := table["cells"].get((row, f"ood/{name}/{kind}"))) and number(one["mean"]) for row, kind in kinds] for name in names
    }
    columns = [_label(table, row, kind.upper()) for row, kind in kinds]
    caption = (
        "Clean images against data sets of other classes. NAME: by the largest probability, NAME/max_logit: the largest logit, "
        "NAME/energy: the energy, NAME/knn: nearest training images. "
        "FPR95: fraction of the others accepted where 95% of the clean images are."
    )
    return Section("Images of other classes", frame_of("data and score", lines, columns), caption, names) if lines else None


def changes(table: Table) -> list[Section]:
    """Returns the differences of two models, what got worse first: of headlines and all that got worse, then of others and severities."""
    order = [*table["metrics"], *table["details"]]
    found: list[tuple[int, str, list[Cell | None]]] = []
    for (row, metric), one in table["differences"].items():
        if metric in order:
            rank = 1 if one.low is None else 3 if not one.significant else 0 if one.gain < 0 else 2
            mean, change = table["cells"][row, metric]["mean"], _difference(one)
            ends = Cell(one.mean, change.uncertainty or ABSENT)
            cells = [number(mean - one.mean), number(mean), Cell(one.mean, change.text), ends, Cell(rank, _CHANGES[rank])]
            found.append((rank, metric, cells))
    found.sort(key=lambda one: (one[0], order.index(one[1])))
    columns = [table["baseline"], next(row for row in table["order"] if row != table["baseline"]), "difference", "95% interval", "change"]
    caption = "Paired over the images, with 95% intervals. What got worse comes first. Not significant: the interval includes 0."
    names = {heading(table, metric): metric for _, metric, _ in found}
    sections = []
    first = {*table["headlines"], *(metric for rank, metric, _ in found if rank == 0 and parse_metric(metric).severity is None)}
    for title, is_first in (("What changed", True), ("What changed, further metrics", False)):
        shown = [one for one in found if (one[1] in first) == is_first]
        lines = {heading(table, metric): line for _, metric, line in shown}
        sections += [Section(title, frame_of("metric", lines, columns), caption, names)] if lines else []
    return sections


def legend(table: Table) -> list[tuple[str, str, str]]:
    """Returns (long name, metric, meaning) of the metrics of the tables that have a description."""
    return [(heading(table, metric), metric, meaning) for metric in table["metrics"] if (meaning := describe(metric).meaning)]


def _label(table: Table, row: str, name: str) -> str:
    """Returns a name, after that of its row if there are several."""
    return name if len(table["order"]) == 1 else f"{row}: {name}"


def _mean(entry: Entry, best: bool = False) -> Cell:
    """Returns the cell of a mean with its std or interval, and the paper's."""
    uncertainty = interval(entry["low"], entry["high"]) if entry["std"] is None else f"± {entry['std']:.3f}"
    mean, std = entry["paper"] or (None, None)
    paper = "" if mean is None else value(mean) if std is None else f"{value(mean)} ± {std:.3f}"
    is_count = parse_metric(entry["metric"]).entry.metric.unit == COUNT and entry["mean"] == int(entry["mean"])
    return Cell(entry["mean"], f"{int(entry['mean']):,}" if is_count else value(entry["mean"]), uncertainty, paper, best)


def _difference(one: Difference, marked: bool = False) -> Cell:
    mark = ("▲ " if one.gain > 0 else "▼ ") if marked and one.significant else ""
    return Cell(one.mean, f"{mark}{value(one.mean, '+')}", interval(one.low, one.high, "+"))


def _by_metric(title: str, table: Table, metrics: Sequence[str], rows: Sequence[str], shown: Mapping, caption: str) -> Section:
    """Returns a section with one line per metric and one column per row."""
    names = [heading(table, metric) for metric in metrics]
    lines = [[shown.get((row, metric)) for row in rows] for metric in metrics]
    frame = pandas.DataFrame(lines, index=names, columns=[*rows], dtype=object).rename_axis("metric")
    return Section(title, frame, caption, dict(zip(names, metrics)))


def _by_model(title: str, table: Table, metrics: Sequence[str], rows: Sequence[str], shown: Mapping, caption: str) -> Section:
    """Returns a section with one line per model; one line per metric if there are many metrics, and fewer models."""
    section = _by_metric(title, table, metrics, rows, shown, caption)
    frame = section.frame.dropna(axis=1, how="all")
    if len(metrics) <= max(_COLUMNS, len(frame.columns)):
        frame = frame.T.rename_axis("model")
    return dataclasses.replace(section, frame=frame)


def frame_of(corner: str, lines: Mapping[str, Sequence[Cell | None]], columns: Sequence[str]) -> pandas.DataFrame:
    """Returns a frame of cells, one line for each name; `corner` heads the names."""
    return pandas.DataFrame([*lines.values()], index=[*lines], columns=[*columns], dtype=object).rename_axis(corner)


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
