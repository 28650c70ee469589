"""The table of AutoAttack's members: the accuracies of the evaluation, the budget of its card, and its warnings."""

from tf_robust import report
from tf_robust.report import attacks

AUTOATTACK = {"attack": "autoattack", "steps": 100, "restarts": 1, "target_classes": 9, "queries": 5000}
AFTER = {"clean": 0.8, "apgd_ce": 0.5, "apgd_t": 0.4, "fab_t": 0.4, "square": 0.35}
WARNING = "Square takes away another 0.050 of accuracy."


def evaluation(row, measure, family, part, seed=0, **fields):
    rows = [{"measure": measure, "value": 0.35, "count": 200, "low": 0.3, "high": 0.4}]
    return {"row": row, "seed": seed, "rows": rows, "card": {"data": {}, family: part}, **fields}


def attacked(row, seed=0, warnings=(WARNING,)):
    result = {"robust/linf_8/255": {"accuracy_after": {**AFTER, "clean": 0.8 + seed / 100}, "warnings": list(warnings)}}
    return evaluation(row, "robust/linf_8/255", "robust", AUTOATTACK, seed, attacks=result)


def texts(grid):
    return {label.text: [cell and cell.text for cell in row] for label, row in grid.rows.items()}


def test_members_budget_and_warnings_of_one_model():
    table = report.aggregate([attacked("a"), attacked("a", seed=1)])
    grid = attacks.by_member(table)
    assert [column.text for column in grid.columns] == ["clean", "APGD-CE", "APGD-T", "FAB-T", "Square"]
    assert texts(grid) == {"AutoAttack, L∞ radius 8/255": ["0.800", "0.500", "0.400", "0.400", "0.350"]}  # the first seed
    assert "AutoAttack: 100 steps, 1 restart, 9 target classes, 5,000 queries of Square, 200 images." in grid.caption
    assert f"Warning (a, AutoAttack, L∞ radius 8/255): {WARNING}" in grid.caption
    assert WARNING in report.to_markdown(table, "title") and WARNING in report.to_html(table, "title", None, [], [], {})


def test_models_without_gradients_have_the_column_of_square():
    table = report.aggregate(
        [attacked("float", warnings=()), evaluation("int8", "robust/square/linf_8/255", "robust_square", {"queries": 500})]
    )
    grid = attacks.by_member(table)
    assert list(texts(grid)) == ["float: AutoAttack, L∞ radius 8/255", "int8: Square attack, L∞ radius 8/255"]
    assert texts(grid)["int8: Square attack, L∞ radius 8/255"] == [None, None, None, None, "0.350"]
    assert "Square attack: 500 queries of Square, 200 images." in grid.caption and "Warning" not in grid.caption


def test_other_attacks_and_earlier_results_have_no_such_table():
    pgd = evaluation("a", "robust/pgd/linf_8/255", "robust_pgd", {"steps": 40})
    earlier = evaluation("a", "robust/linf_8/255", "robust", {"attack": "ensemble", "queries": 5000})
    for one in (pgd, earlier, {"row": "a", "seed": 0, "rows": pgd["rows"]}):
        assert attacks.by_member(report.aggregate([one])) is None
