"""Required bounds of metrics: parsing, metrics that an evaluation does not give, and what is not met."""

import dataclasses
from xml.etree import ElementTree

import numpy as np
import pytest
import tensorflow as tf

from tests.evaluation.test_metric_table import recorded_metrics
from tf_robust import corruptions, data, evaluation
from tf_robust.attacks.attack import Attack
from tf_robust.evaluation import scoring


def test_bounds_that_measures_can_have():
    config = evaluation.EvalConfig(("clean", "corruptions", "calibration"))
    required = "clean>=1,clean>=0,corruptions/mce<=90,calibration/nll<=2"
    evaluation.check_requirements(evaluation.parse_requirements(required), config)
    evaluation.check_requirements(evaluation.parse_requirements("deployed/bytes<=1000000"), config, deployed=True)
    with pytest.raises(ValueError, match="deployed/bytes"):
        evaluation.check_requirements(evaluation.parse_requirements("deployed/bytes<=1000000"), config)
    limited = evaluation.EvalConfig(("adversarial",), attack=("autoattack", "pgd"), attack_time="1m")
    evaluation.check_requirements(evaluation.parse_requirements("robust/pgd/l2_0.5>=0.2,fgsm/linf_8/255>=0"), limited)
    with pytest.raises(ValueError, match="robust/l2_0.5 without attack_time"):
        evaluation.check_requirements(evaluation.parse_requirements("robust/l2_0.5>=0.2"), limited)
    for text in ("10", "0m", "tenm"):
        with pytest.raises(ValueError, match=f"attack_time: .*'{text}'"):
            evaluation.EvalConfig(("adversarial",), attack_time=text)


def test_names_of_classes_may_have_any_characters():
    assert evaluation.parse_requirements("class/polar bear >= 0.5, class/né+1<=1") == [
        ("class/polar bear", ">=", 0.5),
        ("class/né+1", "<=", 1),
    ]


def test_requirements():
    required = evaluation.parse_requirements("corruptions/mean15>=0.7, flips/mean <= 0.1")
    rows = [{"metric": "corruptions/mean15", "value": 0.65}, {"metric": "flips/mean", "value": 0.05}]
    outcomes = evaluation.outcomes(rows, required)
    assert outcomes == [
        {"metric": "corruptions/mean15", "bound": ">= 0.7", "value": 0.65, "met": False},
        {"metric": "flips/mean", "bound": "<= 0.1", "value": 0.05, "met": True},
    ]
    assert evaluation.shortfalls(outcomes) == ["  corruptions/mean15 is 0.6500, required >= 0.7"]
    assert evaluation.outcomes(rows, evaluation.parse_requirements("corruptions/mean15>=.65,"))[0]["met"]
    for bad in ("clean", "clean>0.5", "clean>=half", "clean>=0.5;nun>=1"):
        with pytest.raises(ValueError, match="Expected --require"):
            evaluation.parse_requirements(bad)
    with pytest.raises(ValueError, match="Did you mean 'flips/mean'"):
        evaluation.check_requirements(evaluation.parse_requirements("flip/mean<=1"), evaluation.EvalConfig(("perturbations",)))
    with pytest.raises(ValueError, match="Did you mean 'flips/mean'"):
        evaluation.outcomes(rows, evaluation.parse_requirements("flip/mean<=1"))


def test_outcomes_are_cases_of_junit(tmp_path):
    rows = [{"metric": "clean", "value": 0.9}, {"metric": "flips/mean", "value": 0.05}]
    outcomes = evaluation.outcomes(rows, evaluation.parse_requirements("clean>=0.95,flips/mean<=0.1"))
    evaluation.write_junit(str(tmp_path / "bounds.xml"), {"a <model>": outcomes})
    (suite,) = ElementTree.parse(tmp_path / "bounds.xml").getroot()
    assert suite.attrib == {"name": "a <model>", "tests": "2", "failures": "1"}
    assert [case.get("name") for case in suite] == ["clean >= 0.95", "flips/mean <= 0.1"]
    assert [[failure.get("message") for failure in case] for case in suite] == [["clean is 0.9000, required >= 0.95"], []]


FLAGS = {"calibrate": "vector", "abstain_accuracy": 0.9, "conformal": 0.9, "ood": ("svhn",), "shifts": ("folder:data/night",)}


@pytest.mark.parametrize(
    "required, options, message",
    [
        ("accuracy>=0.5", {}, "'accuracy'. Did you mean 'clean'"),
        ("clean>=70", {}, "Try: --require='clean>=0.7'"),
        ("clean>=-0.1", {}, "clean>=-0.1$"),
        ("corruptions/fog/3>=1.5", {}, "Try: --require='corruptions/fog/3>=0.015'"),
        ("corruptions/mean_15>=0.5", {}, "Did you mean 'corruptions/mean15'"),
        ("corruptions/mean15>=0.5", {"evaluations": ("clean", "noise")}, "Try: evaluations=clean,noise,corruptions"),
        ("robust/linf_8/255>=0.1", {"evaluations": ("clean",)}, "Try: evaluations=clean,adversarial"),
        ("classes/worst>=0.1", {"evaluations": ("clean",)}, "Try: evaluations=clean,slices"),
        ("calibrated/ece<=0.05", {}, "Try: calibrate=temperature$"),
        ("abstention/coverage>=0.5", {}, "Try: abstain_accuracy=0.95$"),
        ("conformal/severity_3/coverage>=0.8", {}, "Try: conformal=0.9$"),
        ("ood/svhn/auroc>=0.9", {}, "Try: ood=svhn$"),
        ("ood/svhn/energy/auroc>=0.9", {}, "Try: ood=svhn$"),
        ("shift/night>=0.5", {}, "Try: shifts=night$"),
        ("conformal/severity_5/coverage>=0.8", FLAGS, "Try: severities=2,3,5"),
        ("calibrated/temperature<=3", FLAGS, "Try: calibrate=temperature"),
        ("calibrated/shift/rain/ece<=1", FLAGS, "Try: shifts=folder:data/night,rain"),
        ("ood/texture/auroc>=0.9", FLAGS, "Try: ood=svhn,texture"),
        ("conformal/severity_6/coverage>=0.8", FLAGS, "metric in --require"),
        ("conformal/size_of/coverage>=0.8", FLAGS, "metric in --require"),
        ("conformal/severity_3/size<=3", {"evaluations": ("clean",), "conformal": 0.9}, "Try: evaluations=clean,corruptions"),
    ],
)
def test_required_measures_that_the_options_do_not_give_are_refused(required, options, message):
    config = evaluation.EvalConfig(**{"evaluations": ("clean", "corruptions"), "severities": (2, 3), **options})
    with pytest.raises(ValueError, match=message):
        evaluation.check_requirements(evaluation.parse_requirements(required), config)


def test_required_measures_of_given_flags_are_accepted():
    names = "calibrated/ece conformal/size conformal/severity_3/coverage abstention/shift/night/accuracy ood/svhn/knn/fpr95 shift/night"
    evaluation.check_metrics(names.split(), evaluation.EvalConfig(("clean", "corruptions"), severities=(2, 3), **FLAGS), "--require")


def _is_accepted(name, config):
    try:
        evaluation.check_metrics([name], config, "--require")
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "names, options",
    [
        ("clean", {"adaptation": "batch_norm"}),
        ("adapted/clean", {}),
        ("label_fraction_0.1/clean", {}),
        ("bal", {"evaluations": ("corruptions",)}),
        ("robust/linf_8/255 fgsm/linf_8/255 checks/l2/noise", {"evaluations": ("adversarial",), "attack_radii": ("linf_4/255",)}),
        ("robust/linf_8/255 robust/square/linf_8/255", {"evaluations": ("adversarial",), "attack": ("pgd",)}),
        ("robust/pgd/linf_8/255 robust/transfer/linf_8/255", {"evaluations": ("adversarial",)}),
        ("checks/failed", {"evaluations": ("adversarial",), "attack_checks": False}),
        ("corruptions_bar/mean", {}),
        ("corruptions_bar/ripple", {"evaluations": ("corruptions_bar",), "corruption_constants": "imagenet"}),
        ("corruptions/fog/3 corruptions/mce", {"evaluations": ("corruptions",), "severities": (1, 5)}),
        ("corruptions/relative_mce", {"evaluations": ("corruptions",)}),
        ("certified/l2_0.75", {"evaluations": ("certified",)}),
        ("smoothed/pgd/l2_0.25", {"evaluations": ("certified",), "smoothing_attack": False}),
        ("nun/floor_0.1", {"evaluations": ("noise",)}),
        ("nun", {"evaluations": ("noise_floor",)}),
        ("distance/plb_l1 attack_curves/l2_0.1", {"evaluations": ("attack_curves",)}),
        ("attack_curves/l2_0.5", {"evaluations": ("attack_curves",), "curve_attacks": ("plb_linf",)}),
        ("flips/spatter flips/rate/spatter", {"evaluations": ("perturbations",)}),
        ("flips/mfr flips/snow", {"evaluations": ("perturbations",), "sequences": "cifar_p"}),
        ("groups/worst group/a", {"evaluations": ("slices",)}),
        ("calibrated/ece calibrated/temperature", {"evaluations": ("noise",), "calibrate": "temperature"}),
    ],
)
def test_measures_that_other_options_give_are_refused(names, options):
    config = evaluation.EvalConfig(**{"evaluations": ("clean",), **options})
    assert [name for name in names.split() if _is_accepted(name, config)] == []


def test_a_message_names_all_options_that_a_measure_needs():
    config, advice = evaluation.EvalConfig(("clean",), attack_radii=("l2_0.5",)), "attack=autoattack,pgd attack_radii=l2_0.5,linf_2/255"
    with pytest.raises(ValueError, match=f"Try: evaluations=clean,adversarial {advice}$"):
        evaluation.check_metrics(["robust/pgd/linf_2/255"], config, "--require")
    with pytest.raises(ValueError, match="Try: label_fraction_0.1/clean"):
        evaluation.check_metrics(["clean"], evaluation.EvalConfig(("clean",)), "--sweep_metric", label_fraction=0.1)


def test_measures_that_the_data_or_the_model_decide_are_accepted():
    evaluations = ("clean", "corruptions", "adversarial", "slices", "utility")
    config = evaluation.EvalConfig(evaluations, ood=("svhn",), groups="site", surrogate="other.keras")
    names = "bal bal/rare clean/per_class corruptions/mce corruptions/relative_mce robust/square/linf_8/255 robust/transfer/l2_0.5 "
    names += "class/a class/b/c group/1 groups/gap ood/svhn/knn/auroc utility/corner_informative"
    assert [name for name in names.split() if not _is_accepted(name, config)] == []


def _thirds(images):
    """Returns logits of the three classes of the tiny source: the brightness of each third."""
    images = tf.convert_to_tensor(images)
    return tf.stack([tf.reduce_mean(images[:, 16 * i // 3 : 16 * (i + 1) // 3], axis=[1, 2, 3]) for i in range(3)], axis=1) * 9.0


@pytest.mark.slow
def test_exactly_the_measures_of_an_evaluation_may_be_required(source, monkeypatch):
    monkeypatch.setattr(scoring, "score_sequences", lambda *_: {"kind": "flips", "count": 6, "flip_probability": 0.1})
    # metrics have their names whatever the images are
    monkeypatch.setattr(Attack, "_attempt", lambda self, graph, images, *_: (1 - images, np.ones(len(images), bool)))
    monkeypatch.setattr(Attack, "_check_result", lambda *_: None)
    monkeypatch.setattr(corruptions, "corrupt", lambda images, *_, **__: tf.convert_to_tensor(images))
    monkeypatch.setattr(evaluation, "is_imagenet", lambda _, config: config.corruption_constants != "cifar")
    config, noise = evaluation.EvalConfig, {"smoothing_selection": 2, "smoothing_samples": 20}
    configs = [
        config(("clean", "noise", "corruptions", "calibration"), severities=(1, 3)),
        config(("corruptions", "corruptions_bar", "slices"), corruption_constants="cifar", severities=(2,)),
        config(("corruptions", "calibration")),
        config(("perturbations", "noise_floor"), sequences="cifar_p"),
        config(("perturbations",), sequences="all"),
        config(("perturbations",)),
        config(("perturbations",), corruption_constants="cifar"),
        config(("adversarial",), attack=("pgd",), attack_radii=("l2_0.5",), attack_checks=False, surrogate="another model"),
        config(("adversarial",), attack=("square",), attack_radii=("linf_8/255",), attack_queries=2),
        config(("adversarial",), attack_radii=("linf_4/255",), attack_queries=2),
        config(("attack_curves",), attack_radii=("l2_0.5",), curve_attacks=("pgd_l2", "plb_l1")),
        config(("certified",), certified_radii=(0.0, 0.1), **noise),
        config(("certified",), certified_radii=(0.05,), smoothing_attack=False, **noise),
        config(("clean", "corruptions"), severities=(1,), shifts=("folder:a/night",), calibrate="temperature", abstain_accuracy=0.3),
        config(("noise",), shifts=("rain",), calibrate="vector", conformal=0.5),
        config(("corruptions",), severities=(1,), conformal=0.5),
        config(("clean",), ood=("others",)),
        config(("clean", "noise"), adaptation="batch_norm", adaptation_batch_size=3),
    ]
    tested, train = source(6, split="test"), source(60)
    labels = np.where(np.arange(60) % 5, train.labels, 0)  # some are wrong, so that confidences can be fitted
    validation, rows = data.ArraySource.of("tiny", "validation", train.images, labels, "012"), []
    for one in configs:
        names = map(data.kinds.shift_name, one.shifts)
        done = evaluation.evaluate(
            _thirds,
            tested,
            train,
            one,
            log=lambda _: None,
            shifts=[data.sources.matched(dataclasses.replace(tested, name=name), tested, name=name) for name in names],
            surrogate=_thirds if one.surrogate else None,
            validation=validation if one.needs_validation_set else None,
            open_sets=evaluation.OpenSets(dict.fromkeys(one.ood, train)),
        )
        rows.append({str(metric.of_model(1.0, one.adaptation != "none")) for metric in done.metrics})
    every = {*recorded_metrics()}.union(*rows)
    for one, own in zip(configs, rows):
        decided_by_data = {name for name in every if name.startswith(("class/", "bal", "clean/per_class"))}
        assert {name for name in every if _is_accepted(name, one)} - decided_by_data == own - decided_by_data, one
