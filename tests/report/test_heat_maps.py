"""Values of the heat maps, of any subset of corruptions and severities."""

import numpy as np
import pytest

from tests.report.conftest import is_image
from tf_robust.report import heat_maps, tables

SEEDS, LEVELS = (0, 1), (1, 3, 5)
NAMES = ("snow", "fog", "gaussian_noise", "saturate")


@pytest.fixture
def accuracies():
    return np.random.RandomState(0).rand(2, len(SEEDS), len(NAMES), len(LEVELS))


@pytest.fixture
def table(evaluate, accuracies):
    runs = [
        evaluate(
            row,
            seed,
            {f"corruptions/{name}/{level}": accuracies[r, s, n, k] for n, name in enumerate(NAMES) for k, level in enumerate(LEVELS)},
        )
        for r, row in enumerate(("xe", "a|<b>"))
        for s, seed in enumerate(SEEDS)
    ]
    return tables.aggregate(runs)


def test_cells_are_means_over_seeds_of_the_measured_severities(table, accuracies, tmp_path):
    chart = heat_maps.corruption_heat_map(table)
    cells = {(v["row"], v["measure"]): v["accuracy"] for v in chart.spec["data"]["values"]}
    assert len(cells) == 2 * len(NAMES) * len(LEVELS)
    assert cells["a|<b>", "corruptions/fog/3"] == pytest.approx(accuracies[1, :, 1, 1].mean())
    assert cells["xe", "corruptions/saturate/5"] == pytest.approx(accuracies[0, :, 3, 2].mean())
    assert {v["severity"] for v in chart.spec["data"]["values"]} == set(LEVELS)
    assert chart.spec["spec"]["encoding"]["y"]["sort"] == ["Gaussian noise", "Snow", "Fog", "Saturate"]  # as in the benchmark
    assert is_image(chart.save(str(tmp_path)))


def test_differences_are_in_points_on_a_symmetric_scale(table, accuracies, tmp_path):
    chart = heat_maps.difference_heat_map(table)
    cells = {(v["row"], v["measure"]): v["points"] for v in chart.spec["data"]["values"]}
    assert {row for row, _ in cells} == {"a|<b>"}
    expected = 100 * (accuracies[1] - accuracies[0]).mean(axis=0)
    np.testing.assert_allclose([cells["a|<b>", f"corruptions/{name}/3"] for name in NAMES], expected[:, 1])
    low, high = chart.spec["spec"]["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert low == -high and high == pytest.approx(np.abs(expected).max())
    assert is_image(chart.save(str(tmp_path)))


def test_small_differences_look_small(evaluate):
    runs = [evaluate(row, 0, {"corruptions/fog/1": value}) for row, value in (("xe", 0.5), ("fcl", 0.51))]
    chart = heat_maps.difference_heat_map(tables.aggregate(runs))
    assert chart.spec["spec"]["layer"][0]["encoding"]["color"]["scale"]["domain"] == [-10, 10]


def test_no_severities_no_heat_map(evaluate):
    table = tables.aggregate([evaluate("xe", 0, {"clean": 0.5, "corruptions/fog": 0.4})])
    assert heat_maps.corruption_heat_map(table) is heat_maps.difference_heat_map(table) is heat_maps.flips(table) is None
    one = tables.aggregate([evaluate("xe", 0, {"corruptions/fog/1": 0.4})])
    assert heat_maps.corruption_heat_map(one) and heat_maps.difference_heat_map(one) is None
