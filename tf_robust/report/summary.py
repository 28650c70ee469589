"""The summary of a report, its main numbers, one line each; and notes on what its metrics depend on, from the cards of the evaluations.

With several models a line has the best model for one kind of images (corruptions, noise, attacks, shifts), its value, and the difference
to the baseline with the 95 % interval; then come clean accuracy and cost. A difference is significant if the interval excludes 0.
With one model a line has its accuracy and the difference to clean images.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tf_robust import metrics
from tf_robust.evaluation.metric_value import CORRUPTION_FAMILIES, describe, parse_metric
from tf_robust.evaluation.smoothing import ABSTAINS
from tf_robust.metrics.calibration import BIN_SIZE
from tf_robust.report.sections import interval, intervals_of, number_range, seeds_of, value
from tf_robust.report.tables import Difference, Entry, Evaluation, Key, Table, fall, kinds_of_robustness

_LISTED = 3  # metrics in a list
_FEW_BINS = 5  # of the RMS calibration error
_CHANGES = ("corruptions", "perturbations", "noise", "attacks", "Gaussian noise")  # of images, in the order of a note


def summarize(table: Table) -> list[tuple[str, str]]:
    """Returns the summary as (label, numbers) of each line."""
    return _compare(table) if len(table["order"]) > 1 else _describe(table)


def summary_lines(table: Table) -> list[str]:
    """Returns the lines of the summary as text.

    Examples:
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> tfr.report.summary_lines(tfr.report.aggregate([result.evaluation]))[0]
        'Clean accuracy: lenet_augmix 97.0% [91.5, 99.0].'
    """
    return [f"{label}: {numbers}." for label, numbers in summarize(table)]


def _compare(table: Table) -> list[tuple[str, str]]:
    cells, differences, baseline = table["cells"], table["differences"], table["baseline"]
    others = [row for row in table["order"] if row != baseline]

    def difference(key: Key) -> str:
        return f"{key[0]} {_value(cells[key])}, {_difference(key[1], differences[key])} vs {baseline}{_significance(differences[key])}"

    chosen = [one for metric in kinds_of_robustness(table).values() for one in _with_further_corruptions(table, metric)]
    if not chosen:  # other metrics, such as flip probabilities
        chosen = [one for one in table["headlines"] if not _is_clean(one) and parse_metric(one).family != "deployed"][:_LISTED]
    lines, named = [], dict.fromkeys(others if len(others) == 1 else ())
    for metric in chosen:
        keys = sorted((key for key in differences if key[1] == metric), key=lambda key: _quality(cells[key]), reverse=True)
        if not keys:
            continue
        name, best, reference = describe(metric).name, keys[0], cells[baseline, metric]
        if _quality(reference) > _quality(cells[best]):
            lines.append((name, f"best {baseline} (the baseline) {_value(reference)}; next {difference(best)}"))
        else:
            lines.append((name, f"best {difference(best)}"))
            named[best[0]] = None
        gains = [key for key in keys if differences[key].gain > 0 and differences[key].significant][:1]
        if gains and gains[0] != best:
            lines.append((f"{name}, largest significant gain", difference(gains[0])))
            named[gains[0][0]] = None
    clean = [metric for metric in table["metrics"] if _is_clean(metric) and metric not in chosen][:1]
    lines += [
        (describe(key[1]).name, difference(key)) for metric in clean for row in named or others if (key := (row, metric)) in differences
    ]
    if not lines and table["adapted"]:
        return [("Test-time adaptation", "the table has the values with and without it")]
    if not lines:
        return [("Comparison", f"no row shares a metric and a seed with {baseline}")]
    chosen += clean
    details = [metric for metric in table["details"] if parse_metric(metric).severity is None] if len(others) == 1 else []
    listed = {*table["metrics"], *details} - {*chosen}
    for row in named:
        worse = {m: one for (r, m), one in differences.items() if r == row and m in listed and one.significant and one.gain < 0}
        texts = [f"{describe(metric).name} {_difference(metric, one)}" for metric, one in worse.items()]
        if len(texts) > _LISTED:
            texts = [*texts[:_LISTED], f"and {len(texts) - _LISTED} more"]
        lines += [("Significantly worse", f"{row}: {'; '.join(texts)}")] if texts else []
    ratios = [f"{row} {ratio:.1f} times that of {baseline}" for row in named if (ratio := table["training_ratios"].get(row))]
    lines += [("Training time", "; ".join(ratios))] if ratios else []
    shown = {key[1]: one for key, one in differences.items() if key[1] in chosen}
    compared = [one for key, one in differences.items() if key[1] in chosen]
    return [*lines, ("Measured on", f"{_images(table, shown)}, {intervals_of(compared, len(others))}")]


def _with_further_corruptions(table, metric):
    """Returns a metric, or for a single corruption, which no mean contains, all that were evaluated: up to some."""
    family, _, name = metric.partition("/")
    if family != "corruptions" or name in metrics.MEANS:
        return [metric]
    return [one for one in table["headlines"] if one.startswith("corruptions/") and one.count("/") == 1][:_LISTED]


def _describe(table: Table) -> list[tuple[str, str]]:
    """Returns the lines of one model: clean accuracy, the metric of each kind of images, and the lowest of the corruptions."""
    (row,) = table["order"]
    own = {metric: entry for (_, metric), entry in table["cells"].items()}
    clean = next((metric for metric in own if _is_clean(metric)), None)
    kinds = {metric: describe(metric).name for metric in kinds_of_robustness(table).values()}
    corrupted = []  # means over severities
    for metric in own:
        name = parse_metric(metric)
        is_mean = name.severity is None and (name.is_member or name.name in metrics.GROUPS)
        if name.family in CORRUPTION_FAMILIES and is_mean and describe(metric).images and metric not in kinds:
            corrupted.append(metric)
    if corrupted:
        lowest = min(corrupted, key=lambda metric: _quality(own[metric]))
        kinds[lowest] = f"{describe(lowest).name}, the lowest of the corruptions"
    shown = [clean, *kinds] if clean and kinds else [metric for metric in own if metric in table["metrics"]][: 2 * _LISTED]
    lines = []
    for metric in shown:
        text = _with_interval(own[metric])
        if clean and metric in kinds:
            one = fall(table, row, clean, metric)
            lines.append((kinds[metric], f"{text}, {_difference(metric, one)} vs clean{_significance(one)}"))
        else:
            lines.append((describe(metric).name, f"{row} {text}"))
    severities = sorted(m.split("/")[1] for m in own if m.startswith("abstention/severity_") and m.endswith("/accuracy"))
    images = {"": "clean images", **{f"{one}/": f"corrupted images of {one.replace('_', ' ')}" for one in severities[-1:]}}
    for prefix, kind in images.items():
        coverage, accuracy = (own.get(f"abstention/{prefix}{one}") for one in ("coverage", "accuracy"))
        if coverage and accuracy:
            lines.append((f"Abstention, {kind}", f"{coverage['mean']:.1%} answered, accuracy {accuracy['mean']:.1%}"))
    seeds = seeds_of([len(own[metric]["seeds"]) for metric in shown])
    return [*lines, ("Measured on", f"{_images(table, shown)}, {seeds}; 95% intervals")]


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


def _difference(metric: str, one: Difference) -> str:
    """Returns `+15.0 points [12.1, 17.9]` of an accuracy, or `-0.400 [-0.500, -0.300]`."""
    size = f"{100 * one.mean:+z.1f} points" if describe(metric).images else f"{one.mean:+z.3f}"
    return f"{size} {_ends(metric, one.low, one.high)}".rstrip()


def _ends(metric: str, low: float | None, high: float | None) -> str:
    """Returns an interval, in points for an accuracy."""
    if low is None or high is None or not describe(metric).images:
        return interval(low, high)
    return interval(100 * low, 100 * high, decimals=1)


def _significance(one: Difference) -> str:
    return ", no interval" if one.low is None else ", significant" if one.significant else ", not significant"


def _images(table: Table, shown: Iterable[str]) -> str:
    return f"{number_range([table['images'][metric] for metric in shown])} images"


def evaluation_notes(evaluations: Sequence[Evaluation]) -> list[str]:
    """Returns notes on what the metrics of evaluations (as in `evaluation.json`) depend on, each with the rows that it holds for."""
    notes = []
    if {evaluation.get("split") for evaluation in evaluations} == {"validation"}:
        notes.append("All values are of validation images, on which settings are chosen, not of test images.")
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
    card: Mapping = evaluation.get("card") or {}
    measured = {row["metric"]: row for row in evaluation["rows"]}
    for text in evaluation.get("notes", ()):  # what it left out, and warnings such as masked gradients
        yield 0, text
    sizes, fit = card.get("sizes"), card.get("data", {}).get("image_fit")
    changes = {parse_metric(metric).entry.metric.change for metric in measured} - {"", "shifts"}
    if sizes and changes and (fit or sizes["corrupted_at"] != sizes["model_input"]):  # the model takes another size
        applied, model_input = ("x".join(map(str, sizes[name])) for name in ("corrupted_at", "model_input"))
        before = f", image files resized before ({fit})" if fit else ""
        after = f", resized to {model_input} for the network" if applied != model_input else ""
        yield 1, f"{' and '.join(sorted(changes, key=_CHANGES.index))} applied at {applied} pixels{before}{after}"
    sets = {"": card.get("data", {}), **{f" (shift/{name})": part for name, part in card.get("shift", {}).items()}}
    for name, part in sets.items():
        if (mask := part.get("class_mask", "none")) != "none":
            yield 2, f"only {mask} of the model compete{name}; the other outputs are ignored"
    if part := card.get("corruption_means"):
        yield 3, f"means over corruptions are of severity {', '.join(map(str, part['means_over_severities']))} alone"
    if any(parse_metric(metric).card_family == "robust_transfer" for metric in measured):
        surrogate = evaluation.get("options", {}).get("surrogate", "another model")
        yield 4, f"robust/transfer: attacks with the gradients of {surrogate}, not white-box; the model's own gradients may attack better"
    if part := card.get("adaptation"):
        yield (
            5,
            f"adapted/...: batch normalization with the statistics of batches of {number_range(part['batch_sizes'])} test images "
            f"({part['order']}, {part['classes_per_batch']:.1f} classes per batch on average, the most frequent with "
            f"{part['largest_class_fraction']:.2f} of the images); not valid for other batches or single images",
        )
    if part := card.get("certified"):
        largest = metrics.largest_radius(part["samples"], part["sigma"], part["alpha"])
        yield (
            6,
            f"certified accuracy is of the smoothed model: noise of standard deviation {part['sigma']:g} (smoothing_sigma), confidence "
            f"{1 - part['alpha']:g} for each image, {part['selection']:,} noisy copies to select the class and {part['samples']:,} to "
            f"bound its probability; no l2 radius above {largest:.2f} can be certified",
        )
    if measured.get("certified/abstained", {}).get("value") == 1:
        yield 6, ABSTAINS
    for metric, row in measured.items():
        count = row.get("count") or _FEW_BINS * BIN_SIZE
        if str(parse_metric(metric).plain) == "calibration/rms" and count < _FEW_BINS * BIN_SIZE:
            yield 7, f"RMS calibration error: {count:,} images in bins of {BIN_SIZE}, in which errors cancel; it may be too low"
