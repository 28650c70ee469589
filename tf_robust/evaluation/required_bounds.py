"""Required bounds of metrics, for continuous integration: `corruptions/mean15>=0.7,flips/mean<=0.1`."""

import re
import typing
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

from tf_robust.configs.evaluation import EvalConfig
from tf_robust.data.kinds import shift_name
from tf_robust.evaluation.metric_table import examples
from tf_robust.evaluation.metric_value import MetricValue, describe, parse_metric
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import atomic_file

Requirement = tuple[str, str, float]  # metric, ">=" or "<=", bound
_OTHER_NAMES = ("accuracy", "acc", "clean_accuracy", "accuracy/clean", "test_accuracy", "top1")  # of the metric clean elsewhere


def parse_requirements(text: str) -> list[Requirement]:
    """Parses requirements from a text METRIC>=NUMBER,METRIC<=NUMBER,..."""
    parsed = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([^<>=;]*[^<>=;\s])\s*(>=|<=)\s*([-+]?\d*\.?\d+(?:e[-+]?\d+)?)", part)
        if not match:
            raise ValueError(f"Expected --require='MEASURE>=NUMBER,...' (or <=). Received: {part!r}")
        parsed.append((match[1], match[2], float(match[3])))
    return parsed


def check_requirements(
    required: Iterable[Requirement], eval_config: EvalConfig, label_fraction: float = 1.0, deployed: bool = False
) -> None:
    """Checks, before an evaluation, that it gives the required metrics, as `check_metrics`, and that bounds of fractions are in [0, 1]."""
    required = list(required)
    check_metrics([metric for metric, _, _ in required], eval_config, "--require", label_fraction, deployed)
    for metric, sign, bound in required:
        if describe(metric).is_fraction and not 0 <= bound <= 1:
            advice = f". Try: --require='{metric}{sign}{bound / 100:g}'" if 1 < bound <= 100 else ""
            raise ValueError(f"Expected a bound from 0 to 1 for {metric}, a fraction. Received: {metric}{sign}{bound:g}{advice}")


def check_metrics(metrics: Iterable[str], eval_config: EvalConfig, flag: str, label_fraction: float = 1.0, deployed: bool = False) -> None:
    """Checks, before an evaluation, that it gives metrics; those that the data or the model may have, such as that of a class, pass.

    Args:
        metrics: their names.
        eval_config: what is measured.
        flag: that names the metrics, for messages.
        label_fraction: fraction of the labels that the model was trained with.
        deployed: size and latency of a file are measured too.
    """
    for metric in metrics:
        if metric in _OTHER_NAMES:
            raise ValueError(f"Unknown metric in {flag}: {metric!r}. Did you mean 'clean', the accuracy on unchanged images?")
        if not describe(metric).meaning:
            raise unknown(f"metric in {flag}", metric, [name for names in examples().values() for name in names])
        parsed = parse_metric(metric)
        if parsed.family == "deployed":
            if not deployed:
                raise ValueError(f"Expected {flag} with metrics of a model. Received: {metric}, of the files of formats")
            continue
        named = parsed.plain.of_model(label_fraction, eval_config.adaptation != "none")
        if named != parsed:
            options = f"adaptation={eval_config.adaptation} and label_fraction={label_fraction:g}"
            raise ValueError(f"Expected {flag} with names of metrics of {options}. Received: {metric}. Try: {named}")
        if message := _mismatch(parsed.plain, eval_config):
            raise ValueError(f"Expected {flag} with metrics of the chosen options. Received: {message}")


def _mismatch(metric: MetricValue, eval_config: EvalConfig) -> str:
    """Returns why an evaluation cannot give a metric, for a message; empty if it can, which may depend on the data and the model too."""
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
    return f"{metric} with {_flags(received)}. Try: {_flags(advice)}" if advice else ""


def _flags(values):
    return " ".join(f"{name}={','.join(chosen) or 'none'}" for name, chosen in values.items())


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
        cases = list(found)
        counts = {"tests": str(len(cases)), "failures": str(sum(not one["met"] for one in cases))}
        suite = ElementTree.SubElement(root, "testsuite", {"name": model, **counts})
        for one in cases:
            case = ElementTree.SubElement(suite, "testcase", {"classname": model, "name": f"{one['metric']} {one['bound']}"})
            if not one["met"]:
                ElementTree.SubElement(case, "failure", {"message": _message(one)})
    ElementTree.indent(root)
    with atomic_file(path, "wb") as file:
        file.write(ElementTree.tostring(root, "utf-8", xml_declaration=True))
