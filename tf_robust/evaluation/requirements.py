"""Measures that must be reached, for other people's continuous integration: `corruptions/mean15>=0.7,flips/mean<=0.1`."""

import re

from tf_robust.utils.errors import unknown


def requirements(text):
    """[(measure, ">=" or "<=", bound)] of a text with commas between.

    Raises:
        ValueError: a part is not MEASURE>=NUMBER or MEASURE<=NUMBER.
    """
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([\w/.\-]+)\s*(>=|<=)\s*([-+]?\d*\.?\d+(?:e[-+]?\d+)?)", part)
        if not match:
            raise ValueError(f"Expected --require='MEASURE>=NUMBER,...' (or <=). Received: {part!r}")
        found.append((match[1], match[2], float(match[3])))
    return found


def shortfalls(rows, required):
    """A sentence for every requirement that `rows` (dictionaries) do not meet.

    Raises:
        ValueError: a measure was not taken (the nearest are named).
    """
    values, sentences = {row["measure"]: row["value"] for row in rows}, []
    for measure, sign, bound in required:
        if measure not in values:
            raise unknown("measure in --require", measure, values)
        met = values[measure] >= bound if sign == ">=" else values[measure] <= bound
        if not met:
            sentences.append(f"  {measure} is {values[measure]:.4f}, required {sign} {bound:g}")
    return sentences
