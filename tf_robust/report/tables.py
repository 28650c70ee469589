"""Evaluations of many runs -> one table of rows x measures, and what it says in words.

A *row* is a method with its settings, named as its flagfile; a *measure* is `bal`, `un`, `clean`, ...; runs of one row
differ by seed. Intervals over seeds are Student's t: they hold the variation over seeds, on one fixed test set. Where per-image results
are at hand, differences are also tested over the images, which both rows share.
"""

import dataclasses

import numpy as np
import pandas
import scipy.stats

from tf_robust import metrics
from tf_robust.evaluation import card
from tf_robust.evaluation.measure import parse_measure
from tf_robust.utils.errors import unknown

BASELINES = ("xe", "cross_entropy")
LEVEL = 0.05  # of p values
_HEADLINES = {"corruptions": ("mean15", "mce"), "flips": ("mean", "mfr"), "calibration": ("rms",)}


def aggregate(evaluations, paper=None, baseline=None, per_image=None):
    """Joins the evaluations of runs to one table.

    Args:
        evaluations: dicts as in `evaluation.json`, of one or more rows and seeds.
        paper: {row: {measure: [mean, std or None]}}, or None.
        baseline: the row that the others are compared with; by default `xe`, `cross_entropy`, or the first.
        per_image: (evaluation, measure) -> (digest of the images, values [N]) or None, as `evaluation.PerImage`; None: none are at hand.

    Returns:
        {"rows": [entry], "order": [row names], "measures": [names], "headlines": [names], "details": [names], "baseline": name,
        "unverified": {measure: source of the reference table that it is divided by, where that was not compared with its source}};
        rows stand in the order in which they come, measures too, behind the headlines: of a family with many measures those that
        stand for it, what the paper printed, and all others. Details are the measures of one corruption, severity or perturbation,
        where others sum them up. An entry has `row`, `measure`, `values` and `seeds` (sorted by seed), `mean`, `std`
        (sample deviation; None with one seed), `paper`, `low` and `high` (95 %: of the mean over seeds; with one seed
        binomial), `difference`: None or {"baseline", "mean", "low", "high", "pairs", "images"}, paired over common seeds (`low`
        and `high` are None with one pair); `images`: `metrics.paired_difference` over the images, of the means over common seeds, or
        None where per-image results of the same images are not at hand.

    Raises:
        ValueError: no evaluations, a missing field, a row and seed twice, an unknown baseline, bad numbers in `paper`;
            a measure that was taken with different evaluation cards (names the field that differs).
    """
    evaluations = list(evaluations)
    found = _by_cell(evaluations)
    _check_cards(evaluations)
    order = list(dict.fromkeys(row for row, _ in found))
    taken = list(dict.fromkeys(measure for _, measure in found))
    measures = [measure for measure in taken if not parse_measure(measure).is_member] or taken
    headlines = _headlines(measures, {measure for printed in (paper or {}).values() for measure in printed})
    measures = [*headlines, *(measure for measure in measures if measure not in headlines)]
    if baseline is None:
        baseline = next((name for name in BASELINES if name in order), order[0])
    if baseline not in order:
        raise unknown("baseline row", baseline, order)
    entries = [{**_entry(row, measure, found[row, measure]), "paper": _paper(paper or {}, row, measure),
                "difference": _difference(found, row, measure, baseline, per_image)}
               for row in order for measure in taken if (row, measure) in found]
    details = [measure for measure in taken if measure not in measures]
    return {"rows": entries, "order": order, "measures": measures, "headlines": headlines, "details": details, "baseline": baseline,
            "unverified": _unverified(evaluations)}


def _unverified(evaluations):
    found = {}
    for evaluation in evaluations:
        for measured in evaluation["rows"]:
            part = (evaluation.get("card") or {}).get(parse_measure(measured["measure"]).card_family, {})
            if part.get("verified") is False:
                found[measured["measure"]] = part["source"]
    return found


def members(table):
    """Returns the details that are of one corruption or perturbation, over its severities."""
    return [measure for measure in table["details"] if parse_measure(measure).severity is None and parse_measure(measure).family != "checks"]


def _headlines(measures, printed):
    """The measures that a reader looks for first; of a family whose headlines were not taken, all."""
    def family_of(measure):
        return dataclasses.replace(parse_measure(measure), name="", severity=None)

    def heads(measure):
        name = parse_measure(measure)
        return name.name in _HEADLINES.get(name.family, ())
    families = {family_of(measure) for measure in measures if heads(measure)}
    return [measure for measure in measures if measure in printed or family_of(measure) not in families or heads(measure)]


def _check_cards(evaluations):
    """What was measured otherwise cannot stand in one column."""
    firsts = {}
    for evaluation in evaluations:
        for measured in evaluation["rows"]:
            first = firsts.setdefault(measured["measure"], evaluation)
            differing = card.difference(measured["measure"], first.get("card"), evaluation.get("card"))
            if differing:
                raise ValueError(
                    f"Expected {measured['measure']!r} to be measured in one way. Row {first['row']!r}, seed {first['seed']}, "
                    f"and row {evaluation['row']!r}, seed {evaluation['seed']}, differ in "
                    + ", ".join(f"{field} ({here} and {there})" for field, here, there in differing)
                    + ". Measure one of them again with --mode=evaluate, or report them apart")


def _by_cell(evaluations):
    """{(row, measure): {seed: row of the evaluation}}"""
    found = {}
    for evaluation in evaluations:
        if missing := {"row", "seed", "rows"} - evaluation.keys():
            raise ValueError(f"Expected an evaluation with row, seed, rows. Missing: {sorted(missing)}")
        row, seed = evaluation["row"], evaluation["seed"]
        for measured in evaluation["rows"]:
            by_seed = found.setdefault((row, measured["measure"]), {})
            if seed in by_seed:
                raise ValueError(f"Expected one evaluation a row and seed. Received two of {measured['measure']!r}: row {row!r}, "
                                 f"seed {seed}")
            by_seed[seed] = {**measured, "evaluation": evaluation}
    if not found:
        raise ValueError(f"Expected evaluations with measures. Received: {len(evaluations)} evaluations without any")
    return found


def _entry(row, measure, by_seed):
    seeds = sorted(by_seed)
    values = [by_seed[seed]["value"] for seed in seeds]
    low, high = t_interval(values)
    if len(values) == 1:
        low, high = (by_seed[seeds[0]].get(side) for side in ("low", "high"))
    return {"row": row, "measure": measure, "values": values, "seeds": seeds, "mean": float(np.mean(values)),
            "std": float(np.std(values, ddof=1)) if len(values) > 1 else None, "low": low, "high": high}


def t_interval(values):
    """The 95 % t interval of the mean: (low, high), or (None, None) with fewer than two values."""
    if len(values) < 2:
        return None, None
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)


def _paper(paper, row, measure):
    printed = paper.get(row, {}).get(measure)
    if printed is not None and (not isinstance(printed, (list, tuple)) or len(printed) != 2):
        raise ValueError(f"Expected the paper's [mean, std] for {row!r}, {measure!r}. Received: {printed!r}")
    return printed and list(printed)


def _difference(found, row, measure, baseline, per_image):
    ours, theirs = found[row, measure], found.get((baseline, measure), {})
    common = sorted(ours.keys() & theirs.keys())
    if row == baseline or not common:
        return None
    pairs = [ours[seed]["value"] - theirs[seed]["value"] for seed in common]
    low, high = t_interval(pairs)
    images = per_image and _over_images([(ours[seed]["evaluation"], theirs[seed]["evaluation"]) for seed in common], measure, per_image)
    return {"baseline": baseline, "mean": float(np.mean(pairs)), "low": low, "high": high, "pairs": len(pairs), "images": images or None}


def _over_images(pairs, measure, per_image):
    """`metrics.paired_difference` over the images that all these pairs of evaluations share, or None."""
    results = [per_image(evaluation, measure) for pair in pairs for evaluation in pair]
    if any(result is None for result in results) or len({(images, len(values)) for images, values in results}) > 1:
        return None
    values = [values for _, values in results]
    if len(pairs) == 1:
        return metrics.paired_difference(*values)
    return metrics.paired_difference(np.mean(values[::2], axis=0), np.mean(values[1::2], axis=0))


def results(table, command, commit, versions, date):
    """The table as a recorded result, for `results/**/*.json`; entries gain `min` and `max` over seeds, and
    `unverified_reference` where they are divided by a reference network's numbers that were not verified."""
    rows = [{**entry, "min": min(entry["values"]), "max": max(entry["values"]),
             **({"unverified_reference": True} if entry["measure"] in table["unverified"] else {})} for entry in table["rows"]]
    return {"command": command, "commit": commit, "versions": versions, "date": date, "rows": rows}


def to_frame(evaluations):
    """A line for every run and measure: a `pandas.DataFrame`.

    Args:
        evaluations: as `evaluation.json`.
    """
    shared = ("data", "model", "method", "split", "commit")
    return pandas.DataFrame([{"row": e["row"], "seed": e["seed"], **measured, **{name: e.get(name) for name in shared}}
                             for e in evaluations for measured in e["rows"]])


def cells(table):
    """{(row, measure): entry}"""
    return {(entry["row"], entry["measure"]): entry for entry in table["rows"]}


def gain(entry):
    """The mean difference to the baseline, positive where it is an improvement."""
    return entry["difference"]["mean"] * (-1 if parse_measure(entry["measure"]).lower_is_better else 1)


def is_clear(table, entry):
    """Whether the difference to the baseline is outside chance, at the level of 5 %.

    Over seeds: its interval over seeds excludes 0 and, where per-image results are at hand, so does the test over the images. With one
    pair: by the test over the images or, without per-image results, if the two values' own intervals do not overlap.
    """
    difference, reference = entry["difference"], cells(table)[table["baseline"], entry["measure"]]
    over_images = difference["images"] is None or difference["images"]["p"] < LEVEL
    if difference["low"] is not None:
        return over_images and not difference["low"] <= 0 <= difference["high"]
    if difference["images"]:
        return over_images
    if entry["low"] is None or reference["low"] is None:
        return False
    return entry["low"] > reference["high"] or entry["high"] < reference["low"]
