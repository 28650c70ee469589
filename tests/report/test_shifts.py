"""Accuracy on shifted data against accuracy on the original."""

import pytest

from tf_robust import report
from tf_robust.evaluation import parse_measure
from tf_robust.report import shifts
from tf_robust.report.charts import of_table


def evaluation(row, correct, seed=0):
    """An evaluation with accuracies, {measure: (correct, count)}."""
    rows = [parse_measure(name).with_accuracy(*numbers).to_json() for name, numbers in correct.items()]
    return {"row": row, "seed": seed, "rows": rows}


@pytest.fixture
def two():
    """Two models, of which one was measured on a second shift too."""
    return report.aggregate(
        [
            evaluation("a", {"clean": (48, 80), "shift/night": (56, 70), "shift/fog": (10, 20)}),
            evaluation("b", {"clean": (60, 80), "shift/night": (35, 70)}),
        ]
    )


def test_the_interval_is_newcombes(two):
    cells = {(entry["row"], entry["measure"]): entry for entry in two["rows"]}
    low, high = shifts.difference_interval(cells["a", "shift/night"], cells["a", "clean"])
    assert (low, high) == pytest.approx((0.0524, 0.3339), abs=5e-5)  # Newcombe (1998), example (a) of method 10


def test_over_several_seeds_the_interval_is_students():
    table = report.aggregate(
        [evaluation("a", {"clean": (80, 100), "shift/night": (night, 100)}, seed) for seed, night in enumerate((60, 50, 40))]
    )
    (grid,) = shifts.falls(table).rows.values()
    assert grid[0].text == "-0.300" and grid[0].uncertainty == "[-0.548, -0.052]"  # 4.303 * 0.1 / sqrt(3)


def test_the_table_has_a_line_per_shift(two):
    grid = shifts.falls(two)
    assert [label.text for label in grid.rows] == ["night", "fog"] and [label.text for label in grid.columns] == ["a", "b"]
    night, fog = grid.rows.values()
    assert [cell.text for cell in night] == ["+0.200", "-0.250"] and fog[0].text == "-0.100" and fog[1] is None
    page = report.to_html(two, "title", None, of_table(two), [], {})
    assert grid.heading in page and grid.heading in report.to_markdown(two, "title") and "images of night" in page


def test_the_chart_has_a_point_per_model_and_shift_and_the_diagonal(two):
    (chart,) = [chart for chart in of_table(two) if chart.name == "shifts"]
    points = {(value["row"], value["data"]): (value["original"], value["shifted"]) for value in chart.spec["data"]["values"]}
    assert points == {("a", "night"): (0.6, 0.8), ("a", "fog"): (0.6, 0.5), ("b", "night"): (0.75, 0.5)}
    diagonal = chart.spec["layer"][0]["data"]["values"]
    assert all(end["original"] == end["shifted"] for end in diagonal) and diagonal[0]["shifted"] < 0.5 and diagonal[1]["shifted"] > 0.8
    assert chart.png().startswith(b"\x89PNG")


def test_without_shifts_or_clean_images_there_is_neither():
    for correct in ({"clean": (8, 10)}, {"shift/night": (8, 10)}):
        table = report.aggregate([evaluation("a", correct)])
        assert shifts.falls(table) is None and shifts.shift_chart(table) is None


def test_the_verdict_names_the_worst_shift():
    text = report.verdict(report.aggregate([evaluation("a", {"clean": (900, 1000), "shift/night": (700, 1000), "shift/fog": (300, 1000)})]))
    assert "to 30.0%" in text and "on images of fog (60.0 points less)" in text


def test_images_of_a_shift_are_not_paired_with_the_clean_ones():
    per_image = {"clean": [True] * 5, "shift/night": [False] * 5}
    table = report.aggregate(
        [evaluation("a", {"clean": (5, 5), "shift/night": (0, 5)})], per_image=lambda _, measure: ("digest", per_image[measure])
    )
    assert table["falls"] == {}
