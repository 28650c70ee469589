"""The tables of a report: values, slices, shifts, adaptation, attacks, confidence, changes."""

import numpy as np
import pytest

from tests.report.conftest import texts_of, values_of
from tf_robust import report
from tf_robust.data.source import ArraySource
from tf_robust.evaluation import parse_metric, slice_values
from tf_robust.report import charts, comparison, sections, tables

AFTER = {"clean": 0.8, "apgd_ce": 0.5, "apgd_t": 0.4, "fab_t": 0.4, "square": 0.35}
WARNING = "Square takes away another 0.050 of accuracy."


def in_every_report(table, text):
    return text in report.to_markdown(table, "title") and text in report.to_html(table, "title")


def test_best_cells_respect_direction_and_ties(evaluate):
    runs = [evaluate("xe", 0, {"un": 0.40001, "flips/mean": 0.1, "nun": 0.3}), evaluate("fcl", 0, {"un": 0.4, "flips/mean": 0.2})]
    assert sections.best_cells(tables.aggregate(runs)) == {("xe", "un"), ("fcl", "un"), ("xe", "flips/mean")}


def test_an_end_near_zero_shows_its_sign():
    interval = sections.interval
    assert interval(-0.033, -0.0004, "+") == "[-0.0330, -0.0004]" and interval(-0.00002, 0.5) == "[-0.00002, 0.50000]"
    assert interval(0.0, 0.25) == "[0.000, 0.250]" and interval(None, None) == ""
    assert interval(0.02, 5.4, decimals=1) == "[0.02, 5.40]"  # in points


def test_values_without_interval_or_std(evaluate):
    run = evaluate("xe", 0, {"aurra": 0.4})
    run["rows"][0].update(low=None, high=None)
    table = tables.aggregate([run], {"xe": {"aurra": [0.5, None]}})
    ((cell,),) = sections.values(table).frame.to_numpy()
    assert (str(cell), cell.paper) == ("0.400", "0.500")


def test_marks_of_better_and_worse(evaluate):
    values = {"xe": (0.5, 0.2, 0.9), "fcl": (0.8, 0.1, 0.1)}
    runs = [
        evaluate(row, seed, dict(zip(("up", "flips/mean", "wide"), np.add(means, 0.001 * seed * np.sign(means[0] - 0.6)))))
        for seed in range(3)
        for row, means in values.items()
    ]
    runs += [evaluate("bad", seed, {"up": 0.3, "flips/mean": 0.4, "wide": (-5.0, 0.9, 5.0)[seed]}) for seed in range(3)]
    marks = {row: [text[0] for text in line] for row, line in texts_of(sections.differences(tables.aggregate(runs))).items()}
    assert marks == {"fcl": ["▲", "▲", "▼"], "bad": ["▼", "▼", "-"]}


# --- classes and groups


def labelled(labels, correct, names):
    source = ArraySource.of("photos", "test", np.zeros([len(labels), 1, 1, 3], np.uint8), labels, names)
    rows = [metric.to_json() for metric in slice_values(source, correct, "")]
    return {"row": "mine", "seed": 0, "method": "", "data": "photos", "model": "m", "split": "test", "rows": rows}


def test_the_table_of_slices_begins_with_the_lowest():
    correct = np.concatenate([np.arange(20) < count for count in (18, 9, 14)])
    table = report.aggregate([labelled(np.repeat(np.arange(3), 20), correct, ("car", "dog", "ship"))])
    section = sections.by_slice(table)
    assert [cell.value for cell in section.frame["mine"]] == [0.45, 0.7, 0.9]
    assert all(cell.uncertainty for cell in section.frame["mine"]) and not sections.by_corruption(table)


def test_of_many_classes_the_lowest_and_the_highest_are_shown_and_the_others_folded(capsys):
    counts = np.repeat([12, 3], [60, 40])  # images of each class
    labels, order = np.repeat(np.arange(100), counts), np.concatenate([np.arange(count) for count in counts])
    right = np.where(np.arange(100) < 60, np.arange(100) % 12 + 1, 0)  # of classes with 3 images none
    one = labelled(labels, order < right[labels], [f"class {i}" for i in range(100)])
    values = {row["metric"]: row["value"] for row in one["rows"]}
    assert (values["classes/worst"], values["classes/gap"]) == pytest.approx((1 / 12, 11 / 12))
    table = report.aggregate([one])
    section = sections.by_slice(table)
    accuracies = np.sort(right[:60] / 12)
    assert [cell.value for cell in section.frame["mine"]] == pytest.approx([*accuracies[:20], *accuracies[-20:]])
    assert [cell.value for cell in section.folded["mine"]] == pytest.approx([*np.zeros(40), *accuracies[20:-20]])
    page = report.to_html(table, "title")
    assert page.count("<details><summary>All others: 60</summary>") == 1 and "class 59" in page
    comparison.print_table(table, [one])
    assert "Lowest accuracy of a class (mine): class 0, 0.083" in capsys.readouterr().out


def test_classes_with_few_images_have_no_worst():
    one = labelled(np.arange(30), np.arange(30) < 20, [f"class {i}" for i in range(30)])
    names = {row["metric"] for row in one["rows"]}
    assert len(names) == 30 and "classes/worst" not in names


# --- test-time adaptation


def test_adapted_values_stand_beside_the_plain_ones(evaluate):
    plain = {"clean": 0.8, "corruptions/mean15": 0.6, "corruptions/fog": 0.5, "un": 0.4}
    runs = [evaluate("float", 0, plain), evaluate("int8", 0, {"clean": 0.7}), evaluate("model", 0, {"adapted/corruptions/mean15": 0.65})]
    runs[2]["rows"] += evaluate("model", 0, {"adapted/corruptions/fog": 0.6, "adapted/nun": 0.1})["rows"]
    table = report.aggregate(runs)
    assert table["metrics"] == ["clean", "corruptions/mean15", "un", "adapted/nun"]  # what has a pair is in its own table
    section = sections.adaptation(table)
    assert [*section.frame.columns] == ["float", "model, adapted"]  # int8 has neither
    assert texts_of(section) == {"Mean over 15 corruptions": ["0.600 [0.590, 0.610]", "0.650 [0.640, 0.660]"]}  # nun has no pair
    assert in_every_report(table, "Test-time adaptation")


def test_a_corruption_has_one_line(evaluate):
    runs = [evaluate("float", 0, {"corruptions/mean15": 0.6, "corruptions/fog": 0.5})]
    runs.append(evaluate("model, adapted", 0, {"adapted/corruptions/mean15": 0.7, "adapted/corruptions/fog": 0.6}))
    section = sections.by_corruption(report.aggregate(runs))
    assert [*section.frame.columns] == ["float", "model, adapted"]
    assert texts_of(section) == {"Fog": ["0.500 [0.490, 0.510]", "0.600 [0.590, 0.610]"]}
    assert texts_of(sections.by_corruption(report.aggregate(runs[1:]))) == {"Fog, adapted": ["0.600 [0.590, 0.610]"]}


def test_evaluations_of_one_model_are_one_row_and_one_of_them_alone_has_no_such_table(evaluate):
    runs = [evaluate("a", 0, {"clean": 0.8}), evaluate("a", 0, {"adapted/clean": 0.7})]
    assert [*sections.adaptation(report.aggregate(runs)).frame.columns] == ["a", "a, adapted"]
    assert all(sections.adaptation(report.aggregate([one])) is None for one in runs)


def card(pictures=100, **parts):
    return {"data": {"num_images": pictures}, "corruptions": {"seed": 15}, **parts}


def test_adapted_values_of_other_images_or_severities_are_refused(evaluate):
    adaptation_part = {"adaptation": {"order": "shuffled"}}
    plain = {**evaluate("a", 0, {"corruptions/mean15": 0.6}), "card": card()}
    adapted = {**evaluate("a, adapted", 0, {"adapted/corruptions/mean15": 0.7}), "card": card(**adaptation_part)}
    assert report.aggregate([plain, adapted])["adapted"]
    for other in (card(50, **adaptation_part), card(corruption_means={"means_over_severities": [1, 3, 5]}, **adaptation_part)):
        with pytest.raises(ValueError, match="'corruptions/mean15' to be measured in one way.*(data.num_images|means_over_severities)"):
            report.aggregate([plain, {**adapted, "card": other}])
    other = {**adapted, "row": "b", "card": card(adaptation={"order": "by_class"})}
    with pytest.raises(ValueError, match="adaptation.order"):
        report.aggregate([plain, adapted, other])


# --- attacks


def attacked_by(row, metric, family, part, seed=0, **fields):
    rows = [{"metric": metric, "value": 0.35, "count": 200, "low": 0.3, "high": 0.4}]
    return {"row": row, "seed": seed, "rows": rows, "card": {"data": {}, family: part}, **fields}


def attacked(row, seed=0, warnings=(WARNING,)):
    autoattack = {"attack": "autoattack", "steps": 100, "restarts": 1, "target_classes": 9, "queries": 5000}
    result = {"robust/linf_8/255": {"accuracy_after": {**AFTER, "clean": 0.8 + seed / 100}, "warnings": warnings}}
    return attacked_by(row, "robust/linf_8/255", "robust", autoattack, seed, attacks=result)


def test_members_budget_and_warnings_of_one_model():
    table = report.aggregate([attacked("a"), attacked("a", seed=1)])
    section = sections.attack_members(table)
    assert [*section.frame.columns] == ["clean", "APGD-CE", "APGD-T", "FAB-T", "Square"]
    assert texts_of(section) == {"AutoAttack, L∞ radius 8/255": ["0.800", "0.500", "0.400", "0.400", "0.350"]}  # the first seed
    assert "AutoAttack: 100 steps, 1 restart(s), 9 target classes, 5,000 queries of Square, 200 images." in section.caption
    assert f"Warning (a, AutoAttack, L∞ radius 8/255): {WARNING}" in section.caption
    assert in_every_report(table, WARNING)


def test_models_without_gradients_have_the_column_of_square():
    square = attacked_by("int8", "robust/square/linf_8/255", "robust_square", {"queries": 500})
    section = sections.attack_members(report.aggregate([attacked("float", warnings=()), square]))
    texts = texts_of(section)
    assert list(texts) == ["float: AutoAttack, L∞ radius 8/255", "int8: Square attack, L∞ radius 8/255"]
    assert texts["int8: Square attack, L∞ radius 8/255"] == [None, None, None, None, "0.350"]
    assert "Square attack: 500 queries of Square, 200 images." in section.caption and "Warning" not in section.caption


def test_other_attacks_and_earlier_results_have_no_such_table():
    pgd = attacked_by("a", "robust/pgd/linf_8/255", "robust_pgd", {"steps": 40})
    earlier = attacked_by("a", "robust/linf_8/255", "robust", {"attack": "ensemble", "queries": 5000})
    for one in (pgd, earlier, {"row": "a", "seed": 0, "rows": pgd["rows"]}):
        assert sections.attack_members(report.aggregate([one])) is None


# --- fitted confidences and other classes


def test_columns_are_the_kinds_of_images(evaluate):
    metrics = {"clean": 0.9, "abstention/coverage": 0.8, "abstention/severity_1/coverage": 0.6, "conformal/shift/night/size": 2.5}
    table = report.aggregate([evaluate("a", 0, {**metrics, "ood/x/auroc": 0.7})])
    section = sections.confidence(table)
    assert [*section.frame.columns] == ["clean", "severity 1", "night"]
    assert texts_of(section) == {"fraction answered": ["0.800", "0.600", None], "conformal set size": [None, None, "2.500"]}
    assert texts_of(sections.open_sets(table)) == {"x": ["0.700", None]}
    assert in_every_report(table, "Confidence on clean and corrupted images")
    clean = report.aggregate([evaluate("a", 0, {"clean": 0.9})])
    assert sections.confidence(clean) is sections.open_sets(clean) is None


def test_models_without_scores_of_other_classes_have_no_column(evaluate):
    table = report.aggregate([evaluate("a", 0, {"ood/x/auroc": 0.7, "ood/x/fpr95": 0.4}), evaluate("b", 0, {"clean": 0.5})])
    assert [*sections.open_sets(table).frame.columns] == ["a: AUROC", "a: FPR95"]


# --- shifts


def shifted(row, correct, seed=0):
    """An evaluation with accuracies, {metric: (correct, count)}."""
    rows = [parse_metric(name).with_accuracy(*numbers).to_json() for name, numbers in correct.items()]
    return {"row": row, "seed": seed, "rows": rows}


@pytest.fixture
def two():
    """Two models, of which one was measured on a second shift too."""
    one = shifted("a", {"clean": (48, 80), "shift/night": (56, 70), "shift/fog": (10, 20)})
    return report.aggregate([one, shifted("b", {"clean": (60, 80), "shift/night": (35, 70)})])


def test_the_interval_is_newcombes(two):
    entries = two["cells"]
    low, high = tables.separate_interval(entries["a", "shift/night"], entries["a", "clean"])
    assert (low, high) == pytest.approx((0.0524, 0.3339), abs=5e-5)  # Newcombe (1998), example (a) of method 10


def test_over_several_seeds_the_interval_is_students():
    runs = [shifted("a", {"clean": (80, 100), "shift/night": (night, 100)}, seed) for seed, night in enumerate((60, 50, 40))]
    assert texts_of(sections.shifts(report.aggregate(runs))) == {"night": ["-0.300 [-0.548, -0.052]"]}  # 4.303 * 0.1 / sqrt(3)


def test_the_table_has_a_line_per_shift(two):
    section = sections.shifts(two)
    assert [*section.frame.columns] == ["a", "b"]
    texts = {name: [cell and cell.text for cell in line] for name, *line in section.frame.itertuples(name=None)}
    assert texts == {"night": ["+0.200", "-0.250"], "fog": ["-0.100", None]} and in_every_report(two, section.heading)


def test_the_chart_has_a_point_per_model_and_shift_and_the_diagonal(two):
    chart = charts.shift_chart(two)
    points = {(value["row"], value["data"]): (value["original"], value["shifted"]) for value in values_of(chart)}
    assert points == {("a", "night"): (0.6, 0.8), ("a", "fog"): (0.6, 0.5), ("b", "night"): (0.75, 0.5)}
    diagonal = values_of(chart.layer[0])
    assert all(end["original"] == end["shifted"] for end in diagonal) and diagonal[0]["shifted"] < 0.5 and diagonal[1]["shifted"] > 0.8


def test_without_shifts_or_clean_images_there_is_neither():
    for correct in ({"clean": (8, 10)}, {"shift/night": (8, 10)}):
        table = report.aggregate([shifted("a", correct)])
        assert sections.shifts(table) is None and charts.shift_chart(table) is None


def test_images_of_a_shift_are_not_paired_with_the_clean_ones():
    per_image = {"clean": [True] * 5, "shift/night": [False] * 5}
    runs = [shifted("a", {"clean": (5, 5), "shift/night": (0, 5)})]
    assert report.aggregate(runs, per_image=lambda _, metric: ("digest", per_image[metric]))["falls"] == {}


# --- changes


def test_what_got_worse_comes_first(evaluate):
    before = {"clean": 0.8, "corruptions/mean15": 0.5, "un": 0.4, "calibration/rms": 0.1, "corruptions/fog": 0.5, "corruptions/fog/5": 0.5}
    after = {**before, "clean": 0.75, "corruptions/mean15": 0.6, "un": 0.401, "corruptions/fog": 0.4, "corruptions/fog/5": 0.3}
    runs = [evaluate(row, 0, of_row) for row, of_row in (("start", before), ("hardened", after))]
    for run in runs:
        run["rows"] = [{**row, "low": None, "high": None} for row in run["rows"]]

    def per_image(evaluation, metric):
        value = next(row["value"] for row in evaluation["rows"] if row["metric"] == metric)
        return ("same images", np.arange(1000) < value * 1000) if metric != "calibration/rms" else None

    section, further = sections.changes(report.aggregate(runs, baseline="start", per_image=per_image))
    texts = texts_of(section)
    assert [section.metrics[name] for name in texts] == ["clean", "corruptions/fog", "calibration/rms", "corruptions/mean15", "un"]
    assert [line[-1] for line in texts.values()] == ["worse", "worse", "no interval", "better", "not significant"]
    assert [further.metrics[name] for name in texts_of(further)] == ["corruptions/fog/5"]
    half = 1.96 * np.sqrt(0.05 * 0.95 / 1000)
    assert next(iter(texts.values()))[:4] == ["0.800", "0.750", "-0.050", f"[{-0.05 - half:+.3f}, {-0.05 + half:+.3f}]"]
