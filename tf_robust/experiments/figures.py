"""Figures of data, training and models, from sources and what runs left behind. Each function returns paths, (path, caption)
or `report.Chart`s."""

import itertools
import os

import numpy as np

from tf_robust import attribution, corruptions, evaluation, report
from tf_robust.attacks import norms
from tf_robust.data import toy
from tf_robust.training import callbacks

UTILITY_IMAGES = 512
SHOWN = 6  # images of a sheet
GROUPS = {"Classes 0-4": range(0, 5), "Classes 5-9": range(5, 10), "Classes 10-14": range(10, 15)}


def utility(folder, model, source):
    """Figure 4: mean image and mean contextual utility per class modulo 10, of a batch of training images.

    The number of a panel is the mean utility of the corners over that of the center, as the evaluation `utility` measures it.
    """
    images, labels = evaluation.first_images(source, UTILITY_IMAGES)
    utilities = attribution.contextual_utility(model, images, labels).numpy()
    means = attribution.mean_by_class(utilities, labels)
    inside = evaluation.utility.corners(*means.shape[1:3])
    captions = [
        f"class {digit}: corners {mean[inside].mean() / max(mean[~inside].mean(), np.finfo(np.float32).tiny):.2f}"
        for digit, mean in enumerate(means)
    ]
    return report.utility_by_class(os.path.join(folder, "utility.png"), attribution.mean_by_class(images, labels), means, captions)


def of_data(folder, training_source, test_source, eval_config):
    """Figures 1 to 3: samples and, with a training source, the class histogram (sets in memory) and the two noises."""
    if test_source.name in ("toy", "toy_band"):
        return []  # points, which `of_boundaries` shows
    images, labels = evaluation.first_images(test_source, 300)
    corner_digits = test_source.num_classes == 15 and test_source.name.startswith("synthetic_")
    chosen = GROUPS if corner_digits else {"Examples": range(test_source.num_classes)}
    groups = {caption: images[np.isin(labels, list(classes))][:8] for caption, classes in chosen.items()}
    drawn = [(report.image_groups(os.path.join(folder, "samples.png"), groups, test_source.name), "Test images.")]
    if training_source is None:
        return drawn
    if training_source.random_access:
        counts = {source.split: np.bincount(source.labels, minlength=source.num_classes) for source in (training_source, test_source)}
        drawn.append(report.class_histogram(counts, training_source.class_names))
    return [*drawn, _noises(folder, images[:6], evaluation.noise_probabilities(training_source, eval_config))]


def _noises(folder, clean, probabilities):
    noised = {
        "UN": corruptions.uniform_noise(clean, seed=evaluation.NOISE_SEED).numpy(),
        "NUN": corruptions.nonuniform_noise(clean, probabilities, seed=evaluation.NOISE_SEED).numpy(),
    }
    maps = {"UN": np.full_like(probabilities, corruptions.RATE), "NUN": probabilities}
    path = report.noise_samples(os.path.join(folder, "noise.png"), clean, noised, maps)
    return path, (
        f"The noise sets replace {corruptions.RATE:.0%} of the locations, UN everywhere alike, NUN where training images vary little."
    )


def of_training(histories):
    """Training curves of {row: path of its history.json}; a long training is validated at some epochs only."""
    curves = {}
    for row, path in histories.items():
        if os.path.exists(path):
            epochs = callbacks.read_history(path)
            names = dict.fromkeys(name for epoch in epochs for name in epoch if name != "epoch")
            curves[row] = {name: [epoch.get(name) for epoch in epochs] for name in names}
    return [report.training_curves(curves)] if curves else []


_SHEETS = {
    "utility": "mean image and mean utility per class modulo 10, and the mean utility of the corners over that of the center.",
    "maps": "where the loss (utility) and the logits (sensitivity) depend on the pixels.",
    "worst": "images that it gets right when clean and wrong at severity 3, and what it takes them for.",
    "attacked": "the smallest perturbations that PGD found, with what the model says then and their size.",
}


def of_models(folders):
    """The sheets of images that were made of the models of {row: folders to look in, one after the other}."""
    drawn = []
    for (kind, text), (row, places) in itertools.product(_SHEETS.items(), folders.items()):
        paths = [os.path.join(place, "figures", f"{kind}.png") for place in places]
        drawn += [(path, f"{row}: {text}") for path in paths if os.path.exists(path)][:1]
    return drawn


def of_calibration(workdirs):
    """Reliability diagram and response-rate curve of {row: workdir}, on the clean set that was measured last."""
    found = {}
    for row, workdir in workdirs.items():
        clean = [r for r in evaluation.read_records(os.path.join(workdir, "measured.jsonl")) if "confidences" in r]
        if clean:
            found[row] = evaluation.confidences(clean[-1]), evaluation.correctness(clean[-1])
    return [report.reliability_diagram(found), report.response_rate_curves(found)] if found else []


def of_boundaries(folder, workdirs, sources):
    """Decision boundaries of {row: workdir}, as measured last; sources: of the points, trained on and measured on."""
    found = {}
    for row, workdir in workdirs.items():
        path = os.path.join(workdir, "measured.jsonl")
        records = {record["set"]: record for record in evaluation.read_records(path)}
        if "boundary" in records:
            drawn, clean = records["boundary"], records.get("clean")
            found[row] = {
                "sides": evaluation.boundary.sides(drawn),
                "lines": evaluation.boundary.lines(drawn),
                "accuracy": clean and clean["correct"] / clean["count"],
            }
    if not found:
        return []
    points = [(source.split, toy.to_points(source.images / 255.0), source.labels) for source in sources]
    path = report.decision_boundaries(os.path.join(folder, "boundaries.png"), found, points, toy.LIMIT)
    return [(path, "Data and decision boundaries, with accuracy, first seed of each row.")]


def _named(source, label):
    """A class in words; its number where a model has more classes than the data."""
    return source.class_names[label] if label < len(source.class_names) else str(label)


def attacked(folder, model, source):
    """A sheet of images that the model gets right, with what the smallest perturbations by PGD make of them."""
    images, labels = evaluation.first_images(source, SHOWN * 20)
    right = np.flatnonzero(np.argmax(model(images), axis=1) == labels)[:SHOWN]
    if not len(right):
        return None
    images, labels = images[right], labels[right]
    attacked_images, captions = {}, {}
    for norm in ("l2", "linf"):
        name = f"pgd_{norm}"
        attacked_images[name] = evaluation.adversarial.minimal("pgd", norm)(model, images, labels).numpy()
        sizes = norms.NORMS[norm].size(attacked_images[name] - images).numpy()
        said = np.argmax(model(attacked_images[name]), axis=1)
        captions[name] = [f"{_named(source, now)}\n{size:.3g}" for now, size in zip(said, sizes)]
    return report.attacked_images(os.path.join(folder, "attacked.png"), images, attacked_images, captions)


def worst(folder, predict, source, sets, records):
    """A line a corruption of images that are right when clean and wrong at severity 3, most often wrong at other severities
    first, with what the model takes them for. Of the first batch of images; None: there are none.

    Args:
        sets: list of `evaluation.EvaluationSet`. records: theirs.
    """
    correct = {record["set"]: evaluation.correctness(record) for record in records if record["kind"] == "accuracy"}
    lines = []
    for one in sets:
        measure = evaluation.parse_measure(one.name)
        if measure.severity != 3:
            continue
        name = measure.name
        images, labels = (part.numpy() for part in next(iter(one.open())))
        by_severity = [correct[other][: len(labels)] for other in correct if other.startswith(f"corruptions/{name}/")]
        wrong = ~correct[one.name][: len(labels)] & correct.get("clean", correct.get("bal", correct[one.name] | True))[: len(labels)]
        order = np.argsort(np.where(wrong, -np.sum(~np.array(by_severity), axis=0), 1), kind="stable")[: min(wrong.sum(), 2 * SHOWN)]
        if len(order):
            said = np.argmax(predict(images[order]), axis=1)
            captions = [f"{_named(source, label)} as {_named(source, now)}" for label, now in zip(labels[order], said)]
            lines.append((name, images[order], captions))
    return report.captioned_images(os.path.join(folder, "worst.png"), lines) if lines else None


def maps(folder, predict, source):
    """Images with their contextual utility and the sensitivity of the logits, means over channels, each divided by its maximum.

    Returns:
        The path, or None where the model has no gradient.
    """
    images, labels = evaluation.first_images(source, 2 * SHOWN)
    try:
        utilities = attribution.contextual_utility(predict, images, labels)
    except attribution.WithoutGradient:
        return None
    sensitivities = attribution.squared_sensitivity_estimate(predict, images) ** 0.5
    lines = [("images", images, [_named(source, label) for label in labels])]
    for title, values in (("utility", utilities), ("sensitivity of the logits", sensitivities)):
        values = values.numpy().mean(axis=-1, keepdims=True)
        lines.append((title, values / np.maximum(values.max(axis=(1, 2, 3), keepdims=True), np.finfo(np.float32).tiny), None))
    return report.captioned_images(os.path.join(folder, "maps.png"), lines)


def of_attacks(workdirs, panels=None):
    """Curves over the size of perturbations of {row: workdir}, as measured last. panels: {title: [rows compared in it]}."""
    found = {}
    for row, workdir in workdirs.items():
        records = evaluation.read_records(os.path.join(workdir, "measured.jsonl"))
        curves = {record["set"].partition("/")[2]: evaluation.adversarial.stored(record) for record in records if "distances" in record}
        found.update({row: curves} if curves else {})
    return [report.attack_curves(found, panels)] if found else []
