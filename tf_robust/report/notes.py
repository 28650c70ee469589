"""Notes below a table on what its metrics depend on, from the cards of the evaluations."""

from collections.abc import Iterable, Iterator, Sequence

from tf_robust import metrics
from tf_robust.evaluation.metric_value import parse_metric
from tf_robust.evaluation.smoothing import ABSTAINS
from tf_robust.metrics.calibration import BIN_SIZE
from tf_robust.report.formatting import number_range
from tf_robust.report.table_types import Evaluation

_FEW_BINS = 5  # of the RMS calibration error


def evaluation_notes(evaluations: Sequence[Evaluation]) -> list[str]:
    """Returns notes on what the metrics of evaluations depend on, each with the rows that it holds for.

    Args:
        evaluations: as in `evaluation.json`.
    """
    notes = []
    if {evaluation.get("split") for evaluation in evaluations} == {"validation"}:
        notes.append("All values are those of validation images, on which settings are chosen, not of test images.")
    seeds: dict[str, set] = {}
    for evaluation in evaluations:
        seeds.setdefault(evaluation["row"], set()).add(evaluation["seed"])
    if len({len(of_row) for of_row in seeds.values()}) > 1:
        notes.append(f"Seeds: {', '.join(f'{row} {len(of_row)}' for row, of_row in seeds.items())}.")
    rows: dict[tuple[int, str], dict[str, None]] = {}
    for evaluation in evaluations:
        for kind, notes_of in enumerate((_recorded, _sizes, _classes, _severities, _transfer, _adaptation, _certificates, _calibration)):
            for text in notes_of(evaluation):
                rows.setdefault((kind, text), {})[evaluation["row"]] = None
    notes += [f"{', '.join(names)}: {text}." for (_, text), names in sorted(rows.items(), key=lambda item: item[0][0])]
    timed = [one for one in evaluations if any(row["metric"] == "deployed/milliseconds" for row in one["rows"])]
    cpus = ", ".join(dict.fromkeys(one.get("cpu", "an unknown CPU") for one in timed))
    return [*notes, *([f"Latency: one image, one thread, median over calls, {cpus}."] if timed else [])]


def _card(evaluation: Evaluation) -> dict:
    return evaluation.get("card") or {}


def _recorded(evaluation: Evaluation) -> Iterable[str]:
    """What an evaluation left out, and warnings such as masked gradients."""
    return evaluation.get("notes", ())


def _sizes(evaluation: Evaluation) -> Iterator[str]:
    """The size at which noise, corruptions or attacks were applied to images, where the model takes another size."""
    card = _card(evaluation)
    sizes, fit = card.get("sizes"), card.get("data", {}).get("image_fit")
    changes = {parse_metric(row["metric"]).entry.metric.change for row in evaluation["rows"]} - {"", "shifts"}
    if sizes and changes and (fit or sizes["corrupted_at"] != sizes["model_input"]):
        applied, model_input = ("x".join(map(str, sizes[name])) for name in ("corrupted_at", "model_input"))
        order = ("corruptions", "perturbations", "noise", "attacks", "Gaussian noise")
        kinds = " and ".join(sorted(changes, key=order.index))
        before = f", to which the image files were resized before ({fit})" if fit else ""
        after = ", and the images were resized to that after it" if applied != model_input else ""
        verb = "was" if kinds in ("noise", "Gaussian noise") else "were"
        yield f"{kinds} {verb} applied at {applied} pixels{before}; the network takes {model_input}{after}"


def _classes(evaluation: Evaluation) -> Iterator[str]:
    """Sets of images on which only some of the model's classes compete."""
    card = _card(evaluation)
    sets = {"": card.get("data", {}), **{f" (shift/{name})": part for name, part in card.get("shift", {}).items()}}
    for name, part in sets.items():
        if (mask := part.get("class_mask", "none")) != "none":
            yield f"only {mask} of the model compete{name}; the other outputs are ignored"


def _severities(evaluation: Evaluation) -> Iterator[str]:
    if part := _card(evaluation).get("corruption_means"):
        yield f"means over corruptions are of severity {', '.join(map(str, part['means_over_severities']))} alone"


def _transfer(evaluation: Evaluation) -> Iterator[str]:
    if any(parse_metric(row["metric"]).card_family == "robust_transfer" for row in evaluation["rows"]):
        surrogate = evaluation.get("options", {}).get("surrogate", "another model")
        yield (
            f"the transferred attacks (robust/transfer) were computed with the gradients of {surrogate}. "
            "Their accuracies are not white-box: an attack with the model's own gradients, if it has any, may be stronger"
        )


def _adaptation(evaluation: Evaluation) -> Iterator[str]:
    if part := _card(evaluation).get("adaptation"):
        yield (
            "the model was adapted to the test images: its batch normalization used the statistics of batches of "
            f"{number_range(part['batch_sizes'])} images ({part['order']}, {part['classes_per_batch']:.1f} classes per batch on average, "
            f"the most frequent with {part['largest_class_fraction']:.2f} of the images). "
            "The metrics adapted/... hold for such batches alone, not for single images"
        )


def _certificates(evaluation: Evaluation) -> Iterator[str]:
    if part := _card(evaluation).get("certified"):
        largest = metrics.largest_radius(part["samples"], part["sigma"], part["alpha"])
        yield (
            f"certified accuracy holds for the smoothed model with noise of standard deviation {part['sigma']:g} (smoothing_sigma), "
            f"with confidence {1 - part['alpha']:g} for each image, from {part['selection']:,} noisy copies that select the class and "
            f"{part['samples']:,} that bound its probability; no l2 radius above {largest:.2f} can be certified with these"
        )
    if any(row["metric"] == "certified/abstained" and row["value"] == 1 for row in evaluation["rows"]):
        yield ABSTAINS


def _calibration(evaluation: Evaluation) -> Iterator[str]:
    for row in evaluation["rows"]:
        is_rms = str(parse_metric(row["metric"]).plain) == "calibration/rms"
        if is_rms and (count := row.get("count") or _FEW_BINS * BIN_SIZE) < _FEW_BINS * BIN_SIZE:
            yield (
                f"the RMS calibration error is that of bins of {BIN_SIZE} images. {count:,} images give {max(1, count // BIN_SIZE)}, "
                "in which errors of different confidences cancel: it may be too low"
            )
