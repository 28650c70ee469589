"""Joins the evaluations of many runs to one table of rows x metrics, and orders its metrics.

A *row* is a method with its settings, named after its flagfile; a *metric* is `bal`, `un`, `clean`, ...; runs of one row differ by seed.
Intervals over seeds are Student's t: they describe the variation over seeds, on one fixed test set. Where results per image are
available, the interval of a difference has the variation over the images too, which both rows share.
"""

import collections
import dataclasses
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import pandas
import scipy.stats

from tf_robust import metrics
from tf_robust.evaluation import card
from tf_robust.evaluation.metric_value import CORRUPTION_FAMILIES, MetricValue, parse_metric
from tf_robust.evaluation.values import OTHER_ORDER
from tf_robust.metrics.paired import PairedDifference
from tf_robust.utils.errors import unknown

Evaluation = Mapping[str, typing.Any]  # the content of `evaluation.json`
Paper = Mapping[str, Mapping[str, Sequence]]  # {row: {metric: [mean, std or None]}}
PerImage = Callable[[Evaluation, str], tuple[str, np.ndarray] | None]  # (evaluation, metric) -> (digest of the images, values [N])
Key: typing.TypeAlias = tuple[str, str]  # row, metric
Ends: typing.TypeAlias = tuple[float | None, float | None]  # of a 95 % interval; (None, None): there is none


class PairedSeeds(typing.TypedDict):
    """The paired difference of a row to the baseline over common seeds, as in `results.json`."""

    baseline: str  # name of the row
    mean: float
    low: float | None  # lower end of the 95 % t interval; None with one pair
    high: float | None
    pairs: int  # number of common seeds
    images: PairedDifference | None  # of the means over common seeds; None without results of the same images


class Entry(typing.TypedDict):
    """One metric of one row."""

    row: str
    metric: str  # name of the metric
    values: list[float]  # one for each seed
    seeds: list[int]  # sorted
    mean: float
    std: float | None  # sample standard deviation over seeds; None with one seed
    low: float | None  # lower end of the 95 % interval: of the mean over seeds, or with one seed binomial
    high: float | None
    paper: list | None  # the paper's mean and its std or None
    difference: PairedSeeds | None  # to the baseline; None if there is nothing to compare


class Difference(typing.NamedTuple):
    """A difference to the baseline, or of one model to clean images, with the 95 % interval that holds for all rows at once."""

    mean: float
    low: float | None  # None: there is no interval
    high: float | None
    significant: bool  # whether the interval excludes 0
    gain: float  # the mean, positive if it is an improvement
    pairs: int = 1  # number of common seeds
    num_images: int | None = None  # over which it is paired; None: it is not


class Table(typing.TypedDict):
    """Rows x metrics.

    Examples:
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> table = tfr.report.aggregate([result.evaluation])
        >>> table["order"], table["metrics"], table["images"]
        (['lenet_augmix'], ['clean', 'clean/per_class'], {'clean': 100, 'clean/per_class': 100})
        >>> round(table["cells"]["lenet_augmix", "clean"]["mean"], 2)
        0.97
    """

    cells: dict[Key, Entry]  # of every row and metric that was measured
    order: list[str]  # names of the rows
    metrics: list[str]  # names of the metrics, headlines first
    headlines: list[str]  # of a family with many metrics those that summarize it, metrics that the paper printed, and all others
    adapted: dict[str, str]  # {metric with test-time adaptation: the same without}, where both were measured; in none of the others
    details: list[str]  # metrics of one corruption, severity or perturbation, where others summarize them
    baseline: str  # name of the row
    differences: dict[Key, Difference]  # to the baseline, of the cells that can be compared
    unverified: dict[str, str]  # {metric: source of the reference table that it is divided by, if that was not compared with its source}
    images: dict[str, int]  # {metric: number of images}
    falls: dict[str, PairedDifference]  # {metric: paired difference to the clean accuracy over the images}, of a single evaluation
    attacks: dict[Key, Mapping]  # results of AutoAttack or Square alone, first evaluation of each row
    training_seconds: dict[str, float]  # {row: median time of its trainings}, without rows whose time was not recorded
    training_ratios: dict[str, float]  # {row: training time relative to the baseline's}, of rows trained from scratch for as many steps


BASELINES = ("xe", "cross_entropy")
ADAPTED = ", adapted"  # at the end of the name of a row that was measured with adaptation
KINDS = ("corruptions", "noise", "attacks", "shifts")  # changes of images by which models are compared
_FIELD_NAMES = {
    "data.fingerprint": "the evaluated images",
    "data.num_images": "the number of images",
    "data.image_shape": "the size of the images",
    "noise.std_from": "the training images whose standard deviations scale the noise, chosen by train_examples",
}  # fields of evaluation cards
_DIGESTS = ("fingerprint", "std_from", "surrogate", "files")  # fields whose values say nothing
_ROUNDING = 1e-9  # of a mean of many numbers
_PRETRAINED = ("linear_probe", "finetune", "l2_sp", "similarity")  # methods whose training time is only that of the last stage
_MIN_SECONDS = 30.0  # of a training that is compared; in shorter ones building the graphs takes a large part of the time
_BUDGET = {"steps": "steps", "restarts": "restart(s)", "target_classes": "target classes", "queries": "queries of Square"}  # in cards


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
        ValueError: no evaluations, a duplicate row and seed, an unknown baseline; a metric with different evaluation cards (names the
            field that differs).

    Examples:
        >>> names = ("lenet_cross_entropy", "lenet_augmix")
        >>> results = [tfr.evaluate(f"zoo:digits/{name}", evaluations="clean", subset=100) for name in names]
        >>> table = tfr.report.aggregate([result.evaluation for result in results], baseline="lenet_cross_entropy")
        >>> table["order"], table["headlines"]
        (['lenet_cross_entropy', 'lenet_augmix'], ['clean'])
        >>> round(table["differences"]["lenet_augmix", "clean"].mean, 3)
        0.01
    """
    evaluations, paper = list(evaluations), paper or {}
    runs = _by_cell(evaluations)
    _check_cards(evaluations)
    order = list(dict.fromkeys(row for row, _ in runs))
    available, names, headlines, adapted = choose_metrics(
        (metric for _, metric in runs), {metric for of_row in paper.values() for metric in of_row}
    )
    if baseline is None:
        baseline = next((name for name in BASELINES if name in order), order[0])
    if baseline not in order:
        raise unknown("baseline row", baseline, order)
    cells = {
        (row, metric): _entry(row, metric, runs, paper.get(row, {}).get(metric), baseline, per_image)
        for row in order
        for metric in available
        if (row, metric) in runs
    }
    seconds, ratios = _training_times(evaluations, baseline)
    return {
        "cells": cells,
        "order": order,
        "metrics": names,
        "headlines": headlines,
        "adapted": adapted,
        "details": [metric for metric in available if metric not in (*names, *adapted)],
        "baseline": baseline,
        "differences": _differences(cells, baseline),
        "unverified": {
            measured["metric"]: part["source"] for _, measured, _, part in _measured(evaluations) if part.get("verified") is False
        },
        "images": {measured["metric"]: measured["count"] for _, measured, _, _ in _measured(evaluations)},
        "falls": _falls(evaluations[0], available, per_image) if len(evaluations) == 1 else {},
        "attacks": _attacks(evaluations),
        "training_seconds": seconds,
        "training_ratios": ratios,
    }


def _measured(evaluations: Iterable[Evaluation]):
    """Yields (evaluation, one of its rows, parsed name of the metric, part of the card that the metric depends on)."""
    for evaluation in evaluations:
        for measured in evaluation["rows"]:
            name = parse_metric(measured["metric"])
            yield evaluation, measured, name, (evaluation.get("card") or {}).get(name.card_family, {})


def _by_cell(evaluations: Sequence[Evaluation]) -> dict[Key, dict[int, dict]]:
    """Returns {(row, metric): {seed: row of the evaluation}}."""
    runs: dict[Key, dict[int, dict]] = {}
    for evaluation in evaluations:
        row, seed = evaluation["row"], evaluation["seed"]
        for measured in evaluation["rows"]:
            by_seed = runs.setdefault((row, measured["metric"]), {})
            if seed in by_seed:
                raise ValueError(
                    f"Expected one evaluation per row and seed. Received: two of {measured['metric']!r}: row {row!r}, seed {seed}"
                )
            by_seed[seed] = {**measured, "evaluation": evaluation}
    if not runs:
        raise ValueError(f"Expected evaluations with metrics. Received: {len(evaluations)} without any")
    return runs


def _check_cards(evaluations: Iterable[Evaluation]) -> None:
    """Raises ValueError for values of one metric, with or without adaptation, that were measured in different ways."""
    firsts: dict[str, Evaluation] = {}
    for evaluation in evaluations:
        names = [one["metric"] for one in evaluation["rows"]]
        for metric in dict.fromkeys([*names, *(parse_metric(name).unadapted for name in names)]):
            first, texts = firsts.setdefault(metric, evaluation), []
            for field, one, other in card.difference(metric, first.get("card"), evaluation.get("card")):
                values = "" if field.rpartition(".")[2] in _DIGESTS else f"{one} and {other}"
                details = ": ".join(filter(None, [field if field in _FIELD_NAMES else "", values]))
                texts.append(_FIELD_NAMES.get(field, field) + (f" ({details})" if details else ""))
            if texts:
                raise ValueError(
                    f"Expected {metric!r} to be measured in one way. Row {first['row']!r}, seed {first['seed']}, and row "
                    f"{evaluation['row']!r}, seed {evaluation['seed']}, differ in {', '.join(texts)}. Try: evaluate both with the same "
                    "data and options (tf-robust evaluate, with a --workdir each), or report them separately"
                )


def _entry(row: str, metric: str, runs: Mapping, paper: Sequence | None, baseline: str, per_image: PerImage | None) -> Entry:
    by_seed = runs[row, metric]
    seeds = sorted(by_seed)
    values = [by_seed[seed]["value"] for seed in seeds]
    one_seed = len(seeds) == 1
    low, high = (by_seed[seeds[0]].get(side) for side in ("low", "high")) if one_seed else t_interval(values)
    return {
        "row": row,
        "metric": metric,
        "values": values,
        "seeds": seeds,
        "mean": float(np.mean(values)),
        "std": None if one_seed else float(np.std(values, ddof=1)),
        "low": low,
        "high": high,
        "paper": list(paper) if paper else None,
        "difference": _pair(by_seed, runs.get((baseline, metric), {}), metric, baseline, per_image) if row != baseline else None,
    }


def t_interval(values: Sequence[float]) -> Ends:
    """Returns the 95 % t interval of the mean as (low, high), or (None, None) with fewer than two values."""
    if len(values) < 2:
        return None, None
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)


def _pair(ours: Mapping, theirs: Mapping, metric: str, baseline: str, per_image: PerImage | None) -> PairedSeeds | None:
    """Returns the difference of the runs of a row, {seed: row of the evaluation}, to those of the baseline."""
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    pairs = [ours[seed]["value"] - theirs[seed]["value"] for seed in common]
    low, high = t_interval(pairs)
    images = None
    if per_image:
        found = [per_image(of_row[seed]["evaluation"], metric) for of_row in (ours, theirs) for seed in common]
        known = [one for one in found if one is not None]
        if len(known) == len(found) and len({(digest, len(values)) for digest, values in known}) == 1:
            first, second = known[: len(common)], known[len(common) :]
            images = metrics.paired_difference(*(_mean_of([values for _, values in of_row]) for of_row in (first, second)))
    return {"baseline": baseline, "mean": float(np.mean(pairs)), "low": low, "high": high, "pairs": len(pairs), "images": images}


def _mean_of(values: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the mean over seeds, [N]; with one seed the values, whose type matters: bool are tested as paired proportions."""
    return values[0] if len(values) == 1 else np.mean(values, axis=0)


def _falls(evaluation: Evaluation, names: Sequence[str], per_image: PerImage | None) -> dict[str, PairedDifference]:
    """Returns {metric: paired difference to the clean accuracy}, for metrics of the clean images after a change."""
    clean = next((metric for metric in names if parse_metric(metric).is_clean), None)
    if per_image is None or clean is None or (expected := per_image(evaluation, clean)) is None:
        return {}
    same_images = [name for name in names if name != clean and parse_metric(name).family not in ("shift", "calibration", "aurra")]
    results = {metric: result for metric in same_images if (result := per_image(evaluation, metric))}
    return {
        metric: metrics.paired_difference(values, expected[1])
        for metric, (images, values) in results.items()
        if len(values) == len(expected[1]) and not images.endswith(OTHER_ORDER)
    }


def _differences(cells: Mapping[Key, Entry], baseline: str) -> dict[Key, Difference]:
    """Returns the differences to the baseline with their intervals.

    A mean varies with the seeds and with the images: the half-widths of the t intervals over both are added in quadrature. Where there is
    one pair, or no results of the same images, the other interval stands alone; without both it is Newcombe's of the two rows' intervals.
    Intervals hold for all rows of a metric at once (Bonferroni): of many rows that do not differ from the baseline, the best one has
    an unadjusted interval without 0 in far more than 5 % of tables. A difference is significant if the interval excludes 0; differences
    that are equal for all seeds are not, unless there are results of the same images.
    """
    comparisons = collections.Counter(entry["metric"] for entry in cells.values() if entry["difference"])
    found = {}
    for (row, metric), entry in cells.items():
        if (paired := entry["difference"]) is None:
            continue
        mean, images = paired["mean"], paired["images"]
        parts = [(paired["mean"], paired["low"], paired["high"], paired["pairs"] - 1)]  # mean, interval, degrees of freedom
        if images:
            parts.append((images["mean"], images["low"], images["high"], images["count"] - 1))
        elif paired["low"] is None and entry["std"] is None and cells[baseline, metric]["std"] is None:
            parts = [(mean, *separate_interval(entry, cells[baseline, metric]), np.inf)]
        halves = []  # of each part: below and above the mean
        for middle, low, high, degrees in parts:
            if low is not None and high is not None:
                factor = scipy.stats.t.ppf(1 - 0.025 / comparisons[metric], degrees) / scipy.stats.t.ppf(0.975, degrees)
                halves.append((factor * (middle - low), factor * (high - middle)))
        low = high = None
        if halves:
            below, above = np.linalg.norm(halves, axis=0)
            low, high = float(mean - below), float(mean + above)
        significant = False
        if low is not None and high is not None:
            significant = (low > _ROUNDING or high < -_ROUNDING) and (images is not None or high - low > _ROUNDING)
        gain = mean * (-1 if parse_metric(metric).lower_is_better else 1)
        found[row, metric] = Difference(mean, low, high, significant, gain, paired["pairs"], images["count"] if images else None)
    return found


def fall(table: Table, row: str, clean: str, metric: str) -> Difference:
    """Returns the difference of a metric to the clean accuracy: paired over the images of a single evaluation, else separate."""
    entry, reference = table["cells"][row, metric], table["cells"][row, clean]
    images, mean = table["falls"].get(metric), entry["mean"] - reference["mean"]
    low, high = (images["low"], images["high"]) if images else separate_interval(entry, reference)
    significant = low is not None and high is not None and (low > _ROUNDING or high < -_ROUNDING)
    return Difference(mean, low, high, significant, mean)


def separate_interval(first: Entry, second: Entry) -> Ends:
    """Returns the 95 % interval of the difference of two entries that are not paired over the images.

    Over several common seeds it is Student's t of the differences; with one seed Newcombe's (1998, method 10) of the two intervals.
    """
    if len(first["values"]) > 1 and first["seeds"] == second["seeds"]:
        return t_interval([one - other for one, other in zip(first["values"], second["values"])])
    if first["low"] is None or first["high"] is None or second["low"] is None or second["high"] is None:
        return None, None
    return metrics.newcombe_interval((first["mean"], first["low"], first["high"]), (second["mean"], second["low"], second["high"]))


def results(table: Table, command: str, commit: str, versions: dict[str, str], date: str | None) -> dict[str, typing.Any]:
    """Returns the table as a recorded result; entries gain `min` and `max` over seeds, and `unverified_reference`."""
    rows: list[dict] = [{**entry, "min": min(entry["values"]), "max": max(entry["values"])} for entry in table["cells"].values()]
    for row in rows:
        if row["metric"] in table["unverified"]:
            row["unverified_reference"] = True
    return {"command": command, "commit": commit, "versions": versions, "date": date, "rows": rows}


def to_frame(evaluations: Iterable[Evaluation]) -> pandas.DataFrame:
    """Returns a data frame with one line for every run and metric."""
    shared = ("data", "model", "method", "split", "commit")
    return pandas.DataFrame(
        {"row": e["row"], "seed": e["seed"], **measured, **{name: e.get(name) for name in shared}}
        for e in evaluations
        for measured in e["rows"]
    )


def _training_times(evaluations: Iterable[Evaluation], baseline: str) -> tuple[dict[str, float], dict[str, float]]:
    """Returns {row: median seconds of its trainings}, and the ratios to the baseline of rows trained from scratch for as many steps.

    Resumed runs that recorded less than a second are left out. There are no ratios if the baseline trained for less than 30 seconds.
    """
    times: dict[str, list[float]] = {}
    kinds: dict[str, set] = {}
    for evaluation in evaluations:
        row, training = evaluation["row"], evaluation.get("training", {})
        if (own := training.get("seconds", 0)) >= 1:
            times.setdefault(row, []).append(own)
        kinds.setdefault(row, set()).add("pretrained" if evaluation.get("method") in _PRETRAINED else training.get("steps"))
    seconds = {row: float(np.median(values)) for row, values in times.items()}
    if seconds.get(baseline, 0.0) < _MIN_SECONDS:
        return seconds, {}
    same = [row for row in seconds if kinds[row] == kinds[baseline] and "pretrained" not in kinds[row]]
    return seconds, {row: seconds[row] / seconds[baseline] for row in same}


def _attacks(evaluations: Iterable[Evaluation]) -> dict[Key, Mapping]:
    """Returns {(row, metric): result} of AutoAttack and of Square alone, the first evaluation of each row.

    A result is {"accuracy_after": {"clean" or member: accuracy after it and those before it}, "warnings": [...], "budget": in words}.
    """
    found: dict[Key, Mapping] = {}
    for evaluation, measured, name, settings in _measured(evaluations):
        result = (evaluation.get("attacks") or {}).get(str(name.plain))
        if name.card_family == "robust_square":
            result = {"accuracy_after": {"square": measured["value"]}, "warnings": []}
        if result:
            texts = [f"{settings[field]:,} {text}" for field, text in _BUDGET.items() if field in settings]
            budget = ", ".join([*texts, f"{measured['count']:,} images"])
            found.setdefault((evaluation["row"], measured["metric"]), {**result, "budget": budget})
    return found


def choose_metrics(found: Iterable[str], printed: Collection[str] = ()) -> tuple[list[str], list[str], list[str], dict[str, str]]:
    """Returns all metrics, those of a family together; the main ones; of these the headlines; {metric with adaptation: the same without}.

    A metric of one corruption, perturbation, class, ... is no main one. A corruption of which no mean was measured (a corrupted set on disk
    may lack others) stays: its mean over severities, if it has one. A metric with adaptation is none if it was measured without too.
    Headlines come first: those of a family that summarize it, of a family without such all, and what the paper printed.
    """
    families: dict[tuple[str, str], dict[str, MetricValue]] = {}
    for metric in found:
        name = parse_metric(metric)
        families.setdefault((name.prefix, name.family), {})[metric] = name
    names = {metric: name for members in families.values() for metric, name in members.items()}
    main = [metric for metric, name in names.items() if not name.is_member or _stands_alone(name, names)] or [*names]
    adapted = without_adaptation(main)
    main = [metric for metric in main if metric not in adapted]
    first = [metric for metric in main if _is_headline(names[metric])]
    summarized = {(names[metric].family, names[metric].prefix) for metric in first}
    headlines = [m for m in main if m in printed or m in first or (names[m].family, names[m].prefix) not in summarized]
    return [*names], [*headlines, *(metric for metric in main if metric not in headlines)], headlines, adapted


def without_adaptation(names: Sequence[str]) -> dict[str, str]:
    """Returns {metric with adaptation: the same without} of those measured both ways."""
    return {name: parsed.unadapted for name in names if (parsed := parse_metric(name)).adapted and parsed.unadapted in names}


def _stands_alone(member: MetricValue, names: Mapping[str, MetricValue]) -> bool:
    """Whether a metric is of a corruption that no measured mean contains."""
    over_severities = str(dataclasses.replace(member, severity=None))
    if member.family not in CORRUPTION_FAMILIES or (member.severity and over_severities in names):
        return False
    means = [name for name in names.values() if (name.prefix, name.family) == (member.prefix, member.family) and not name.is_member]
    return not any(_is_headline(mean) or member.name in metrics.MEANS.get(mean.name, ()) for mean in means)


def _is_headline(metric: MetricValue) -> bool:
    return metric.entry.metric.headline and not metric.is_member


def kinds_of_robustness(table: Table) -> dict[str, str]:
    """Returns {one of `KINDS`: a headline that is an accuracy on such images}, of those that were measured.

    It is the first one; if any can be compared with the baseline, the first of these. Of attacks it is the one with the lowest mean
    accuracy, since the strongest attack counts, within the radius at which that is nearest to one half, since there models differ most.
    """
    compared = {metric for _, metric in table["differences"]}
    by_kind: dict[str, list[str]] = {}
    for metric in sorted(table["headlines"], key=lambda metric: metric not in compared):
        entry = parse_metric(metric).entry
        if entry.images:
            by_kind.setdefault(entry.metric.change, []).append(metric)
    first = {kind: by_kind[kind][0] for kind in KINDS if kind in by_kind}
    if attack := first.get("attacks"):
        means: dict[str, dict[str, float]] = {}  # {threat: {metric: its mean over rows}}
        for metric in by_kind["attacks"]:
            if (metric in compared) == (attack in compared):
                mean = np.mean([entry["mean"] for (_, other), entry in table["cells"].items() if other == metric])
                means.setdefault(_threat(metric), {})[metric] = float(mean)
        strongest = [min(of_threat.items(), key=lambda item: item[1]) for of_threat in means.values()]
        first["attacks"] = min(strongest, key=lambda item: abs(item[1] - 0.5))[0]
    return first


def _threat(metric: str) -> str:
    """Returns norm and radius of the metric of an attack: l2_0.5."""
    found = re.search(r"(l2|linf)_.*$", metric)
    return found[0] if found else ""
