"""Classes and groups have a table of their own, and the lowest are named where a table is printed."""

import numpy as np
import pytest

from tf_robust import report
from tf_robust.data.source import ArraySource
from tf_robust.evaluation import slices
from tf_robust.report import comparison, grids

NAMES = ("car", "dog", "ship")


@pytest.fixture
def evaluation():
    labels = np.repeat(np.arange(3), 20)
    correct = np.concatenate([np.arange(20) < 18, np.arange(20) < 9, np.arange(20) < 14])  # .9, .45 and .7
    source = ArraySource.of("photos", "test", np.zeros([60, 4, 4, 3], np.uint8), labels, NAMES)
    rows = [measure.to_json() for measure in slices.measures(source, correct, "")]
    return {"row": "mine", "seed": 0, "method": "", "data": "photos", "model": "m", "split": "test", "rows": rows}


def test_the_table_of_slices_begins_with_the_lowest(evaluation):
    table = report.aggregate([evaluation])
    grid = grids.by_slice(table)
    assert grid.heading == "By class and group" and [cells[0].value for cells in grid.rows.values()] == [0.45, 0.7, 0.9]
    assert all(cells[0].uncertainty for cells in grid.rows.values()) and not grids.by_corruption(table)


def test_the_lowest_class_is_named(evaluation, capsys):
    comparison.print_table(report.aggregate([evaluation]), [evaluation])
    assert "Lowest accuracy of a class (mine): dog, 0.450 [" in capsys.readouterr().out


def test_of_many_classes_the_lowest_and_the_highest_are_shown_and_the_others_folded(capsys):
    counts = np.repeat([12, 3], [60, 40])  # images of each class
    labels, order = np.repeat(np.arange(100), counts), np.concatenate([np.arange(count) for count in counts])
    right = np.where(np.arange(100) < 60, np.arange(100) % 12 + 1, 0)  # of classes with 3 images none
    source = ArraySource.of("photos", "test", np.zeros([len(labels), 1, 1, 3], np.uint8), labels, [f"class {i}" for i in range(100)])
    rows = [measure.to_json() for measure in slices.measures(source, order < right[labels], "")]
    one = {"row": "mine", "seed": 0, "method": "", "data": "photos", "model": "m", "split": "test", "rows": rows}
    values = {row["measure"]: row["value"] for row in rows}
    assert (values["classes/worst"], values["classes/gap"]) == pytest.approx((1 / 12, 11 / 12))
    table = report.aggregate([one])
    grid = grids.by_slice(table)
    accuracies = np.sort(right[:60] / 12)
    assert [cells[0].value for cells in grid.rows.values()] == pytest.approx([*accuracies[:20], *accuracies[-20:]])
    assert [cells[0].value for cells in grid.folded.values()] == pytest.approx([*np.zeros(40), *accuracies[20:-20]])
    page = report.to_html(table, "title", None, [], [], {})
    assert page.count("<details><summary>All others: 60</summary>") == 1 and "class 59" in page
    comparison.print_table(table, [one])
    assert "Lowest accuracy of a class (mine): class 0, 0.083" in capsys.readouterr().out


def test_classes_with_few_images_have_no_worst(evaluation):
    source = ArraySource.of("photos", "test", np.zeros([30, 1, 1, 3], np.uint8), np.arange(30), [f"class {i}" for i in range(30)])
    names = {str(measure) for measure in slices.measures(source, np.arange(30) < 20, "")}
    assert len(names) == 30 and "classes/worst" not in names
