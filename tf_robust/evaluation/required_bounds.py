"""Required bounds of measures, for continuous integration: `corruptions/mean15>=0.7,flips/mean<=0.1`."""

import re
from collections.abc import Iterable, Mapping

from tf_robust.data.shifts import shift_name
from tf_robust.evaluation.config import EvalConfig
from tf_robust.evaluation.descriptions import MEASURES, describe
from tf_robust.evaluation.measure import OOD_SCORES, Measure, parse_measure
from tf_robust.utils.errors import unknown

Requirement = tuple[str, str, float]  # measure, ">=" or "<=", bound
_SOURCES = {  # family of measures: the evaluations that give them
    "clean": ("clean",),
    **dict.fromkeys(("un", "nun"), ("noise", "noise_floor")),
    "corruptions": ("corruptions",),
    "flips": ("perturbations",),
    **dict.fromkeys(("robust", "fgsm", "checks"), ("adversarial",)),
    **dict.fromkeys(("distance", "attack_curves"), ("attack_curves",)),
    **dict.fromkeys(("certified", "smoothed"), ("certified",)),
    **dict.fromkeys(("calibration", "aurra"), ("calibration",)),
    **dict.fromkeys(("class", "classes", "group", "groups"), ("slices",)),
    "boundary": ("boundary",),
    "utility": ("utility",),
}
_OTHER_NAMES = ("accuracy", "acc", "clean_accuracy", "accuracy/clean", "test_accuracy", "top1")  # of the measure clean elsewhere
_FLAGS = {  # family of measures: the flag that makes them
    "calibrated": ("calibrate", "temperature"),
    "abstention": ("abstain_accuracy", "0.95"),
    "conformal": ("conformal", "0.9"),
}


def parse_requirements(text: str) -> list[Requirement]:
    """Parses requirements from a comma-separated text.

    Args:
        text: MEASURE>=NUMBER,MEASURE<=NUMBER,...

    Raises:
        ValueError: a part is not MEASURE>=NUMBER or MEASURE<=NUMBER.
    """
    parsed = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([^<>=;]*[^<>=;\s])\s*(>=|<=)\s*([-+]?\d*\.?\d+(?:e[-+]?\d+)?)", part)
        if not match:
            raise ValueError(f"Expected --require='MEASURE>=NUMBER,...' (or <=). Received: {part!r}")
        parsed.append((match[1], match[2], float(match[3])))
    return parsed


def check_requirements(required: Iterable[Requirement], eval_config: EvalConfig) -> None:
    """Checks, before an evaluation, that it gives the required measures.

    Args:
        required: as `parse_requirements` returns it.
        eval_config: what is measured.

    Raises:
        ValueError: an unknown measure, one of an evaluation or a flag that is not chosen, or a bound outside [0, 1] of a fraction.
    """
    required = list(required)
    check_measures([measure for measure, _, _ in required], eval_config, "--require")
    for measure, sign, bound in required:
        if describe(measure).is_fraction and not 0 <= bound <= 1:
            advice = f". Try: --require='{measure}{sign}{bound / 100:g}'" if 1 < bound <= 100 else ""
            raise ValueError(f"Expected a bound from 0 to 1 for {measure}, a fraction. Received: {measure}{sign}{bound:g}{advice}")


def check_measures(measures: Iterable[str], eval_config: EvalConfig, flag: str) -> None:
    """Checks, before an evaluation, that it gives measures.

    Args:
        measures: their names.
        eval_config: what is measured.
        flag: that names the measures, for messages.

    Raises:
        ValueError: an unknown measure, or one of an evaluation or a flag that is not chosen.
    """
    for measure in measures:
        if measure in _OTHER_NAMES:
            raise ValueError(f"Unknown measure in {flag}: {measure!r}. Did you mean 'clean', the accuracy on unchanged images?")
        if not describe(measure).meaning:
            raise unknown(f"measure in {flag}", measure, [name for names in MEASURES.values() for name in names])
        parsed = parse_measure(measure).plain
        if missing := _missing_flag(parsed, eval_config):
            raise ValueError(f"Expected {flag} with measures of the chosen flags. Received: {measure}, without its flag. Try: {missing}")
        sources = _sources(parsed)
        if sources and not set(sources) & set(eval_config.evaluations):
            chosen = ",".join(eval_config.evaluations)
            raise ValueError(
                f"Expected {flag} with measures of --evaluations={chosen}. Received: {measure}. Try: --evaluations={chosen},{sources[0]}"
            )


def _sources(measure: Measure) -> tuple[str, ...]:
    """The evaluations of which one is needed for a measure; empty: any."""
    return ("corruptions",) if _images(measure)[0] == "severities" else _SOURCES.get(measure.family, ())


def _missing_flag(measure: Measure, eval_config: EvalConfig) -> str:
    """The flag that makes a measure, if it is not given or has another value; else empty."""
    flag, example = _FLAGS.get(measure.family, ("", ""))
    if flag and getattr(eval_config, flag) in ("none", 0.0):
        return f"--{flag}={example}"
    if str(measure) == "calibrated/temperature" and eval_config.calibrate != "temperature":
        return "--calibrate=temperature"
    images, name = _images(measure)
    if images == "severities":
        chosen = {*map(str, eval_config.severities)}
        return "" if name in chosen else f"--severities={','.join(sorted({*chosen, name}))}"
    if images and name not in map(shift_name, getattr(eval_config, images)):
        return f"--{images}={name}"
    return ""


def _images(measure: Measure) -> tuple[str, str]:
    """The flag that chooses the images of a measure, and its value for them; empty: clean images, or others."""
    if measure.family == "shift":
        return "shifts", measure.name
    group = measure.name.rpartition("/")[0]
    if measure.family == "ood":
        data, _, score = group.rpartition("/")
        return "ood", data if data and score in OOD_SCORES else group
    if measure.family in _FLAGS and group:
        kind, _, name = group.replace("severity_", "severity/", 1).partition("/")
        return {"severity": "severities", "shift": "shifts"}[kind], name
    return "", ""


def shortfalls(rows: Iterable[Mapping], required: Iterable[Requirement]) -> list[str]:
    """Returns a message for every requirement that is not met.

    Args:
        rows: dictionaries with "measure" and "value".
        required: as `parse_requirements` returns it.

    Raises:
        ValueError: a measure is not among the rows; the message has the most similar names.
    """
    values, messages = {row["measure"]: row["value"] for row in rows}, []
    for measure, sign, bound in required:
        if measure not in values:
            raise unknown("measure in --require", measure, values)
        met = values[measure] >= bound if sign == ">=" else values[measure] <= bound
        if not met:
            messages.append(f"  {measure} is {values[measure]:.4f}, required {sign} {bound:g}")
    return messages
