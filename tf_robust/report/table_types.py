"""Types of a report's input and of its table."""

import typing
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tf_robust.metrics.paired import PairedDifference

Evaluation = Mapping[str, typing.Any]  # the content of `evaluation.json`
Paper = Mapping[str, Mapping[str, Sequence]]  # {row: {metric: [mean, std or None]}}
PerImage = Callable[[Evaluation, str], tuple[str, np.ndarray] | None]  # (evaluation, metric) -> (digest of the images, values [N])


class Difference(typing.TypedDict):
    """The paired difference of a row to the baseline, over common seeds."""

    baseline: str  # name of the row
    mean: float
    low: float | None  # lower end of the 95 % t interval; None with one pair
    high: float | None
    pairs: int  # number of common seeds
    images: PairedDifference | None  # of the means over common seeds; None without results of the same images


class Entry(typing.TypedDict):
    """One metric of one row."""

    row: str
    metric: str  # name of the metric
    values: list[float]  # one for each seed
    seeds: list[int]  # sorted
    mean: float
    std: float | None  # sample standard deviation over seeds; None with one seed
    low: float | None  # lower end of the 95 % interval: of the mean over seeds, or with one seed binomial
    high: float | None
    paper: list | None  # the paper's mean and its std or None
    difference: Difference | None  # to the baseline; None if there is nothing to compare


class AttackResult(typing.TypedDict):
    """The result of an attack by members in turn, or of Square alone."""

    accuracy_after: Mapping[str, float]  # {"clean" or member: accuracy after it and those before it}
    warnings: Sequence[str]
    budget: str  # per image, and the number of images, in words


class Table(typing.TypedDict):
    """Rows x metrics."""

    rows: list[Entry]  # one for every row and metric
    order: list[str]  # names of the rows
    metrics: list[str]  # names of the metrics, headlines first
    headlines: list[str]  # of a family with many metrics those that summarize it, metrics that the paper printed, and all others
    adapted: dict[str, str]  # {metric with test-time adaptation: the same without}, where both were measured; in none of the others
    details: list[str]  # metrics of one corruption, severity or perturbation, where others summarize them
    baseline: str  # name of the row
    unverified: dict[str, str]  # {metric: source of the reference table that it is divided by, if that was not compared with its source}
    images: dict[str, int]  # {metric: number of images}
    falls: dict[str, PairedDifference]  # {metric: paired difference to the clean accuracy over the images}, of a single evaluation
    attacks: dict[tuple[str, str], AttackResult]  # {(row, metric): result under AutoAttack or Square}, first evaluation of each row
    training_seconds: dict[str, float]  # {row: median time of its trainings}, without rows whose time was not recorded
    training_ratios: dict[str, float]  # {row: training time relative to the baseline's}, of rows trained from scratch for as many steps
