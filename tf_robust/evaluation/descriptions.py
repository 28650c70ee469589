"""Names and meanings of measures in plain words: for reports, tables on the terminal, and the glossary."""

from __future__ import annotations

import dataclasses
import functools

from tf_robust.corruptions import SEQUENCES
from tf_robust.evaluation.accuracy_descriptions import ATTACKS, NORMS, accuracy, attack_of, words
from tf_robust.evaluation.confidence_descriptions import fitted, open_set
from tf_robust.evaluation.measure import Measure, parse_measure

_FRACTION, _RATIO = "Fraction, 0 to 1", "Ratio, 1 is AlexNet's"
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
        *("attack_curves/l2_0.5", "distance/pgd_l2", "distance/plb_linf", "checks/failed"),
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
        "Norm of the gradient of class 1's probability, mean along the decision boundary",
        "Probability per length, the plane is 6 by 6",
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
    name, text, unit, images = accuracy(parsed.plain) or _other(parsed.plain) or (measure, "", "", "")
    if not text:
        return Description(measure, "")
    if parsed.label_fraction:
        labels = f"{100 * float(parsed.label_fraction):.3g}% of the labels"
        name, text = f"{name} with {labels}", f"{text}, of a model that was trained with {labels}"
        images = f"{images} after training with {labels}" if images else ""
    if parsed.adapted:
        name, text = f"{name}, adapted", f"{text}, of a model whose batch normalization is adapted to each batch of test images"
        images = f"{images} with adaptation to each batch" if images else ""
    direction = "" if parsed.is_fitted else f"; {'lower' if parsed.lower_is_better else 'higher'} is better"
    meaning = f"{text}. {unit}{direction}."
    return Description(name, meaning, images, unit == _FRACTION)


def _other(measure: Measure) -> tuple[str, str, str, str] | None:
    """Returns name, definition, unit and no images of a measure that is not an accuracy, else None."""
    found = _OTHERS.get(str(measure)) or _flips(measure) or fitted(measure) or open_set(measure)
    if measure.family == "distance":
        attack, _, norm = measure.name.partition("_")
        if attack in ATTACKS and norm in NORMS:
            name = ATTACKS[attack][0]
            text = f"Size of the smallest change by {attack_of(name)} that makes the prediction wrong, median over images"
            found = (f"Median {name} distance, {NORMS[norm]}", text, f"{NORMS[norm]} norm of the change of pixels in [0, 1]")
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
    if tail not in SEQUENCES:
        return None
    if head == "rate":
        return f"Flip rate, {words(tail)}", f"{frames} ({words(tail)}), divided by AlexNet's", _RATIO
    return f"Flip probability, {words(tail)}", f"{frames} ({words(tail)})", _FRACTION
