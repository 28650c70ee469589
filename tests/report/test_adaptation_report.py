"""The table of test-time adaptation: values with and without it in one line."""

import pytest

from tf_robust import report
from tf_robust.report import adaptation, charts, grids


def lines(grid):
    return {label.text: [cell and cell.line for cell in row] for label, row in grid.rows.items()}


def test_adapted_values_stand_beside_the_plain_ones(evaluate):
    plain = {"clean": 0.8, "corruptions/mean15": 0.6, "corruptions/fog": 0.5, "un": 0.4}
    runs = [evaluate("float", 0, plain), evaluate("int8", 0, {"clean": 0.7}), evaluate("model", 0, {"adapted/corruptions/mean15": 0.65})]
    runs[2]["rows"] += evaluate("model", 0, {"adapted/corruptions/fog": 0.6, "adapted/nun": 0.1})["rows"]
    table = report.aggregate(runs)
    assert table["measures"] == ["clean", "corruptions/mean15", "un", "adapted/nun"]  # what has a pair is in its own table
    grid = adaptation.beside_plain(table)
    assert [label.text for label in grid.columns] == ["float", "model, adapted"]  # int8 has neither
    assert lines(grid) == {"Mean over 15 corruptions": ["0.600 [0.590, 0.610]", "0.650 [0.640, 0.660]"]}  # fog is a detail, nun has no pair
    assert "## Test-time adaptation" in report.to_markdown(table, "title")
    assert "Test-time adaptation" in report.to_html(table, "title", None, [], [], {})


def test_a_corruption_has_one_line(evaluate):
    runs = [evaluate("float", 0, {"corruptions/mean15": 0.6, "corruptions/fog": 0.5})]
    runs.append(evaluate("model, adapted", 0, {"adapted/corruptions/mean15": 0.7, "adapted/corruptions/fog": 0.6}))
    grid = grids.by_corruption(report.aggregate(runs))
    assert [label.text for label in grid.columns] == ["float", "model, adapted"] and lines(grid) == {"Fog": ["0.500", "0.600"]}
    assert lines(grids.by_corruption(report.aggregate(runs[1:]))) == {"Fog, adapted": ["0.600"]}


def test_charts_of_corruptions_have_the_adapted_model(evaluate):
    names = ("corruptions/noise", "corruptions/fog/1", "corruptions/fog/3")
    runs = [evaluate("float", 0, dict(zip(names, (0.5, 0.6, 0.4))))]
    runs.append(evaluate("model, adapted", 0, dict(zip((f"adapted/{name}" for name in names), (0.7, 0.8, 0.6)))))
    table = report.aggregate([*runs, evaluate("float", 1, {"adapted/corruptions/noise": 0.1})])  # a row with both: without
    values = [value["accuracy"] for value in charts.corruption_groups(table).spec["data"]["values"]]
    assert values == [0.5, 0.7]
    points = {(value["row"], value["severity"]): value["accuracy"] for value in charts.severities(table).spec["data"]["values"]}
    assert points == {("float", 1): 0.6, ("float", 3): 0.4, ("model, adapted", 1): 0.8, ("model, adapted", 3): 0.6}


def test_evaluations_of_one_model_are_one_row(evaluate):
    table = report.aggregate([evaluate("a", 0, {"clean": 0.8}), evaluate("a", 0, {"adapted/clean": 0.7})])
    assert [label.text for label in adaptation.beside_plain(table).columns] == ["a", "a, adapted"]


def test_adapted_values_alone_have_no_such_table(evaluate):
    assert adaptation.beside_plain(report.aggregate([evaluate("a", 0, {"adapted/clean": 0.7})])) is None
    assert adaptation.beside_plain(report.aggregate([evaluate("a", 0, {"clean": 0.7})])) is None


def card(pictures=100, **parts):
    return {"data": {"pictures": pictures}, "corruptions": {"seed": 15}, **parts}


def test_adapted_values_of_other_images_or_severities_are_refused(evaluate):
    adaptation_part = {"adaptation": {"order": "shuffled"}}
    plain = {**evaluate("a", 0, {"corruptions/mean15": 0.6}), "card": card()}
    adapted = {**evaluate("a, adapted", 0, {"adapted/corruptions/mean15": 0.7}), "card": card(**adaptation_part)}
    assert report.aggregate([plain, adapted])["adapted"]
    for other in (card(50, **adaptation_part), card(corruption_means={"means_over_severities": [1, 3, 5]}, **adaptation_part)):
        with pytest.raises(ValueError, match="'corruptions/mean15' to be measured in one way.*(data.pictures|means_over_severities)"):
            report.aggregate([plain, {**adapted, "card": other}])
    other = {**adapted, "row": "b", "card": card(adaptation={"order": "by_class"})}
    with pytest.raises(ValueError, match="adaptation.order"):
        report.aggregate([plain, adapted, other])
