"""Names and meanings of accuracies: on clean, noisy, corrupted, shifted and attacked images; see `descriptions`."""

from tf_robust import metrics
from tf_robust.corruptions import CORRUPTIONS, RATE
from tf_robust.evaluation.measure import CORRUPTION_FAMILIES, Measure

_FRACTION = "Fraction, 0 to 1"
_NOISE = f"{RATE:.0%} of their locations replaced by random gray values"
_AUTOATTACK = (
    "AutoAttack",
    " (APGD, targeted APGD, FAB and Square; results of earlier versions, whose card names the attack ensemble, are without "
    "targeted APGD and FAB)",
)
ATTACKS = {
    "robust": _AUTOATTACK,
    "ensemble": _AUTOATTACK,
    "pgd": ("PGD", ""),
    "square": ("Square", ""),
    "transfer": ("transferred PGD", ", computed with the gradients of another model, the surrogate: not a white-box attack"),
    "plb": ("PLB", ""),
    "fgsm": ("FGSM", ""),
    "attack_curves": ("Minimum-norm attacks", ": none of the attacks of the curves finds a misclassified perturbation up to this size"),
}
NORMS = {"l0": "L0", "l1": "L1", "l2": "L2", "linf": "L∞"}
_MEANS = {
    "mean15": "Mean over 15 corruptions",
    "mean16": "Mean over 16 corruptions",
    "mean19": "Mean over 19 corruptions",
    "mean_without_noise": "Mean over 12 corruptions without noise",
    **{name: f"{name.capitalize()} corruptions" for name in metrics.GROUPS},
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
    "pgd": "attacked by the PGD that is measured",
}

_ACCURACIES = {  # measure: its long name, the images, and what else defines them
    "clean": ("Clean accuracy", "clean images", ", the unchanged images"),
    "bal": ("Clean accuracy (BAL)", "clean images", ", the unchanged images, with the same number in each class"),
    "bal/rare": ("Clean accuracy, rare classes", "clean images of the rare classes", ", in which a small corner digit decides the class"),
    "un": ("Uniform noise (UN)", "images with uniform noise", f": {_NOISE}, all locations with the same probability"),
    "nun": (
        "Non-uniform noise (NUN)",
        "images with non-uniform noise",
        f": {_NOISE}, above all those that vary little over the training images",
    ),
}


def accuracy(measure: Measure) -> tuple[str, str, str, str] | None:
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
            f"Check of the {NORMS.get(norm, norm)} attacks: {check.replace('_', ' ')}",
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
        listed = f" ({', '.join(map(words, members))})" if name in metrics.GROUPS else f" ({len(members)} kinds)"
        images = f"images with {name} corruptions" if name in metrics.GROUPS else "corrupted images"
        return _MEANS[name], images, f"{listed}, mean over kinds and severities"
    if name in (_BAR if measure.family == "corruptions_bar" else CORRUPTIONS):
        at = "" if measure.severity is None else f", severity {measure.severity}"
        how = ", mean over severities" if measure.severity is None else f" {measure.severity} of 5"
        images = f"images corrupted by {words(name)}"
        return f"{_capitalized(words(name))}{at}", images + at, how.removeprefix(f" {measure.severity}")
    return None


def _attacked(measure: Measure) -> tuple[str, str, str] | None:
    """Returns name, images and detail of a robust accuracy, such as robust/l2_0.5, robust/pgd/linf_8/255, fgsm/linf_8/255, robust/pgd."""
    if measure.family not in ATTACKS:
        return None
    head, _, tail = measure.name.partition("/")
    attack, threat = (head, tail) if head in ATTACKS else (measure.family, measure.name)
    norm, _, radius = threat.partition("_")
    if threat and norm not in NORMS:
        return None
    name, detail = ATTACKS[attack]
    within = f", {NORMS[norm]} radius {radius}" if threat else ""
    if attack == "attack_curves":
        return f"{name}{within}", f"images changed by {name.lower()}{within}", detail
    return f"{_capitalized(attack_of(name).removeprefix('the '))}{within}", f"images changed by {attack_of(name)}{within}", detail


def attack_of(name: str) -> str:
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


def words(name: str) -> str:
    """Returns the name of a corruption or perturbation in words."""
    return name.replace("_", " ").replace("jpeg", "JPEG").replace("gaussian", "Gaussian")


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]
