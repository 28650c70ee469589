"""The table of metrics against its users: recorded results, evaluations, cards and reports. Prose is not compared."""

import glob
import json
import os

import numpy as np
import pytest
import scipy.special

from tests.evaluation.shared import values_of
from tf_robust import corruptions, evaluation, metrics
from tf_robust.evaluation.metric_table import METRICS, Metric, examples, find_metric
from tf_robust.evaluation.metric_value import describe, parse_metric

RESULTS = os.path.join(os.path.dirname(__file__), "..", "..", "results")
EXPANSIONS = "results/noisymix/theory.json"  # numbers of a proof, not metrics of a model


def recorded_metrics():
    """Returns the names of the metrics in all recorded results."""
    names = set()
    for path in glob.glob(os.path.join(RESULTS, "**", "*.json"), recursive=True):
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        tables = [content, *content.get("evaluations", ())] if isinstance(content, dict) else []
        if not os.path.abspath(path).endswith(EXPANSIONS):
            names |= {row["metric"] for table in tables for row in table.get("rows", ()) if "metric" in row}
    return sorted(names)


def test_every_recorded_measure_has_a_name_and_a_meaning():
    names = [name for name in recorded_metrics() if not name.startswith("boundary/")]  # of research.noisymix_toy
    assert {"un", "corruptions/fog/3", "robust/l2_0.5", "label_fraction_0.1/clean"} <= set(names)
    assert [name for name in names if not describe(name).meaning or describe(name).name == name] == []
    assert len({describe(name).name for name in names}) == len(names)  # no two look the same


def test_the_example_of_every_entry_is_found_in_the_table():
    for metric in METRICS.values():
        assert find_metric(metric.example).metric is metric
        assert describe(metric.example).meaning.startswith(f"{find_metric(metric.example).format(metric.text)}. {metric.unit}")
    listed = [name for names in examples().values() for name in names]
    assert len(listed) == len({*listed}) == len(METRICS) + 2 and all(describe(name).meaning for name in listed)


def test_a_new_metric_is_one_entry(monkeypatch):
    monkeypatch.setitem(METRICS, "mine/{name}", Metric("mine/{name}", "mine, {name}", "Errors of {name}", "Count", "lower", detail=True))
    assert describe("mine/a/b").name == "Mine, a/b" and describe("mine/a/b").meaning == "Errors of a/b. Count; lower is better."
    assert parse_metric("adapted/mine/x").lower_is_better and parse_metric("mine/x").is_member


def test_corruptions_come_and_go(monkeypatch):
    monkeypatch.setattr(corruptions, "CORRUPTIONS", {"mine": corruptions.CORRUPTIONS["fog"]})
    assert [bool(describe(name).meaning) for name in ("corruptions/mine/3", "corruptions/fog/3", "clean")] == [True, False, True]
    monkeypatch.undo()
    assert [bool(describe(name).meaning) for name in ("corruptions/mine/3", "corruptions/fog/3", "clean")] == [False, True, True]


# name, long name, images of an accuracy, whether lower is better, whether it is a detail, part of the card
FACTS = """
clean | Clean accuracy | clean images | higher |  | clean
bal | Clean accuracy (BAL) | clean images | higher |  | bal
bal/rare | Clean accuracy, rare classes | clean images of the rare classes | higher |  | bal
clean/per_class | Clean accuracy, mean over classes |  | higher |  | clean
class/polar bear: {old} | Accuracy, class polar bear: {old} | clean images of the class polar bear: {old} | higher | detail | class
groups/gap | Gap between best and worst group |  | lower |  | groups
group/a | Accuracy, group a | clean images of the group a | higher | detail | groups
shift/calibration | Accuracy on calibration | images of calibration | higher |  | shift
un | Uniform noise (UN) | images with uniform noise | higher |  | noise
nun/floor_0.05 | Non-uniform noise, floor 0.05 | images with non-uniform noise | higher |  | noise
corruptions/mean15 | Mean over 15 corruptions | corrupted images | higher |  | corruptions
corruptions/mean_without_noise | Mean over 12 corruptions without noise | corrupted images | higher |  | corruptions
corruptions/weather | Weather corruptions | images with weather corruptions | higher |  | corruptions
corruptions/jpeg_compression | JPEG compression | images corrupted by JPEG compression | higher | detail | corruptions
corruptions/fog/3 | Fog, severity 3 | images corrupted by fog, severity 3 | higher | detail | corruptions
corruptions/mce | Mean corruption error (mCE) |  | lower |  | corruptions
corruptions/calibration_rms | RMS calibration error on corrupted images |  | lower |  | corruptions
corruptions_bar/ripple | Ripple | images corrupted by ripple | higher | detail | corruptions_bar
flips/mean_without_noise | Mean flip probability (mFP), without noise |  | lower |  | flips
flips/tilt | Flip probability, tilt |  | lower | detail | flips
flips/mfr | Mean flip rate (mFR) |  | lower |  | flip_rates
flips/rate/tilt | Flip rate, tilt |  | lower | detail | flip_rates
robust/l2_0.5 | AutoAttack, L2 radius 0.5 | images changed by AutoAttack, L2 radius 0.5 | higher |  | robust
robust/pgd/linf_8/255 | PGD attack, L∞ radius 8/255 | images changed by the PGD attack, L∞ radius 8/255 | higher |  | robust_pgd
robust/square/l2_1.0 | Square attack, L2 radius 1.0 | images changed by the Square attack, L2 radius 1.0 | higher |  | robust_square
fgsm/linf_4/255 | FGSM attack, L∞ radius 4/255 | images changed by the FGSM attack, L∞ radius 4/255 | higher |  | fgsm
attack_curves/l2_1 | Minimum-norm attacks, L2 radius 1 | images changed by minimum-norm attacks, L2 radius 1 | higher | | attack_curves
distance/plb_l1 | Median PLB distance, L1 |  | higher |  | distance
checks/failed | Failed checks of the attacks |  | lower |  | checks
checks/l2/one_step | Check of the L2 attacks: one step | images attacked to check the L2 attacks (one step) | higher | detail | checks
certified/abstained | Images without a certified decision |  | lower |  | certified
smoothed/clean | Smoothed model | clean images by the smoothed model | higher |  | smoothed_clean
calibration/rms | RMS calibration error |  | lower |  | calibration
aurra | Accuracy when abstaining (AURRA) |  | higher |  | calibration
deployed/bytes | Size of the model, bytes |  | lower |  | deployed
calibrated/temperature | Temperature |  |  | detail | confidence
calibrated/ece | ECE after scaling, clean images |  | lower |  | confidence
calibrated/ece_before | ECE before scaling, clean images |  | lower | detail | confidence
calibrated/severity_3/nll_before | NLL before scaling, corrupted images, severity 3 |  | lower | detail | confidence
abstention/shift/night/accuracy | Accuracy with abstention, night |  | higher | detail | confidence
conformal/severity_5/size | Size of conformal sets, corrupted images, severity 5 |  | lower | detail | confidence
ood/svhn/auroc | AUROC, svhn by largest probability |  | higher |  | ood
ood/a/b/energy/fpr95 | FPR at 95% TPR, a/b by energy |  | lower | detail | ood
sensitivity/utility_correlation | Rank correlation of sensitivity and utility |  | higher |  | sensitivity
utility/corner_informative | Utility of informative corners |  | higher |  | utility
utility/corner_uninformative | Utility of uninformative corners |  | lower |  | utility
"""


@pytest.mark.parametrize("line", FACTS.strip().splitlines(), ids=lambda line: line.partition("|")[0].strip())
def test_facts_of_metrics(line):
    name, title, images, better, detail, card = (part.strip() for part in line.split("|"))
    description, metric = describe(name), parse_metric(name)
    assert (description.name, description.images) == (title, images)
    assert description.meaning.endswith(f"; {better} is better.") or not better
    assert (metric.lower_is_better, metric.is_member, metric.card_family) == (better == "lower", detail == "detail", card)


def test_names_tell_how_a_model_was_trained_and_adapted():
    name = "label_fraction_0.1/adapted/corruptions/noise"
    described, parsed = describe(name), parse_metric(name)
    assert parsed.adapted and str(parsed) == name and str(parsed.plain) == "corruptions/noise"
    assert described.name == "Noise corruptions with 10% of the labels, adapted" and described.is_fraction
    assert described.images == "images with noise corruptions after training with 10% of the labels with adaptation to each batch"


def test_sets_of_images_have_a_part_of_the_card():
    parts = {"certified": "certified", "checks/l2": "checks", "ood": "ood", "ood/svhn": "ood", "utility": "utility"}
    assert {name: parse_metric(name).card_family for name in parts} == parts


def test_all_means_and_corruptions_are_described():
    names = [f"corruptions/{name}" for name in (*metrics.MEANS, *metrics.BENCHMARK, *metrics.EXTRA)]
    names += [f"corruptions_bar/{name}" for names in metrics.BAR.values() for name in names]
    names += [f"flips/{name}" for name in corruptions.SEQUENCES]
    assert all(describe(name).meaning for name in names)


def test_unknown_measures_keep_their_names():
    names = "mine corruptions/mine corruptions/fog/6 corruptions/mean15/3 corruptions_bar/mine robust/mine/l2_1 robust/l9_1 robust/l1_3 "
    names += "fgsm/l2_0.5 flips/mine distance/mine distance/pgd_l1 distance/attack_curves_l2 attack_curves/mine checks/x/y ood/x/mine "
    names += "conformal/mine robust/pgd smoothed/pgd/l2_0 smoothed/l2_0.5 nun/floor_0.3"
    assert [name for name in names.split() if describe(name).name != name or describe(name).meaning] == []


def test_an_evaluation_computes_and_requires_a_new_metric(source, monkeypatch):
    metric = Metric(
        "calibration/bias",
        "Confidence minus accuracy",
        "Mean confidence minus accuracy on clean images",
        evaluations=("calibration",),
        record_field="bias",
        compute=lambda confidences, correct: float(np.mean(confidences) - np.mean(correct)),
    )
    monkeypatch.setitem(METRICS, metric.pattern, metric)
    config, images = evaluation.EvalConfig(("calibration",)), source(20)
    evaluation.check_requirements([("calibration/bias", "<=", 0.5)], config)
    logits = np.random.RandomState(0).normal(size=[20, 3]).astype(np.float32)
    values = values_of(evaluation.evaluate(lambda _: logits, images, None, config, log=lambda _: None).metrics)
    confidence = scipy.special.softmax(logits.astype(np.float64), axis=1).max(axis=1)
    assert values["calibration/bias"] == pytest.approx(confidence.mean() - np.mean(logits.argmax(axis=1) == images.labels))
