"""A measured number and its name."""

from __future__ import annotations

import dataclasses

from tf_robust import metrics
from tf_robust.evaluation.metric_table import FRACTION, METRICS, Match, find_metric

_LABEL_FRACTION, _ADAPTED = "label_fraction_", "adapted"  # beginnings of names
CLEAN = ("clean", "bal")  # names of the accuracy on the clean test set; bal of the balanced corner-digit sets
CORRUPTION_FAMILIES = ("corruptions", "corruptions_bar")
CONFIDENCE_FAMILIES = tuple(dict.fromkeys(metric.family for metric in METRICS.values() if metric.card == "confidence"))


@dataclasses.dataclass(frozen=True)
class MetricValue:
    """One metric of a model: `corruptions/fog/3` has family "corruptions", name "fog" and severity 3.

    Attributes:
        family: kind of metric: clean, bal, un, nun, corruptions, corruptions_bar, flips, robust, fgsm, checks, distance, attack_curves,
            calibration, ...
        name: the member of the family: a corruption, a mean over several, an attack's norm and radius, ...; may be empty.
        severity: 1 to 5 for one severity of a corruption, else None.
        value: a fraction, except for utilities and distances.
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
        return "/".join(filter(None, (self.prefix, self._plain_name)))

    @property
    def _plain_name(self) -> str:
        return "/".join(filter(None, (self.family, self.name, "" if self.severity is None else str(self.severity))))

    @property
    def prefix(self) -> str:
        """The part of the name before the family, which tells how the model was trained and adapted."""
        parts = _LABEL_FRACTION + self.label_fraction if self.label_fraction else "", _ADAPTED if self.adapted else ""
        return "/".join(filter(None, parts))

    @property
    def metric(self) -> str:
        """The full name, as in `evaluation.json`: `corruptions/fog/3`."""
        return str(self)

    def with_value(self, value: float, count: int, low: float | None = None, high: float | None = None) -> MetricValue:
        """Returns the metric of this name with a value."""
        return dataclasses.replace(self, value=value, count=count, low=low, high=high)

    def with_accuracy(self, correct: int, count: int) -> MetricValue:
        """Returns the metric of this name with the value `correct / count` and Wilson's interval."""
        return self.with_value(correct / count, count, *metrics.wilson_interval(correct, count))

    def to_json(self) -> dict:
        """Returns the metric as a row of `evaluation.json`."""
        return {"metric": str(self), "value": self.value, "count": self.count, "low": self.low, "high": self.high}

    @property
    def plain(self) -> MetricValue:
        """The same name for a model that was trained with all labels and is not adapted."""
        return dataclasses.replace(self, label_fraction="", adapted=False)

    def of_model(self, label_fraction: float, adapted: bool) -> MetricValue:
        """Returns the metric with the prefix of a model: the fraction of labels that it was trained with, and whether it is adapted."""
        return dataclasses.replace(self, label_fraction="" if label_fraction == 1 else f"{label_fraction:g}", adapted=adapted)

    @property
    def unadapted(self) -> str:
        """The full name of the same without adaptation."""
        return str(dataclasses.replace(self, adapted=False))

    @property
    def entry(self) -> Match:
        """The entry of the table of metrics."""
        return find_metric(self._plain_name)

    @property
    def is_clean(self) -> bool:
        """Whether it is the accuracy on the clean test set."""
        return self._plain_name in CLEAN

    @property
    def is_flip_rate(self) -> bool:
        """Whether it is a flip probability divided by AlexNet's."""
        return self.card_family == "flip_rates"

    @property
    def is_member(self) -> bool:
        """Whether it is of one corruption, perturbation, class, group or check of the attacks, and not a mean or count."""
        return self.entry.is_detail

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller value is the better one."""
        return self.entry.metric.direction == "lower"

    @property
    def card_family(self) -> str:
        """The part of the evaluation card that it depends on besides `data`."""
        return self.entry.metric.card or self.family


def parse_metric(text: str) -> MetricValue:
    """Parses a name such as `corruptions/fog/3` to a `MetricValue` without a value."""
    fraction = ""
    if text.startswith(_LABEL_FRACTION):
        first, _, text = text.partition("/")
        fraction = first.removeprefix(_LABEL_FRACTION)
    adapted = text.startswith(f"{_ADAPTED}/")
    text = text.removeprefix(f"{_ADAPTED}/")
    family, _, name = text.partition("/")
    severity = None
    if family in CORRUPTION_FAMILIES and name.rpartition("/")[2].isdecimal():
        name, _, last = name.rpartition("/")
        severity = int(last)
    return MetricValue(family, name, severity, label_fraction=fraction, adapted=adapted)


@dataclasses.dataclass(frozen=True)
class Description:
    """The long name and meaning of a metric."""

    name: str  # long name, such as "Uniform noise (UN)"
    meaning: str  # definition, unit and direction in one line; empty for an unknown metric
    images: str = ""  # for an accuracy the images, such as "images with uniform noise"; empty for other metrics
    is_fraction: bool = False  # whether its values are in [0, 1]


def describe(name: str) -> Description:
    """Returns the description of a metric by its name in `evaluation.json`; an unknown one keeps its name and has no meaning."""
    parsed = parse_metric(name)
    metric = parsed.entry.metric
    if not metric.text:
        return Description(name, "")
    title, text, images = parsed.entry.format(metric.title), parsed.entry.format(metric.text), parsed.entry.images
    if parsed.label_fraction:
        labels = f"{100 * float(parsed.label_fraction):.3g}% of the labels"
        title, text = f"{title} with {labels}", f"{text}, of a model that was trained with {labels}"
        images = f"{images} after training with {labels}" if images else ""
    if parsed.adapted:
        title, text = f"{title}, adapted", f"{text}, of a model whose batch normalization is adapted to each batch of test images"
        images = f"{images} with adaptation to each batch" if images else ""
    direction = f"; {metric.direction} is better" if metric.direction else ""
    return Description(f"{title[0].upper()}{title[1:]}", f"{text}. {metric.unit}{direction}.", images, metric.unit == FRACTION)
