"""A grid of settings: its points, and the best of them on validation images."""

import itertools

import numpy as np

from tf_robust.evaluation import parse_measure
from tf_robust.experiments.compatibility import RENAMED_FLAGS
from tf_robust.utils.errors import unknown


def grid(text, defaults):
    """The points of a grid, the last setting changing fastest.

    Args:
        text: 'NAME=VALUE,VALUE;NAME=VALUE,...'. defaults: {flag: its default}, the flags there are.

    Returns:
        list of {name: value as text}

    Raises:
        ValueError: no such flag, one that holds several values, a value or a name twice, none.
    """
    axes = {}
    for part in filter(None, text.split(";")):
        name, separator, values = (piece.strip() for piece in part.partition("="))
        values = [value.strip() for value in values.split(",")]
        name = RENAMED_FLAGS.get(name, name)
        if name not in defaults:
            raise unknown("flag to sweep", name, defaults)
        if isinstance(defaults[name], (tuple, list)):
            raise ValueError(f"Expected flags of one value in --sweep, since commas divide its values. Received: {name}")
        if not separator or not all(values) or len(set(values)) < len(values) or name in axes:
            raise ValueError(f"Expected --sweep='NAME=VALUE,VALUE;...', every name and value once. Received: {part!r}")
        axes[name] = values
    if not axes:
        raise ValueError(f"Expected --sweep='NAME=VALUE,VALUE;...'. Received: {text!r}")
    return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def name_of(point):
    """The row and folder of a point: 'NAME=VALUE,NAME=VALUE'; a / of a value becomes _."""
    return ",".join(f"{name}={value.replace('/', '_')}" for name, value in point.items())


def best(evaluations, measure=""):
    """The row with the best mean over seeds, the first of equals.

    Args:
        evaluations: as `evaluation.json`. measure: what decides; empty: the first that was measured.

    Returns:
        (row, a sentence that says so)

    Raises:
        ValueError: no such measure.
    """
    measured = [{row["measure"]: row["value"] for row in found["rows"]} for found in evaluations]
    measure = measure or next(iter(measured[0]))
    if not all(measure in found for found in measured):
        raise unknown("measure to choose by", measure, measured[0])
    values = {}
    for found, row in zip(measured, evaluations):
        values.setdefault(row["row"], []).append(found[measure])
    means = {row: np.mean(found) for row, found in values.items()}
    chosen = (min if parse_measure(measure).lower_is_better else max)(means, key=means.get)
    return chosen, (
        f"Chosen of {len(means)} by {measure} on validation images ({means[chosen]:.4f}): {chosen}. A best of several is "
        f"flattered there; the test set was not looked at for the choice."
    )
