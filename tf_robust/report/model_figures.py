"""Figures of data, training and models, from sources and the files of runs.

Functions named `draw_...` write a PNG file and return its path. Functions named `of_...` return (path, caption) pairs and `report.Chart`s.
"""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tf_robust import attribution, corruptions, data, evaluation, report
from tf_robust.attacks import norms
from tf_robust.attacks.attack import Predict
from tf_robust.configs.evaluation import parse_threat
from tf_robust.data.source import Source
from tf_robust.training import callbacks

UTILITY_IMAGES = 512
SHOWN = 6  # images per row
GROUPS = {"Classes 0-4": range(0, 5), "Classes 5-9": range(5, 10), "Classes 10-14": range(10, 15)}

Figure = report.Chart | tuple[str, str]  # a chart, or path and caption of a PNG file


def draw_utility(folder: str, model: Predict, source: Source) -> str:
    """Draws mean image and mean contextual utility per class modulo 10 (Figure 4 of the FCL paper).

    The number of a panel is the mean utility of the corners divided by that of the center, as the evaluation `utility` metrics it.

    Args:
        folder: of the figure.
        model: the classifier.
        source: training images, of which one batch is used.
    """
    images, labels = evaluation.first_images(source, UTILITY_IMAGES)
    utilities = attribution.contextual_utility(model, images, labels).numpy()
    means = attribution.mean_by_class(utilities, labels)
    inside = evaluation.scoring.corners(*means.shape[1:3])
    captions = [
        f"class {digit}: corners {mean[inside].mean() / max(mean[~inside].mean(), np.finfo(np.float32).tiny):.2f}"
        for digit, mean in enumerate(means)
    ]
    return report.utility_by_class(os.path.join(folder, "utility.png"), attribution.mean_by_class(images, labels), means, captions)


def of_data(folder: str, training_source: Source | None, test_source: Source, eval_config: evaluation.EvalConfig) -> list[Figure]:
    """Returns samples and, with a training source, the class histogram and the two noises (Figures 1 to 3 of the FCL paper).

    Args:
        folder: of the figures.
        training_source: training images; None: samples only.
        test_source: evaluated images.
        eval_config: has NUN's floor.
    """
    images, labels = evaluation.first_images(test_source, 300)
    corner_digits = test_source.num_classes == 15 and test_source.name.startswith("synthetic_")
    classes_of = GROUPS if corner_digits else {"Examples": range(test_source.num_classes)}
    groups = {caption: images[np.isin(labels, list(classes))][:8] for caption, classes in classes_of.items()}
    samples = report.captioned_images(os.path.join(folder, "samples.png"), [(title, images, None) for title, images in groups.items()])
    drawn: list[Figure] = [(samples, f"Evaluated images: {test_source.name}.")]
    if training_source is None:
        return drawn
    if training_source.random_access:
        counts = {source.split: np.bincount(source.labels, minlength=source.num_classes) for source in (training_source, test_source)}
        drawn.append(report.class_histogram(counts, training_source.class_names))
    return [*drawn, _noises(folder, images[:6], evaluation.noise_probabilities(training_source, eval_config))]


def _noises(folder, clean, probabilities):
    noised = {
        "UN": corruptions.uniform_noise(clean, seed=evaluation.SEED).numpy(),
        "NUN": corruptions.nonuniform_noise(clean, probabilities, seed=evaluation.SEED).numpy(),
    }
    maps = {"UN": np.full_like(probabilities, corruptions.RATE), "NUN": probabilities}
    path = report.noise_samples(os.path.join(folder, "noise.png"), clean, noised, maps)
    return path, (
        f"The noise sets replace {corruptions.RATE:.0%} of the locations: UN uniformly, NUN mostly where training images vary little."
    )


def of_training(folders: Mapping[str, Sequence[str]]) -> list[Figure]:
    """Returns training curves. Long training runs are validated at some epochs only.

    Args:
        folders: {row: folders to search for its history.json, in this order}; rows without one are skipped.
    """
    curves = {}
    for row, candidates in folders.items():
        paths = (os.path.join(candidate, "history.json") for candidate in candidates)
        if path := next(filter(os.path.exists, paths), None):
            epochs = callbacks.read_history(path)
            names = dict.fromkeys(name for epoch in epochs for name in epoch if name != "epoch")
            curves[row] = {name: [epoch.get(name) for epoch in epochs] for name in names}
    return [report.training_curves(curves)] if curves else []


_SHEETS = {
    "utility": "mean image and mean utility per class modulo 10, and the mean utility of the corners over that of the center.",
    "maps": "where the loss (utility) and the logits (sensitivity) depend on the pixels.",
    "worst": "images that are classified correctly when clean and misclassified at the middle severity, with the predictions.",
    "attacked": "the smallest perturbations that PGD found, with the predictions and their sizes.",
}


def of_models(folders: Mapping[str, Sequence[str]]) -> list[Figure]:
    """Returns the figures that runs drew of their models.

    Args:
        folders: {row: folders to search, in this order}.
    """
    drawn: list[Figure] = []
    for (kind, text), (row, candidates) in itertools.product(_SHEETS.items(), folders.items()):
        paths = [os.path.join(candidate, "figures", f"{kind}.png") for candidate in candidates]
        drawn += [(path, f"{row}: {text}") for path in paths if os.path.exists(path)][:1]
    return drawn


def of_calibration(records_by_row: Mapping[str, Mapping[str, dict]]) -> list[Figure]:
    """Returns reliability diagram and response-rate curve on the clean images.

    Args:
        records_by_row: {row: {set: record}}.
    """
    outcomes = {}
    for row, records in records_by_row.items():
        if clean := next((record for record in records.values() if "confidences" in record), None):
            outcomes[row] = evaluation.confidences(clean), evaluation.correctness(clean)
    return [report.reliability_diagram(outcomes), report.response_rate_curves(outcomes)] if outcomes else []


def of_certified(records_by_row: Mapping[str, Mapping[str, dict]]) -> list[Figure]:
    """Returns the curves of certified radii.

    Args:
        records_by_row: {row: {set: record}}.
    """
    radii, attacked = {}, {}
    for row, records in records_by_row.items():
        if "certified" in records:
            radii[row] = evaluation.smoothing.radii_of(records["certified"])
            own = {name: one["correct"] / one["count"] for name, one in records.items() if name.startswith("smoothed/")}
            attacked[row] = {0.0 if name == "smoothed/clean" else float(name.rpartition("_")[2]): value for name, value in own.items()}
    return [report.certified_curves(radii, attacked)] if radii else []


def of_confidence(records_by_row: Mapping[str, Mapping[str, dict]]) -> list[Figure]:
    """Returns the reliability and the risk over coverage of fitted confidences, on clean, shifted and corrupted images.

    Args:
        records_by_row: {row: {set: record}}.
    """
    outcomes, binned = {}, {}
    for row, records in records_by_row.items():
        groups = evaluation.confidence.groups([one for one in records.values() if "confidence" in one])
        if "" in groups and "ece" in groups[""][-1]["confidence"]:
            clean = groups[""][-1]
            outcomes[f"{row}, before scaling"] = evaluation.confidences(clean), evaluation.correctness(clean)
            outcomes[f"{row}, after scaling"] = evaluation.confidence.outcomes(clean)
        if groups:
            binned[row] = {
                group.replace("_", " ").removeprefix("shift/") or "clean": np.sum(
                    [evaluation.confidence.bins(one) for one in members], axis=0
                )
                for group, members in groups.items()
            }
    diagram = [report.reliability_diagram(outcomes, name="reliability_scaled")] if outcomes else []
    return [*diagram, report.reliability_by_severity(binned), report.risk_coverage(binned)] if binned else []


def class_name(source: Source, label: int) -> str:
    """Returns the name of a class; its number if the model has more classes than the data."""
    return source.class_names[label] if label < len(source.class_names) else str(label)


def draw_attacked(folder: str, model: Predict, source: Source, threats: Iterable[str]) -> str | None:
    """Draws correctly classified images with the smallest perturbations that PGD finds.

    Args:
        folder: of the figure.
        model: the classifier.
        source: evaluated images.
        threats: NORM_RADIUS, as the attacks of the evaluation; their norms are shown.

    Returns:
        The path, or None if no image is classified correctly.
    """
    images, labels = evaluation.first_images(source, SHOWN * 20)
    right = np.flatnonzero(np.argmax(model(images), axis=1) == labels)[:SHOWN]
    if not len(right):
        return None
    images, labels = images[right], labels[right]
    attacked_images, captions = {}, {}
    for norm in dict.fromkeys(parse_threat(text)[0] for text in threats):
        name = f"pgd_{norm}"
        attacked_images[name] = evaluation.adversarial.minimal_attack("pgd", norm)(model, images, labels).numpy()
        sizes = norms.NORMS[norm].size(attacked_images[name] - images).numpy()
        predictions = np.argmax(model(attacked_images[name]), axis=1)
        captions[name] = [f"{class_name(source, prediction)}\n{size:.3g}" for prediction, size in zip(predictions, sizes)]
    return report.attacked_images(os.path.join(folder, "attacked.png"), images, attacked_images, captions)


def draw_worst(
    folder: str, predict: Predict, source: Source, sets: Sequence[evaluation.EvaluationSet], records: Iterable[dict]
) -> str | None:
    """Draws images of the first batch that are classified correctly when clean and misclassified at the middle severity.

    There is one row per corruption, and images that are misclassified at the most severities come first. Corruptions whose images are
    in another order than the clean ones, so that nobody knows which belong together, have none.

    Args:
        folder: of the figure.
        predict: the classifier.
        source: evaluated images.
        sets: evaluation sets.
        records: of these sets.

    Returns:
        The path, or None if there are no such images.
    """
    correct = {record["set"]: evaluation.correctness(record) for record in records if record["kind"] == "accuracy"}
    in_order = {record["set"] for record in records if "order" not in record}
    clean = correct.get("clean", correct.get("bal"))
    if clean is None:  # not evaluated
        images, labels = next(iter(data.evaluation_batches(source, evaluation.batch_size_of(source.image_shape))))
        clean = np.argmax(predict(images), axis=1) == labels.numpy()
    measured = sorted({severity for one in sets if (severity := evaluation.parse_metric(one.name).severity)})
    middle, lines = measured[len(measured) // 2] if measured else None, []
    for one in sets:
        metric = evaluation.parse_metric(one.name)
        if metric.severity is None or metric.severity != middle or one.name not in in_order:
            continue
        name = metric.name
        images, labels = (part.numpy() for part in next(iter(one.open())))
        by_severity = [correct[other][: len(labels)] for other in correct if other.startswith(f"{metric.family}/{name}/")]
        wrong = ~correct[one.name][: len(labels)] & clean[: len(labels)]
        order = np.argsort(np.where(wrong, -np.sum(~np.array(by_severity), axis=0), 1), kind="stable")[: min(wrong.sum(), 2 * SHOWN)]
        if len(order):
            predictions = np.argmax(predict(images[order]), axis=1)
            names = ((class_name(source, label), class_name(source, prediction)) for label, prediction in zip(labels[order], predictions))
            captions = [f"{true} as {predicted}" for true, predicted in names]
            lines.append((name, images[order], captions))
    return report.captioned_images(os.path.join(folder, "worst.png"), lines) if lines else None


def draw_maps(folder: str, predict: Predict, source: Source) -> str | None:
    """Draws images with their contextual utility and the sensitivity of the logits, means over channels divided by their maximum.

    Args:
        folder: of the figure.
        predict: the classifier.
        source: evaluated images.

    Returns:
        The path, or None if the model has no gradient.
    """
    images, labels = evaluation.first_images(source, 2 * SHOWN)
    try:
        utilities = attribution.contextual_utility(predict, images, labels)
    except attribution.WithoutGradient:
        return None
    sensitivities = attribution.squared_sensitivity_estimate(predict, images) ** 0.5
    lines: list[tuple[str, np.ndarray, list[str] | None]] = [("images", images, [class_name(source, label) for label in labels])]
    for title, values in (("utility", utilities), ("sensitivity of the logits", sensitivities)):
        values = values.numpy().mean(axis=-1, keepdims=True)
        lines.append((title, values / np.maximum(values.max(axis=(1, 2, 3), keepdims=True), np.finfo(np.float32).tiny), None))
    return report.captioned_images(os.path.join(folder, "maps.png"), lines)


def of_attacks(records_by_row: Mapping[str, Mapping[str, dict]], panels: Mapping[str, Sequence[str]] | None = None) -> list[Figure]:
    """Returns attack curves of the measured distances.

    Args:
        records_by_row: {row: {set: record}}.
        panels: {title: [rows]}, the rows of each row of panels; None: all rows in one.
    """
    by_row = {}
    for row, records in records_by_row.items():
        distances = [record for record in records.values() if "distances" in record]
        if distances:
            by_row[row] = {record["set"].partition("/")[2]: evaluation.adversarial.read_distances(record) for record in distances}
    return [report.attack_curves(by_row, panels)] if by_row else []
