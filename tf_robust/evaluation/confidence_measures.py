"""Measures of fitted confidences: on clean images, on each shifted set, and at each severity over the 15 corruptions."""

from collections.abc import Sequence

import numpy as np
import scipy.stats

from tf_robust import metrics
from tf_robust.evaluation.measure import Measure, parse_measure

_BEFORE = {"rms": "rms_calibration_error", "ece": "expected_calibration_error", "brier": "brier_score", "nll": "negative_log_likelihood"}


def measures(records: Sequence[dict]) -> list[Measure]:
    """Returns the measures of fitted confidences.

    `calibrated/GROUP/ece` (and rms, brier, nll; with `_before` without scaling), `abstention/GROUP/coverage` and `accuracy`,
    `conformal/GROUP/coverage` and `size`; GROUP is `severity_1` to `severity_5` or `shift/NAME`, and missing for clean images.

    Args:
        records: of all sets, among them that of the validation images.
    """
    fitted = next((record for record in records if record["kind"] == "confidence"), None)
    if fitted is None:
        return []
    found = []
    if isinstance(fitted["scale"], float) and any("ece" in record.get("confidence", {}) for record in records):
        found.append(Measure("calibrated", "temperature", value=1 / fitted["scale"], count=fitted["count"]))
    if fitted["threshold"] is not None:
        found.append(Measure("abstention", "threshold", value=fitted["threshold"], count=fitted["count"]))
    for group, members in groups(records).items():
        found += _of_group(f"{group}/" if group else "", members)
    return found


def groups(records: Sequence[dict]) -> dict[str, list[dict]]:
    """Returns {"" (clean), "severity_1" (over the 15 corruptions), ..., "shift/NAME": records with fitted confidences}."""
    found: dict[str, list[dict]] = {}
    for record in records:
        name = parse_measure(record["set"])
        if "confidence" not in record or (name.family == "corruptions" and name.name not in metrics.BENCHMARK):
            continue
        group = "" if name.is_clean else f"severity_{name.severity}" if name.family == "corruptions" else str(name)
        found.setdefault(group, []).append(record)
    return dict(sorted(found.items(), key=lambda entry: (entry[0] != "", entry[0].startswith("shift/"), entry[0])))


def _of_group(group, members):
    count, entries = members[0]["count"], [member["confidence"] for member in members]
    interval = len(members) == 1  # several sets share their images

    def total(field):
        return sum(entry[field] for entry in entries)

    found = []
    if "ece" in entries[0]:
        for name, before in _BEFORE.items():
            found.append(Measure("calibrated", group + name, value=float(np.mean([entry[name] for entry in entries])), count=count))
            mean_before = float(np.mean([member[before] for member in members]))
            found.append(Measure("calibrated", f"{group}{name}_before", value=mean_before, count=count))
    if "answered" in entries[0]:
        answered, images = total("answered"), sum(member["count"] for member in members)
        found.append(_fraction("abstention", f"{group}coverage", answered, images, count, interval))
        if answered:
            found.append(_fraction("abstention", f"{group}accuracy", total("answered_correct"), answered, count, interval))
    if "covered" in entries[0]:
        images = sum(member["count"] for member in members)
        found.append(_fraction("conformal", f"{group}coverage", total("covered"), images, count, interval))
        found.append(Measure("conformal", f"{group}size", value=total("size") / images, count=count))
    return found


def _fraction(family, name, part, whole, count, interval):
    """A fraction, with Wilson's interval if the images are different ones."""
    low, high = scipy.stats.binomtest(part, whole).proportion_ci(method="wilson") if interval else (None, None)
    return Measure(family, name, value=part / whole, count=whole if interval else count, low=low, high=high)
