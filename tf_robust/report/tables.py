"""Joins the evaluations of many runs to one table of rows x metrics.

A *row* is a method with its settings, named after its flagfile; a *metric* is `bal`, `un`, `clean`, ...; runs of one row differ by seed.
Intervals over seeds are Student's t: they describe the variation over seeds, on one fixed test set. Where results per image are
available, differences are also tested over the images, which both rows share.
"""

import collections
import typing
from collections.abc import Iterable, Sequence

import numpy as np
import pandas
import scipy.stats

from tf_robust import metrics
from tf_robust.evaluation import card
from tf_robust.evaluation.metric_value import parse_metric
from tf_robust.evaluation.recording import OTHER_ORDER
from tf_robust.metrics.paired import PairedDifference
from tf_robust.report.metric_order import by_family, headlines_of, without_adaptation, without_members
from tf_robust.report.table_types import AttackResult, Difference, Entry, Evaluation, Paper, PerImage, Table
from tf_robust.utils.errors import unknown

BASELINES = ("xe", "cross_entropy")
ADAPTED = ", adapted"  # at the end of the name of a row that was measured with adaptation
_FIELD_NAMES = {
    "data.fingerprint": "the evaluated images",
    "data.num_images": "the number of images",
    "data.image_shape": "the size of the images",
    "noise.std_from": "the training images whose standard deviations scale the noise, chosen by train_examples",
}  # fields of evaluation cards
_DIGESTS = ("fingerprint", "std_from", "surrogate", "files")  # fields whose values say nothing
_ROUNDING = 1e-9  # width of an interval of seeds whose differences are equal
_PRETRAINED = ("linear_probe", "finetune", "l2_sp", "similarity")  # methods whose training time is only that of the last stage
_SHORTEST = 30.0  # seconds of a training that is compared; in shorter ones building the graphs takes a large part of the time
_BUDGET = {
    "steps": "{:,} steps",
    "restarts": "{:,} restart(s)",
    "target_classes": "{:,} target classes",
    "queries": "{:,} queries of Square",
}  # fields of a card


class Interval(typing.NamedTuple):
    """The 95 % interval of a difference to the baseline, and whether the difference is significant."""

    low: float
    high: float
    significant: bool


def aggregate(
    evaluations: Iterable[Evaluation], paper: Paper | None = None, baseline: str | None = None, per_image: PerImage | None = None
) -> Table:
    """Joins the evaluations of runs to one table. Rows and metrics keep the order in which they come.

    Args:
        evaluations: dictionaries as in `evaluation.json`, of one or more rows and seeds.
        paper: the paper's numbers, {row: {metric: [mean, std or None]}}, or None.
        baseline: the row that the others are compared with; None: `xe`, `cross_entropy`, or the first.
        per_image: function (evaluation, metric) -> (digest of the images, values [N]) or None, as `evaluation.PerImage`; None: no
            per-image results are available.

    Raises:
        ValueError: no evaluations, a missing field, a duplicate row and seed, an unknown baseline, bad numbers in `paper`;
            a metric with different evaluation cards (names the field that differs).
    """
    evaluations = list(evaluations)
    runs = _by_cell(evaluations)
    _check_cards(evaluations)
    order = list(dict.fromkeys(row for row, _ in runs))
    available = by_family(metric for _, metric in runs)
    metrics = without_members(available)
    adapted = without_adaptation(metrics)
    metrics = [metric for metric in metrics if metric not in adapted]
    headlines = headlines_of(metrics, {metric for printed in (paper or {}).values() for metric in printed})
    metrics = [*headlines, *(metric for metric in metrics if metric not in headlines)]
    if baseline is None:
        baseline = next((name for name in BASELINES if name in order), order[0])
    if baseline not in order:
        raise unknown("baseline row", baseline, order)
    entries = [
        _entry(row, metric, runs[row, metric], _paper(paper or {}, row, metric), _difference(runs, row, metric, baseline, per_image))
        for row in order
        for metric in available
        if (row, metric) in runs
    ]
    details = [metric for metric in available if metric not in (*metrics, *adapted)]
    seconds = _training_seconds(evaluations)
    return {
        "rows": entries,
        "order": order,
        "metrics": metrics,
        "headlines": headlines,
        "adapted": adapted,
        "details": details,
        "baseline": baseline,
        "unverified": _unverified(evaluations),
        "images": {measured["metric"]: measured["count"] for evaluation in evaluations for measured in evaluation["rows"]},
        "falls": _falls(evaluations, available, per_image) if len(evaluations) == 1 else {},
        "attacks": _attacks(evaluations),
        "training_seconds": seconds,
        "training_ratios": _training_ratios(evaluations, seconds, baseline),
    }


def _unverified(evaluations: Iterable[Evaluation]) -> dict[str, str]:
    sources = {}
    for evaluation in evaluations:
        for measured in evaluation["rows"]:
            part = (evaluation.get("card") or {}).get(parse_metric(measured["metric"]).card_family, {})
            if part.get("verified") is False:
                sources[measured["metric"]] = part["source"]
    return sources


def members(table: Table) -> list[str]:
    """Returns the details that are means of one corruption or perturbation over its severities."""
    return [metric for metric in table["details"] if (name := parse_metric(metric)).severity is None and name.family != "checks"]


def _check_cards(evaluations: Iterable[Evaluation]) -> None:
    """Raises ValueError for values of one metric, with or without adaptation, that were measured in different ways."""
    firsts: dict[str, Evaluation] = {}
    for evaluation in evaluations:
        names = [one["metric"] for one in evaluation["rows"]]
        for metric in dict.fromkeys([*names, *(parse_metric(name).unadapted for name in names)]):
            first = firsts.setdefault(metric, evaluation)
            differing = card.difference(metric, first.get("card"), evaluation.get("card"))
            if differing:
                raise ValueError(
                    f"Expected {metric!r} to be measured in one way. Row {first['row']!r}, seed {first['seed']}, "
                    f"and row {evaluation['row']!r}, seed {evaluation['seed']}, differ in "
                    + ", ".join(_named_difference(*one) for one in differing)
                    + ". Try: evaluate both with the same data and options (tf-robust evaluate, with a --workdir each), or report them "
                    "separately"
                )


def _named_difference(field: str, one: object, other: object) -> str:
    """`the evaluated images (data.fingerprint)`, or `corruptions.protocol (cifar_c and float)`."""
    values = "" if field.rpartition(".")[2] in _DIGESTS else f"{one} and {other}"
    details = ": ".join(filter(None, [field if field in _FIELD_NAMES else "", values]))
    return f"{_FIELD_NAMES.get(field, field)} ({details})" if details else field


def _by_cell(evaluations: Sequence[Evaluation]) -> dict[tuple[str, str], dict[int, dict]]:
    """Returns {(row, metric): {seed: row of the evaluation}}."""
    runs: dict[tuple[str, str], dict[int, dict]] = {}
    for evaluation in evaluations:
        if missing := {"row", "seed", "rows"} - evaluation.keys():
            raise ValueError(f"Expected an evaluation with row, seed, rows. Missing: {sorted(missing)}")
        row, seed = evaluation["row"], evaluation["seed"]
        for measured in evaluation["rows"]:
            by_seed = runs.setdefault((row, measured["metric"]), {})
            if seed in by_seed:
                raise ValueError(
                    f"Expected one evaluation per row and seed. Received: two of {measured['metric']!r}: row {row!r}, seed {seed}"
                )
            by_seed[seed] = {**measured, "evaluation": evaluation}
    if not runs:
        raise ValueError(f"Expected evaluations with metrics. Received: {len(evaluations)} evaluations without any")
    return runs


def _entry(row: str, metric: str, by_seed: dict[int, dict], paper: list | None, difference: Difference | None) -> Entry:
    seeds = sorted(by_seed)
    values = [by_seed[seed]["value"] for seed in seeds]
    low, high = t_interval(values)
    if len(values) == 1:
        low, high = (by_seed[seeds[0]].get(side) for side in ("low", "high"))
    return {
        "row": row,
        "metric": metric,
        "values": values,
        "seeds": seeds,
        "mean": float(np.mean(values)),
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "low": low,
        "high": high,
        "paper": paper,
        "difference": difference,
    }


def t_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Returns the 95 % t interval of the mean as (low, high), or (None, None) with fewer than two values."""
    if len(values) < 2:
        return None, None
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)


def _paper(paper: Paper, row: str, metric: str) -> list | None:
    printed = paper.get(row, {}).get(metric)
    if printed is not None and (not isinstance(printed, (list, tuple)) or len(printed) != 2):
        raise ValueError(f"Expected the paper's [mean, std] for {row!r}, {metric!r}. Received: {printed!r}")
    return list(printed) if printed else None


def _difference(
    runs: dict[tuple[str, str], dict[int, dict]], row: str, metric: str, baseline: str, per_image: PerImage | None
) -> Difference | None:
    ours, theirs = runs[row, metric], runs.get((baseline, metric), {})
    common = sorted(ours.keys() & theirs.keys())
    if row == baseline or not common:
        return None
    pairs = [ours[seed]["value"] - theirs[seed]["value"] for seed in common]
    low, high = t_interval(pairs)
    images = _over_images([(ours[seed]["evaluation"], theirs[seed]["evaluation"]) for seed in common], metric, per_image)
    return {"baseline": baseline, "mean": float(np.mean(pairs)), "low": low, "high": high, "pairs": len(pairs), "images": images}


def _falls(evaluations: Sequence[Evaluation], names: Sequence[str], per_image: PerImage | None) -> dict[str, PairedDifference]:
    """Returns {metric: paired difference to the clean accuracy}, for metrics of the clean images after a change."""
    clean = next((metric for metric in names if parse_metric(metric).is_clean), None)
    if per_image is None or clean is None:
        return {}
    same_images = [metric for metric in names if parse_metric(metric).family not in ("shift", "calibration", "aurra")]
    results = {metric: result for metric in same_images if (result := per_image(evaluations[0], metric))}
    _, expected = results.pop(clean, (None, None))
    if expected is None:
        return {}
    return {
        metric: metrics.paired_difference(values, expected)
        for metric, (images, values) in results.items()
        if len(values) == len(expected) and not images.endswith(OTHER_ORDER)
    }


def _over_images(pairs: Sequence[tuple[Evaluation, Evaluation]], metric: str, per_image: PerImage | None) -> PairedDifference | None:
    """`metrics.paired_difference` over the images that all these pairs of evaluations share, or None."""
    if per_image is None:
        return None
    results = [per_image(evaluation, metric) for pair in pairs for evaluation in pair]
    available = [result for result in results if result is not None]
    if len(available) < len(results) or len({(images, len(values)) for images, values in available}) > 1:
        return None
    values = [values for _, values in available]
    if len(pairs) == 1:
        return metrics.paired_difference(*values)
    return metrics.paired_difference(np.mean(values[::2], axis=0), np.mean(values[1::2], axis=0))


def results(table: Table, command: str, commit: str, versions: dict[str, str], date: str | None) -> dict[str, typing.Any]:
    """Returns the table as a recorded result; entries gain `min` and `max` over seeds, and `unverified_reference`."""
    rows = [
        {
            **entry,
            "min": min(entry["values"]),
            "max": max(entry["values"]),
            **({"unverified_reference": True} if entry["metric"] in table["unverified"] else {}),
        }
        for entry in table["rows"]
    ]
    return {"command": command, "commit": commit, "versions": versions, "date": date, "rows": rows}


def to_frame(evaluations: Iterable[Evaluation]) -> pandas.DataFrame:
    """Returns a data frame with one line for every run and metric."""
    shared = ("data", "model", "method", "split", "commit")
    return pandas.DataFrame(
        [
            {"row": e["row"], "seed": e["seed"], **measured, **{name: e.get(name) for name in shared}}
            for e in evaluations
            for measured in e["rows"]
        ]
    )


def cells(table: Table) -> dict[tuple[str, str], Entry]:
    """Returns {(row, metric): entry}."""
    return {(entry["row"], entry["metric"]): entry for entry in table["rows"]}


def unadapted_cells(table: Table) -> dict[tuple[str, str], Entry]:
    """Returns {(row, metric without adaptation): entry}; the entry is with adaptation where a row was measured so alone."""
    adapted_first = sorted(table["rows"], key=lambda entry: not parse_metric(entry["metric"]).adapted)
    return {(entry["row"], parse_metric(entry["metric"]).unadapted): entry for entry in adapted_first}


def difference_of(entry: Entry) -> Difference:
    """Returns the difference to the baseline of an entry that has one."""
    if entry["difference"] is None:
        raise ValueError(f"Expected an entry that is compared with the baseline. Received: {entry['row']!r}, {entry['metric']!r}")
    return entry["difference"]


def gain(entry: Entry) -> float:
    """Returns the mean difference to the baseline, positive if it is an improvement."""
    return difference_of(entry)["mean"] * (-1 if parse_metric(entry["metric"]).lower_is_better else 1)


def difference_intervals(table: Table) -> dict[tuple[str, str], Interval]:
    """Returns {(row, metric): interval of the difference to the baseline}, without differences that have none.

    The intervals hold for all rows of a metric at once (Bonferroni): of many rows that do not differ from the baseline, the best one has
    an unadjusted interval without 0 in far more than 5 % of tables. They are Student's t over several seeds; with one pair, or equal
    differences of all seeds, paired over the images; with one pair without results of the same images Newcombe's of the two intervals.
    A difference is significant if the interval excludes 0. Equal differences of all seeds are not significant by themselves.
    """
    compared = collections.Counter(entry["metric"] for entry in table["rows"] if entry["difference"])
    by_cell, intervals = cells(table), {}
    for (row, metric), entry in by_cell.items():
        if entry["difference"] and (one := _interval(entry, by_cell[table["baseline"], metric], compared[metric])):
            intervals[row, metric] = one
    return intervals


def _interval(entry: Entry, baseline: Entry, comparisons: int) -> Interval | None:
    difference = difference_of(entry)
    images, mean, low, high = difference["images"], difference["mean"], difference["low"], difference["high"]
    degrees: float = difference["pairs"] - 1
    equal = low is not None and high is not None and high - low < _ROUNDING
    if images and (low is None or equal):
        mean, low, high, degrees, equal = images["mean"], images["low"], images["high"], images["count"] - 1, False
    elif low is None and entry["std"] is None and baseline["std"] is None:
        low, high = separate_interval(entry, baseline)
        degrees = np.inf
    if low is None or high is None:
        return None
    factor = scipy.stats.t.ppf(1 - 0.025 / comparisons, degrees) / scipy.stats.t.ppf(0.975, degrees)
    low, high = float(mean - factor * (mean - low)), float(mean + factor * (high - mean))
    return Interval(low, high, not equal and not low <= 0 <= high)


def separate_interval(first: Entry, second: Entry) -> tuple[float | None, float | None]:
    """Returns the 95 % interval of the difference of two entries that are not paired over the images.

    Over several common seeds it is Student's t of the differences; with one seed Newcombe's (1998, method 10) of the two intervals.
    """
    if len(first["values"]) > 1 and first["seeds"] == second["seeds"]:
        return t_interval([one - other for one, other in zip(first["values"], second["values"])])
    if first["low"] is None or first["high"] is None or second["low"] is None or second["high"] is None:
        return None, None
    return metrics.newcombe_interval((first["mean"], first["low"], first["high"]), (second["mean"], second["low"], second["high"]))


def _training_seconds(evaluations: Iterable[Evaluation]) -> dict[str, float]:
    """Returns {row: median training time of its runs}, without resumed runs that recorded less than a second."""
    times: dict[str, list[float]] = {}
    for evaluation in evaluations:
        if (own := evaluation.get("training", {}).get("seconds", 0)) >= 1:
            times.setdefault(evaluation["row"], []).append(own)
    return {row: float(np.median(values)) for row, values in times.items()}


def _training_ratios(evaluations: Iterable[Evaluation], times: dict[str, float], baseline: str) -> dict[str, float]:
    """Returns {row: training time relative to the baseline's}, of rows that were trained from scratch for as many steps.

    It is empty if the baseline trained for less than 30 seconds, a large part of which is spent on building graphs.
    """
    steps = dict[str, set]()
    for evaluation in evaluations:
        kind = "pretrained" if evaluation.get("method") in _PRETRAINED else evaluation.get("training", {}).get("steps")
        steps.setdefault(evaluation["row"], set()).add(kind)
    if times.get(baseline, 0.0) < _SHORTEST:
        return {}
    same = [row for row in times if steps[row] == steps[baseline] and "pretrained" not in steps[row]]
    return {row: times[row] / times[baseline] for row in same}


def _attacks(evaluations: Iterable[Evaluation]) -> dict[tuple[str, str], AttackResult]:
    """Returns {(row, metric): result} of AutoAttack and of Square alone, the first evaluation of each row."""
    found: dict[tuple[str, str], AttackResult] = {}
    for evaluation in evaluations:
        for measured in evaluation["rows"]:
            name = parse_metric(measured["metric"])
            part = (evaluation.get("card") or {}).get(name.card_family, {})
            recorded = (evaluation.get("attacks") or {}).get(str(name.plain))
            if name.card_family == "robust_square":
                recorded = {"accuracy_after": {"square": measured["value"]}, "warnings": []}
            if recorded:
                texts = [text.format(part[field]) for field, text in _BUDGET.items() if field in part]
                texts = [text.replace("(s)", "" if text.startswith("1 ") else "s") for text in texts]
                budget = ", ".join([*texts, f"{measured['count']:,} images"])
                result: AttackResult = {
                    "accuracy_after": recorded["accuracy_after"],
                    "warnings": recorded["warnings"],
                    "budget": budget,
                }
                found.setdefault((evaluation["row"], measured["metric"]), result)
    return found
