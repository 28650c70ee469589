"""Names and meanings of measures in plain words: for reports, tables on the terminal, and the glossary."""

from __future__ import annotations

import dataclasses
import functools

from tf_robust import metrics
from tf_robust.corruptions import RATE
from tf_robust.evaluation.confidence_descriptions import fitted, open_set
from tf_robust.evaluation.measure import CORRUPTION_FAMILIES, Measure, parse_measure

_FRACTION, _RATIO = "Fraction, 0 to 1", "Ratio, 1 is AlexNet's"
_NOISE = f"{RATE:.0%} of their locations replaced by random gray values"
_AUTOATTACK = (
    "AutoAttack",
    " (APGD, targeted APGD, FAB and Square; results of earlier versions, whose card names the attack ensemble, are without targeted APGD "
    "and FAB)",
)
_ATTACKS = {
    "robust": _AUTOATTACK,
    "ensemble": _AUTOATTACK,
    "pgd": ("PGD", ""),
    "square": ("Square", ""),
    "transfer": ("transferred PGD", ", computed with the gradients of another model, the surrogate: not a white-box attack"),
    "plb": ("PLB", ""),
    "fgsm": ("FGSM", ""),
}
_NORMS = {"l0": "L0", "l1": "L1", "l2": "L2", "linf": "L∞"}
_MEANS = {
    "mean15": "Mean over 15 corruptions",
    "mean16": "Mean over 16 corruptions",
    "mean19": "Mean over 19 corruptions",
    "mean_without_noise": "Mean over 12 corruptions without noise",
    **{name: f"{name.capitalize()} corruptions" for name in metrics.GROUPS},
}
MEASURES: dict[str, tuple[str, ...]] = {  # measures, or examples of them, by subject
    "Accuracy": ("clean", "bal", "bal/rare", "clean/per_class"),
    "Classes and groups": ("classes/worst", "classes/gap", "class/NAME", "groups/worst", "groups/gap", "group/NAME"),
    "Shifted data": ("shift/imagenet_v2",),
    "Noise": ("un", "nun"),
    "Corruptions": (
        *(f"corruptions/{name}" for name in ("mean15", "mean16", "mean19", "mean_without_noise", "noise", "blur", "weather", "digital")),
        *("corruptions/fog", "corruptions/fog/3", "corruptions/calibration_rms", "corruptions/mce", "corruptions/relative_mce"),
        *("corruptions_bar/mean", "corruptions_bar/ripple"),
    ),
    "Sequences of perturbations": ("flips/mean", "flips/mean_without_noise", "flips/tilt", "flips/mfr", "flips/rate/tilt"),
    "Attacks": (
        *("robust/l2_0.5", "robust/linf_8/255", "robust/pgd/l2_0.5", "robust/transfer/linf_8/255", "fgsm/linf_8/255"),
        *("distance/pgd_l2", "distance/plb_linf", "checks/failed"),
    ),
    "Randomized smoothing": ("certified/l2_0.5", "certified/mean_radius", "certified/abstained", "smoothed/clean", "smoothed/pgd/l2_0.5"),
    "Test-time adaptation": ("adapted/clean", "adapted/corruptions/mean15"),
    "Calibration": ("calibration/rms", "calibration/ece", "calibration/brier", "calibration/nll", "aurra"),
    "Deployed files": ("deployed/bytes", "deployed/milliseconds"),
    "Confidence fitted on validation images": (
        *("calibrated/temperature", "calibrated/rms", "calibrated/ece", "calibrated/brier", "calibrated/nll", "calibrated/ece_before"),
        *("abstention/threshold", "abstention/coverage", "abstention/accuracy", "abstention/severity_3/accuracy"),
        *("conformal/coverage", "conformal/size", "conformal/severity_3/coverage"),
    ),
    "Other classes": ("ood/NAME/auroc", "ood/NAME/fpr95", "ood/NAME/energy/auroc"),
    "Corner digits and two-dimensional data": (
        *("utility/corner_informative", "utility/corner_uninformative", "boundary/length", "boundary/gradient"),
    ),
}
_BAR = {name for names in metrics.BAR.values() for name in names}
_CHECKS = {
    "noise": "with random noise of the attack's size",
    "one_step": "attacked by one gradient step",
    "ten_steps": "attacked by PGD with 10 steps",
    "hundred_steps": "attacked by PGD with 100 steps",
    "half_radius": "attacked by PGD within half the radius",
    "double_radius": "attacked by PGD within twice the radius",
    "large_radius": "attacked by PGD within a radius that can make any image gray",
    "black_box": "attacked without gradients",
}

_ACCURACIES = {  # measure: its long name, the images, and what else defines them
    "clean": ("Clean accuracy", "clean images", ", the unchanged test images"),
    "bal": ("Clean accuracy (BAL)", "clean images", ", the unchanged test images, with the same number in each class"),
    "bal/rare": ("Clean accuracy, rare classes", "clean images of the rare classes", ", in which a small corner digit decides the class"),
    "un": ("Uniform noise (UN)", "images with uniform noise", f": {_NOISE}, all locations with the same probability"),
    "nun": (
        "Non-uniform noise (NUN)",
        "images with non-uniform noise",
        f": {_NOISE}, above all those that vary little over the training images",
    ),
}
_OTHERS = {  # measure: its long name, meaning and unit
    "clean/per_class": ("Clean accuracy per class", "Mean over the classes of the accuracy on the clean images of a class", _FRACTION),
    **{
        f"{kind}/{name}": (title.format(one), text.format(one, kind), _FRACTION)
        for kind, one in (("classes", "class"), ("groups", "group"))
        for name, title, text in (
            ("worst", "Accuracy of the worst {}", "Accuracy on the clean images of the {0} with the lowest one of all {1}"),
            ("gap", "Gap between best and worst {}", "Difference of the accuracies on clean images of the best and the worst {0}"),
        )
    },
    "aurra": (
        "Accuracy when abstaining (AURRA)",
        "Area under the response rate accuracy curve: the accuracy among the clean images with the highest confidences, averaged over "
        "how many of them are answered",
        _FRACTION,
    ),
    "calibration/rms": (
        "RMS calibration error",
        "Root mean square difference between confidence and accuracy on clean images, over bins of 100 images of similar confidence",
        _FRACTION,
    ),
    "calibration/ece": (
        "Expected calibration error (ECE)",
        "Mean absolute difference between confidence and accuracy on clean images, over 15 bins of equal width",
        _FRACTION,
    ),
    "calibration/brier": ("Brier score", "Squared distance between predicted probabilities and label, mean over clean images", "0 to 2"),
    "calibration/nll": (
        "Negative log-likelihood (NLL)",
        "Negative logarithm of the label's predicted probability, mean over clean images",
        "Nats, 0 upwards",
    ),
    "corruptions/calibration_rms": (
        "RMS calibration error on corrupted images",
        "Root mean square difference between confidence and accuracy, mean over 15 corruptions and their severities",
        _FRACTION,
    ),
    "corruptions/mce": (
        "Mean corruption error (mCE)",
        "Error on each of 15 corruptions divided by AlexNet's, mean over the corruptions",
        _RATIO,
    ),
    "corruptions/relative_mce": (
        "Relative mean corruption error (relative mCE)",
        "Increase of the error over that on clean images, for each of 15 corruptions divided by AlexNet's, mean over the corruptions",
        _RATIO,
    ),
    "checks/failed": (
        "Failed checks of the attacks",
        "Number of signs that the attacks are too weak for the model; above 0, robust accuracies may be too high",
        "Count",
    ),
    "certified/mean_radius": (
        "Mean certified radius",
        "Radius within which no change of the image can change the smoothed model's correct decision, mean over images; 0 for an image "
        "that is misclassified or without a decision",
        "L2 norm of the change of pixels in [0, 1]",
    ),
    "certified/abstained": (
        "Images without a certified decision",
        "Fraction of images for which no class has a probability above 1/2 under noise with confidence 0.999: the smoothed model abstains",
        _FRACTION,
    ),
    "deployed/bytes": ("Size of the model, bytes", "Bytes of the file, or of the graph and the variables of a SavedModel", "Bytes"),
    "deployed/milliseconds": ("Latency, ms", "Time for one image with one thread, median over calls", "Milliseconds"),
    "boundary/length": (
        "Length of the decision boundary",
        "Length of the line between the two classes in the plane",
        "Length, the plane is 6 by 6",
    ),
    "boundary/gradient": (
        "Steepness at the decision boundary",
        "Gradient of the difference of the two logits, mean along the decision boundary",
        "Difference per length",
    ),
    "utility/corner_informative": (
        "Utility of informative corners",
        "Contextual utility of the corners divided by that of the center, where the corner digit decides the class",
        "Ratio",
    ),
    "utility/corner_uninformative": (
        "Utility of uninformative corners",
        "Contextual utility of the corners divided by that of the center, where the corner digit is irrelevant",
        "Ratio",
    ),
}


@dataclasses.dataclass(frozen=True)
class Description:
    """The long name and meaning of a measure.

    Attributes:
        name: long name, such as "Uniform noise (UN)".
        meaning: definition, unit and direction in one line; empty for an unknown measure.
        images: for an accuracy the images, such as "images with uniform noise"; empty for other measures.
        is_fraction: whether its values are in [0, 1].
    """

    name: str
    meaning: str
    images: str = ""
    is_fraction: bool = False


@functools.cache
def describe(measure: str) -> Description:
    """Returns the description of a measure; an unknown one keeps its name and has no meaning.

    Args:
        measure: its name, as in `evaluation.json`.
    """
    parsed = parse_measure(measure)
    name, text, unit, images = _accuracy(parsed.plain) or _other(parsed.plain) or (measure, "", "", "")
    if not text:
        return Description(measure, "")
    if parsed.label_fraction:
        labels = f"{100 * float(parsed.label_fraction):.3g}% of the labels"
        name, text = f"{name} with {labels}", f"{text}, of a model that was trained with {labels}"
        images = f"{images} after training with {labels}" if images else ""
    if parsed.adapted:
        name, text = f"{name}, adapted", f"{text}, of a model whose batch normalization is adapted to each batch of test images"
        images = f"{images} with adaptation to each batch" if images else ""
    meaning = f"{text}. {unit}; {'lower' if parsed.lower_is_better else 'higher'} is better."
    direction = "" if parsed.is_fitted else f"; {'lower' if parsed.lower_is_better else 'higher'} is better"
    meaning = f"{text}. {unit}{direction}."
    return Description(name, meaning, images, unit == _FRACTION)


def _accuracy(measure: Measure) -> tuple[str, str, str, str] | None:
    """Returns name, definition, unit and images of an accuracy, else None."""
    found = _ACCURACIES.get(str(measure)) or _corrupted(measure) or _attacked(measure) or _smoothed(measure)
    if measure.family == "nun" and measure.name.startswith("floor_"):
        floor = measure.name.removeprefix("floor_")
        found = (f"Non-uniform noise, floor {floor}", _ACCURACIES["nun"][1], f", with {floor} added to the std of each location")
    if measure.family == "shift":
        found = (f"Accuracy on {measure.name}", f"images of {measure.name}", ", a data set of the same classes under other conditions")
    if measure.family in ("class", "group"):
        found = (f"Accuracy, {measure.family} {measure.name}", f"clean images of the {measure.family} {measure.name}", "")
    if measure.family == "checks" and measure.name.partition("/")[2] in _CHECKS:
        norm, _, check = measure.name.partition("/")
        found = (
            f"Check of the {_NORMS.get(norm, norm)} attacks: {check.replace('_', ' ')}",
            f"images {_CHECKS[check]}",
            ", to compare the attacks",
        )
    if not found:
        return None
    name, images, detail = found
    return name, f"Accuracy on {images}{detail}", _FRACTION, images


def _corrupted(measure: Measure) -> tuple[str, str, str] | None:
    name = measure.name
    if measure.family not in CORRUPTION_FAMILIES:
        return None
    if measure.family == "corruptions_bar" and name == "mean":
        return (
            "Mean over 10 corruptions of C-bar",
            "images with corruptions of C-bar",
            " (10 kinds), mean over kinds and severities",
        )
    if measure.family == "corruptions" and name in _MEANS:
        members = metrics.MEANS[name]
        listed = f" ({', '.join(map(_words, members))})" if name in metrics.GROUPS else f" ({len(members)} kinds)"
        images = f"images with {name} corruptions" if name in metrics.GROUPS else "corrupted images"
        return _MEANS[name], images, f"{listed}, mean over kinds and severities"
    if name in (_BAR if measure.family == "corruptions_bar" else metrics.BENCHMARK + metrics.EXTRA):
        at = "" if measure.severity is None else f", severity {measure.severity}"
        how = ", mean over severities" if measure.severity is None else f" {measure.severity} of 5"
        images = f"images corrupted by {_words(name)}"
        return f"{_capitalized(_words(name))}{at}", images + at, how.removeprefix(f" {measure.severity}")
    return None


def _attacked(measure: Measure) -> tuple[str, str, str] | None:
    """Returns name, images and detail of a robust accuracy, such as robust/l2_0.5, robust/pgd/linf_8/255, fgsm/linf_8/255, robust/pgd."""
    if measure.family not in _ATTACKS:
        return None
    head, _, tail = measure.name.partition("/")
    attack, threat = (head, tail) if head in _ATTACKS else (measure.family, measure.name)
    norm, _, radius = threat.partition("_")
    if threat and norm not in _NORMS:
        return None
    name, detail = _ATTACKS[attack]
    within = f", {_NORMS[norm]} radius {radius}" if threat else ""
    return f"{_capitalized(_attack(name).removeprefix('the '))}{within}", f"images changed by {_attack(name)}{within}", detail


def _attack(name: str) -> str:
    """Returns AutoAttack, or another name with its article, such as "the PGD attack"."""
    return name if name == _AUTOATTACK[0] else f"the {name} attack"


def _smoothed(measure: Measure) -> tuple[str, str, str] | None:
    """Returns name, images and detail of a certified accuracy or an accuracy of the smoothed model."""
    if str(measure) == "smoothed/clean":
        return "Smoothed model", "clean images by the smoothed model", ": the most frequent class for images with Gaussian noise"
    threat = measure.name.removeprefix("pgd/")
    if measure.family not in ("certified", "smoothed") or not threat.startswith("l2_"):
        return None
    within = f"L2 radius {threat.removeprefix('l2_')}"
    if measure.family == "certified":
        detail = ": correct, and proven with confidence 0.999 for each image; images without a decision count as errors"
        return f"Certified accuracy, {within}", f"all images within {within} by the smoothed model", detail
    detail = " with gradients averaged over noise; an upper bound where certified accuracy is a lower one"
    return f"Smoothed model, PGD attack, {within}", f"images changed by the PGD attack on the smoothed model, {within}", detail


def _other(measure: Measure) -> tuple[str, str, str, str] | None:
    """Returns name, definition, unit and no images of a measure that is not an accuracy, else None."""
    found = _OTHERS.get(str(measure)) or _flips(measure) or fitted(measure) or open_set(measure)
    if measure.family == "distance":
        attack, _, norm = measure.name.partition("_")
        if attack in _ATTACKS and norm in _NORMS:
            name = _ATTACKS[attack][0]
            text = f"Size of the smallest change by {_attack(name)} that makes the prediction wrong, median over images"
            found = (f"Median {name} distance, {_NORMS[norm]}", text, f"{_NORMS[norm]} norm of the change of pixels in [0, 1]")
    return (*found, "") if found else None


def _flips(measure: Measure) -> tuple[str, str, str] | None:
    if measure.family != "flips":
        return None
    head, _, tail = measure.name.rpartition("/")
    without = ", without noise" if tail.endswith("_without_noise") else ""
    kind = tail.removesuffix("_without_noise")
    over = f"mean over {'8' if without else '10'} kinds of perturbations{without}"
    frames = "Fraction of predictions that change from frame to frame, in sequences of small perturbations of an image"
    if kind in ("mean", "mfr"):
        name = "Mean flip probability (mFP)" if kind == "mean" else "Mean flip rate (mFR)"
        text = f"{frames}, {over}" if kind == "mean" else f"{frames}, divided by AlexNet's, {over}"
        return name + without, text, _FRACTION if kind == "mean" else _RATIO
    if tail not in metrics.PERTURBATIONS + metrics.CIFAR_PERTURBATIONS:
        return None
    if head == "rate":
        return f"Flip rate, {_words(tail)}", f"{frames} ({_words(tail)}), divided by AlexNet's", _RATIO
    return f"Flip probability, {_words(tail)}", f"{frames} ({_words(tail)})", _FRACTION


def _words(name: str) -> str:
    return name.replace("_", " ").replace("jpeg", "JPEG").replace("gaussian", "Gaussian")


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]
