"""The table and the curves of fitted confidences, against NumPy."""

import numpy as np

from tf_robust import report
from tf_robust.report import confidence

COUNTS, CORRECT = np.array([10.0, 0, 30, 60]), np.array([2.0, 0, 21, 57])
BINS = np.array([COUNTS, CORRECT, COUNTS * [0.3, 0.5, 0.7, 0.95]])


def _table(measures):
    rows = [{"measure": name, "value": value, "count": 10, "low": None, "high": None} for name, value in measures.items()]
    return report.aggregate([{"row": "a", "seed": 0, "rows": rows}])


def test_columns_are_the_kinds_of_images():
    table = _table(
        {
            "clean": 0.9,
            "abstention/coverage": 0.8,
            "abstention/severity_1/coverage": 0.6,
            "conformal/shift/night/size": 2.5,
            "ood/x/auroc": 0.7,
        }
    )
    grid = confidence.by_severity(table)
    assert [column.text for column in grid.columns] == ["clean", "severity 1", "night"]
    texts = {label.text: [cell and cell.text for cell in row] for label, row in grid.rows.items()}
    assert texts == {"fraction answered": ["0.800", "0.600", None], "conformal set size": [None, None, "2.500"]}
    assert [[cell and cell.text for cell in row] for row in confidence.open_sets(table).rows.values()] == [["0.700", None]]
    assert confidence.by_severity(_table({"clean": 0.9})) is confidence.open_sets(_table({"clean": 0.9})) is None
    assert "Confidence on clean and corrupted images" in report.to_markdown(table, "title")


def test_models_without_scores_of_other_classes_have_no_column(evaluate):
    table = report.aggregate([evaluate("a", 0, {"ood/x/auroc": 0.7, "ood/x/fpr95": 0.4}), evaluate("b", 0, {"clean": 0.5})])
    assert [column.text for column in confidence.open_sets(table).columns] == ["a: AUROC", "a: FPR95"]


def test_risk_is_the_error_of_the_most_confident():
    chart = report.risk_coverage({"a": {"clean": BINS}})
    points = {round(one["coverage"], 6): round(one["error"], 6) for one in chart.spec["data"]["values"]}
    assert points == {0.6: 0.05, 0.9: round(12 / 90, 6), 1.0: 0.2}
    assert len(chart.png()) > 1000


def test_reliability_is_the_accuracy_of_each_bin():
    values = report.reliability_by_severity({"a": {"clean": BINS}}).spec["data"]["values"]
    assert [round(one["confidence"], 6) for one in values] == [0.3, 0.7, 0.95]
    assert [round(one["accuracy"], 6) for one in values] == [0.2, 0.7, 0.95]
