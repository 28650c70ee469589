"""Names and meanings of the measures of fitted confidences and of open sets; see `descriptions`."""

import re

from tf_robust.evaluation.measure import CONFIDENCE_FAMILIES, Measure

_FRACTION = "Fraction, 0 to 1"
_CONFIDENCE = {  # family/measure: its long name, definition and unit
    "calibrated/temperature": ("Temperature", "Number that logits are divided by, fitted on validation images", "Above 0"),
    "calibrated/rms": ("RMS calibration error after scaling", "RMS calibration error of the scaled logits", _FRACTION),
    "calibrated/ece": ("ECE after scaling", "Expected calibration error of the scaled logits", _FRACTION),
    "calibrated/brier": ("Brier score after scaling", "Brier score of the scaled logits", "0 to 2"),
    "calibrated/nll": ("NLL after scaling", "Negative log-likelihood of the scaled logits", "Nats, 0 upwards"),
    "abstention/threshold": (
        "Threshold of abstention",
        "Confidence below which the model abstains, such that its accuracy on clean images is the wanted one with 95% confidence",
        _FRACTION,
    ),
    "abstention/coverage": ("Coverage with abstention", "Fraction of images that the model answers with the threshold", _FRACTION),
    "abstention/accuracy": ("Accuracy with abstention", "Accuracy among the images that the model answers with the threshold", _FRACTION),
    "conformal/coverage": ("Coverage of conformal sets", "Fraction of images whose label is in the prediction set (APS)", _FRACTION),
    "conformal/size": ("Size of conformal sets", "Number of classes in the prediction set (APS), mean over images", "Classes, 0 upwards"),
}
_OOD = {
    "auroc": ("AUROC", "Area under the ROC curve", _FRACTION),
    "fpr95": ("FPR at 95% TPR", "Fraction accepted at the threshold that accepts 95% of the clean images", _FRACTION),
}
_OOD_SCORES = {"max_logit": "largest logit", "energy": "energy", "knn": "nearest neighbors of the embedding"}


def fitted(measure: Measure) -> tuple[str, str, str] | None:
    """Returns name, definition and unit of a measure of fitted confidences, such as conformal/severity_3/size."""
    group, _, name = measure.name.rpartition("/")
    name, before = name.removesuffix("_before"), name.endswith("_before")
    found = _CONFIDENCE.get(f"{measure.family}/{name}")
    if not found or measure.family not in CONFIDENCE_FAMILIES or not re.fullmatch(r"|severity_[1-5]|shift/.+", group):
        return None
    if group.startswith("severity_"):
        images = f"corrupted images, severity {group.removeprefix('severity_')}"
    else:
        images = group.removeprefix("shift/") or "clean images"
    title, text, unit = found
    if before:
        title, text = title.replace("after", "before"), text.replace(" scaled logits", " logits without scaling")
    if name in ("temperature", "threshold"):
        return title, text, unit
    return f"{title}, {images}", f"{text}, on {images}", unit


def open_set(measure: Measure) -> tuple[str, str, str] | None:
    """Returns name, definition and unit of a measure of an open set, such as ood/svhn/energy/auroc."""
    rest, _, name = measure.name.rpartition("/")
    if measure.family != "ood" or name not in _OOD or not rest:
        return None
    data, _, score = rest.rpartition("/")
    data, score = (data, score) if score in _OOD_SCORES and data else (rest, "")
    by = _OOD_SCORES.get(score, "largest probability")
    title, text, unit = _OOD[name]
    return f"{title}, {data} by {by}", f"{text}, of clean images against {data}, other classes, by the {by}", unit
