"""Required bounds of measures: parsing, measures that an evaluation does not give, and what is not met."""

import pytest

from tests.evaluation.test_descriptions import recorded_measures
from tf_robust import evaluation


def test_requirements():
    required = evaluation.parse_requirements("corruptions/mean15>=0.7, flips/mean <= 0.1")
    rows = [{"measure": "corruptions/mean15", "value": 0.65}, {"measure": "flips/mean", "value": 0.05}]
    assert evaluation.shortfalls(rows, required) == ["  corruptions/mean15 is 0.6500, required >= 0.7"]
    assert evaluation.shortfalls(rows, evaluation.parse_requirements("corruptions/mean15>=.65,")) == []
    for bad in ("clean", "clean>0.5", "clean>=half", "clean>=0.5;nun>=1"):
        with pytest.raises(ValueError, match="Expected --require"):
            evaluation.parse_requirements(bad)
    with pytest.raises(ValueError, match="Did you mean 'flips/mean'"):
        evaluation.check_requirements(evaluation.parse_requirements("flip/mean<=1"), ("perturbations",))
    with pytest.raises(ValueError, match="Did you mean 'flips/mean'"):
        evaluation.shortfalls(rows, evaluation.parse_requirements("flip/mean<=1"))


@pytest.mark.parametrize(
    "required, evaluations, message",
    [
        ("accuracy>=0.5", ("clean",), "measure in --require.*accuracy"),
        ("corruptions/mean_15>=0.5", ("clean", "corruptions"), "Did you mean 'corruptions/mean15'"),
        ("corruptions/mean15>=0.5", ("clean", "noise"), "of --evaluations=clean,noise.*Try: --evaluations=clean,noise,corruptions"),
        ("robust/linf_8/255>=0.1", ("clean",), "Try: --evaluations=clean,adversarial"),
        ("classes/worst>=0.1", ("clean",), "Try: --evaluations=clean,slices"),
    ],
)
def test_required_measures_that_no_evaluation_gives_are_refused(required, evaluations, message):
    with pytest.raises(ValueError, match=message):
        evaluation.check_requirements(evaluation.parse_requirements(required), evaluations)


def test_every_recorded_measure_may_be_required():
    for name in recorded_measures():
        evaluation.check_requirements([(name, ">=", 0.0)], evaluation.EVALUATIONS)
