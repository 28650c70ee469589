"""Synthetic evaluations of a few runs."""

import numpy as np
import pytest
from PIL import Image

from tf_robust import report


@pytest.fixture(scope="session")
def evaluate():
    """Function (row, seed, {metric: value}) -> evaluation of such a run; intervals are value ± 0.01."""

    def evaluation(row, seed, values):
        rows = [{"metric": name, "value": value, "count": 100, "low": value - 0.01, "high": value + 0.01} for name, value in values.items()]
        return {
            "row": row,
            "seed": seed,
            "rows": rows,
            "data": "digits",
            "model": "lenet",
            "commit": "abc",
            "versions": {"numpy": "2.4"},
            "date": "2026-11-21",
            "training": {"steps": 5, "seconds": 30.0},
        }

    return evaluation


def per_image(values):
    """Like `evaluation.PerImage`, from {(row, seed): {metric: values}} of the same images."""
    return lambda evaluation, metric: ("same", values[evaluation["row"], evaluation["seed"]][metric])


@pytest.fixture(scope="session")
def table_per_image(evaluate):
    """Function {(row, seed): {metric: values}} -> table of runs with these results per image."""

    def table(values, baseline=None):
        means = {run: {metric: float(of_metric.mean()) for metric, of_metric in of_run.items()} for run, of_run in values.items()}
        runs = [evaluate(*run, of_run) for run, of_run in means.items()]
        return report.aggregate(runs, baseline=baseline, per_image=per_image(values))

    return table


@pytest.fixture(scope="session")
def three_seeds(evaluate):
    """`xe` and `fcl`, three seeds: fcl gains 0.2, 0.3, 0.25 in un; bal differs by 0.01, -0.01, 0."""
    return [
        evaluate("xe", 0, {"bal": 0.90, "un": 0.40}),
        evaluate("fcl", 0, {"bal": 0.91, "un": 0.60}),
        evaluate("xe", 1, {"bal": 0.92, "un": 0.35}),
        evaluate("fcl", 1, {"bal": 0.91, "un": 0.65}),
        evaluate("xe", 2, {"bal": 0.91, "un": 0.45}),
        evaluate("fcl", 2, {"bal": 0.91, "un": 0.70}),
    ]


def is_image(path):
    pixels = np.asarray(Image.open(path).convert("L"))
    return min(pixels.shape) > 60 and pixels.std() > 5


def values_of(chart):
    """The data of a chart."""
    return chart.data.values


def texts_of(section):
    """{name of a line: texts of its cells} of a table."""
    return {name: [cell and str(cell) for cell in line] for name, *line in section.frame.itertuples(name=None)}
