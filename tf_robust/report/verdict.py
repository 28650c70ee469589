"""The verdict of a report, a few sentences: the best model, by how much, at what cost, and how certain that is."""

from collections.abc import Iterable, Sequence

from tf_robust import metrics
from tf_robust.evaluation.measure import describe, parse_measure
from tf_robust.report.formatting import interval, number_range, paired_interval, value
from tf_robust.report.measure_order import KINDS, kind_of_images, kinds_of_robustness
from tf_robust.report.table_types import Entry, Table
from tf_robust.report.tables import cells, difference_of, gain, is_clear, t_interval, with_simultaneous_intervals

_NEGLIGIBLE = 0.02  # a loss that the interval must exclude to be called "no measurable loss"
_ROUNDING = 1e-9  # of a mean of many numbers
_SAME_TIME = 0.1  # relative difference of training times that is called none
_LISTED = 3  # values of one model
_PROPER = "Brier"  # a name, which stays capitalized


def verdict(table: Table) -> str:
    """Returns the verdict as one text."""
    return " ".join(verdict_sentences(table))


def verdict_sentences(table: Table) -> list[str]:
    """Returns the verdict: the most robust models against the baseline, their cost, and the certainty.

    For every kind of images (corrupted, noisy, attacked) its first measure is compared. A difference is called separated if the paired
    test is significant and its 95 % interval excludes 0, both adjusted for the number of rows. The model named is the best of those with a
    separated gain over the baseline, or without any the one with the best mean. With a single model: the images on which its accuracy
    falls most.

    Args:
        table: as `aggregate` returns it.
    """
    if len(table["order"]) == 1:
        return _of_one_model(table, table["order"][0])
    table = with_simultaneous_intervals(table)
    entries = cells(table)
    compared = {measure: row for measure in _compared_measures(table) if (row := _best_row(table, measure))}
    if not compared:
        if table["adapted"]:
            return ["The table of test-time adaptation compares the values with and without it."]
        return [f"No row shares a measure and a seed with {table['baseline']}: there is nothing to compare."]
    rows = list(compared.values())
    first = max(rows, key=rows.count)
    groups: dict[tuple[str, bool, bool], list[Entry]] = {}
    for measure, row in sorted(compared.items(), key=lambda item: item[1] != first):
        entry = entries[row, measure]
        groups.setdefault((row, gain(entry) > 0, _is_first(table, entry)), []).append(entry)
    sentences = [_comparison(table, row, chosen) for (row, _, _), chosen in groups.items()]
    better = list(dict.fromkeys(row for row, gains, _ in groups if gains)) or [first]
    costs = {row: text for row in better if (text := _cost(table, row, exclude=compared))}
    names = {row: f" of {row}" if len(costs) > 1 else "" for row in costs}
    cost = [f"The cost{names[row]}: {text}." for row, text in costs.items()]
    gains = [_clean_gain(table, entry) for (row, measure), entry in entries.items() if row in better and measure not in compared]
    return [*sentences, *filter(None, gains), *cost, _certainty(table, [entry for chosen in groups.values() for entry in chosen])]


def is_separated(table: Table, entry: Entry) -> bool:
    """Returns whether the difference to the baseline is significant and its interval, where there is one, excludes 0."""
    low, high = paired_interval(difference_of(entry))
    return is_clear(table, entry) and (low is None or high is None or not low <= 0 <= high)


def _compared_measures(table: Table) -> list[str]:
    kinds = list(kinds_of_robustness(table).values())
    others = [measure for measure in table["headlines"] if not _is_clean(measure) and parse_measure(measure).family != "deployed"]
    return kinds or others[:_LISTED] or table["headlines"][:1]


def _is_clean(measure: str) -> bool:
    """Whether it is the accuracy on clean images after training with all labels."""
    return parse_measure(measure).is_clean and not parse_measure(measure).label_fraction


def _best_row(table: Table, measure: str) -> str | None:
    """The row with the best mean of those with a separated gain over the baseline; without any, of all."""
    compared = [e for e in table["rows"] if e["measure"] == measure and e["difference"]]
    gains = [e for e in compared if gain(e) > 0 and is_separated(table, e)]
    return max(gains or compared, key=_quality)["row"] if compared else None


def _is_first(table: Table, entry: Entry) -> bool:
    """Whether no row has a better mean."""
    return _quality(entry) >= max(_quality(other) for other in table["rows"] if other["measure"] == entry["measure"])


def _quality(entry: Entry) -> float:
    return entry["mean"] * (-1 if parse_measure(entry["measure"]).lower_is_better else 1)


def _comparison(table: Table, row: str, chosen: Sequence[Entry]) -> str:
    """One sentence on the best row: its first value with the difference in full, further values with the differences in parentheses."""
    first, *others = chosen
    images = describe(first["measure"]).images
    start = f"classifies {_value(first)} of {images} correctly" if images else f"has {_amount(first)}"
    further = [f"{_amount(e)} ({_signed_difference(table, e)})" for e in others]
    return f"{_subject(table, row, chosen)} {start}, {_join([_main_difference(table, first), *further])}."


def _subject(table: Table, row: str, chosen: Sequence[Entry]) -> str:
    """The row; with several others also its rank on these kinds of images."""
    others = [e for e in table["rows"] if e["measure"] == chosen[0]["measure"] and e["row"] != row]
    if len(others) < 2:
        return row
    measures = {measure: kind for kind, measure in kinds_of_robustness(table).items()}
    kinds = [f"under {measures[e['measure']]}" if e["measure"] in measures else f"in {_name(e)}" for e in chosen]
    under = _capitalized(_join([kinds[0], *(kind.removeprefix("under ") for kind in kinds[1:])]))
    if gain(chosen[0]) <= 0:
        return f"{under}, no model is better than {table['baseline']}; {row} {'comes closest' if gain(chosen[0]) else 'is level'} and"
    second = max(others, key=_quality)
    if _value(second) == _value(chosen[0]):
        return f"{under}, {row} ranks first of {len(others) + 1} models, level with {second['row']}: it"
    if not _is_first(table, chosen[0]):
        return (
            f"{under}, {row} has the largest separated gain of {len(others)} models ({second['row']}: {_value(second)}, not separated): it"
        )
    close = f", before {second['row']} ({_value(second)})" if _overlap(chosen[0], second) else ""
    return f"{under}, {row} ranks first of {len(others) + 1} models{close}: it"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _overlap(one: Entry, other: Entry) -> bool:
    """Whether the intervals of two values overlap or are unknown."""
    if one["low"] is None or one["high"] is None or other["low"] is None or other["high"] is None:
        return True
    return one["low"] <= other["high"] and other["low"] <= one["high"]


def _value(entry: Entry) -> str:
    return f"{entry['mean']:.1%}" if describe(entry["measure"]).images else value(entry["mean"])


def _amount(entry: Entry) -> str:
    """`81.2% of corrupted images`, or `a mean flip probability (mFP) of 0.055`."""
    images = describe(entry["measure"]).images
    return f"{_value(entry)} of {images}" if images else f"{_with_article(_name(entry))} of {_value(entry)}"


def _name(entry: Entry) -> str:
    name = describe(entry["measure"]).name
    return name if name[1:2].isupper() or name.startswith(_PROPER) else name[:1].lower() + name[1:]


def _with_article(name: str) -> str:
    """`an RMS calibration error`, `a mean corruption error`: abbreviations by the sound of their first letter."""
    vowels = "AEFHILMNORSX" if name[1:2].isupper() else "aeio"
    return f"{'an' if name.startswith(tuple(vowels)) else 'a'} {name}"


def _main_difference(table: Table, entry: Entry) -> str:
    """`7.4 points more than cross_entropy [6.1, 8.7]`, or `not separated from cross_entropy (+0.4 points [-0.9, 1.7])`."""
    if not is_separated(table, entry):
        return f"not separated from {table['baseline']} ({_signed_difference(table, entry, unit=True, note=False)}{_p_value(entry)})"
    mean, low, high = difference_of(entry)["mean"], *paired_interval(difference_of(entry))
    if mean < 0:
        mean, low, high = -mean, _negative(high), _negative(low)
    more = "more" if difference_of(entry)["mean"] > 0 else "less"
    size = f"{100 * mean:.1f} points {more} than" if describe(entry["measure"]).images else f"{mean:.3f} {more} than"
    return f"{size} {table['baseline']} {_interval(entry, low, high)}".rstrip()


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _signed_difference(table: Table, entry: Entry, unit: bool = False, note: bool = True) -> str:
    """`+0.2 points [-1.1, 1.4], not separated`."""
    mean, images = difference_of(entry)["mean"], describe(entry["measure"]).images
    size = f"{100 * mean:+z.1f}{' points' * unit}" if images else f"{mean:+z.3f}"
    not_separated = f", not separated{_p_value(entry)}" if note and not is_separated(table, entry) else ""
    return f"{size} {_interval(entry, *paired_interval(difference_of(entry)))}".rstrip() + not_separated


def _p_value(entry: Entry) -> str:
    """`, p = 0.12 over the images` of a difference that is not separated although its interval excludes 0: the exact test decides."""
    low, high = paired_interval(difference_of(entry))
    images = difference_of(entry)["images"]
    if low is None or high is None or low <= 0 <= high or images is None:
        return ""
    return f", p = {images['p']:.2g} over the images"


def _interval(entry: Entry, low: float | None, high: float | None) -> str:
    """The interval in points for an accuracy, else in the unit of the measure."""
    if low is None or high is None or not describe(entry["measure"]).images:
        return interval(low, high)
    return interval(100 * low, 100 * high, decimals=1)


def _cost(table: Table, row: str, exclude: Iterable[str]) -> str:
    """The change on clean images, other measures that are worse, and the training time, against the baseline."""
    own = [e for e in table["rows"] if e["row"] == row and e["difference"] and e["measure"] not in exclude]
    clean = next((e for e in own if _is_clean(e["measure"])), None)
    worse = [e for e in own if e is not clean and e["measure"] in table["measures"] and gain(e) < 0 and is_separated(table, e)]
    parts = list(filter(None, [_clean_cost(table, clean)])) if clean else []
    parts += [_loss(table, e) for e in worse[:_LISTED]]
    if (ratio := table["training_ratios"].get(row)) and ratio > 1 - _SAME_TIME:  # less is no cost
        parts.append("the same training time" if ratio - 1 < _SAME_TIME else f"{ratio:.1f} times the training time")
    return _join(parts) if parts else ""


def _clean_cost(table: Table, clean: Entry) -> str:
    if not is_separated(table, clean):
        low, _ = paired_interval(difference_of(clean))
        if low is not None and low > -_NEGLIGIBLE:
            return f"no measurable loss on clean images ({_signed_difference(table, clean, unit=True, note=False)})"
        return f"no significant change on clean images ({_signed_difference(table, clean, unit=True, note=False)}{_p_value(clean)})"
    if gain(clean) > 0:
        return ""
    return _loss(table, clean)


def _clean_gain(table: Table, entry: Entry) -> str:
    """A sentence on a separated gain on clean images, else an empty text."""
    if not _is_clean(entry["measure"]) or not entry["difference"] or gain(entry) <= 0 or not is_separated(table, entry):
        return ""
    return f"On clean images {entry['row']} gains {_signed_difference(table, entry, unit=True)}."


def _loss(table: Table, entry: Entry) -> str:
    """`3.3 points on clean images [2.0, 4.6]`, or a worse value of another measure."""
    images = describe(entry["measure"]).images
    if not images:
        return f"a worse {_name(entry)} ({_signed_difference(table, entry)})"
    low, high = paired_interval(difference_of(entry))
    return f"{-100 * gain(entry):.1f} points on {images} {_interval(entry, _negative(high), _negative(low))}".rstrip()


def _certainty(table: Table, chosen: Sequence[Entry]) -> str:
    """Numbers of images and seeds, and the kind of the intervals."""
    pairs = [difference_of(entry)["pairs"] for entry in chosen]
    measured, rows = _measured_on(table, chosen, pairs), len(table["order"]) - 1
    adjusted = f", adjusted for the comparison of {rows} models with {table['baseline']}" if rows > 1 else ""
    if max(pairs) > 1:
        few = " Over two seeds such an interval spans 12.7 standard errors on each side, over three 4.3: add seeds." * (max(pairs) == 2)
        return f"{measured}; in brackets paired 95% intervals over the seeds{adjusted}.{few}"
    if any(difference_of(entry)["images"] for entry in chosen):
        return f"{measured}; in brackets paired 95% intervals over the images{adjusted}; other seeds may differ."
    return f"{measured}; without per-image results, models are separated if their 95% intervals do not overlap."


def _measured_on(table: Table, chosen: Sequence[Entry], seeds: Sequence[int]) -> str:
    images = number_range([table["images"][entry["measure"]] for entry in chosen])
    return f"{images} images, {number_range(seeds)} seed{'s' * (max(seeds) > 1)}"


def _of_one_model(table: Table, row: str) -> list[str]:
    """The accuracy on clean images and, for each kind of changed images, the largest fall."""
    own = {entry["measure"]: entry for entry in table["rows"]}
    clean = next((entry for measure, entry in own.items() if _is_clean(measure)), None)
    worst = _worst_of_kinds(own)
    if clean is None or not worst:
        shown = [e for measure, e in own.items() if measure in table["measures"]][: 2 * _LISTED]
        values = "; ".join(f"{_name(e)}: {_with_interval(e)}" for e in shown)
        return [f"One model, {row}. {_capitalized(values)}.", *_abstention(own), _certainty_of_one(table, shown)]
    certainty = _certainty_of_one(table, [clean, *worst])
    start = f"{row} classifies {_with_interval(clean)} of clean images correctly."
    clear = [entry for entry in worst if _is_below(table, entry, clean)]
    if not clear:
        lowest = f"{_with_interval(worst[0])} on {describe(worst[0]['measure']).images}"
        lowest = f"No change of the images lowers that significantly; the lowest accuracy is {lowest}."
        return [f"{start} {lowest}", *_abstention(own), certainty]
    points = [f"{100 * (clean['mean'] - e['mean']):.1f} points less" for e in clear]
    falls = [f"to {_with_interval(e)} on {describe(e['measure']).images} ({less})" for e, less in zip(clear, points)]
    return [f"{start} The accuracy falls {_join(falls)}.", *_abstention(own), certainty]


def _abstention(own: dict[str, Entry]) -> list[str]:
    """A sentence on coverage and accuracy with abstention, of clean images and of those of the highest severity."""
    severities = sorted(m.split("/")[1] for m in own if m.startswith("abstention/severity_") and m.endswith("/accuracy"))
    images = {"": "clean images", **{f"{one}/": f"corrupted images of {one.replace('_', ' ')}" for one in severities[-1:]}}
    answered = []
    for prefix, name in images.items():
        coverage, accuracy = (own.get(f"abstention/{prefix}{one}") for one in ("coverage", "accuracy"))
        if coverage and accuracy:
            answered.append(f"{coverage['mean']:.1%} of {name} with an accuracy of {accuracy['mean']:.1%}")
    return [f"With its threshold of abstention it answers {_join(answered)}."] if answered else []


def _is_below(table: Table, entry: Entry, clean: Entry) -> bool:
    """Whether an accuracy is clearly below the clean one: paired over seeds or images, else if the two intervals do not overlap."""
    if fall := table["falls"].get(entry["measure"]):
        return fall["high"] is not None and fall["high"] < -_ROUNDING
    if len(clean["seeds"]) > 1 and entry["seeds"] == clean["seeds"]:
        _, high = t_interval([one - other for one, other in zip(entry["values"], clean["values"])])
        return high is not None and high < 0
    return entry["mean"] < clean["mean"] and not _overlap(entry, clean)


def _worst_of_kinds(own: dict[str, Entry]) -> list[Entry]:
    """The lowest accuracy on corrupted, noisy, attacked and shifted images, the lowest first; of corruptions also the worst group."""
    groups = {f"corruptions/{group}" for group in metrics.GROUPS}
    kinds: dict[str, list[Entry]] = {kind: [] for kind in ("groups", *KINDS)}
    for measure, entry in own.items():
        kind = kind_of_images(measure)
        if kind and (kind != "corruptions" or parse_measure(measure).severity is None):  # a mean over severities
            kinds["groups" if measure in groups else kind].append(entry)
    return sorted((min(kind, key=_quality) for kind in kinds.values() if kind), key=_quality)


def _with_interval(entry: Entry) -> str:
    low, high = entry["low"], entry["high"]
    if describe(entry["measure"]).is_fraction and low is not None and high is not None:
        low, high = max(0.0, low), min(1.0, high)  # t intervals over few seeds are wide
    return f"{_value(entry)} {_interval(entry, low, high)}".rstrip()


def _certainty_of_one(table: Table, chosen: Sequence[Entry]) -> str:
    seeds = [len(entry["seeds"]) for entry in chosen]
    return f"{_measured_on(table, chosen, seeds)}; in brackets 95% intervals over the {'seeds' if max(seeds) > 1 else 'images'}."


def _join(texts: Sequence[str]) -> str:
    return " and ".join(texts) if len(texts) < 3 else ", ".join(texts[:-1]) + ", and " + texts[-1]
