"""Order and choice of the measures of a table: families together, headlines first, adapted ones apart; one for each kind of images."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tf_robust import metrics
from tf_robust.evaluation.measure import CORRUPTION_FAMILIES, Measure, parse_measure
from tf_robust.report.table_types import Table

KINDS = ("corruptions", "noise", "attacks", "shifts")  # changes of images by which models are compared
_THREAT = re.compile(r"(l2|linf)_.*$")  # at the end of the name of an attack's measure


def by_family(measures: Iterable[str]) -> list[str]:
    """Returns each measure once, in the order in which they come, those of a family together."""
    families: dict[tuple[str, str], dict[str, None]] = {}
    for measure in measures:
        name = parse_measure(measure)
        families.setdefault((name.prefix, name.family), {})[measure] = None
    return [measure for members in families.values() for measure in members]


def without_adaptation(measures: Sequence[str]) -> dict[str, str]:
    """Returns {measure with adaptation: the same without} of those measured both ways."""
    names = {measure: parse_measure(measure) for measure in measures}
    plain = {measure: name.unadapted for measure, name in names.items() if name.adapted}
    return {measure: one for measure, one in plain.items() if one in names}


def without_members(measures: Sequence[str]) -> list[str]:
    """Returns the measures that are no detail of others: not those of one corruption, perturbation, class, ...

    A corruption of which no mean was measured (a corrupted set on disk may lack others) stays: its mean over severities, if it has one.
    """
    names = {measure: parse_measure(measure) for measure in measures}
    chosen = [measure for measure, name in names.items() if not name.is_member or _stands_alone(name, names)]
    return chosen or [*measures]


def _stands_alone(member: Measure, names: Mapping[str, Measure]) -> bool:
    """Whether a measure is of a corruption that no measured mean contains."""
    over_severities = str(dataclasses.replace(member, severity=None))
    if member.family not in CORRUPTION_FAMILIES or (member.severity and over_severities in names):
        return False
    means = [name for name in names.values() if (name.prefix, name.family) == (member.prefix, member.family) and not name.is_member]
    return not any(_is_headline(mean) or member.name in metrics.MEANS.get(mean.name, ()) for mean in means)


def _is_headline(measure: Measure) -> bool:
    return measure.entry.metric.headline and not measure.is_member


def headlines_of(measures: Sequence[str], printed: set[str]) -> list[str]:
    """Returns the measures to show first; of a family whose headlines were not measured, all."""
    names = {measure: parse_measure(measure) for measure in measures}
    headlines = {measure for measure, name in names.items() if _is_headline(name)}
    summarized = {(names[measure].family, names[measure].prefix) for measure in headlines}
    return [
        measure
        for measure, name in names.items()
        if measure in printed or measure in headlines or (name.family, name.prefix) not in summarized
    ]


def kind_of_images(measure: str) -> str:
    """Returns the one of `KINDS` by which the images of an accuracy were changed; empty for other measures."""
    entry = parse_measure(measure).entry
    return entry.metric.change if entry.images and entry.metric.change in KINDS else ""


def kinds_of_robustness(table: Table) -> dict[str, str]:
    """Returns {one of `KINDS`: a headline that is an accuracy on such images}, of those that were measured.

    It is the first one; if any can be compared with the baseline, the first of these. Of several attacks within the same radius it is
    that with the lowest mean accuracy: the accuracy under the strongest attack is the one that counts.
    """
    compared = {entry["measure"] for entry in table["rows"] if entry["difference"]}
    first: dict[str, str] = {}
    for measure in sorted(table["headlines"], key=lambda one: one not in compared):
        first.setdefault(kind_of_images(measure), measure)
    if "attacks" in first:
        first["attacks"] = _strongest(table, first["attacks"], compared)
    return {kind: first[kind] for kind in KINDS if kind in first}


def _strongest(table, measure, compared):
    """The attack with the lowest mean accuracy of those within the radius of a measure, and compared as it is."""

    def threat(one):
        found = _THREAT.search(one)
        return found and found[0]

    def mean(one):
        return np.mean([entry["mean"] for entry in table["rows"] if entry["measure"] == one])

    same = [
        one
        for one in table["headlines"]
        if kind_of_images(one) == "attacks" and threat(one) == threat(measure) and (one in compared) == (measure in compared)
    ]
    return min(same, key=mean)
