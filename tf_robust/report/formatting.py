"""The numbers and names of a table as text. Fractions have three decimals."""

from collections.abc import Sequence

from tf_robust.evaluation.metric_value import describe, parse_metric
from tf_robust.report.table_types import Entry, Table


def value(number: float, sign: str = "") -> str:
    """Returns a number with three decimals; a large one, such as a size in bytes, without."""
    return f"{number:{sign}z.3f}" if abs(number) < 10000 else f"{number:{sign},.0f}"


def mean_and_std(mean: float, std: float | None) -> str:
    """Returns `mean ± std`, or `mean` where there is no std."""
    return value(mean) if std is None else f"{value(mean)} ± {std:.3f}"


def interval(low: float | None, high: float | None, sign: str = "", decimals: int = 3) -> str:
    """Returns `[low, high]`, or an empty text where there is no interval; an end that is not 0 is not printed as 0."""
    if low is None or high is None:
        return ""
    shown = next((n for n in (decimals, decimals + 1) if all(round(end, n) or not end for end in (low, high))), decimals + 2)
    return f"[{low:{sign}z.{shown}f}, {high:{sign}z.{shown}f}]"


def uncertainty(entry: Entry) -> str:
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


def heading(table: Table, metric: str) -> str:
    """Returns a metric's long name, with a dagger if it is based on a reference table that was not verified."""
    return f"{describe(metric).name}{' †' if metric in table['unverified'] else ''}"


def unverified_note(table: Table) -> str:
    """Returns the explanation of the dagger; empty if no metric has one."""
    sources = dict.fromkeys(table["unverified"].values())
    return f"† Divided by a reference network's numbers that were not verified ({'; '.join(sources)})." if sources else ""


def best_cells(table: Table) -> set[tuple[str, str]]:
    """Returns the (row, metric) of each metric's best mean as printed, ties included; none where only one row was measured."""
    best: set[tuple[str, str]] = set()
    for metric in table["metrics"]:
        means = {e["row"]: round(e["mean"], 3) for e in table["rows"] if e["metric"] == metric}
        top = min(means.values()) if parse_metric(metric).lower_is_better else max(means.values())
        best |= {(row, metric) for row, mean in means.items() if mean == top and len(means) > 1}
    return best


def number_range(counts: Sequence[int]) -> str:
    """Returns the smallest and the largest of some numbers, as one number if they are equal."""
    return f"{max(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
