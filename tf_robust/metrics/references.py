"""Errors and flip probabilities of reference networks, by which those of others are divided: JSON files in this folder."""

import importlib.resources
import json
from collections.abc import Mapping

from tf_robust.utils.errors import unknown

Reference = str | dict | None  # name of a network, or a table; None raises a ValueError with advice


def reference_table(name: str) -> dict:
    """Returns a table of a reference network's numbers.

    Args:
        name: `alexnet_imagenet_c` or `alexnet_imagenet_p`.

    Returns:
        dict with `source` (where the numbers come from), `verified` (whether they were compared with that source),
        and: `errors` {corruption: [5]} and `clean_error`, or `flip_probabilities` {perturbation: p}; all fractions.

    Raises:
        ValueError: an unknown name.

    Examples:
        >>> table = tfr.metrics.reference_table("alexnet_imagenet_c")
        >>> table["network"], table["errors"]["fog"]
        ('AlexNet', [0.67474, 0.7605, 0.84378, 0.8726, 0.945])
    """
    if name not in _names():
        raise unknown("reference table", str(name), _names())
    return json.loads(importlib.resources.files(__package__).joinpath(f"{name}.json").read_text("utf-8"))


def resolve(reference: Reference, data_set: str, field: str, alternative: str) -> dict:
    """Returns `reference` as a table that has `field`.

    Args:
        reference: name of a network, whose table is `NAME_DATASET`, or a table like those of `reference_table`.
        data_set: `imagenet_c` or `imagenet_p`.
        field: `errors` or `flip_probabilities`.
        alternative: what to report without a reference, for the message.

    Raises:
        ValueError: no reference, an unknown name, a table without a field.
    """
    if reference is None:
        raise ValueError(
            "Expected a reference network to divide by. Received: None. A mean that is not divided by a reference's "
            f"has another name, and for CIFAR no reference was published. Try: report {alternative}"
        )
    if not isinstance(reference, dict):
        ending = f"_{data_set}"
        known = [name.removesuffix(ending) for name in _names() if name.endswith(ending)]
        if reference not in known:
            raise unknown(f"reference for {data_set}", str(reference), known)
        return reference_table(reference + ending)
    if missing := {"source", "verified", field} - reference.keys():
        raise ValueError(f"Expected a reference table with source, verified, {field}. Missing: {sorted(missing)}")
    return reference


def divide(values: Mapping[str, float], references: Mapping[str, float]) -> dict[str, float]:
    """Returns {name: value} in percent of {name: reference}; every reference must be positive."""
    for name in values:
        if not references[name] > 0:
            raise ValueError(f"Expected a positive reference for {name!r}. Received: {references[name]:g}")
    return {name: 100 * (value / references[name]) for name, value in values.items()}


def _names() -> list[str]:
    files = importlib.resources.files(__package__).iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))
