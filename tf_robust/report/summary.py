"""The summary of a report, its main numbers, one line each; and notes on what its metrics depend on, from the cards of the evaluations.

With several models a line has the best model for one kind of images (corruptions, noise, attacks, shifts), its value, and the difference
to the baseline with the 95 % interval; then come clean accuracy and cost. A difference is significant if the interval excludes 0.
With one model a line has its accuracy and the difference to clean images.
"""

from collections.abc import Iterable, Iterator, Sequence

from tf_robust import metrics
from tf_robust.evaluation.metric_value import CORRUPTION_FAMILIES, describe, parse_metric
from tf_robust.evaluation.smoothing import ABSTAINS
from tf_robust.metrics.calibration import BIN_SIZE
from tf_robust.report.sections import interval, number_range, value
from tf_robust.report.tables import (
    Entry,
    Evaluation,
    Interval,
    Table,
    cells,
    difference_intervals,
    difference_of,
    gain,
    kinds_of_robustness,
    separate_interval,
)

_LISTED = 3  # metrics in a list
_ROUNDING = 1e-9  # of a mean of many numbers
_FEW_BINS = 5  # of the RMS calibration error
_CHANGES = ("corruptions", "perturbations", "noise", "attacks", "Gaussian noise")  # of images, in the order of a note


def summarize(table: Table) -> list[tuple[str, str]]:
    """Returns the summary as (label, numbers) of each line."""
    return _compare(table) if len(table["order"]) > 1 else _describe(table)


def summary_lines(table: Table) -> list[str]:
    """Returns the lines of the summary as text."""
    return [f"{label}: {numbers}." for label, numbers in summarize(table)]


def _compare(table: Table) -> list[tuple[str, str]]:
    intervals, by_cell, baseline = difference_intervals(table), cells(table), table["baseline"]
    others = [row for row in table["order"] if row != baseline]
    compared = {key: entry for key, entry in by_cell.items() if entry["difference"]}

    def difference(key: tuple[str, str]) -> str:
        row, metric = key
        one, mean = intervals.get(key), difference_of(compared[key])["mean"]
        return f"{row} {_value(compared[key])}, {_difference(metric, mean, one)} vs {baseline}{_significance(one)}"

    chosen = list(kinds_of_robustness(table).values())
    if not chosen:  # other metrics, such as flip probabilities
        chosen = [one for one in table["headlines"] if not _is_clean(one) and parse_metric(one).family != "deployed"][:_LISTED]
    lines, named = [], dict.fromkeys(others if len(others) == 1 else ())
    for metric in chosen:
        keys = sorted((key for key in compared if key[1] == metric), key=lambda key: _quality(compared[key]), reverse=True)
        if not keys:
            continue
        best, reference = keys[0], by_cell[baseline, metric]
        if _quality(reference) > _quality(compared[best]):
            start = f"best {baseline} (the baseline) {_value(reference)}; next"
        else:
            start = "best"
            named[best[0]] = None
        lines.append((describe(metric).name, f"{start} {difference(best)}"))
        gains = [key for key in keys if gain(compared[key]) > 0 and key in intervals and intervals[key].significant]
        if gains and gains[0] != best:
            named[gains[0][0]] = None
            lines.append((f"{describe(metric).name}, largest significant gain", difference(gains[0])))
    clean = [metric for metric in table["metrics"] if _is_clean(metric) and metric not in chosen][:1]
    lines += [
        (describe(metric).name, difference((row, metric))) for metric in clean for row in named or others if (row, metric) in compared
    ]
    chosen += clean
    if not lines:
        if table["adapted"]:
            return [("Test-time adaptation", "the table has the values with and without it")]
        return [("Comparison", f"no row shares a metric and a seed with {baseline}")]
    worse = [key for key, one in intervals.items() if key[1] not in chosen and one.significant and gain(compared[key]) < 0]
    listed = {*table["metrics"], *(table["details"] if len(others) == 1 else ())}
    for row in named:
        keys = [key for key in worse if key[0] == row and key[1] in listed]
        texts = [f"{describe(key[1]).name} {_difference(key[1], difference_of(compared[key])['mean'], intervals[key])}" for key in keys]
        if len(texts) > _LISTED:
            texts = [*texts[:_LISTED], f"and {len(texts) - _LISTED} more"]
        lines += [("Significantly worse", f"{row}: {'; '.join(texts)}")] if texts else []
    ratios = [f"{row} {ratio:.1f} times that of {baseline}" for row in named if (ratio := table["training_ratios"].get(row))]
    lines += [("Training time", "; ".join(ratios))] if ratios else []
    shown = [entry for key, entry in compared.items() if key[1] in chosen]
    pairs = [difference_of(entry)["pairs"] for entry in shown]
    paired = "over the seeds" if max(pairs) > 1 else "over the images" * any(difference_of(entry)["images"] for entry in shown)
    text = f"paired 95% intervals {paired}" if paired else "unpaired 95% intervals"
    return [*lines, _counts(table, shown, pairs, f"{text}{f', for {len(others)} models at once' * (len(others) > 1)}")]


def _describe(table: Table) -> list[tuple[str, str]]:
    """Returns the lines of one model: clean accuracy, the metric of each kind of images, and the lowest of the corruptions."""
    (row,) = table["order"]
    own = {entry["metric"]: entry for entry in table["rows"]}
    clean = next((entry for metric, entry in own.items() if _is_clean(metric)), None)
    kinds = {describe(metric).name: own[metric] for metric in kinds_of_robustness(table).values()}
    corrupted = []  # means over severities
    for metric, entry in own.items():
        name = parse_metric(metric)
        is_mean = name.severity is None and (name.is_member or name.name in metrics.GROUPS)
        if name.family in CORRUPTION_FAMILIES and is_mean and describe(metric).images and entry not in kinds.values():
            corrupted.append(entry)
    if corrupted:
        lowest = min(corrupted, key=_quality)
        kinds[f"{describe(lowest['metric']).name}, the lowest of the corruptions"] = lowest
    shown = [clean] if clean else []
    if clean is None or not kinds:
        shown = [e for metric, e in own.items() if metric in table["metrics"]][: 2 * _LISTED]
        lines = [(describe(e["metric"]).name, f"{row} {_with_interval(e)}") for e in shown]
    else:
        lines = [(describe(clean["metric"]).name, f"{row} {_with_interval(clean)}")]
        for kind, entry in kinds.items():
            shown.append(entry)
            fall = table["falls"].get(entry["metric"])  # paired over images; else over seeds, or Newcombe's interval
            low, high = (fall["low"], fall["high"]) if fall else separate_interval(entry, clean)
            one = None if low is None or high is None else Interval(low, high, low > _ROUNDING or high < -_ROUNDING)
            text = _difference(entry["metric"], entry["mean"] - clean["mean"], one)
            lines.append((kind, f"{_with_interval(entry)}, {text} vs clean{_significance(one)}"))
    return [*lines, *_abstention(own), _counts(table, shown, [len(entry["seeds"]) for entry in shown], "95% intervals")]


def _abstention(own: dict[str, Entry]) -> Iterable[tuple[str, str]]:
    """Returns a line on coverage and accuracy with abstention, of clean images and of those of the highest severity."""
    severities = sorted(m.split("/")[1] for m in own if m.startswith("abstention/severity_") and m.endswith("/accuracy"))
    images = {"": "clean images", **{f"{one}/": f"corrupted images of {one.replace('_', ' ')}" for one in severities[-1:]}}
    for prefix, name in images.items():
        coverage, accuracy = (own.get(f"abstention/{prefix}{one}") for one in ("coverage", "accuracy"))
        if coverage and accuracy:
            yield f"Abstention, {name}", f"{coverage['mean']:.1%} answered, accuracy {accuracy['mean']:.1%}"


def _is_clean(metric: str) -> bool:
    """Returns whether it is the accuracy on clean images after training with all labels."""
    return parse_metric(metric).is_clean and not parse_metric(metric).label_fraction


def _quality(entry: Entry) -> float:
    return entry["mean"] * (-1 if parse_metric(entry["metric"]).lower_is_better else 1)


def _value(entry: Entry) -> str:
    return f"{entry['mean']:.1%}" if describe(entry["metric"]).images else value(entry["mean"])


def _with_interval(entry: Entry) -> str:
    low, high = entry["low"], entry["high"]
    if describe(entry["metric"]).is_fraction and low is not None and high is not None:
        low, high = max(0.0, low), min(1.0, high)  # t intervals over few seeds are wide
    return f"{_value(entry)} {_ends(entry['metric'], low, high)}".rstrip()


def _difference(metric: str, mean: float, one: Interval | None) -> str:
    """Returns `+15.0 points [12.1, 17.9]` of an accuracy, or `-0.400 [-0.500, -0.300]`."""
    size = f"{100 * mean:+z.1f} points" if describe(metric).images else f"{mean:+z.3f}"
    return f"{size} {_ends(metric, one.low, one.high) if one else ''}".rstrip()


def _ends(metric: str, low: float | None, high: float | None) -> str:
    """Returns an interval, in points for an accuracy."""
    if low is None or high is None or not describe(metric).images:
        return interval(low, high)
    return interval(100 * low, 100 * high, decimals=1)


def _significance(one: Interval | None) -> str:
    return ", no interval" if one is None else ", significant" if one.significant else ", not significant"


def _counts(table: Table, shown: Sequence[Entry], seeds: Sequence[int], text: str) -> tuple[str, str]:
    """Returns the line with the numbers of images and seeds, and the kind of the intervals."""
    images = number_range([table["images"][entry["metric"]] for entry in shown])
    return "Measured on", f"{images} images, {number_range(seeds)} seed{'s' * (max(seeds) > 1)}; {text}"


def evaluation_notes(evaluations: Sequence[Evaluation]) -> list[str]:
    """Returns notes on what the metrics of evaluations (as in `evaluation.json`) depend on, each with the rows that it holds for."""
    notes = []
    if {evaluation.get("split") for evaluation in evaluations} == {"validation"}:
        notes.append("All values are those of validation images, on which settings are chosen, not of test images.")
    seeds: dict[str, set] = {}
    rows: dict[tuple[int, str], dict[str, None]] = {}
    for evaluation in evaluations:
        seeds.setdefault(evaluation["row"], set()).add(evaluation["seed"])
        for note in _notes_of(evaluation):
            rows.setdefault(note, {})[evaluation["row"]] = None
    if len({len(of_row) for of_row in seeds.values()}) > 1:
        notes.append(f"Seeds: {', '.join(f'{row} {len(of_row)}' for row, of_row in seeds.items())}.")
    notes += [f"{', '.join(names)}: {text}." for (_, text), names in sorted(rows.items(), key=lambda item: item[0][0])]
    timed = [one for one in evaluations if any(row["metric"] == "deployed/milliseconds" for row in one["rows"])]
    cpus = ", ".join(dict.fromkeys(one.get("cpu", "an unknown CPU") for one in timed))
    return [*notes, *([f"Latency: one image, one thread, median over calls, {cpus}."] if timed else [])]


def _notes_of(evaluation: Evaluation) -> Iterator[tuple[int, str]]:
    """Yields (number of the kind, by which notes are sorted; text) of what the metrics of one evaluation depend on."""
    card, measured = evaluation.get("card") or {}, {row["metric"]: row for row in evaluation["rows"]}
    for text in evaluation.get("notes", ()):  # what it left out, and warnings such as masked gradients
        yield 0, text
    sizes, fit = card.get("sizes"), card.get("data", {}).get("image_fit")
    changes = {parse_metric(metric).entry.metric.change for metric in measured} - {"", "shifts"}
    if sizes and changes and (fit or sizes["corrupted_at"] != sizes["model_input"]):  # the model takes another size
        applied, model_input = ("x".join(map(str, sizes[name])) for name in ("corrupted_at", "model_input"))
        kinds = " and ".join(sorted(changes, key=_CHANGES.index))
        before = f", to which the image files were resized before ({fit})" if fit else ""
        after = ", and the images were resized to that after it" if applied != model_input else ""
        verb = "was" if kinds in ("noise", "Gaussian noise") else "were"
        yield 1, f"{kinds} {verb} applied at {applied} pixels{before}; the network takes {model_input}{after}"
    sets = {"": card.get("data", {}), **{f" (shift/{name})": part for name, part in card.get("shift", {}).items()}}
    for name, part in sets.items():
        if (mask := part.get("class_mask", "none")) != "none":
            yield 2, f"only {mask} of the model compete{name}; the other outputs are ignored"
    if part := card.get("corruption_means"):
        yield 3, f"means over corruptions are of severity {', '.join(map(str, part['means_over_severities']))} alone"
    if any(parse_metric(metric).card_family == "robust_transfer" for metric in measured):
        surrogate = evaluation.get("options", {}).get("surrogate", "another model")
        yield (
            4,
            f"the transferred attacks (robust/transfer) were computed with the gradients of {surrogate}. "
            "Their accuracies are not white-box: an attack with the model's own gradients, if it has any, may be stronger",
        )
    if part := card.get("adaptation"):
        yield (
            5,
            "the model was adapted to the test images: its batch normalization used the statistics of batches of "
            f"{number_range(part['batch_sizes'])} images ({part['order']}, {part['classes_per_batch']:.1f} classes per batch on average, "
            f"the most frequent with {part['largest_class_fraction']:.2f} of the images). "
            "The metrics adapted/... hold for such batches alone, not for single images",
        )
    if part := card.get("certified"):
        largest = metrics.largest_radius(part["samples"], part["sigma"], part["alpha"])
        yield (
            6,
            f"certified accuracy holds for the smoothed model with noise of standard deviation {part['sigma']:g} (smoothing_sigma), "
            f"with confidence {1 - part['alpha']:g} for each image, from {part['selection']:,} noisy copies that select the class and "
            f"{part['samples']:,} that bound its probability; no l2 radius above {largest:.2f} can be certified with these",
        )
    if measured.get("certified/abstained", {}).get("value") == 1:
        yield 6, ABSTAINS
    for metric, row in measured.items():
        count = row.get("count") or _FEW_BINS * BIN_SIZE
        if str(parse_metric(metric).plain) == "calibration/rms" and count < _FEW_BINS * BIN_SIZE:
            yield (
                7,
                f"the RMS calibration error is that of bins of {BIN_SIZE} images. {count:,} images give {max(1, count // BIN_SIZE)}, "
                "in which errors of different confidences cancel: it may be too low",
            )
