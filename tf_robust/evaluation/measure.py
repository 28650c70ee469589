"""A measured number and its name."""

from __future__ import annotations

import dataclasses
import functools

import scipy.stats

from tf_robust import metrics

LABEL_FRACTION = "label_fraction_"
ADAPTED = "adapted"
CLEAN = ("clean", "bal")
CORRUPTION_FAMILIES = ("corruptions", "corruptions_bar")
_CORRUPTION_MEANS = (*metrics.MEANS, "mean", "mce", "relative_mce", "calibration_rms")
CONFIDENCE_FAMILIES = ("calibrated", "abstention", "conformal")  # fitted on validation images
OOD_SCORES = ("max_logit", "energy", "knn")  # besides the largest probability
_FLIP_RATES = ("mfr", "mfr_without_noise", "rate")
_CONFIDENCE_CARD = dict.fromkeys(CONFIDENCE_FAMILIES, "confidence")
# parts of the names of measures that are better when smaller
_LOWER_IS_BETTER = (
    "flips/",
    "calibration",
    "calibrated/",
    "corruptions/mce",
    "corruptions/relative_mce",
    "checks/failed",
    "boundary/",
    "utility/corner_uninformative",
    "classes/gap",
    "groups/gap",
    "certified/abstained",
    "deployed/",
)


@dataclasses.dataclass(frozen=True)
class Measure:
    """One measure of a model: `corruptions/fog/3` has family "corruptions", name "fog" and severity 3.

    Attributes:
        family: kind of measure: clean, bal, un, nun, corruptions, corruptions_bar, flips, robust, fgsm, checks, distance, attack_curves,
            calibration, ...
        name: the member of the family: a corruption, a mean over several, an attack's norm and radius, ...; may be empty.
        severity: 1 to 5 for one severity of a corruption, else None.
        value: a fraction, except for boundaries, utilities and distances.
        count: number of images.
        low: lower end of the 95 % interval over images (Wilson's for an accuracy, normal for a mean of accuracies over sets of the
            same images), or None.
        high: upper end.
        label_fraction: fraction of the labels that the model was trained with, as text; empty for all of them.
        adapted: whether the model was adapted to the test batches.
    """

    family: str
    name: str = ""
    severity: int | None = None
    value: float | None = None
    count: int = 0
    low: float | None = None
    high: float | None = None
    label_fraction: str = ""
    adapted: bool = False

    def __str__(self) -> str:
        parts = (
            self.prefix,
            self.family,
            self.name,
            "" if self.severity is None else str(self.severity),
        )
        return "/".join(part for part in parts if part)

    @property
    def prefix(self) -> str:
        """The part of the name before the family, which tells how the model was trained and adapted."""
        parts = LABEL_FRACTION + self.label_fraction if self.label_fraction else "", ADAPTED if self.adapted else ""
        return "/".join(part for part in parts if part)

    @property
    def measure(self) -> str:
        """The full name, as in `evaluation.json`: `corruptions/fog/3`."""
        return str(self)

    def with_value(self, value: float, count: int, low: float | None = None, high: float | None = None) -> Measure:
        """Returns the measure of this name with a value."""
        return dataclasses.replace(self, value=value, count=count, low=low, high=high)

    def with_accuracy(self, correct: int, count: int) -> Measure:
        """Returns the measure of this name with the value `correct / count` and Wilson's interval."""
        interval = scipy.stats.binomtest(correct, count).proportion_ci(method="wilson")
        return self.with_value(correct / count, count, interval.low, interval.high)

    def to_json(self) -> dict:
        """Returns the measure as a row of `evaluation.json`."""
        return {"measure": str(self), "value": self.value, "count": self.count, "low": self.low, "high": self.high}

    @property
    def plain(self) -> Measure:
        """The same name for a model that was trained with all labels and is not adapted."""
        return dataclasses.replace(self, label_fraction="", adapted=False)

    def of_model(self, label_fraction: float, adapted: bool) -> Measure:
        """Returns the measure with the prefix of a model: the fraction of labels that it was trained with, and whether it is adapted."""
        return dataclasses.replace(self, label_fraction="" if label_fraction == 1 else f"{label_fraction:g}", adapted=adapted)

    @property
    def unadapted(self) -> str:
        """The full name of the same without adaptation."""
        return str(dataclasses.replace(self, adapted=False))

    @property
    def is_clean(self) -> bool:
        """Whether it is the accuracy on the clean test set."""
        return self.family in CLEAN and not self.name

    @property
    def is_flip_rate(self) -> bool:
        """Whether it is a flip probability divided by AlexNet's."""
        return self.family == "flips" and self.name.split("/")[0] in _FLIP_RATES

    @property
    def is_member(self) -> bool:
        """Whether it is of one corruption, perturbation, class, group or check of the attacks, and not a mean or count."""
        if self.family in ("class", "group"):
            return True
        if self.family in CONFIDENCE_FAMILIES:
            return "/" in self.name or self.name.endswith("_before") or self.is_fitted
        if self.family == "ood":
            return self.name.rpartition("/")[0].rpartition("/")[2] in OOD_SCORES
        if self.family == "checks":
            return self.name != "failed"
        if self.family == "flips" and self.name.startswith("rate/"):
            return True
        if self.family in CORRUPTION_FAMILIES:
            return bool(self.name) and self.name not in _CORRUPTION_MEANS
        return self.family == "flips" and self.name in (*metrics.PERTURBATIONS, *metrics.CIFAR_PERTURBATIONS)

    @property
    def is_fitted(self) -> bool:
        """Whether it is a number that was fitted on validation images, of which neither more nor less is better."""
        return str(self) in ("calibrated/temperature", "abstention/threshold")

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller value is the better one."""
        if self.family in ("conformal", "ood"):
            return self.name.endswith(("/size", "/fpr95")) or self.name == "size"
        if self.family in ("shift", "class", "group", "abstention"):  # accuracies, whose names users choose
            return False
        return any(part in str(self) for part in _LOWER_IS_BETTER)

    @property
    def card_family(self) -> str:
        """The part of the evaluation card that it depends on besides `data`."""
        if self.is_flip_rate:
            return "flip_rates"
        if str(self.plain) == "smoothed/clean":
            return "smoothed_clean"
        if self.family == "robust" and self.name.startswith(("pgd/", "square/", "transfer/")):
            return f"robust_{self.name.partition('/')[0]}"
        return {"un": "noise", "nun": "noise", "aurra": "calibration", "group": "groups", **_CONFIDENCE_CARD}.get(self.family, self.family)


@functools.cache
def parse_measure(text: str) -> Measure:
    """Parses a name such as `corruptions/fog/3` to a `Measure` without a value."""
    fraction = ""
    if text.startswith(LABEL_FRACTION):
        first, _, text = text.partition("/")
        fraction = first.removeprefix(LABEL_FRACTION)
    adapted = text.startswith(f"{ADAPTED}/")
    text = text.removeprefix(f"{ADAPTED}/")
    family, _, name = text.partition("/")
    severity = None
    if family in CORRUPTION_FAMILIES and name.rpartition("/")[2].isdecimal():
        name, _, last = name.rpartition("/")
        severity = int(last)
    return Measure(family, name, severity, label_fraction=fraction, adapted=adapted)
