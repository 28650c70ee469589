"""Content of the charts, and that each becomes an image."""

import json

import numpy as np
import pytest

from tests.report.conftest import is_image
from tf_robust import report
from tf_robust.report import charts, model_figures, tables, vega

SEVERITIES = {f"corruptions/{name}/{s}": (index + s) / 10 for index, name in enumerate(("fog", "snow")) for s in range(1, 6)}
GROUPS = {f"corruptions/{name}": 0.5 for name in ("noise", "blur", "weather", "digital")}


def values(chart):
    return chart.spec["data"]["values"]


@pytest.fixture
def table(evaluate):
    """Two rows with the measures of all charts, and a third with one measure of another seed."""
    shared = {**GROUPS, **SEVERITIES, "flips/tilt": 0.1, "flips/mean": 0.1}
    runs = [
        evaluate("xe", 0, {"clean": 0.9, "corruptions/mean15": 0.4, **shared}),
        evaluate("a|<b>", 0, {"clean": 0.8, "corruptions/mean15": 0.6, **shared}),
        evaluate("other", 3, {"clean": 0.7}),
    ]
    return tables.aggregate(runs, {"xe": {"clean": [0.93, None]}})


def test_every_chart_becomes_an_image_and_valid_json(table, three_seeds, tmp_path):
    every_chart = [
        *charts.of_table(table),
        charts.training_curves({"xe": {"loss": [2.0, 1.0]}}),
        charts.class_histogram({"train": [5, 3]}, ["a", "b"]),
        report.attack_curves({"xe": {"pgd_l2": [0.0, 0.5, np.inf]}, "fcl": {"pgd_l2": [np.inf] * 3}}),
    ]
    assert [chart.name for chart in every_chart] == [
        "comparison",
        "pareto",
        "groups",
        "severities",
        "corruptions",
        "corruption_differences",
        "flips",
        "cost",
        "training",
        "classes",
        "attacks",
    ]
    for chart in every_chart:
        assert is_image(chart.save(str(tmp_path))), chart.name
        assert "<" not in chart.embedded() and json.loads(chart.embedded())["config"]


def test_another_process_makes_the_same_library(monkeypatch):
    monkeypatch.setattr(vega, "_started", [])
    assert vega._prepared() == ""
    vega.prepare()
    vega.prepare()
    assert len(vega._started) == 2 and vega._prepared() == vega._prepared() == vega._bundle()
    monkeypatch.setattr(vega, "_started", [])
    monkeypatch.setattr(vega, "_BUNDLE", "print('incomplete'); raise SystemExit(1)")
    vega.prepare()
    assert vega._prepared() == ""


@pytest.mark.parametrize("program", [vega._DRAW, "raise SystemExit(1)"])
def test_another_process_draws_the_same_images(table, tmp_path, monkeypatch, program):
    every_chart = charts.of_table(table)[:3]
    monkeypatch.setattr(vega, "_started", ["a process", "its file"])
    monkeypatch.setattr(vega, "_DRAW", program)
    assert (len(vega._drawn(every_chart)) == 3) == (program != "raise SystemExit(1)")
    vega.save_all(every_chart, str(tmp_path))
    assert [(tmp_path / f"{chart.name}.png").read_bytes() for chart in every_chart] == [chart.png() for chart in every_chart]


def test_charts_without_measures_are_left_out(three_seeds):
    assert [chart.name for chart in charts.of_table(tables.aggregate(three_seeds[:1]))] == ["comparison"]
    assert [chart.name for chart in charts.of_table(tables.aggregate(three_seeds))] == ["comparison", "pareto", "cost"]
    for run in three_seeds:
        run["training"] = {}
    assert [chart.name for chart in charts.of_table(tables.aggregate(three_seeds))] == ["comparison", "pareto"]


def test_severities_are_means_over_the_corruptions_that_all_have(table, evaluate):
    by = {(value["row"], value["severity"]): value["accuracy"] for value in values(charts.severities(table))}
    assert by["xe", 2] == pytest.approx((0.2 + 0.3) / 2) and len(by) == 10
    odd = {measure: value for measure, value in SEVERITIES.items() if measure[-1] in "135"}
    by = {(v["row"], v["severity"]): v["accuracy"] for v in values(charts.severities(tables.aggregate([evaluate("xe", 0, odd)])))}
    assert by == {("xe", level): pytest.approx((2 * level + 1) / 20) for level in (1, 3, 5)}
    part = tables.aggregate([evaluate("xe", 0, SEVERITIES), evaluate("fcl", 0, {m: v for m, v in SEVERITIES.items() if "fog" in m})])
    by = {(value["row"], value["severity"]): value["accuracy"] for value in values(charts.severities(part))}
    assert by["xe", 2] == pytest.approx(0.2)


def test_legends_name_the_rows_that_a_chart_has(evaluate):
    noise = {"corruptions/noise": 0.3, **SEVERITIES}
    three = tables.aggregate([evaluate("xe", 0, noise), evaluate("clean_only", 0, {"clean": 0.5}), evaluate("fcl", 0, noise)])
    bars, lines = charts.corruption_groups(three).spec["layer"][0]["encoding"], charts.severities(three).spec["encoding"]
    for encoding in (bars["color"], lines["color"], lines["strokeDash"]):
        assert encoding["legend"]["values"] == ["xe", "fcl"] and encoding["scale"]["domain"] == three["order"]


def test_a_single_severity_is_no_curve(evaluate):
    one = tables.aggregate([evaluate("xe", 0, {measure: value for measure, value in SEVERITIES.items() if measure.endswith("3")})])
    assert charts.severities(one) is None


def test_curves_of_distances_rise_by_one_image_a_distance():
    (panel,) = report.attack_curves({"xe": {"pgd_l2": [0.3, 0.0, np.inf, 0.1]}}).spec["concat"]
    assert [(v["size"], v["misclassified"]) for v in panel["data"]["values"]] == [(0.0, 0.25), (0.0, 0.25), (0.1, 0.5), (0.3, 0.75)]
    assert panel["data"]["values"][0]["median"] == pytest.approx(0.2)
    with pytest.raises(ValueError, match="Received: none"):
        report.attack_curves({})


def test_curves_can_be_compared_in_panels_of_some_rows():
    models = {"xe": {"pgd_l2": [0.3], "plb_l2": [0.2]}, "fcl": {"pgd_l2": [0.5]}, "nfm": {"pgd_l2": [0.1]}}
    chart = report.attack_curves(models, {"one": ["xe", "fcl"], "two": ["fcl", "missing"], "none": ["missing"]})
    rows = {panel["title"]: list(dict.fromkeys(v["row"] for v in panel["data"]["values"])) for panel in chart.spec["concat"]}
    assert rows == {"one, pgd_l2": ["xe", "fcl"], "one, plb_l2": ["xe"], "two, pgd_l2": ["fcl"], "two, plb_l2": []}
    assert len({str(panel["encoding"]["color"]) for panel in chart.spec["concat"]}) == 1  # a row looks the same in all


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
    np.testing.assert_allclose(vega.domain(numbers, fractions), expected)


def test_rows_look_different_up_to_32():
    looks = vega.lines_by_row([str(i) for i in range(32)])
    assert len(set(zip(*(map(str, looks[channel]["scale"]["range"]) for channel in ("color", "strokeDash"))))) == 32


def test_page_dependent_values_are_filled_in_for_images_but_not_in_data():
    part = {"width": "container", "mark": [{"color": "currentColor"}], "data": {"values": [{"row": "container"}]}}
    assert vega._standalone(part) == {"width": 640, "mark": [{"color": "#1d2329"}], "data": {"values": [{"row": "container"}]}}


def test_histograms_refuse_other_counts_than_classes():
    with pytest.raises(ValueError, match="Expected 2 counts.*'train'. Received: 3"):
        charts.class_histogram({"train": np.array([1, 2, 3])}, ["cat", "dog"])
    scales = [
        charts.class_histogram({"train": np.array(counts)}, "ab").spec["spec"]["encoding"]["y"]["scale"]["type"]
        for counts in ([5, 5], [100, 0])
    ]
    assert scales == ["linear", "symlog"]


def test_training_curves_of_a_long_training_show_validation_at_its_epochs(tmp_path):
    history = [{"epoch": epoch, "total": 2.0 - epoch / 10} for epoch in range(6)]
    history[2]["val_accuracy"], history[5]["val_accuracy"] = 0.5, 0.75
    for row, epochs in (("xe", history), ("fcl", history[:3])):
        (tmp_path / row).mkdir()
        (tmp_path / row / "history.json").write_text(json.dumps(epochs))
    folders = {"xe": ("xe", "fcl"), "fcl": ("moved", "fcl"), "missing": ("moved", "missing")}
    (chart,) = model_figures.of_training({row: [str(tmp_path / name) for name in names] for row, names in folders.items()})
    points = [(v["row"], v["quantity"], v["epoch"], v["value"]) for v in values(chart)]
    assert [one for one in points if one[1] == "val_accuracy"] == [
        ("xe", "val_accuracy", 3, 0.5),
        ("xe", "val_accuracy", 6, 0.75),
        ("fcl", "val_accuracy", 3, 0.5),
    ]
    assert [one[3] for one in points if one[:2] == ("xe", "total")] == [2.0 - epoch / 10 for epoch in range(6)]
    assert {v["quantity"]: v["sparse"] for v in values(chart)} == {"total": False, "val_accuracy": True}
    with pytest.raises(ValueError, match="Received rows: \\['xe'\\]"):
        charts.training_curves({"xe": {}})


def test_titles_of_panels_are_as_wide_as_the_panels():
    name = "a_model_of_a_long_name, before scaling: " + "very " * 9
    names = [name, "short", "next row"]
    values = [{"model": name, "x": 0} for name in names]
    spec = vega.panels(values, "model", names, {"width": 190}, 2)
    lines, *others = (title.split("\n") for title in spec["facet"]["sort"])
    assert " ".join(lines) == name.strip() and 1 < len(lines) and max(map(len, lines)) <= 190 // 6
    assert others == [[""] * (len(lines) - 1) + ["short"], ["next row"]]  # as many lines as the panel beside it
    assert [value["model"] for value in spec["data"]["values"]] == spec["facet"]["sort"]  # each panel finds its values
    assert vega.panels(values, "model", names, {"width": {"step": 20}}, 2)["facet"]["sort"] == names
