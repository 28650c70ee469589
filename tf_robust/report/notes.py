"""Sentences below a table on what its measures depend on, from the cards of the evaluations."""

from collections.abc import Iterable, Sequence

from tf_robust import metrics
from tf_robust.evaluation.measure import parse_measure
from tf_robust.evaluation.smoothing import ABSTAINS
from tf_robust.metrics.calibration import BIN_SIZE
from tf_robust.report.formatting import number_range
from tf_robust.report.table_types import Evaluation

_CHANGES = {
    "corruptions": "corruptions",
    "corruptions_bar": "corruptions",
    "flips": "perturbations",
    "un": "noise",
    "nun": "noise",
    "robust": "attacks",
    "fgsm": "attacks",
    "distance": "attacks",
    "attack_curves": "attacks",
    "certified": "noise",
    "smoothed": "attacks",
}  # family of measures: what was applied to its images
_FEW_BINS = 5  # of the RMS calibration error


def size_notes(evaluations: Iterable[Evaluation]) -> list[str]:
    """Returns sentences on the size at which noise, corruptions or attacks were applied to images, where the models take another size."""
    rows: dict[str, list[str]] = {}
    for evaluation in evaluations:
        card = evaluation.get("card") or {}
        sizes, changed = card.get("sizes"), {parse_measure(row["measure"]).family for row in evaluation["rows"]} & _CHANGES.keys()
        fit = card.get("data", {}).get("image_fit")
        if sizes and changed and (fit or sizes["corrupted_at"] != sizes["model_input"]):
            applied, model_input = ("x".join(map(str, sizes[name])) for name in ("corrupted_at", "model_input"))
            before = f", to which the image files were resized before ({fit})" if fit else ""
            after = ", and the images were resized to that after it" if applied != model_input else ""
            kinds = " and ".join(dict.fromkeys(kind for name, kind in _CHANGES.items() if name in changed))
            verb = "was" if kinds == "noise" else "were"
            text = f"{kinds} {verb} applied at {applied} pixels{before}; the network takes {model_input}{after}"
            rows.setdefault(text, []).append(evaluation["row"])
    return [f"{', '.join(dict.fromkeys(names))}: {text}." for text, names in rows.items()]


def transfer_notes(evaluations: Iterable[Evaluation]) -> list[str]:
    """Returns a sentence for each model from which attacks were transferred."""
    rows: dict[str, list[str]] = {}
    for evaluation in evaluations:
        if any(parse_measure(row["measure"]).card_family == "robust_transfer" for row in evaluation["rows"]):
            rows.setdefault(evaluation.get("measuring", {}).get("surrogate", "another model"), []).append(evaluation["row"])
    return [
        f"{', '.join(dict.fromkeys(names))}: the transferred attacks (robust/transfer) were computed with the gradients of {surrogate}. "
        "Their accuracies are not white-box: an attack with the model's own gradients, if it has any, may be stronger."
        for surrogate, names in rows.items()
    ]


def adaptation_notes(evaluations: Iterable[Evaluation]) -> list[str]:
    """Returns a sentence for each kind of test-time adaptation: the batches that its measures depend on."""
    rows: dict[str, list[str]] = {}
    for evaluation in evaluations:
        if part := (evaluation.get("card") or {}).get("adaptation"):
            sizes = number_range(part["batch_sizes"])
            text = (
                f"the model was adapted to the test images: its batch normalization used the statistics of batches of {sizes} images "
                f"({part['order']}, {part['classes_per_batch']:.1f} classes per batch on average, the most frequent with "
                f"{part['largest_class_fraction']:.2f} of the images). "
                "The measures adapted/... hold for such batches alone, not for single images"
            )
            rows.setdefault(text, []).append(evaluation["row"])
    return [f"{', '.join(dict.fromkeys(names))}: {text}." for text, names in rows.items()]


def class_notes(evaluations: Iterable[Evaluation]) -> list[str]:
    """Returns a sentence for each set of images on which only some of the model's classes compete."""
    rows: dict[str, list[str]] = {}
    for evaluation in evaluations:
        card = evaluation.get("card") or {}
        sets = {"": card.get("data", {}), **{f" (shift/{name})": part for name, part in card.get("shift", {}).items()}}
        for name, part in sets.items():
            if (mask := part.get("class_mask", "none")) != "none":
                rows.setdefault(f"only {mask} of the model compete{name}; the other outputs are ignored", []).append(evaluation["row"])
    return [f"{', '.join(dict.fromkeys(names))}: {text}." for text, names in rows.items()]


def severity_notes(evaluations: Iterable[Evaluation]) -> list[str]:
    """Returns a sentence where means over corruptions are of other severities than 1 to 5."""
    rows: dict[str, list[str]] = {}
    for evaluation in evaluations:
        if part := (evaluation.get("card") or {}).get("corruption_means"):
            rows.setdefault(", ".join(map(str, part["means_over_severities"])), []).append(evaluation["row"])
    return [f"{', '.join(dict.fromkeys(names))}: means over corruptions are of severity {text} alone." for text, names in rows.items()]


def certificate_notes(evaluations: Iterable[Evaluation]) -> list[str]:
    """Returns a sentence on the noise and the copies that certificates depend on, and on the largest radius that they allow."""
    rows: dict[str, list[str]] = {}
    for evaluation in evaluations:
        if part := (evaluation.get("card") or {}).get("certified"):
            largest = metrics.largest_radius(part["samples"], part["sigma"], part["alpha"])
            text = (
                f"certified accuracy holds for the smoothed model with noise of standard deviation {part['sigma']:g} (smoothing_sigma), "
                f"with confidence {1 - part['alpha']:g} for each image, from {part['selection']:,} noisy copies that select the class and "
                f"{part['samples']:,} that bound its probability; no l2 radius above {largest:.2f} can be certified with these"
            )
            rows.setdefault(text, []).append(evaluation["row"])
    return [f"{', '.join(dict.fromkeys(names))}: {text}." for text, names in rows.items()]


def abstention_notes(evaluations: Iterable[Evaluation]) -> list[str]:
    """Returns a sentence for each model whose smoothed model abstains on all images."""
    rows = [
        evaluation["row"]
        for evaluation in evaluations
        if any(row["measure"] == "certified/abstained" and row["value"] == 1 for row in evaluation["rows"])
    ]
    return [f"{row}: {ABSTAINS}." for row in dict.fromkeys(rows)]


def calibration_notes(evaluations: Iterable[Evaluation]) -> list[str]:
    """Returns a sentence for each number of images that gives the RMS calibration error few bins."""
    rows: dict[int, list[str]] = {}
    for evaluation in evaluations:
        for row in evaluation["rows"]:
            is_rms = str(parse_measure(row["measure"]).plain) == "calibration/rms"
            if is_rms and (row.get("count") or _FEW_BINS * BIN_SIZE) < _FEW_BINS * BIN_SIZE:
                rows.setdefault(row["count"], []).append(evaluation["row"])
    return [
        f"{', '.join(dict.fromkeys(names))}: the RMS calibration error is that of bins of {BIN_SIZE} images. {count:,} images give "
        f"{max(1, count // BIN_SIZE)}, in which errors of different confidences cancel: it may be too low."
        for count, names in rows.items()
    ]


def latency_notes(evaluations: Iterable[Evaluation]) -> list[str]:
    """Returns a sentence on how latencies were measured, with the CPUs."""
    timed = [one for one in evaluations if any(row["measure"] == "deployed/milliseconds" for row in one["rows"])]
    cpus = ", ".join(dict.fromkeys(one.get("cpu", "an unknown CPU") for one in timed))
    return [f"Latency: one image, one thread, median over calls, {cpus}."] if timed else []


def own_notes(evaluations: Iterable[Evaluation]) -> list[str]:
    """Returns the notes that evaluations have recorded: what was left out."""
    rows: dict[str, list[str]] = {}
    for evaluation in evaluations:
        for note in evaluation.get("notes", ()):
            rows.setdefault(note, []).append(evaluation["row"])
    return [f"{', '.join(dict.fromkeys(names))}: {note}." for note, names in rows.items()]


def split_notes(evaluations: Sequence[Evaluation]) -> list[str]:
    """Returns a sentence if all values are those of validation images."""
    if {evaluation.get("split") for evaluation in evaluations} != {"validation"}:
        return []
    return ["All values are those of validation images, on which settings are chosen, not of test images."]


def evaluation_notes(evaluations: Sequence[Evaluation]) -> list[str]:
    """Returns sentences on what the measures of evaluations depend on."""
    kinds = (
        split_notes,
        own_notes,
        size_notes,
        class_notes,
        severity_notes,
        transfer_notes,
        adaptation_notes,
        certificate_notes,
        abstention_notes,
        calibration_notes,
        latency_notes,
    )
    return [note for notes_of in kinds for note in notes_of(evaluations)]
