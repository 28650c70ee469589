"""Joins the evaluations of many runs to one table of rows x measures.

A *row* is a method with its settings, named after its flagfile; a *measure* is `bal`, `un`, `clean`, ...; runs of one row
differ by seed. Intervals over seeds are Student's t: they describe the variation over seeds, on one fixed test set. Where per-image
results are available, differences are also tested over the images, which both rows share.
"""

import collections
import typing
from collections.abc import Iterable, Sequence

import numpy as np
import pandas
import scipy.stats

from tf_robust import metrics
from tf_robust.evaluation import card
from tf_robust.evaluation.measure import parse_measure
from tf_robust.evaluation.per_image import OTHER_ORDER
from tf_robust.metrics.paired import PairedDifference
from tf_robust.report import attack_results, training_times
from tf_robust.report.measure_order import by_family, headlines_of, without_adaptation, without_members
from tf_robust.report.table_types import Difference, Entry, Evaluation, Paper, PerImage, Table
from tf_robust.utils.errors import unknown

BASELINES = ("xe", "cross_entropy")
_FIELD_NAMES = {
    "data.fingerprint": "the evaluated images",
    "data.pictures": "the number of images",
    "data.picture_shape": "the size of the images",
    "noise.deviations_of": "the training images whose standard deviations scale the noise, chosen by train_examples",
}  # fields of evaluation cards
_DIGESTS = ("fingerprint", "deviations_of", "surrogate", "files")  # fields whose values say nothing
LEVEL = 0.05  # of p values
_ROUNDING = 1e-9  # width of an interval of seeds whose differences are equal


def aggregate(
    evaluations: Iterable[Evaluation], paper: Paper | None = None, baseline: str | None = None, per_image: PerImage | None = None
) -> Table:
    """Joins the evaluations of runs to one table. Rows and measures keep the order in which they come.

    Args:
        evaluations: dictionaries as in `evaluation.json`, of one or more rows and seeds.
        paper: the paper's numbers, {row: {measure: [mean, std or None]}}, or None.
        baseline: the row that the others are compared with; None: `xe`, `cross_entropy`, or the first.
        per_image: function (evaluation, measure) -> (digest of the images, values [N]) or None, as `evaluation.PerImage`; None: no
            per-image results are available.

    Raises:
        ValueError: no evaluations, a missing field, a duplicate row and seed, an unknown baseline, bad numbers in `paper`;
            a measure with different evaluation cards (names the field that differs).
    """
    evaluations = list(evaluations)
    runs = _by_cell(evaluations)
    _check_cards(evaluations)
    order = list(dict.fromkeys(row for row, _ in runs))
    available = by_family(measure for _, measure in runs)
    measures = without_members(available)
    adapted = without_adaptation(measures)
    measures = [measure for measure in measures if measure not in adapted]
    headlines = headlines_of(measures, {measure for printed in (paper or {}).values() for measure in printed})
    measures = [*headlines, *(measure for measure in measures if measure not in headlines)]
    if baseline is None:
        baseline = next((name for name in BASELINES if name in order), order[0])
    if baseline not in order:
        raise unknown("baseline row", baseline, order)
    entries = [
        _entry(row, measure, runs[row, measure], _paper(paper or {}, row, measure), _difference(runs, row, measure, baseline, per_image))
        for row in order
        for measure in available
        if (row, measure) in runs
    ]
    details = [measure for measure in available if measure not in (*measures, *adapted)]
    return {
        "rows": entries,
        "order": order,
        "measures": measures,
        "headlines": headlines,
        "adapted": adapted,
        "details": details,
        "baseline": baseline,
        "unverified": _unverified(evaluations),
        "images": {measured["measure"]: measured["count"] for evaluation in evaluations for measured in evaluation["rows"]},
        "falls": _falls(evaluations, available, per_image) if len(evaluations) == 1 else {},
        "attacks": attack_results.of_evaluations(evaluations),
        "training_seconds": training_times.seconds(evaluations),
        "training_ratios": training_times.ratios(evaluations, baseline),
    }


def _unverified(evaluations: Iterable[Evaluation]) -> dict[str, str]:
    sources = {}
    for evaluation in evaluations:
        for measured in evaluation["rows"]:
            part = (evaluation.get("card") or {}).get(parse_measure(measured["measure"]).card_family, {})
            if part.get("verified") is False:
                sources[measured["measure"]] = part["source"]
    return sources


def members(table: Table) -> list[str]:
    """Returns the details that are means of one corruption or perturbation over its severities."""
    return [measure for measure in table["details"] if (name := parse_measure(measure)).severity is None and name.family != "checks"]


def _check_cards(evaluations: Iterable[Evaluation]) -> None:
    """Raises ValueError for values of one measure, with or without adaptation, that were measured in different ways."""
    firsts: dict[str, Evaluation] = {}
    for evaluation in evaluations:
        names = [one["measure"] for one in evaluation["rows"]]
        for measure in dict.fromkeys([*names, *(parse_measure(name).unadapted for name in names)]):
            first = firsts.setdefault(measure, evaluation)
            differing = card.difference(measure, first.get("card"), evaluation.get("card"))
            if differing:
                raise ValueError(
                    f"Expected {measure!r} to be measured in one way. Row {first['row']!r}, seed {first['seed']}, "
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
    """Returns {(row, measure): {seed: row of the evaluation}}."""
    runs: dict[tuple[str, str], dict[int, dict]] = {}
    for evaluation in evaluations:
        if missing := {"row", "seed", "rows"} - evaluation.keys():
            raise ValueError(f"Expected an evaluation with row, seed, rows. Missing: {sorted(missing)}")
        row, seed = evaluation["row"], evaluation["seed"]
        for measured in evaluation["rows"]:
            by_seed = runs.setdefault((row, measured["measure"]), {})
            if seed in by_seed:
                raise ValueError(
                    f"Expected one evaluation per row and seed. Received: two of {measured['measure']!r}: row {row!r}, seed {seed}"
                )
            by_seed[seed] = {**measured, "evaluation": evaluation}
    if not runs:
        raise ValueError(f"Expected evaluations with measures. Received: {len(evaluations)} evaluations without any")
    return runs


def _entry(row: str, measure: str, by_seed: dict[int, dict], paper: list | None, difference: Difference | None) -> Entry:
    seeds = sorted(by_seed)
    values = [by_seed[seed]["value"] for seed in seeds]
    low, high = t_interval(values)
    if len(values) == 1:
        low, high = (by_seed[seeds[0]].get(side) for side in ("low", "high"))
    return {
        "row": row,
        "measure": measure,
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


def _paper(paper: Paper, row: str, measure: str) -> list | None:
    printed = paper.get(row, {}).get(measure)
    if printed is not None and (not isinstance(printed, (list, tuple)) or len(printed) != 2):
        raise ValueError(f"Expected the paper's [mean, std] for {row!r}, {measure!r}. Received: {printed!r}")
    return list(printed) if printed else None


def _difference(
    runs: dict[tuple[str, str], dict[int, dict]], row: str, measure: str, baseline: str, per_image: PerImage | None
) -> Difference | None:
    ours, theirs = runs[row, measure], runs.get((baseline, measure), {})
    common = sorted(ours.keys() & theirs.keys())
    if row == baseline or not common:
        return None
    pairs = [ours[seed]["value"] - theirs[seed]["value"] for seed in common]
    low, high = t_interval(pairs)
    images = _over_images([(ours[seed]["evaluation"], theirs[seed]["evaluation"]) for seed in common], measure, per_image)
    return {"baseline": baseline, "mean": float(np.mean(pairs)), "low": low, "high": high, "pairs": len(pairs), "images": images}


def _falls(evaluations: Sequence[Evaluation], measures: Sequence[str], per_image: PerImage | None) -> dict[str, PairedDifference]:
    """Returns {measure: paired difference to the clean accuracy}, for measures of the clean images after a change."""
    clean = next((measure for measure in measures if parse_measure(measure).is_clean), None)
    if per_image is None or clean is None:
        return {}
    same_images = [measure for measure in measures if parse_measure(measure).family not in ("shift", "calibration", "aurra")]
    results = {measure: result for measure in same_images if (result := per_image(evaluations[0], measure))}
    _, expected = results.pop(clean, (None, None))
    if expected is None:
        return {}
    return {
        measure: metrics.paired_difference(values, expected)
        for measure, (images, values) in results.items()
        if len(values) == len(expected) and not images.endswith(OTHER_ORDER)
    }


def _over_images(pairs: Sequence[tuple[Evaluation, Evaluation]], measure: str, per_image: PerImage | None) -> PairedDifference | None:
    """`metrics.paired_difference` over the images that all these pairs of evaluations share, or None."""
    if per_image is None:
        return None
    results = [per_image(evaluation, measure) for pair in pairs for evaluation in pair]
    available = [result for result in results if result is not None]
    if len(available) < len(results) or len({(images, len(values)) for images, values in available}) > 1:
        return None
    values = [values for _, values in available]
    if len(pairs) == 1:
        return metrics.paired_difference(*values)
    return metrics.paired_difference(np.mean(values[::2], axis=0), np.mean(values[1::2], axis=0))


def results(table: Table, command: str, commit: str, versions: dict[str, str], date: str | None) -> dict[str, typing.Any]:
    """Returns the table as a recorded result, for `results/**/*.json`.

    Entries gain `min` and `max` over seeds, and `unverified_reference` where they are divided by a reference network's numbers that
    were not verified.

    Args:
        table: as `aggregate` returns it.
        command: the command that made the runs.
        commit: of the source tree.
        versions: {package: version}.
        date: of the latest run, or None.
    """
    rows = [
        {
            **entry,
            "min": min(entry["values"]),
            "max": max(entry["values"]),
            **({"unverified_reference": True} if entry["measure"] in table["unverified"] else {}),
        }
        for entry in table["rows"]
    ]
    return {"command": command, "commit": commit, "versions": versions, "date": date, "rows": rows}


def to_frame(evaluations: Iterable[Evaluation]) -> pandas.DataFrame:
    """Returns a data frame with one line for every run and measure.

    Args:
        evaluations: dictionaries as in `evaluation.json`.
    """
    shared = ("data", "model", "method", "split", "commit")
    return pandas.DataFrame(
        [
            {"row": e["row"], "seed": e["seed"], **measured, **{name: e.get(name) for name in shared}}
            for e in evaluations
            for measured in e["rows"]
        ]
    )


def cells(table: Table) -> dict[tuple[str, str], Entry]:
    """Returns {(row, measure): entry}."""
    return {(entry["row"], entry["measure"]): entry for entry in table["rows"]}


def unadapted_cells(table: Table) -> dict[tuple[str, str], Entry]:
    """Returns {(row, measure without adaptation): entry}; the entry is with adaptation where a row was measured so alone."""
    adapted_first = sorted(table["rows"], key=lambda entry: not parse_measure(entry["measure"]).adapted)
    return {(entry["row"], parse_measure(entry["measure"]).unadapted): entry for entry in adapted_first}


def difference_of(entry: Entry) -> Difference:
    """Returns the difference to the baseline of an entry that has one."""
    if entry["difference"] is None:
        raise ValueError(f"Expected an entry that is compared with the baseline. Received: {entry['row']!r}, {entry['measure']!r}")
    return entry["difference"]


def gain(entry: Entry) -> float:
    """Returns the mean difference to the baseline, positive if it is an improvement."""
    return difference_of(entry)["mean"] * (-1 if parse_measure(entry["measure"]).lower_is_better else 1)


def with_simultaneous_intervals(table: Table) -> Table:
    """Returns the table with intervals and p values of differences that hold for all rows of a measure at once (Bonferroni).

    Of K rows that do not differ from the baseline, the best one has an unadjusted interval without 0 in far more than 5 % of tables.
    """
    compared = collections.Counter(entry["measure"] for entry in table["rows"] if entry["difference"])
    rows: list[Entry] = [
        {**entry, "difference": _simultaneous(entry["difference"], compared[entry["measure"]]) if entry["difference"] else None}
        for entry in table["rows"]
    ]
    return {**table, "rows": rows}


def _simultaneous(difference: Difference, comparisons: int) -> Difference:
    images = difference["images"]
    if images:
        low, high = _widened(images["mean"], images["low"], images["high"], images["count"], comparisons)
        images = {**images, "low": low, "high": high, "p": min(1.0, comparisons * images["p"])}
    low, high = _widened(difference["mean"], difference["low"], difference["high"], difference["pairs"], comparisons)
    return {**difference, "low": low, "high": high, "images": images}


def _widened(mean, low, high, count, comparisons):
    if low is None or high is None:
        return low, high
    factor = scipy.stats.t.ppf(1 - 0.025 / comparisons, count - 1) / scipy.stats.t.ppf(0.975, count - 1)
    return float(mean - factor * (mean - low)), float(mean + factor * (high - mean))


def is_clear(table: Table, entry: Entry) -> bool:
    """Returns whether the difference to the baseline is significant at the 5 % level.

    Over several seeds: if its interval over seeds excludes 0 and, where per-image results are available, the test over the images
    agrees; equal differences of all seeds are not significant by themselves. With one pair: by the test over the images or, without
    per-image results, if the intervals of the two values do not overlap.
    """
    difference, reference = difference_of(entry), cells(table)[table["baseline"], entry["measure"]]
    over_images = difference["images"] is None or difference["images"]["p"] < LEVEL
    if difference["low"] is not None and difference["high"] is not None:
        if difference["high"] - difference["low"] < _ROUNDING and difference["images"] is None:
            return False
        return over_images and not difference["low"] <= 0 <= difference["high"]
    if difference["images"]:
        return over_images
    low, high, reference_low, reference_high = entry["low"], entry["high"], reference["low"], reference["high"]
    if low is None or high is None or reference_low is None or reference_high is None:
        return False
    return low > reference_high or high < reference_low
