"""Types of a report's input and of its table."""

import typing
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tf_robust.metrics.paired import PairedDifference

Evaluation = Mapping[str, typing.Any]  # the content of `evaluation.json`
Paper = Mapping[str, Mapping[str, Sequence]]  # {row: {measure: [mean, std or None]}}
PerImage = Callable[[Evaluation, str], tuple[str, np.ndarray] | None]  # (evaluation, measure) -> (digest of the images, values [N])


class Difference(typing.TypedDict):
    """The paired difference of a row to the baseline, over common seeds.

    Attributes:
        baseline: name of the row.
        mean: of the differences.
        low: lower end of the 95 % t interval; None with one pair.
        high: its upper end; None with one pair.
        pairs: number of common seeds.
        images: `metrics.paired_difference` over the images, of the means over common seeds; None if per-image results of the same
            images are not available.
    """

    baseline: str
    mean: float
    low: float | None
    high: float | None
    pairs: int
    images: PairedDifference | None


class Entry(typing.TypedDict):
    """One measure of one row.

    Attributes:
        row: name of the row.
        measure: name of the measure.
        values: one for each seed.
        seeds: sorted.
        mean: over seeds.
        std: sample standard deviation over seeds; None with one seed.
        low: lower end of the 95 % interval: of the mean over seeds, or with one seed binomial.
        high: its upper end.
        paper: the paper's mean and its std or None; None if the paper has none.
        difference: to the baseline; None if there is nothing to compare.
    """

    row: str
    measure: str
    values: list[float]
    seeds: list[int]
    mean: float
    std: float | None
    low: float | None
    high: float | None
    paper: list | None
    difference: Difference | None


class AttackResult(typing.TypedDict):
    """The result of an attack by members in turn, or of Square alone.

    Attributes:
        accuracy_after: {"clean" or member: accuracy after it and those before it}.
        warnings: sentences.
        budget: per image, and the number of images, in words.
    """

    accuracy_after: Mapping[str, float]
    warnings: Sequence[str]
    budget: str


class Table(typing.TypedDict):
    """Rows x measures.

    Attributes:
        rows: an entry for every row and measure.
        order: names of the rows.
        measures: names of the measures, headlines first.
        headlines: of a family with many measures those that summarize it, measures that the paper printed, and all others.
        adapted: {measure with test-time adaptation: the same without}, where both were measured; the former are in none of the others.
        details: measures of one corruption, severity or perturbation, where others summarize them.
        baseline: name of the row.
        unverified: {measure: source of the reference table that it is divided by, if that was not compared with its source}.
        images: {measure: number of images}.
        falls: {measure: paired difference to the clean accuracy over the images}, of a single model that was measured once.
        attacks: {(row, measure): result under AutoAttack or Square}, of the first evaluation of each row.
        training_seconds: {row: median time of its trainings}, without rows whose time was not recorded.
        training_ratios: {row: training time relative to the baseline's}, of rows trained from scratch for as many steps.
    """

    rows: list[Entry]
    order: list[str]
    measures: list[str]
    headlines: list[str]
    adapted: dict[str, str]
    details: list[str]
    baseline: str
    unverified: dict[str, str]
    images: dict[str, int]
    falls: dict[str, PairedDifference]
    attacks: dict[tuple[str, str], AttackResult]
    training_seconds: dict[str, float]
    training_ratios: dict[str, float]
