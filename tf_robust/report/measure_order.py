"""Order of the measures of a table: families together, headlines first, adapted ones apart."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from tf_robust import metrics
from tf_robust.evaluation.measure import CORRUPTION_FAMILIES, Measure, parse_measure

_HEADLINES = {
    "clean": ("",),
    "corruptions": ("mean15", "mce"),
    "corruptions_bar": ("mean",),
    "flips": ("mean", "mfr"),
    "calibration": ("rms",),
    "calibrated": ("ece",),
    "abstention": ("coverage", "accuracy"),
    "conformal": ("coverage", "size"),
}


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
    means = [name.name for name in names.values() if (name.prefix, name.family) == (member.prefix, member.family) and not name.is_member]
    return not any(mean in _HEADLINES[member.family] or member.name in metrics.MEANS.get(mean, ()) for mean in means)


def headlines_of(measures: Sequence[str], printed: set[str]) -> list[str]:
    """Returns the measures to show first; of a family whose headlines were not measured, all."""
    names = {measure: parse_measure(measure) for measure in measures}
    headlines = {measure for measure, name in names.items() if name.name in _HEADLINES.get(name.family, ())}
    summarized = {(names[measure].family, names[measure].prefix) for measure in headlines}
    return [
        measure
        for measure, name in names.items()
        if measure in printed or measure in headlines or (name.family, name.prefix) not in summarized
    ]
