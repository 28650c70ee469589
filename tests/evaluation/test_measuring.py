"""Comparison with a baseline (`--require_not_worse_than`): which measures, and which are missing. Without records, by the intervals."""

import json

import pytest

from tests.command_line import main
from tf_robust.evaluation import shortfalls
from tf_robust.report import comparison
from tf_robust.report.evaluated_model import EvaluatedModel


def evaluation(folder, values, **measuring_options):
    """An evaluation with values and intervals of ±0.01."""
    rows = [{"metric": name, "value": value, "count": 100, "low": value - 0.01, "high": value + 0.01} for name, value in values.items()]
    names = {"row": "one", "seed": 0, "method": "m", "data": "digits", "model": "m", "split": "test", "commit": "c", "saved_model": "one"}
    options = {"evaluations": ["clean"], "evaluation_split": "test", "subset": 0, **measuring_options}
    return {**names, "rows": rows, "options": options, "measured_in": str(folder)}


def losses(measured, baseline):
    return shortfalls(comparison.not_worse(measured, baseline))


def test_single_corruptions_are_compared_where_no_mean_was_measured(tmp_path):
    fog = {"clean": 0.87, "corruptions/fog": 0.87, "corruptions/fog/3": 0.87}
    for mean in ({}, {"corruptions/mean15": 0.5}):  # which the baseline does not have
        (message,) = losses(evaluation(tmp_path, {**fog, "corruptions/fog": 0.02, **mean}), evaluation(tmp_path, fog))
        assert "corruptions/fog is 0.0200, required not worse than one: -0.850" in message


def test_main_measures_that_the_model_lacks_are_an_error(tmp_path):
    baseline = evaluation(tmp_path, {"clean": 0.8, "corruptions/fog": 0.7, "un": 0.5, "deployed/bytes": 9.0})
    with pytest.raises(ValueError, match="the model lacks corruptions/fog, un"):
        losses(evaluation(tmp_path, {"clean": 0.8, "nun": 0.4}), baseline)
    with pytest.raises(ValueError, match="the baseline has none"):
        losses(baseline, evaluation(tmp_path, {}))
    assert losses(evaluation(tmp_path, {"clean": 0.8, "corruptions/fog": 0.7, "un": 0.5, "nun": 0.1}), baseline) == []


def test_a_measure_without_a_value_is_not_missing(tmp_path):
    """The attacks of the curves failed on most images: there is no median distance."""
    baseline = evaluation(tmp_path, {"clean": 0.8, "distance/plb_l2": 0.3})
    attacked = {"evaluations": ["clean", "attack_curves"], "curve_attacks": ["plb_l2"]}
    assert losses(evaluation(tmp_path, {"clean": 0.8}, **attacked), baseline) == []
    with pytest.raises(ValueError, match="the model lacks distance/plb_l2"):
        losses(evaluation(tmp_path, {"clean": 0.8}, **{**attacked, "curve_attacks": ["pgd_l2"]}), baseline)
    always_abstains = evaluation(tmp_path, {"abstention/threshold": 1.0, "abstention/coverage": 0.0})
    answers = evaluation(tmp_path, {"abstention/threshold": 0.8, "abstention/coverage": 0.7, "abstention/accuracy": 0.9})
    assert ["abstention/coverage is 0.0000" in message for message in losses(always_abstains, answers)] == [True]


def test_the_measures_of_a_baseline_are_checked_before_the_evaluation(tmp_path, monkeypatch):
    content = evaluation(tmp_path, {"clean": 0.8, "corruptions/mean15": 0.7, "corruptions/fog": 0.7})
    (tmp_path / "evaluation.json").write_text(json.dumps(content))
    (tmp_path / "measured.jsonl").write_text("")
    monkeypatch.setattr(EvaluatedModel, "evaluate", lambda *_: pytest.fail("evaluated"))
    arguments = ["evaluate", "zoo:digits/lenet_augmix", f"--require_not_worse_than={tmp_path}/evaluation.json", f"--workdir={tmp_path}/out"]
    with pytest.raises(ValueError, match="--require_not_worse_than .* corruptions/mean15 .*evaluations=clean,corruptions"):
        main(*arguments, "--evaluations=clean")
