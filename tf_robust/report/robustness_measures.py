"""The measure by which models are compared for each kind of images: corrupted, noisy, attacked, shifted."""

import re

import numpy as np

from tf_robust.evaluation.descriptions import describe
from tf_robust.evaluation.measure import parse_measure
from tf_robust.report.table_types import Table

_KINDS = {
    "corruptions": "corruptions",
    "corruptions_bar": "corruptions",
    "un": "noise",
    "nun": "noise",
    "robust": "attacks",
    "fgsm": "attacks",
    "attack_curves": "attacks",
    "shift": "shifts",
}  # of families of measures
_THREAT = re.compile(r"(l2|linf)_.*$")  # at the end of the name of an attack's measure


def kinds_of_robustness(table: Table) -> dict[str, str]:
    """Returns {"corruptions", "noise", "attacks" or "shifts": a headline that is an accuracy on such images}, of those that were measured.

    It is the first one; if any can be compared with the baseline, the first of these. Of several attacks within the same radius it is
    that with the lowest mean accuracy: the accuracy under the strongest attack is the one that counts.
    """
    compared = {entry["measure"] for entry in table["rows"] if entry["difference"]}
    first: dict[str, str] = {}
    for measure in sorted(table["headlines"], key=lambda one: one not in compared):
        kind = _KINDS.get(parse_measure(measure).family)
        if kind and describe(measure).images:
            first.setdefault(kind, measure)
    if "attacks" in first:
        first["attacks"] = _strongest(table, first["attacks"], compared)
    return {kind: first[kind] for kind in dict.fromkeys(_KINDS.values()) if kind in first}


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
        if _KINDS.get(parse_measure(one).family) == "attacks"
        and threat(one) == threat(measure)
        and (one in compared) == (measure in compared)
    ]
    return min(same, key=mean)
