"""Required bounds of measures: parsing, measures that an evaluation does not give, and what is not met."""

import contextlib

import pytest

from tests.evaluation.test_descriptions import recorded_measures
from tf_robust import evaluation


def test_bounds_that_measures_can_have():
    config = evaluation.EvalConfig(("clean", "corruptions", "calibration"))
    required = "clean>=1,clean>=0,corruptions/mce<=90,calibration/nll<=2,deployed/bytes<=1000000"
    evaluation.check_requirements(evaluation.parse_requirements(required), config)


def test_names_of_classes_may_have_any_characters():
    assert evaluation.parse_requirements("class/polar bear >= 0.5, class/né+1<=1") == [
        ("class/polar bear", ">=", 0.5),
        ("class/né+1", "<=", 1),
    ]


def test_requirements():
    required = evaluation.parse_requirements("corruptions/mean15>=0.7, flips/mean <= 0.1")
    rows = [{"measure": "corruptions/mean15", "value": 0.65}, {"measure": "flips/mean", "value": 0.05}]
    assert evaluation.shortfalls(rows, required) == ["  corruptions/mean15 is 0.6500, required >= 0.7"]
    assert evaluation.shortfalls(rows, evaluation.parse_requirements("corruptions/mean15>=.65,")) == []
    for bad in ("clean", "clean>0.5", "clean>=half", "clean>=0.5;nun>=1"):
        with pytest.raises(ValueError, match="Expected --require"):
            evaluation.parse_requirements(bad)
    with pytest.raises(ValueError, match="Did you mean 'flips/mean'"):
        evaluation.check_requirements(evaluation.parse_requirements("flip/mean<=1"), evaluation.EvalConfig(("perturbations",)))
    with pytest.raises(ValueError, match="Did you mean 'flips/mean'"):
        evaluation.shortfalls(rows, evaluation.parse_requirements("flip/mean<=1"))


@pytest.mark.parametrize(
    "required, evaluations, message",
    [
        ("accuracy>=0.5", ("clean",), "measure in --require: 'accuracy'. Did you mean 'clean', the accuracy"),
        ("clean>=70", ("clean",), "from 0 to 1 for clean, a fraction. Received: clean>=70. Try: --require='clean>=0.7'"),
        ("clean>=-0.1", ("clean",), "from 0 to 1 for clean, a fraction. Received: clean>=-0.1$"),
        ("corruptions/fog/3>=1.5", ("corruptions",), "Received: corruptions/fog/3>=1.5. Try: --require='corruptions/fog/3>=0.015'"),
        ("corruptions/mean_15>=0.5", ("clean", "corruptions"), "Did you mean 'corruptions/mean15'"),
        ("corruptions/mean15>=0.5", ("clean", "noise"), "of --evaluations=clean,noise.*Try: --evaluations=clean,noise,corruptions"),
        ("robust/linf_8/255>=0.1", ("clean",), "Try: --evaluations=clean,adversarial"),
        ("classes/worst>=0.1", ("clean",), "Try: --evaluations=clean,slices"),
    ],
)
def test_required_measures_that_no_evaluation_gives_are_refused(required, evaluations, message):
    with pytest.raises(ValueError, match=message):
        evaluation.check_requirements(evaluation.parse_requirements(required), evaluation.EvalConfig(evaluations))


@pytest.mark.parametrize(
    "required, advice",
    [
        ("calibrated/ece<=0.05", "--calibrate=temperature"),
        ("abstention/coverage>=0.5", "--abstain_accuracy=0.95"),
        ("conformal/severity_3/coverage>=0.8", "--conformal=0.9"),
        ("ood/svhn/auroc>=0.9", "--ood=svhn"),
        ("ood/svhn/energy/auroc>=0.9", "--ood=svhn"),
        ("shift/night>=0.5", "--shifts=night"),
    ],
)
def test_required_measures_without_their_flag_are_refused(required, advice):
    with pytest.raises(ValueError, match=f"Received: .*, without its flag. Try: {advice}$"):
        evaluation.check_requirements(evaluation.parse_requirements(required), evaluation.EvalConfig(("clean", "corruptions")))


@pytest.mark.parametrize(
    "required, message",
    [
        ("calibrated/ece<=1,conformal/size<=9,abstention/shift/night/accuracy>=0,ood/svhn/knn/fpr95<=1,shift/night>=0", ""),
        ("conformal/severity_3/coverage>=0.8", ""),
        ("conformal/severity_5/coverage>=0.8", "Try: --severities=2,3,5"),
        ("calibrated/temperature<=3", "Try: --calibrate=temperature"),
        ("calibrated/shift/rain/ece<=1", "Try: --shifts=rain"),
        ("ood/texture/auroc>=0.9", "Try: --ood=texture"),
        ("conformal/severity_6/coverage>=0.8", "measure in --require"),
        ("conformal/size_of/coverage>=0.8", "measure in --require"),
    ],
)
def test_required_measures_of_given_flags(required, message):
    flags = {"calibrate": "vector", "abstain_accuracy": 0.9, "conformal": 0.9, "ood": ("svhn",), "shifts": ("folder:data/night",)}
    config = evaluation.EvalConfig(("clean", "corruptions"), severities=(2, 3), **flags)
    with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
        evaluation.check_requirements(evaluation.parse_requirements(required), config)


def test_measures_at_a_severity_need_corruptions():
    with pytest.raises(ValueError, match="Try: --evaluations=clean,corruptions"):
        evaluation.check_requirements([("conformal/severity_3/size", "<=", 3.0)], evaluation.EvalConfig(("clean",), conformal=0.9))


def test_every_recorded_measure_may_be_required():
    names = recorded_measures()
    sets = {evaluation.parse_measure(name).plain.name for name in names if evaluation.parse_measure(name).family == "shift"}
    fitted = {"calibrate": "temperature", "abstain_accuracy": 0.9, "conformal": 0.9}
    config = evaluation.EvalConfig(evaluation.EVALUATIONS, shifts=tuple(sets), **fitted)
    for name in names:
        evaluation.check_requirements([(name, ">=", 0.0)], config)
