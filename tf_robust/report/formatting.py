"""The numbers of a table as text: in its cells, and as one sentence. Fractions have three decimals."""

from collections.abc import Iterable, Sequence

import numpy as np

from tf_robust.evaluation.measure import parse_measure
from tf_robust.report.table_types import Difference, Entry, Evaluation, Table
from tf_robust.report.tables import difference_of, gain, is_clear

_OTHER_UNITS = ("checks", "distance", "boundary", "utility")
_CHANGES = {
    "corruptions": "corruptions",
    "flips": "perturbations",
    "un": "noise",
    "nun": "noise",
    "robust": "attacks",
    "fgsm": "attacks",
    "distance": "attacks",
}  # family of measures: what was applied to its images
_LISTED = 3  # measures of a kind that the verdict names


def mean_and_std(mean: float, std: float | None) -> str:
    """Returns `mean ± std`, or `mean` where there is no std."""
    return f"{mean:.3f}" if std is None else f"{mean:.3f} ± {std:.3f}"


def interval(low: float | None, high: float | None, sign: str = "") -> str:
    """Returns `[low, high]`, or an empty text where there is no interval.

    Args:
        low: lower end, or None.
        high: upper end, or None.
        sign: the sign option of the format: "+" writes it always.
    """
    return "" if low is None else f"[{low:{sign}z.3f}, {high:{sign}z.3f}]"


def value_text(entry: Entry) -> str:
    """Returns `mean ± std`; with one seed `value [low, high]`."""
    text = mean_and_std(entry["mean"], entry["std"])
    return text if entry["std"] is not None else f"{text} {interval(entry['low'], entry['high'])}".rstrip()


def difference_text(difference: Difference) -> str:
    """Returns `mean [low, high]` over seeds; with one pair `mean [low, high], p = ...` over the images, or the mean alone."""
    images = difference["images"] if difference["pairs"] == 1 else None
    low, high = ((images or difference)[side] for side in ("low", "high"))
    p = f", p {_p_text(images['p'])}" if images else ""
    return f"{difference['mean']:+z.3f} {interval(low, high, '+')}".rstrip() + p


def _p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.2g}" if p < 0.1 else f"= {p:.2f}"


def marked_difference(table: Table, entry: Entry) -> str:
    """Returns the difference to the baseline; if it is significant, with a mark in front that shows whether it is better or worse."""
    mark = ("▲ " if gain(entry) > 0 else "▼ ") if is_clear(table, entry) else ""
    return mark + difference_text(difference_of(entry))


def heading(table: Table, measure: str) -> str:
    """Returns a measure's name, with a dagger if it is based on a reference table that was not verified."""
    return f"{measure}{' †' if measure in table['unverified'] else ''}"


def unverified_note(table: Table) -> str:
    """Returns the explanation of the dagger; empty if no measure has one."""
    sources = dict.fromkeys(table["unverified"].values())
    return f"† Divided by a reference network's numbers that were not verified ({'; '.join(sources)})." if sources else ""


def values_caption(table: Table) -> str:
    """Returns the meaning of the cells: means and stds over seeds or, with one seed, binomial intervals."""
    seeds = [len(entry["seeds"]) for entry in table["rows"]]
    if max(seeds) == 1:
        return "One seed; in brackets the 95% interval for the number of test images."
    alone = " A row with one seed has the 95% interval for the number of test images." if min(seeds) == 1 else ""
    return f"Mean ± sample std over {_range(seeds)} seeds.{alone}"


def difference_caption(table: Table) -> str:
    """Returns the meaning of the differences: baseline, number of pairs, kind of interval."""
    pairs = [entry["difference"]["pairs"] for entry in table["rows"] if entry["difference"]]
    if max(pairs) == 1:
        tested = any(entry["difference"]["images"] for entry in table["rows"] if entry["difference"])
        over = "mean, 95% interval and p value over the images" if tested else "there is no interval over seeds"
        return f"Difference to {table['baseline']}, one seed: {over}."
    return f"Paired difference to {table['baseline']} over {_range(pairs)} common seeds, mean and 95% t interval."


def clear_note(table: Table) -> str:
    """Returns the meaning of the marks of differences: the tests that this table has."""
    differences = [entry["difference"] for entry in table["rows"] if entry["difference"]]
    over_images = (
        "a paired test over the images gives p < 0.05 (McNemar's exact test for an accuracy on one set, the paired t-test for "
        "means over sets)"
    )
    kinds: dict[str, int] = {}
    for difference in differences:
        if difference["pairs"] > 1:
            kind = f"the interval over seeds excludes 0{f' and {over_images}' if difference['images'] else ''}"
        else:
            kind = (
                over_images
                if difference["images"]
                else (
                    "the intervals of the two values do not overlap: a weaker test, where per-image results of the same images are missing"
                )
            )
        kinds[kind] = kinds.get(kind, 0) + 1
    counted = [kind if len(kinds) == 1 else f"{kind} ({count} of {len(differences)} cells)" for kind, count in kinds.items()]
    return f"▲ better, ▼ worse: {'; '.join(counted)}. There is no correction for multiple comparisons."


def size_notes(evaluations: Iterable[Evaluation]) -> list[str]:
    """Returns sentences on the size at which noise, corruptions or attacks were applied to images, where the models take another size."""
    rows: dict[str, list[str]] = {}
    for evaluation in evaluations:
        card = evaluation.get("card") or {}
        sizes, changed = card.get("sizes"), {parse_measure(row["measure"]).family for row in evaluation["rows"]} & _CHANGES.keys()
        fit = card.get("data", {}).get("image_fit")
        if sizes and changed and (fit or sizes["corrupted_at"] != sizes["model_input"]):
            applied, model_input = ("x".join(map(str, sizes[name])) for name in ("corrupted_at", "model_input"))
            before = f", to which the image files were resized before ({fit})" if fit else ""
            after = ", and the images were resized to that after it" if applied != model_input else ""
            kinds = " and ".join(dict.fromkeys(kind for name, kind in _CHANGES.items() if name in changed))
            text = f"{kinds} were applied at {applied} pixels{before}; the network takes {model_input}{after}"
            rows.setdefault(text, []).append(evaluation["row"])
    return [f"{', '.join(dict.fromkeys(names))}: {text}." for text, names in rows.items()]


def best_cells(table: Table) -> set[tuple[str, str]]:
    """Returns the (row, measure) of each measure's best mean as printed, ties included; none where only one row was measured."""
    best: set[tuple[str, str]] = set()
    for measure in table["measures"]:
        means = {e["row"]: round(e["mean"], 3) for e in table["rows"] if e["measure"] == measure}
        top = min(means.values()) if parse_measure(measure).lower_is_better else max(means.values())
        best |= {(row, measure) for row, mean in means.items() if mean == top and len(means) > 1}
    return best


def verdict(table: Table) -> str:
    """Returns one sentence: gains and losses of the row with the largest mean gain over the headlines other than clean accuracy."""
    different = [entry for entry in table["rows"] if entry["difference"] and entry["measure"] in table["measures"]]
    compared = [entry for entry in different if entry["measure"] in table["headlines"]] or different
    if not compared:
        return _nothing_to_compare(table)
    gains = {row: _mean_gain(compared, row) for row in dict.fromkeys(entry["row"] for entry in compared)}
    row = max(gains, key=lambda row: gains[row])
    chosen = [entry for entry in compared if entry["row"] == row]
    among = f" (the largest mean gain of {len(gains)} rows)" if len(gains) > 1 else ""
    return f"Against {table['baseline']}, {row}{among} {_effects(table, chosen)} {_certainty(chosen)}."


def _nothing_to_compare(table: Table) -> str:
    first = [entry for entry in table["rows"] if entry["row"] == table["order"][0]]
    if len(table["order"]) > 1:
        return f"No row shares a measure and a seed with {table['baseline']}: there is nothing to compare."
    values = ", ".join(f"{entry['measure']} {value_text(entry)}" for entry in first[: 2 * _LISTED])
    seeds = _range([len(entry["seeds"]) for entry in first])
    return f"Only {table['order'][0]} was measured ({'one seed' if seeds == '1' else seeds + ' seeds'}): {values}."


def _mean_gain(compared: Sequence[Entry], row: str) -> float:
    """The mean over fractions; sizes and counts, which have other units, count only where there are no fractions."""
    own = [entry for entry in compared if entry["row"] == row]
    fractions = [e for e in own if parse_measure(e["measure"]).family not in _OTHER_UNITS] or own
    return float(np.mean([gain(e) for e in fractions if not parse_measure(e["measure"]).is_clean] or [gain(e) for e in fractions]))


def _effects(table: Table, chosen: Sequence[Entry]) -> str:
    """`improves un by +0.2 [...] and ...; worsens bal by ...; shows no clear difference in ...`"""
    clear = sorted((e for e in chosen if is_clear(table, e)), key=lambda e: -abs(gain(e)))
    kinds = {
        "improves": [_by(e) for e in clear if gain(e) > 0],
        "worsens": [_by(e) for e in clear if gain(e) < 0],
        "shows no clear difference in": [_unclear(e) for e in chosen if not is_clear(table, e)],
    }
    return "; ".join(f"{verb} {_join(_shorten(texts))}" for verb, texts in kinds.items() if texts)


def _by(entry: Entry) -> str:
    note = " (lower is better)" if parse_measure(entry["measure"]).lower_is_better else ""
    return f"{entry['measure']}{note} by {difference_text(difference_of(entry))}"


def _unclear(entry: Entry) -> str:
    return f"{entry['measure']} ({difference_text(difference_of(entry))})"


def _shorten(texts: list[str]) -> list[str]:
    rest = len(texts) - _LISTED
    return texts if rest <= 1 else [*texts[:_LISTED], f"{rest} more measures"]


def _join(texts: list[str]) -> str:
    if len(texts) < 3:
        return " and ".join(texts)
    return ", ".join(texts[:-1]) + ", and " + texts[-1]


def _certainty(chosen: Sequence[Entry]) -> str:
    differences = [difference_of(entry) for entry in chosen]
    pairs = [difference["pairs"] for difference in differences]
    counts = [int(difference["images"]["count"]) for difference in differences if difference["images"]]
    tested = f"paired tests over the same {_range(counts)} images" if counts else ""
    tested += f" for {len(counts)} of {len(chosen)} measures" if counts and len(counts) < len(chosen) else ""
    if max(pairs) > 1:
        return f"({_range(pairs)} seeds, 95% intervals{f' over seeds and {tested}' if tested else ''})"
    others = {len(chosen): "", 0: "no per-image results, so the two intervals are compared"}
    means = tested + others.get(len(counts), ", the others by their intervals, where they have any")
    return f"(one seed only: the variation over seeds is unknown; {means})"


def _range(counts: Sequence[int]) -> str:
    return str(max(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
