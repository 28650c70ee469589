"""A measured number and its name, and required bounds of metrics for continuous integration: `corruptions/mean15>=0.7,flips/mean<=0.1`."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

from tf_robust import metrics
from tf_robust.configs.evaluation import EvalConfig
from tf_robust.data.kinds import shift_name
from tf_robust.evaluation.metric_table import FRACTION, METRICS, Match, examples, find_metric
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import atomic_file

_LABEL_FRACTION, _ADAPTED = "label_fraction_", "adapted"  # beginnings of names
CLEAN = ("clean", "bal")  # names of the accuracy on the clean test set; bal of the balanced corner-digit sets
CORRUPTION_FAMILIES = ("corruptions", "corruptions_bar")
CONFIDENCE_FAMILIES = tuple(dict.fromkeys(metric.family for metric in METRICS.values() if metric.card == "confidence"))
Requirement = tuple[str, str, float]  # metric, ">=" or "<=", bound
_OTHER_NAMES = ("accuracy", "acc", "clean_accuracy", "accuracy/clean", "test_accuracy", "top1")  # of the metric clean elsewhere


@dataclasses.dataclass(frozen=True)
class MetricValue:
    """One metric of a model: `corruptions/fog/3` has family "corruptions", name "fog" and severity 3.

    `low` and `high` are the ends of the 95 % interval over images: Wilson's for an accuracy, normal for a mean of accuracies over sets of
    the same images.

    Examples:
        >>> metric = tfr.evaluation.MetricValue("corruptions", "fog", 3).with_accuracy(correct=80, count=100)
        >>> str(metric), metric.value, round(metric.low, 3), round(metric.high, 3)
        ('corruptions/fog/3', 0.8, 0.711, 0.867)
        >>> metric.is_member, metric.lower_is_better
        (True, False)
    """

    family: str  # kind of metric: clean, bal, un, nun, corruptions, flips, robust, checks, calibration, ...
    name: str = ""  # the member of the family: a corruption, a mean over several, an attack's norm and radius, ...
    severity: int | None = None  # 1 to 5 for one severity of a corruption
    value: float | None = None  # a fraction, except for utilities and distances
    count: int = 0  # of images
    low: float | None = None
    high: float | None = None
    label_fraction: str = ""  # of the labels that the model was trained with, as text; empty: all of them
    adapted: bool = False  # to the test batches

    def __str__(self) -> str:
        severity = "" if self.severity is None else str(self.severity)
        return "/".join(filter(None, (self.prefix, self.family, self.name, severity)))

    @property
    def prefix(self) -> str:
        """The part of the name before the family, which tells how the model was trained and adapted."""
        parts = _LABEL_FRACTION + self.label_fraction if self.label_fraction else "", _ADAPTED if self.adapted else ""
        return "/".join(filter(None, parts))

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
        return find_metric(str(self.plain))

    @property
    def is_clean(self) -> bool:
        """Whether it is the accuracy on the clean test set."""
        return self.family in CLEAN and not self.name

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
    """Parses a name such as `corruptions/fog/3` to a `MetricValue` without a value.

    Examples:
        >>> metric = tfr.evaluation.parse_metric("corruptions/fog/3")
        >>> metric.family, metric.name, metric.severity
        ('corruptions', 'fog', 3)
        >>> tfr.evaluation.parse_metric("flips/mean").lower_is_better
        True
    """
    fraction = ""
    if text.startswith(_LABEL_FRACTION):
        first, _, text = text.partition("/")
        fraction = first.removeprefix(_LABEL_FRACTION)
    plain = text.removeprefix(f"{_ADAPTED}/")
    family, _, name = plain.partition("/")
    severity = None
    if family in CORRUPTION_FAMILIES and name.rpartition("/")[2].isdecimal():
        name, _, last = name.rpartition("/")
        severity = int(last)
    return MetricValue(family, name, severity, label_fraction=fraction, adapted=plain != text)


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
    entry, metric = parsed.entry, parsed.entry.metric
    if not metric.text:
        return Description(name, "")
    title, text, images = entry.format(metric.title), entry.format(metric.text), entry.images
    if parsed.label_fraction:
        labels = f"{100 * float(parsed.label_fraction):.3g}% of the labels"
        title, text = f"{title} with {labels}", f"{text}, of a model that was trained with {labels}"
        images = f"{images} after training with {labels}" if images else ""
    if parsed.adapted:
        title, text = f"{title}, adapted", f"{text}, of a model whose batch normalization is adapted to each batch of test images"
        images = f"{images} with adaptation to each batch" if images else ""
    direction = f"; {metric.direction} is better" if metric.direction else ""
    return Description(f"{title[0].upper()}{title[1:]}", f"{text}. {metric.unit}{direction}.", images, metric.unit == FRACTION)


def parse_requirements(text: str) -> list[Requirement]:
    """Parses requirements from a text METRIC>=NUMBER,METRIC<=NUMBER,..."""
    parsed = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([^<>=;]*[^<>=;\s])\s*(>=|<=)\s*([-+]?\d*\.?\d+(?:e[-+]?\d+)?)", part)
        if not match:
            raise ValueError(f"Expected --require='METRIC>=NUMBER,...' (or <=). Received: {part!r}")
        parsed.append((match[1], match[2], float(match[3])))
    return parsed


def check_requirements(
    required: Iterable[Requirement], eval_config: EvalConfig, label_fraction: float = 1.0, deployed: bool = False
) -> None:
    """Checks, before an evaluation, that it gives the required metrics, as `check_metrics`, and that bounds of fractions are in [0, 1]."""
    for metric, sign, bound in required:
        check_metrics([metric], eval_config, "--require", label_fraction, deployed)
        if eval_config.attack_time and parse_metric(metric).card_family == "robust":
            raise ValueError(
                f"Expected --require of {metric} without attack_time, which may leave an upper bound. Received: "
                f"attack_time={eval_config.attack_time}. Try: attack_subset"
            )
        if describe(metric).is_fraction and not 0 <= bound <= 1:
            advice = f". Try: --require='{metric}{sign}{bound / 100:g}'" if 1 < bound <= 100 else ""
            raise ValueError(f"Expected a bound from 0 to 1 for {metric}, a fraction. Received: {metric}{sign}{bound:g}{advice}")


def check_metrics(names: Iterable[str], eval_config: EvalConfig, flag: str, label_fraction: float = 1.0, deployed: bool = False) -> None:
    """Checks, before an evaluation, that it gives the metrics of a flag; those that the data or the model may have pass.

    `label_fraction`: of the labels that the model was trained with. `deployed`: size and latency of a file are measured too.
    """
    for metric in names:
        if metric in _OTHER_NAMES:
            raise ValueError(f"Unknown metric in {flag}: {metric!r}. Did you mean 'clean', the accuracy on unchanged images?")
        if not describe(metric).meaning:
            raise unknown(f"metric in {flag}", metric, [name for section in examples().values() for name in section])
        parsed = parse_metric(metric)
        if parsed.family == "deployed":
            if not deployed:
                raise ValueError(f"Expected {flag} with metrics of a model. Received: {metric}, of the files of formats")
            continue
        named = parsed.of_model(label_fraction, eval_config.adaptation != "none")
        if named != parsed:
            options = f"adaptation={eval_config.adaptation} and label_fraction={label_fraction:g}"
            raise ValueError(f"Expected {flag} with names of metrics of {options}. Received: {metric}. Try: {named}")
        _check_options(parsed, eval_config, flag)


def _check_options(metric, eval_config, flag):
    """Raises ValueError if an evaluation cannot give a metric; whether it can may depend on the data and the model too."""
    received: dict[str, list[str]] = {}
    advice: dict[str, list[str]] = {}
    for option, needed in metric.entry.needed(eval_config):
        value, default = (getattr(one, option.name) for one in (eval_config, EvalConfig))
        values = value if isinstance(value, tuple) else (value,)
        named = {shift_name(one) if option.name in ("shifts", "ood") else _text(one) for one in values}
        if value == default if needed is None else not named & {*needed}:
            received[option.name] = [_text(one) for one in values]
            wanted = advice.setdefault(option.name, received[option.name] if isinstance(default, tuple) else [])
            advice[option.name] = [*wanted, needed[0] if needed else option.example]
    if "severities" in advice:
        advice["severities"].sort()
    if advice:
        with_options, try_options = (
            " ".join(f"{name}={','.join(chosen) or 'none'}" for name, chosen in options.items()) for options in (received, advice)
        )
        raise ValueError(
            f"Expected {flag} with metrics of the chosen options. Received: {metric.plain} with {with_options}. Try: {try_options}"
        )


def _text(value):
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


class Outcome(typing.TypedDict):
    """The outcome of a required bound."""

    metric: str
    bound: str  # ">= 0.7", or "not worse than PATH"
    value: float
    met: bool
    difference: typing.NotRequired[str]  # to the other model, and its interval; of "not worse than PATH" alone


def outcomes(rows: Iterable[Mapping], required: Iterable[Requirement]) -> list[Outcome]:
    """Returns the outcome of every requirement, from rows with "metric" and "value"; a missing metric raises ValueError."""
    values = {row["metric"]: row["value"] for row in rows}
    results: list[Outcome] = []
    for metric, sign, bound in required:
        if metric not in values:
            raise unknown("metric in --require", metric, values)
        value = values[metric]
        met = value >= bound if sign == ">=" else value <= bound
        results.append({"metric": metric, "bound": f"{sign} {bound:g}", "value": value, "met": met})
    return results


def shortfalls(results: Iterable[Outcome]) -> list[str]:
    """Returns a message for every requirement that is not met."""
    return [f"  {_message(one)}" for one in results if not one["met"]]


def _message(outcome):
    difference = f": {outcome['difference']}" if "difference" in outcome else ""
    return f"{outcome['metric']} is {outcome['value']:.4f}, required {outcome['bound']}{difference}"


def write_junit(path: str, results: Mapping[str, Iterable[Outcome]]) -> None:
    """Writes {model: its outcomes} as JUnit XML, which CI systems show: a test suite for each model, a test case for each bound."""
    root = ElementTree.Element("testsuites")
    for model, found in results.items():
        suite = ElementTree.SubElement(root, "testsuite", {"name": model})
        for one in found:
            case = ElementTree.SubElement(suite, "testcase", {"classname": model, "name": f"{one['metric']} {one['bound']}"})
            if not one["met"]:
                ElementTree.SubElement(case, "failure", {"message": _message(one)})
        suite.attrib |= {"tests": str(len(suite)), "failures": str(len(suite.findall("testcase/failure")))}
    ElementTree.indent(root)
    with atomic_file(path, "wb") as file:
        file.write(ElementTree.tostring(root, "utf-8", xml_declaration=True))
