"""Content of the charts of a table, and that each becomes an image."""

import json

import numpy as np
import pytest

from tests.report.conftest import is_image, values_of
from tf_robust import report
from tf_robust.report import chart as look
from tf_robust.report import charts, comparison, tables

SEVERITIES = {f"corruptions/{name}/{s}": (index + s) / 10 for index, name in enumerate(("fog", "snow")) for s in range(1, 6)}
GROUPS = {f"corruptions/{name}": 0.5 for name in ("noise", "blur", "weather", "digital")}
SEEDS, LEVELS = (0, 1), (1, 3, 5)
NAMES = ("snow", "fog", "gaussian_noise", "saturate")
ACCURACIES = np.random.RandomState(0).rand(2, len(SEEDS), len(NAMES), len(LEVELS))  # of two rows


@pytest.fixture
def table(evaluate):
    """Two rows with the metrics of all charts, and a third with one metric of another seed."""
    shared = {**GROUPS, **SEVERITIES, "flips/tilt": 0.1, "flips/mean": 0.1, "shift/night": 0.7}
    runs = [
        evaluate("xe", 0, {"clean": 0.9, "corruptions/mean15": 0.4, **shared}),
        evaluate("a|<b>", 0, {"clean": 0.8, "corruptions/mean15": 0.6, **shared}),
        evaluate("other", 3, {"clean": 0.7}),
    ]
    return tables.aggregate(runs, {"xe": {"clean": [0.93, None]}})


def test_every_chart_becomes_an_image_and_valid_json(table, tmp_path):
    every_chart = [
        *charts.of_table(table),
        charts.training_curves({"xe": {"loss": [2.0, 1.0]}}),
        charts.class_histogram({"train": [5, 3]}, ["a", "b"]),
        report.attack_curves({"xe": {"pgd_l2": [0.0, 0.5, np.inf]}, "fcl": {"pgd_l2": [np.inf] * 3}}),
    ]
    assert [chart.name for chart in every_chart] == [
        *("comparison", "pareto", "shifts", "groups", "severities", "corruptions", "corruption_differences", "flips", "cost"),
        *("training", "classes", "attacks"),
    ]
    for chart in every_chart:
        assert is_image(look.save_png(chart, str(tmp_path))), chart.name
        assert "<" not in look.embed(chart) and json.loads(look.embed(chart))["description"] == chart.description


def test_charts_without_metrics_are_left_out(three_seeds):
    assert [chart.name for chart in charts.of_table(tables.aggregate(three_seeds[:1]))] == ["comparison"]
    assert [chart.name for chart in charts.of_table(tables.aggregate(three_seeds))] == ["comparison", "pareto", "cost"]
    untimed = tables.aggregate([{**run, "training": {}} for run in three_seeds])
    assert [chart.name for chart in charts.of_table(untimed)] == ["comparison", "pareto"]


def test_comparison_shows_means_stds_and_the_paper(three_seeds, evaluate):
    table = tables.aggregate([*three_seeds, evaluate("alone", 0, {"un": 0.5})], {"xe": {"un": [0.4, None]}})
    by_cell = {(value["row"], value["name"]): value for value in values_of(charts.comparison(table))}
    xe = by_cell["xe", "un"]
    np.testing.assert_allclose([xe["mean"], xe["low"], xe["high"], xe["paper"], xe["seeds"]], [0.4, 0.35, 0.45, 0.4, 3])
    alone = by_cell["alone", "un"]
    assert xe["start"] < 0.35 and xe["end"] > 0.7  # no interval ends at the edge
    np.testing.assert_allclose([alone["low"], alone["high"]], [0.49, 0.51])
    assert alone["paper"] is None and ("alone", "bal") not in by_cell


def test_the_pareto_front_has_rows_that_no_other_surpasses(evaluate):
    points = {"low": (0.5, 0.5), "left": (0.6, 0.9), "right": (0.9, 0.6), "below_right": (0.9, 0.5), "same": (0.9, 0.6)}
    table = tables.aggregate([evaluate(row, 0, {"clean": x, "un": y}) for row, (x, y) in points.items()])
    assert {value["row"] for value in values_of(charts.pareto(table)) if value["front"]} == {"left", "right", "same"}


def test_pareto_axes_span_a_tenth_and_contain_the_intervals(evaluate):
    table = tables.aggregate([evaluate("xe", 0, {"bal": 0.5, "nun": 0.781}), evaluate("fcl", 0, {"bal": 0.9, "nun": 0.776})])
    chart = charts.pareto(table)
    encoding = chart.to_dict()["layer"][-1]["encoding"]
    x, y = (encoding[channel]["scale"]["domain"] for channel in "xy")
    assert y[1] - y[0] >= 0.1 - 1e-9 and x[0] <= 0.49 and x[1] >= 0.91
    (fcl,) = (value for value in values_of(chart) if value["row"] == "fcl")
    np.testing.assert_allclose([fcl["left"], fcl["right"], fcl["low"], fcl["high"]], [0.89, 0.91, 0.766, 0.786])


def test_severities_are_means_over_the_corruptions_that_all_have(table, evaluate):
    by = {(value["row"], value["severity"]): value["accuracy"] for value in values_of(charts.severities(table))}
    assert by["xe", 2] == pytest.approx((0.2 + 0.3) / 2) and len(by) == 10
    odd = {metric: value for metric, value in SEVERITIES.items() if metric[-1] in "135"}
    by = {(v["row"], v["severity"]): v["accuracy"] for v in values_of(charts.severities(tables.aggregate([evaluate("xe", 0, odd)])))}
    assert by == {("xe", level): pytest.approx((2 * level + 1) / 20) for level in (1, 3, 5)}
    part = tables.aggregate([evaluate("xe", 0, SEVERITIES), evaluate("fcl", 0, {m: v for m, v in SEVERITIES.items() if "fog" in m})])
    by = {(value["row"], value["severity"]): value["accuracy"] for value in values_of(charts.severities(part))}
    assert by["xe", 2] == pytest.approx(0.2)


def test_charts_of_corruptions_have_the_adapted_model(evaluate):
    names = ("corruptions/noise", "corruptions/fog/1", "corruptions/fog/3")
    runs = [evaluate("float", 0, dict(zip(names, (0.5, 0.6, 0.4))))]
    runs.append(evaluate("model, adapted", 0, dict(zip((f"adapted/{name}" for name in names), (0.7, 0.8, 0.6)))))
    table = report.aggregate([*runs, evaluate("float", 1, {"adapted/corruptions/noise": 0.1})])  # a row with both: without
    assert [value["accuracy"] for value in values_of(charts.corruption_groups(table))] == [0.5, 0.7]
    points = {(value["row"], value["severity"]): value["accuracy"] for value in values_of(charts.severities(table))}
    assert points == {("float", 1): 0.6, ("float", 3): 0.4, ("model, adapted", 1): 0.8, ("model, adapted", 3): 0.6}


@pytest.fixture
def corrupted(evaluate):
    names = [f"corruptions/{name}/{level}" for name in NAMES for level in LEVELS]
    of_rows = zip(("xe", "a|<b>"), ACCURACIES)
    return tables.aggregate(
        evaluate(row, seed, dict(zip(names, values.ravel()))) for row, of_row in of_rows for seed, values in zip(SEEDS, of_row)
    )


def test_cells_are_means_over_seeds_of_the_measured_severities(corrupted):
    chart = charts.corruption_heat_map(corrupted)
    cells = {(v["row"], v["name"]): v["accuracy"] for v in values_of(chart)}
    assert len(cells) == 2 * len(NAMES) * len(LEVELS)
    assert cells["a|<b>", "corruptions/fog/3"] == pytest.approx(ACCURACIES[1, :, 1, 1].mean())
    assert cells["xe", "corruptions/saturate/5"] == pytest.approx(ACCURACIES[0, :, 3, 2].mean())
    assert {v["severity"] for v in values_of(chart)} == set(LEVELS)
    y = chart.to_dict()["spec"]["layer"][0]["encoding"]["y"]
    assert y["sort"] == ["Gaussian noise", "Snow", "Fog", "Saturate"]  # as in the benchmark


def test_differences_are_in_points_on_a_symmetric_scale(corrupted, evaluate):
    chart = charts.difference_heat_map(corrupted)
    cells = {(v["row"], v["name"]): v["points"] for v in values_of(chart)}
    assert {row for row, _ in cells} == {"a|<b>"}
    expected = 100 * (ACCURACIES[1] - ACCURACIES[0]).mean(axis=0)
    np.testing.assert_allclose([cells["a|<b>", f"corruptions/{name}/3"] for name in NAMES], expected[:, 1])
    near = tables.aggregate([evaluate(row, 0, {"corruptions/fog/1": accuracy}) for row, accuracy in (("xe", 0.5), ("a", 0.51))])
    small = charts.difference_heat_map(near)
    domains = [one.to_dict()["spec"]["layer"][0]["encoding"]["color"]["scale"]["domain"] for one in (chart, small)]
    np.testing.assert_allclose(domains, [[-np.abs(expected).max(), np.abs(expected).max()], [-10, 10]])


def test_no_severities_no_heat_map_and_a_single_one_is_no_curve(evaluate):
    table = tables.aggregate([evaluate("xe", 0, {"clean": 0.5, "corruptions/fog": 0.4})])
    assert charts.corruption_heat_map(table) is charts.difference_heat_map(table) is charts.flips(table) is None
    one = tables.aggregate([evaluate("xe", 0, {"corruptions/fog/1": 0.4})])
    assert charts.corruption_heat_map(one) is not None and charts.difference_heat_map(one) is charts.severities(one) is None


def test_legends_name_the_rows_that_a_chart_has(evaluate):
    noise = {"corruptions/noise": 0.3, **SEVERITIES}
    three = tables.aggregate([evaluate("xe", 0, noise), evaluate("clean_only", 0, {"clean": 0.5}), evaluate("fcl", 0, noise)])
    bars = charts.corruption_groups(three).to_dict()["layer"][0]["encoding"]
    lines = charts.severities(three).to_dict()["encoding"]
    for encoding in (bars["color"], lines["color"], lines["strokeDash"]):
        assert encoding["legend"]["values"] == ["xe", "fcl"] and encoding["scale"]["domain"] == three["order"]


@pytest.mark.parametrize(
    "numbers, fractions, expected",
    [
        ([0.776, 0.781], True, [0.7285, 0.8285]),
        ([0.074], True, [0.024, 0.124]),
        ([0.01, None], True, [0.0, 0.1]),
        ([0.999, 0.97], True, [0.9, 1.0]),
        ([0.0, 1.0], True, [0.0, 1.0]),
        ([0.2, 0.6], True, [0.18, 0.62]),
        ([10.0, 10.1], False, [9.04, 11.06]),
        ([0.0, 0.0], False, [0.0, 1.0]),
    ],
)
def test_axes_do_not_exaggerate_differences(numbers, fractions, expected):
    np.testing.assert_allclose(look.domain(numbers, fractions), expected)


def test_rows_look_different_up_to_32():
    order = [str(i) for i in range(32)]
    for second in ("strokeDash", "shape"):
        looks = [look.by_row(channel, order).to_dict()["scale"]["range"] for channel in ("color", second)]
        assert len({str(pair) for pair in zip(*looks)}) == 32


def test_histograms_of_uneven_classes_are_logarithmic():
    found = [charts.class_histogram({"train": np.array(counts)}, "ab").to_dict() for counts in ([5, 5], [100, 0])]
    assert [spec["spec"]["encoding"]["y"]["scale"]["type"] for spec in found] == ["linear", "symlog"]


def test_training_curves_of_a_long_training_show_validation_at_its_epochs(tmp_path):
    history = [{"epoch": epoch, "total": 2.0 - epoch / 10} for epoch in range(6)]
    history[2]["val_accuracy"], history[5]["val_accuracy"] = 0.5, 0.75
    for row, epochs in (("xe", history), ("fcl", history[:3])):
        (tmp_path / row).mkdir()
        (tmp_path / row / "history.json").write_text(json.dumps(epochs))
    folders = {"xe": ("xe", "fcl"), "fcl": ("moved", "fcl"), "missing": ("moved", "missing")}
    (chart,) = comparison.training_charts({row: [str(tmp_path / name) for name in names] for row, names in folders.items()})
    points = [(v["row"], v["quantity"], v["epoch"], v["value"]) for v in values_of(chart)]
    assert [one for one in points if one[1] == "val_accuracy"] == [
        ("xe", "val_accuracy", 3, 0.5),
        ("xe", "val_accuracy", 6, 0.75),
        ("fcl", "val_accuracy", 3, 0.5),
    ]
    assert [one[3] for one in points if one[:2] == ("xe", "total")] == [2.0 - epoch / 10 for epoch in range(6)]
    assert {v["quantity"]: v["sparse"] for v in values_of(chart)} == {"total": False, "val_accuracy": True}


def test_every_panel_finds_its_values():
    name = "a_model_of_a_long_name, before scaling: " + "very " * 9
    names = [name, "short", "next row"]
    chart = look.panels(charts.alt.Chart().mark_point(), [{"model": one, "x": 0} for one in names], "model", names, 2, 190)
    titles = chart.to_dict()["facet"]["sort"]
    first = titles[0].split("\n")
    assert " ".join(first) == name.strip() and max(map(len, first)) <= 190 // 6
    assert titles[1:] == ["\n" * (len(first) - 1) + "short", "next row"]  # as many lines as the panel beside it
    assert [value["model"] for value in values_of(chart)] == titles


def test_values_in_the_names_of_points_are_shown():
    import altair as alt
    import vl_convert

    names = ["contrastive_gaussian_weight=0.008,temperature=0.5", "PGD, 4 steps", "a_name_of_some_length"]
    chart = alt.Chart(look.data({"row": name} for name in names)).mark_point().encode(look.row_axis(names, 22))
    svg = vl_convert.vegalite_to_svg(chart.properties(height=look.row_step(names)).to_dict())
    assert all(f">{text}</t" in svg for text in ("…gaussian_weight=0.008", "temperature=0.5", "PGD, 4 steps", "a_name_of_some_length"))
    assert look.row_step(names).step == 31 and look.row_step(names[1:]).step == 18
