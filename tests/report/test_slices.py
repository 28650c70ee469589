"""Classes and groups have a table of their own, and the lowest are named where a table is printed."""

import numpy as np
import pytest

from tf_robust import report
from tf_robust.data.source import ArraySource
from tf_robust.evaluation import slices
from tf_robust.experiments import comparison
from tf_robust.report import grids

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
