"""How the numbers of a table are written: in its cells, and as one sentence. Fractions have three decimals."""

import numpy as np

from tf_robust.evaluation.measure import parse_measure
from tf_robust.report.tables import gain, is_clear

_OTHER_UNITS = ("checks/", "distance/", "boundary/", "utility/")
_CHANGED = {"corruptions": "corruptions", "flips": "perturbations", "un": "noise", "nun": "noise", "robust": "attacks",
            "fgsm": "attacks", "distance": "attacks"}  # families of measures of images that were changed: by what
_LISTED = 3  # measures that the verdict names of a kind


def spread(mean, deviation):
    return f"{mean:.3f}" if deviation is None else f"{mean:.3f} ± {deviation:.3f}"


def interval(low, high, sign=""):
    """`[low, high]`, or nothing where there is no interval."""
    return "" if low is None else f"[{low:{sign}z.3f}, {high:{sign}z.3f}]"


def value_text(entry):
    """`mean ± std`; with one seed `value [low, high]`."""
    text = spread(entry["mean"], entry["std"])
    return text if entry["std"] is not None else f"{text} {interval(entry['low'], entry['high'])}".rstrip()


def paper_text(entry):
    """`paper mean ± std`, or nothing."""
    return f"paper {spread(*entry['paper'])}" if entry["paper"] else ""


def difference_text(difference):
    """`mean [low, high]` over seeds; with one pair `mean [low, high], p = ...` over the images, or the mean alone."""
    images = difference["images"] if difference["pairs"] == 1 else None
    low, high = ((images or difference)[side] for side in ("low", "high"))
    p = f", p {_p_text(images['p'])}" if images else ""
    return f"{difference['mean']:+z.3f} {interval(low, high, '+')}".rstrip() + p


def _p_text(p):
    return "< 0.001" if p < 0.001 else f"= {p:.2g}" if p < 0.1 else f"= {p:.2f}"


def marked_difference(table, entry):
    """The difference to the baseline; where it is outside chance, behind a mark that says whether it is for the better."""
    mark = ("▲ " if gain(entry) > 0 else "▼ ") if is_clear(table, entry) else ""
    return mark + difference_text(entry["difference"])


def heading(table, measure):
    """A measure's name, with a dagger where it rests on a reference table that was not verified."""
    return f"{measure}{' †' if measure in table['unverified'] else ''}"


def unverified_note(table):
    """What the dagger means; empty if nothing has one."""
    sources = dict.fromkeys(table["unverified"].values())
    return f"† Divided by a reference network's numbers that were not verified ({'; '.join(sources)})." if sources else ""


def values_caption(table):
    """What the cells hold: deviations over seeds or, with one seed, binomial intervals."""
    seeds = [len(entry["seeds"]) for entry in table["rows"]]
    if max(seeds) == 1:
        return "One seed; in brackets the 95% interval for the number of test images."
    alone = " A row with one seed has the 95% interval for the number of test images." if min(seeds) == 1 else ""
    return f"Mean ± sample deviation over {_range(seeds)} seeds.{alone}"


def difference_caption(table):
    """What the table of differences holds: baseline and number of pairs."""
    pairs = [entry["difference"]["pairs"] for entry in table["rows"] if entry["difference"]]
    if max(pairs) == 1:
        tested = any(entry["difference"]["images"] for entry in table["rows"] if entry["difference"])
        over = "mean, 95% interval and p value over the images" if tested else "there is no interval over seeds"
        return f"Difference to {table['baseline']}, one seed: {over}."
    return f"Paired difference to {table['baseline']} over {_range(pairs)} common seeds, mean and 95% t interval."


def clear_note(table):
    """What the marks of differences mean, by the tests that the table has."""
    differences = [entry["difference"] for entry in table["rows"] if entry["difference"]]
    over_images = ("a paired test over the images gives p < 0.05 (McNemar's exact test for an accuracy on one set, the paired t-test for "
                   "means over sets)")
    kinds = {}
    for difference in differences:
        if difference["pairs"] > 1:
            kind = f"the interval over seeds excludes 0{f' and {over_images}' if difference['images'] else ''}"
        else:
            kind = over_images if difference["images"] else ("the intervals of the two values do not overlap: a weaker test, where "
                                                             "per-image results of the same images are missing")
        kinds[kind] = kinds.get(kind, 0) + 1
    counted = [kind if len(kinds) == 1 else f"{kind} ({count} of {len(differences)} cells)" for kind, count in kinds.items()]
    return f"▲ better, ▼ worse: {'; '.join(counted)}. Nothing is corrected for the number of comparisons."


def size_notes(evaluations):
    """Sentences: at which size images were corrupted, noised or attacked and which size the models take, where that is not one size."""
    rows = {}
    for evaluation in evaluations:
        card = evaluation.get("card") or {}
        sizes, changed = card.get("sizes"), {row["measure"].split("/")[0] for row in evaluation["rows"]} & _CHANGED.keys()
        fit = card.get("data", {}).get("image_fit")
        if sizes and changed and (fit or sizes["corrupted_at"] != sizes["model_input"]):
            applied, taken = ("x".join(map(str, sizes[name])) for name in ("corrupted_at", "model_input"))
            before = f", to which the image files were brought before ({fit})" if fit else ""
            after = ", and the images were resized to that after it" if applied != taken else ""
            kinds = " and ".join(dict.fromkeys(kind for name, kind in _CHANGED.items() if name in changed))
            text = f"{kinds} were applied at {applied} pixels{before}; the network takes {taken}{after}"
            rows.setdefault(text, []).append(evaluation["row"])
    return [f"{', '.join(dict.fromkeys(names))}: {text}." for text, names in rows.items()]


def best_cells(table):
    """The (row, measure) of each measure's best mean, with ties as printed; none where only one row was measured."""
    best = set()
    for measure in table["measures"]:
        means = {e["row"]: round(e["mean"], 3) for e in table["rows"] if e["measure"] == measure}
        top = min(means.values()) if parse_measure(measure).lower_is_better else max(means.values())
        best |= {(row, measure) for row, mean in means.items() if mean == top and len(means) > 1}
    return best


def verdict(table):
    """One sentence: what the row with the largest mean gain over the headlines that are not clean wins and loses."""
    different = [entry for entry in table["rows"] if entry["difference"] and entry["measure"] in table["measures"]]
    compared = [entry for entry in different if entry["measure"] in table["headlines"]] or different
    if not compared:
        return _nothing_to_compare(table)
    gains = {row: _mean_gain(compared, row) for row in dict.fromkeys(entry["row"] for entry in compared)}
    row = max(gains, key=gains.get)
    chosen = [entry for entry in compared if entry["row"] == row]
    among = f" (the largest mean gain of {len(gains)} rows)" if len(gains) > 1 else ""
    return f"Against {table['baseline']}, {row}{among} {_effects(table, chosen)} {_certainty(chosen)}."


def _nothing_to_compare(table):
    first = [entry for entry in table["rows"] if entry["row"] == table["order"][0]]
    if len(table["order"]) > 1:
        return f"No row shares a measure and a seed with {table['baseline']}: there is nothing to compare."
    values = ", ".join(f"{entry['measure']} {value_text(entry)}" for entry in first[:2 * _LISTED])
    seeds = _range([len(entry["seeds"]) for entry in first])
    return f"Only {table['order'][0]} was measured ({'one seed' if seeds == '1' else seeds + ' seeds'}): {values}."


def _mean_gain(compared, row):
    """Over shares; sizes and counts, which are of another unit, count only where there is nothing else."""
    own = [entry for entry in compared if entry["row"] == row]
    shares = [e for e in own if not e["measure"].startswith(_OTHER_UNITS)] or own
    return np.mean([gain(e) for e in shares if not parse_measure(e["measure"]).is_clean] or [gain(e) for e in shares])


def _effects(table, chosen):
    """`improves un by +0.2 [...] and ...; worsens bal by ...; shows no clear difference in ...`"""
    clear = sorted((e for e in chosen if is_clear(table, e)), key=lambda e: -abs(gain(e)))
    kinds = {"improves": [_by(e) for e in clear if gain(e) > 0], "worsens": [_by(e) for e in clear if gain(e) < 0],
             "shows no clear difference in": [_unclear(e) for e in chosen if not is_clear(table, e)]}
    return "; ".join(f"{verb} {_join(_shorten(texts))}" for verb, texts in kinds.items() if texts)


def _by(entry):
    note = " (lower is better)" if parse_measure(entry["measure"]).lower_is_better else ""
    return f"{entry['measure']}{note} by {difference_text(entry['difference'])}"


def _unclear(entry):
    return f"{entry['measure']} ({difference_text(entry['difference'])})"


def _shorten(texts):
    rest = len(texts) - _LISTED
    return texts if rest <= 1 else [*texts[:_LISTED], f"{rest} more measures"]


def _join(texts):
    if len(texts) < 3:
        return " and ".join(texts)
    return ", ".join(texts[:-1]) + ", and " + texts[-1]


def _certainty(chosen):
    pairs = [entry["difference"]["pairs"] for entry in chosen]
    counts = [entry["difference"]["images"]["count"] for entry in chosen if entry["difference"]["images"]]
    tested = f"paired tests over the same {_range(counts)} images" if counts else ""
    tested += f" for {len(counts)} of {len(chosen)} measures" if counts and len(counts) < len(chosen) else ""
    if max(pairs) > 1:
        return f"({_range(pairs)} seeds, 95% intervals{f' over seeds and {tested}' if tested else ''})"
    others = {len(chosen): "", 0: "no per-image results, so the two intervals are compared"}
    means = tested + others.get(len(counts), ", the others by their intervals, where they have any")
    return f"(one seed only: how much seeds differ is unknown; {means})"


def _range(counts):
    return str(max(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
