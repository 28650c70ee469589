"""Required bounds of measures, for continuous integration: `corruptions/mean15>=0.7,flips/mean<=0.1`."""

import re
from collections.abc import Collection, Iterable, Mapping

from tf_robust.evaluation.descriptions import MEASURES, describe
from tf_robust.evaluation.measure import parse_measure
from tf_robust.utils.errors import unknown

Requirement = tuple[str, str, float]  # measure, ">=" or "<=", bound
_SOURCES = {  # family of measures: the evaluations that give them
    "clean": ("clean",),
    **dict.fromkeys(("un", "nun"), ("noise", "noise_floor")),
    "corruptions": ("corruptions",),
    "flips": ("perturbations",),
    **dict.fromkeys(("robust", "fgsm", "checks"), ("adversarial",)),
    "distance": ("attack_curves",),
    **dict.fromkeys(("certified", "smoothed"), ("certified",)),
    **dict.fromkeys(("calibration", "aurra"), ("calibration",)),
    **dict.fromkeys(("class", "classes", "group", "groups"), ("slices",)),
    "boundary": ("boundary",),
    "utility": ("utility",),
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
        match = re.fullmatch(r"([\w/.\-]+)\s*(>=|<=)\s*([-+]?\d*\.?\d+(?:e[-+]?\d+)?)", part)
        if not match:
            raise ValueError(f"Expected --require='MEASURE>=NUMBER,...' (or <=). Received: {part!r}")
        parsed.append((match[1], match[2], float(match[3])))
    return parsed


def check_requirements(required: Iterable[Requirement], evaluations: Collection[str]) -> None:
    """Checks, before an evaluation, that it gives the required measures.

    Args:
        required: as `parse_requirements` returns it.
        evaluations: those that are chosen.

    Raises:
        ValueError: an unknown measure, or one of an evaluation that is not chosen.
    """
    for measure, _, _ in required:
        if not describe(measure).meaning:
            raise unknown("measure in --require", measure, [name for names in MEASURES.values() for name in names])
        sources = _SOURCES.get(parse_measure(measure).plain.family, ())
        if sources and not set(sources) & set(evaluations):
            chosen = ",".join(evaluations)
            raise ValueError(
                f"Expected --require with measures of --evaluations={chosen}. Received: {measure}. Try: --evaluations={chosen},{sources[0]}"
            )


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
