"""Every measure that was ever recorded has a long name and a meaning."""

import glob
import json
import os

import pytest

from tf_robust import corruptions, metrics
from tf_robust.evaluation.descriptions import describe

RESULTS = os.path.join(os.path.dirname(__file__), "..", "..", "results")
EXPANSIONS = "results/noisymix/theory.json"  # numbers of a proof, not measures of a model


def recorded_measures():
    """Returns the names of the measures in all recorded results."""
    names = set()
    for path in glob.glob(os.path.join(RESULTS, "**", "*.json"), recursive=True):
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        rows = content.get("rows", []) if isinstance(content, dict) else []
        if not os.path.abspath(path).endswith(EXPANSIONS):
            names |= {row["measure"] for row in rows if "measure" in row}
    return sorted(names)


def test_every_recorded_measure_has_a_name_and_a_meaning():
    names = recorded_measures()
    assert {"un", "corruptions/fog/3", "robust/l2_0.5", "label_fraction_0.1/clean"} <= set(names)
    assert [name for name in names if not describe(name).meaning or describe(name).name == name] == []
    assert len({describe(name).name for name in names}) == len(names)  # no two look the same


@pytest.mark.parametrize(
    "measure, name, part, direction",
    [
        ("un", "Uniform noise (UN)", "15% of their locations", "higher"),
        ("nun/floor_0.05", "Non-uniform noise, floor 0.05", "0.05 added", "higher"),
        ("corruptions/mean15", "Mean over 15 corruptions", "15 kinds", "higher"),
        ("corruptions/weather", "Weather corruptions", "snow, frost, fog, brightness", "higher"),
        ("corruptions/jpeg_compression", "JPEG compression", "mean over severities", "higher"),
        ("corruptions/fog/3", "Fog, severity 3", "fog, severity 3 of 5", "higher"),
        ("corruptions/mce", "Mean corruption error (mCE)", "AlexNet's", "lower"),
        ("corruptions/calibration_rms", "RMS calibration error on corrupted images", "15 corruptions", "lower"),
        ("flips/mean_without_noise", "Mean flip probability (mFP), without noise", "8 kinds", "lower"),
        ("flips/rate/tilt", "Flip rate, tilt", "divided by AlexNet's", "lower"),
        ("robust/l2_0.5", "AutoAttack, L2 radius 0.5", "APGD", "higher"),
        ("robust/pgd/linf_8/255", "PGD attack, L∞ radius 8/255", "changed by the PGD attack", "higher"),
        ("robust/pgd", "PGD attack", "changed by the PGD attack", "higher"),
        ("fgsm/linf_4/255", "FGSM attack, L∞ radius 4/255", "changed by the FGSM attack", "higher"),
        ("attack_curves/linf_8/255", "Minimum-norm attacks, L∞ radius 8/255", "none of the attacks of the curves", "higher"),
        ("distance/plb_l1", "Median PLB distance, L1", "L1 norm", "higher"),
        ("checks/l2/one_step", "Check of the L2 attacks: one step", "one gradient step", "higher"),
        ("calibrated/ece", "ECE after scaling, clean images", "scaled logits, on clean images", "lower"),
        ("calibrated/severity_3/nll_before", "NLL before scaling, corrupted images, severity 3", "without scaling", "lower"),
        ("abstention/shift/night/accuracy", "Accuracy with abstention, night", "answers with the threshold, on night", "higher"),
        ("conformal/severity_5/size", "Size of conformal sets, corrupted images, severity 5", "Number of classes", "lower"),
        ("ood/svhn/auroc", "AUROC, svhn by largest probability", "clean images against svhn", "higher"),
        ("ood/a/b/energy/fpr95", "FPR at 95% TPR, a/b by energy", "by the energy", "lower"),
        ("bal/rare", "Clean accuracy, rare classes", "corner digit", "higher"),
        ("label_fraction_0.1/corruptions/noise", "Noise corruptions with 10% of the labels", "trained with 10% of the labels", "higher"),
    ],
)
def test_names_and_meanings(measure, name, part, direction):
    description = describe(measure)
    assert description.name == name
    assert part in description.meaning and description.meaning.endswith(f"; {direction} is better.")


def test_the_images_of_accuracies_can_stand_in_a_sentence():
    assert describe("bal").images == "clean images"
    assert describe("corruptions/mean19").images == "corrupted images"
    assert describe("robust/l2_0.5").images == "images changed by AutoAttack, L2 radius 0.5"
    assert describe("calibration/rms").images == describe("flips/mean").images == ""


def test_all_means_and_corruptions_are_described():
    names = [f"corruptions/{name}" for name in (*metrics.MEANS, *metrics.BENCHMARK, *metrics.EXTRA)]
    names += [f"flips/{name}" for name in corruptions.SEQUENCES]
    assert all(describe(name).meaning for name in names)


@pytest.mark.parametrize(
    "name",
    [
        "mine",
        "corruptions/mine",
        "robust/mine/l2_1",
        "robust/l9_1",
        "flips/mine",
        "distance/mine",
        "distance/attack_curves_l2",
        "attack_curves/mine",
        "checks/x/y",
        "ood/x/mine",
        "conformal/mine",
    ],
)
def test_unknown_measures_keep_their_names(name):
    assert describe(name).name == name and not describe(name).meaning
