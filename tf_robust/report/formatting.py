"""The numbers and names of a table as text. Fractions have three decimals."""

from collections.abc import Sequence

from tf_robust.evaluation.measure import describe, parse_measure
from tf_robust.report.table_types import Difference, Entry, Table
from tf_robust.report.tables import difference_of, gain, is_clear


def value(number: float, sign: str = "") -> str:
    """Returns a number with three decimals; a large one, such as a size in bytes, without.

    Args:
        number: the value.
        sign: the sign option of the format.
    """
    return f"{number:{sign}z.3f}" if abs(number) < 10000 else f"{number:{sign},.0f}"


def mean_and_std(mean: float, std: float | None) -> str:
    """Returns `mean ± std`, or `mean` where there is no std."""
    return value(mean) if std is None else f"{value(mean)} ± {std:.3f}"


def interval(low: float | None, high: float | None, sign: str = "", decimals: int = 3) -> str:
    """Returns `[low, high]`, or an empty text where there is no interval.

    Args:
        low: lower end, or None.
        high: upper end, or None.
        sign: the sign option of the format: "+" writes it always.
        decimals: of both ends; one or two more where an end that is not 0 would be printed as 0 otherwise.
    """
    if low is None or high is None:
        return ""
    shown = next((n for n in (decimals, decimals + 1) if all(round(end, n) or not end for end in (low, high))), decimals + 2)
    return f"[{low:{sign}z.{shown}f}, {high:{sign}z.{shown}f}]"


def value_uncertainty(entry: Entry) -> str:
    """Returns `± std`; with one seed `[low, high]`, or an empty text where there is no interval."""
    return interval(entry["low"], entry["high"]) if entry["std"] is None else f"± {entry['std']:.3f}"


def spread(entry: Entry) -> tuple[float | None, float | None]:
    """Returns `(mean - std, mean + std)` over seeds; with one seed the ends of its interval, or (None, None)."""
    std = entry["std"]
    return (entry["low"], entry["high"]) if std is None else (entry["mean"] - std, entry["mean"] + std)


def spread_caption(table: Table) -> str:
    """Returns the meaning of the ends of `spread`, for captions of charts."""
    alone = [entry["std"] is None for entry in table["rows"]]
    return "95% interval" if all(alone) else "sample std over seeds, or 95% interval" if any(alone) else "sample std over seeds"


def paired_interval(difference: Difference) -> tuple[float | None, float | None]:
    """Returns the 95 % interval of a difference: over seeds, with one pair over the images, or (None, None)."""
    over = (difference["images"] if difference["pairs"] == 1 else None) or difference
    return over["low"], over["high"]


def difference_uncertainty(difference: Difference) -> str:
    """Returns `[low, high]` over seeds; with one pair `[low, high], p = ...` over the images, or an empty text."""
    images = difference["images"] if difference["pairs"] == 1 else None
    p = f", p {_p_text(images['p'])}" if images else ""
    return interval(*paired_interval(difference), "+") + p


def difference_text(difference: Difference) -> str:
    """Returns the mean difference and its uncertainty."""
    return f"{value(difference['mean'], '+')} {difference_uncertainty(difference)}".rstrip()


def _p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.2g}" if p < 0.1 else f"= {p:.2f}"


def marked_difference(table: Table, entry: Entry) -> str:
    """Returns the mean difference to the baseline; if significant, with a mark in front that shows whether it is better or worse."""
    mark = ("▲ " if gain(entry) > 0 else "▼ ") if is_clear(table, entry) else ""
    return f"{mark}{value(difference_of(entry)['mean'], '+')}"


def heading(table: Table, measure: str) -> str:
    """Returns a measure's long name, with a dagger if it is based on a reference table that was not verified."""
    return f"{describe(measure).name}{' †' if measure in table['unverified'] else ''}"


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
    return f"Mean ± sample std over {number_range(seeds)} seeds.{alone}"


def difference_caption(table: Table) -> str:
    """Returns the meaning of the differences: baseline, number of pairs, kind of interval."""
    pairs = [entry["difference"]["pairs"] for entry in table["rows"] if entry["difference"]]
    if max(pairs) == 1:
        tested = any(entry["difference"]["images"] for entry in table["rows"] if entry["difference"])
        over = "mean, 95% interval and p value over the images" if tested else "there is no interval over seeds"
        return f"Difference to {table['baseline']}, one seed: {over}."
    return f"Paired difference to {table['baseline']} over {number_range(pairs)} common seeds, mean and 95% t interval."


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
    tests = [kind if len(kinds) == 1 else f"{kind} (the test of {count} of {len(differences)})" for kind, count in kinds.items()]
    return f"A difference is marked, ▲ better or ▼ worse, if {'; or if '.join(tests)}. There is no correction for multiple comparisons."


def best_cells(table: Table) -> set[tuple[str, str]]:
    """Returns the (row, measure) of each measure's best mean as printed, ties included; none where only one row was measured."""
    best: set[tuple[str, str]] = set()
    for measure in table["measures"]:
        means = {e["row"]: round(e["mean"], 3) for e in table["rows"] if e["measure"] == measure}
        top = min(means.values()) if parse_measure(measure).lower_is_better else max(means.values())
        best |= {(row, measure) for row, mean in means.items() if mean == top and len(means) > 1}
    return best


def number_range(counts: Sequence[int]) -> str:
    """Returns the smallest and the largest of some numbers, as one number if they are equal."""
    return f"{max(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
