"""Order and choice of the metrics of a table: families together, headlines first, adapted ones apart; one for each kind of images."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tf_robust import metrics
from tf_robust.evaluation.metric_value import CORRUPTION_FAMILIES, MetricValue, parse_metric
from tf_robust.report.table_types import Table

KINDS = ("corruptions", "noise", "attacks", "shifts")  # changes of images by which models are compared
_THREAT = re.compile(r"(l2|linf)_.*$")  # at the end of the name of an attack's metric


def by_family(metrics: Iterable[str]) -> list[str]:
    """Returns each metric once, in the order in which they come, those of a family together."""
    families: dict[tuple[str, str], dict[str, None]] = {}
    for metric in metrics:
        name = parse_metric(metric)
        families.setdefault((name.prefix, name.family), {})[metric] = None
    return [metric for members in families.values() for metric in members]


def without_adaptation(metrics: Sequence[str]) -> dict[str, str]:
    """Returns {metric with adaptation: the same without} of those measured both ways."""
    names = {metric: parse_metric(metric) for metric in metrics}
    plain = {metric: name.unadapted for metric, name in names.items() if name.adapted}
    return {metric: one for metric, one in plain.items() if one in names}


def without_members(metrics: Sequence[str]) -> list[str]:
    """Returns the metrics that are no detail of others: not those of one corruption, perturbation, class, ...

    A corruption of which no mean was measured (a corrupted set on disk may lack others) stays: its mean over severities, if it has one.
    """
    names = {metric: parse_metric(metric) for metric in metrics}
    chosen = [metric for metric, name in names.items() if not name.is_member or _stands_alone(name, names)]
    return chosen or [*metrics]


def _stands_alone(member: MetricValue, names: Mapping[str, MetricValue]) -> bool:
    """Whether a metric is of a corruption that no measured mean contains."""
    over_severities = str(dataclasses.replace(member, severity=None))
    if member.family not in CORRUPTION_FAMILIES or (member.severity and over_severities in names):
        return False
    means = [name for name in names.values() if (name.prefix, name.family) == (member.prefix, member.family) and not name.is_member]
    return not any(_is_headline(mean) or member.name in metrics.MEANS.get(mean.name, ()) for mean in means)


def _is_headline(metric: MetricValue) -> bool:
    return metric.entry.metric.headline and not metric.is_member


def headlines_of(metrics: Sequence[str], printed: set[str]) -> list[str]:
    """Returns the metrics to show first; of a family whose headlines were not measured, all."""
    names = {metric: parse_metric(metric) for metric in metrics}
    headlines = {metric for metric, name in names.items() if _is_headline(name)}
    summarized = {(names[metric].family, names[metric].prefix) for metric in headlines}
    return [
        metric for metric, name in names.items() if metric in printed or metric in headlines or (name.family, name.prefix) not in summarized
    ]


def kind_of_images(metric: str) -> str:
    """Returns the one of `KINDS` by which the images of an accuracy were changed; empty for other metrics."""
    entry = parse_metric(metric).entry
    return entry.metric.change if entry.images and entry.metric.change in KINDS else ""


def kinds_of_robustness(table: Table) -> dict[str, str]:
    """Returns {one of `KINDS`: a headline that is an accuracy on such images}, of those that were measured.

    It is the first one; if any can be compared with the baseline, the first of these. Of several attacks within the same radius it is
    that with the lowest mean accuracy: the accuracy under the strongest attack is the one that counts.
    """
    compared = {entry["metric"] for entry in table["rows"] if entry["difference"]}
    first: dict[str, str] = {}
    for metric in sorted(table["headlines"], key=lambda one: one not in compared):
        first.setdefault(kind_of_images(metric), metric)
    if "attacks" in first:
        first["attacks"] = _strongest(table, first["attacks"], compared)
    return {kind: first[kind] for kind in KINDS if kind in first}


def _strongest(table, metric, compared):
    """The attack with the lowest mean accuracy of those within the radius of a metric, and compared as it is."""

    def threat(one):
        found = _THREAT.search(one)
        return found and found[0]

    def mean(one):
        return np.mean([entry["mean"] for entry in table["rows"] if entry["metric"] == one])

    same = [
        one
        for one in table["headlines"]
        if kind_of_images(one) == "attacks" and threat(one) == threat(metric) and (one in compared) == (metric in compared)
    ]
    return min(same, key=mean)
