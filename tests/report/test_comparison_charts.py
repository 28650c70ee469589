"""Content of the comparison of all measures, and of robust over clean accuracy."""

import numpy as np
import pytest

from tf_robust.report import comparison_charts, label_placement, tables, vega


def values(chart):
    return chart.spec["data"]["values"]


def test_comparison_shows_means_stds_and_the_paper(three_seeds, evaluate):
    points = values(
        comparison_charts.comparison(tables.aggregate([*three_seeds, evaluate("alone", 0, {"un": 0.5})], {"xe": {"un": [0.4, None]}}))
    )
    by_cell = {(value["row"], value["name"]): value for value in points}
    xe = by_cell["xe", "un"]
    np.testing.assert_allclose([xe["mean"], xe["low"], xe["high"], xe["paper"], xe["seeds"]], [0.4, 0.35, 0.45, 0.4, 3])
    alone = by_cell["alone", "un"]
    assert xe["measure"] == "Uniform noise (UN)" and xe["start"] <= 0.35 and xe["end"] >= 0.7
    np.testing.assert_allclose([alone["low"], alone["high"]], [0.49, 0.51])
    assert alone["paper"] is None and ("alone", "bal") not in by_cell


def test_panels_of_fractions_span_a_tenth(evaluate):
    runs = [evaluate(row, 0, {"clean": x, "calibration/rms": 0.074}) for row, x in (("xe", 0.776), ("fcl", 0.781))]
    points = {value["name"]: value for value in values(comparison_charts.comparison(tables.aggregate(runs)))}
    assert points["clean"]["end"] - points["clean"]["start"] >= 0.1 - 1e-9
    assert points["calibration/rms"]["start"] < 0.064 and points["calibration/rms"]["end"] > 0.084  # not at the edge
    assert points["calibration/rms"]["measure"] == "RMS calibration error\n(lower is better)"


def test_the_pareto_front_has_rows_that_no_other_surpasses(evaluate):
    points = {"low": (0.5, 0.5), "left": (0.6, 0.9), "right": (0.9, 0.6), "below_right": (0.9, 0.5), "same": (0.9, 0.6)}
    table = tables.aggregate([evaluate(row, 0, {"clean": x, "un": y}) for row, (x, y) in points.items()])
    assert {value["row"] for value in values(comparison_charts.pareto(table)) if value["front"]} == {"left", "right", "same"}


def test_of_many_models_those_of_the_front_are_named(evaluate):
    runs = [evaluate(f"row_{i}", 0, {"clean": 0.5 + i / 50, "un": 0.6 - i / 100 if i in (3, 11) else 0.3}) for i in range(12)]
    few, many = (comparison_charts.pareto(tables.aggregate(some)) for some in (runs[:10], runs))
    assert all(value["side"] for value in values(few)) and "named" not in few.caption
    assert {value["row"] for value in values(many) if value["side"]} == {"row_3", "row_11"} and "the best are named" in many.caption


def test_pareto_axes_span_a_tenth_and_contain_the_intervals(evaluate):
    table = tables.aggregate([evaluate("xe", 0, {"bal": 0.5, "nun": 0.781}), evaluate("fcl", 0, {"bal": 0.9, "nun": 0.776})])
    chart = comparison_charts.pareto(table)
    x, y = (chart.spec["encoding"][channel]["scale"]["domain"] for channel in "xy")
    assert y[1] - y[0] >= 0.1 - 1e-9 and x[0] <= 0.49 and x[1] >= 0.91
    assert chart.spec["encoding"]["y"]["title"] == "Non-uniform noise (NUN)"
    (fcl,) = (value for value in values(chart) if value["row"] == "fcl")
    np.testing.assert_allclose([fcl["left"], fcl["right"], fcl["bottom"], fcl["top"]], [0.89, 0.91, 0.766, 0.786])


def test_names_stay_inside_and_apart():
    points = {"first_row": (0.6, 0.6), "second_row": (0.61, 0.602), "far": (0.9, 0.9), "further": (0.1, 0.1)}
    sides = label_placement.name_sides(points, list(points), [], (0, 1), (0, 1))
    assert sides["first_row"] != sides["second_row"] and sides["far"] == "right"
    points = {"at_the_right_edge": (1.0, 0.5), "at_the_left_edge": (0.0, 0.1)}
    assert label_placement.name_sides(points, list(points), [], (0, 1), (0, 1)) == {
        "at_the_right_edge": "left",
        "at_the_left_edge": "right",
    }


def test_values_in_the_names_of_points_are_shown():
    vl_convert = pytest.importorskip("vl_convert")
    names = ["contrastive_gaussian_weight=0.008,temperature=0.5", "PGD, 4 steps", "a_name_of_some_length"]
    y = vega.row_axis(names, 22)
    spec = {"data": {"values": [{"row": name} for name in names]}, "mark": "point", "encoding": {"y": y}, "height": vega.row_step(names)}
    svg = vl_convert.vegalite_to_svg(spec)
    texts = [
        text for text in ("…gaussian_weight=0.008", "temperature=0.5", "PGD, 4 steps", "a_name_of_some_length") if f">{text}</t" in svg
    ]
    assert len(texts) == 4 and "contrastive_gaussian_weight=0.008<" not in svg
    assert vega.row_step(names) == {"step": 31} and vega.row_step(names[1:]) == {"step": 18}
