"""Images as PNG files, drawn without pyplot's global state: samples, noise, utility, attacks, and images that models misclassify.

Images are [N, H, W, C], uint8 or float in [0, 1] (clipped for display), C = 1 or 3. Each function returns the path of the file.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tf_robust import attribution, data, evaluation
from tf_robust.attacks import norms
from tf_robust.attacks.attack import Predict
from tf_robust.configs.evaluation import parse_threat
from tf_robust.data.source import Source
from tf_robust.utils.files import save_figure, wrapped

Image = tuple[str, str]  # path of a PNG file, caption

UTILITY_IMAGES = 512
_SHOWN = 6  # images per row
_GAINS = 8  # images per model
_GAINS_OF_SHIFT = 4  # of these, for each shift: it is one set, not five severities
_SEARCHED = 8  # batches of a set, for gains
_GAIN_FAMILIES = ("un", "nun", "shift", *evaluation.CORRUPTION_FAMILIES)
_TINY = np.finfo(np.float32).tiny
_HEAT = "magma"
_LETTERS = 16  # of a text under an image

Lines = Sequence[tuple[str, np.ndarray, Sequence[str] | None]]  # (title, images [N, H, W, C], a text under each image or None)


def captioned_images(path: str, lines: Lines) -> str:
    """Draws lines of images, (title, images [N, H, W, C], a text under each image or None).

    Examples:
        >>> images, labels = tfr.images(4, data="digits")
        >>> noisy = tfr.corruptions.uniform_noise(images, seed=0).numpy()
        >>> tfr.report.captioned_images("digits.png", [("clean", images, [str(label) for label in labels]), ("noise", noisy, None)])
        'digits.png'
    """
    longest = max(len(images) for _, images, _ in lines)
    texts = [[wrapped(text, _LETTERS) for text in given or ()] for _, _, given in lines]
    text_lines = max(text.count("\n") for of_line in texts for text in of_line or ("",))
    figure = Figure(figsize=(max(5.0, 0.95 * longest), (1.35 + 0.2 * text_lines) * len(lines)), layout="constrained")
    for axes, (title, images, _), of_line in zip(figure.subplots(len(lines), 1, squeeze=False)[:, 0], lines, texts):
        height, width = images.shape[1:3]
        step = width + 1 + width // 16
        _show(axes, images, title)
        axes.set_xlim(-0.5, longest * step - 0.5)
        for position, text in enumerate(of_line):
            axes.text(position * step + width / 2, height + 1, text, ha="center", va="top", fontsize=7)
    return save_figure(figure, path)


def noise_samples(path: str, clean: np.ndarray, noised: Mapping[str, np.ndarray], probabilities: Mapping[str, np.ndarray]) -> str:
    """Draws clean images above the same images with each noise, and the probability of noise at each location, [H, W]."""
    lines = {"clean": clean, **noised}
    figure = Figure(figsize=(max(5.0, 0.9 * len(clean)) + 2.2, 1.3 * len(lines)), layout="constrained")
    panels = figure.subplots(len(lines), 2, squeeze=False, width_ratios=[max(3, len(clean)), 1.6])
    for (left, right), (name, images) in zip(panels, lines.items()):
        _show(left, images, name)
        right.axis("off")
        if name in probabilities:
            heat_map = right.imshow(probabilities[name], cmap=_HEAT, vmin=0)
            right.set_title("probability of noise", fontsize=9)
            figure.colorbar(heat_map, ax=right)
    return save_figure(figure, path)


def utility_by_class(path: str, mean_images: np.ndarray, mean_utilities: np.ndarray, captions: Sequence[str]) -> str:
    """Draws one panel per class: its mean image, and next to it the mean utility of each pixel, [classes, H, W, C] each."""
    lines = -(-len(mean_images) // 5)
    figure = Figure(figsize=(10, 1.2 * lines + 0.4), layout="constrained")
    figure.suptitle("Mean image (left) and mean utility over channels (right), each divided by its own maximum", fontsize=11)
    figure.get_layout_engine().set(wspace=0.12)
    panels = figure.subplots(lines, 5, squeeze=False).ravel()
    for axes, image, utility, caption in zip(panels, mean_images, mean_utilities, captions):
        gray, utility = (values / max(values.max(), _TINY) for values in (image, utility.mean(axis=-1)))
        heat = matplotlib.colormaps[_HEAT](utility)[..., :3]
        _show(axes, np.stack([np.broadcast_to(gray, heat.shape), heat]), caption)
    for axes in panels[len(mean_images) :]:
        axes.axis("off")
    return save_figure(figure, path)


def attacked_images(path: str, clean: np.ndarray, attacked: Mapping[str, np.ndarray], captions: Mapping[str, Sequence[str]]) -> str:
    """Draws clean images, and for each attack its perturbations and the attacked images with their captions."""
    lines: list[tuple[str, np.ndarray, Sequence[str] | None]] = [("clean", clean, None)]
    for name, images in attacked.items():
        changes = images - clean
        scale = max(float(np.abs(changes).max()), _TINY)
        title = f"{name}: perturbation, {1 / (2 * scale):.3g} times as strong, on gray"
        lines += [(title, 0.5 + changes / (2 * scale), None), (f"{name}: attacked", images, captions[name])]
    return captioned_images(path, lines)


def _show(axes: Axes, images: np.ndarray, title: str) -> None:
    """Draws images [N, H, W, C] side by side, with white gaps."""
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    count, height, width, _ = images.shape
    gap = 1 + width // 16
    colored = np.broadcast_to(np.clip(images / scale, 0.0, 1.0), (count, height, width, 3))
    spaced = np.pad(colored, [(0, 0), (0, 0), (0, gap), (0, 0)], constant_values=1.0)
    axes.imshow(np.concatenate(spaced, axis=1)[:, :-gap], interpolation="nearest")
    axes.set_title(title, loc="left", fontsize=10)
    axes.axis("off")


def class_name(source: Source, label: int) -> str:
    """Returns the name of a class; its number if the model has more classes than the data."""
    return source.class_names[label] if label < len(source.class_names) else str(label)


def draw_utility(folder: str, model: Predict, source: Source) -> str:
    """Draws mean image and mean contextual utility per class modulo 10, of one batch of training images (Figure 4 of the FCL paper).

    The number of a panel is the mean utility of the corners divided by that of the center, as the evaluation `utility` measures it.
    """
    images, labels = evaluation.first_images(source, UTILITY_IMAGES)
    utilities = attribution.contextual_utility(model, images, labels).numpy()
    means = attribution.mean_by_class(utilities, labels)
    inside = evaluation.scoring.corners(*means.shape[1:3])
    ratios = [mean[inside].mean() / max(mean[~inside].mean(), _TINY) for mean in means]
    captions = [f"class {digit}: corners {ratio:.2f}" for digit, ratio in enumerate(ratios)]
    return utility_by_class(os.path.join(folder, "utility.png"), attribution.mean_by_class(images, labels), means, captions)


def draw_maps(folder: str, predict: Predict, source: Source) -> str | None:
    """Draws images with their contextual utility and the sensitivity of the logits, means over channels divided by their maximum.

    Returns None if the model has no gradient.
    """
    images, labels = evaluation.first_images(source, 2 * _SHOWN)
    try:
        utilities = attribution.contextual_utility(predict, images, labels)
    except attribution.WithoutGradient:
        return None
    sensitivities = attribution.squared_sensitivity_estimate(predict, images) ** 0.5
    lines: list[tuple[str, np.ndarray, list[str] | None]] = [("images", images, [class_name(source, label) for label in labels])]
    for title, values in (("utility", utilities), ("sensitivity of the logits", sensitivities)):
        values = values.numpy().mean(axis=-1, keepdims=True)
        lines.append((title, values / np.maximum(values.max(axis=(1, 2, 3), keepdims=True), _TINY), None))
    return captioned_images(os.path.join(folder, "maps.png"), lines)


def draw_attacked(folder: str, model: Predict, source: Source, threats: Iterable[str]) -> str | None:
    """Draws correctly classified images with the smallest perturbations that PGD finds in the norms of some threats, NORM_RADIUS.

    Returns None if no image is classified correctly.
    """
    images, labels = evaluation.first_images(source, _SHOWN * 20)
    right = np.flatnonzero(np.argmax(model(images), axis=1) == labels)[:_SHOWN]
    if not len(right):
        return None
    images, labels = images[right], labels[right]
    attacked, captions = {}, {}
    for norm in dict.fromkeys(parse_threat(text)[0] for text in threats):
        name = f"pgd_{norm}"
        attacked[name] = evaluation.adversarial.CURVES["pgd"](norm=norm, seed=evaluation.SEED)(model, images, labels).numpy()
        sizes = norms.NORMS[norm].size(attacked[name] - images).numpy()
        predictions = np.argmax(model(attacked[name]), axis=1)
        captions[name] = [f"{class_name(source, prediction)}\n{size:.3g}" for prediction, size in zip(predictions, sizes)]
    return attacked_images(os.path.join(folder, "attacked.png"), images, attacked, captions)


def draw_worst(
    folder: str, predict: Predict, source: Source, sets: Sequence[evaluation.EvaluationSet], records: Iterable[dict]
) -> str | None:
    """Draws images of the first batch that are classified correctly when clean and misclassified at the middle severity.

    There is one row per corruption; images that are misclassified at the most severities come first. Corruptions whose images are in
    another order than the clean ones are left out. Returns None if there are no images.
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
        images, labels = (part.numpy() for part in next(iter(one.batches())))
        prefix = f"{metric.family}/{metric.name}/"
        by_severity = [correct[other][: len(labels)] for other in correct if other.startswith(prefix)]
        wrong = ~correct[one.name][: len(labels)] & clean[: len(labels)]
        order = np.argsort(np.where(wrong, -np.sum(~np.array(by_severity), axis=0), 1), kind="stable")[: min(wrong.sum(), 2 * _SHOWN)]
        if len(order):
            pairs = zip(labels[order], np.argmax(predict(images[order]), axis=1))
            captions = [f"{class_name(source, label)} as {class_name(source, predicted)}" for label, predicted in pairs]
            lines.append((metric.name, images[order], captions))
    return captioned_images(os.path.join(folder, "worst.png"), lines) if lines else None


def draw_gains(
    folder: str,
    source: Source,
    sets: Sequence[evaluation.EvaluationSet],
    records: Mapping[str, Iterable[dict]],
    baseline: str,
    load_baseline: Callable[[], Predict],
) -> tuple[str, str] | None:
    """Draws, for each model, shifted, corrupted and noisy images that it classifies correctly and the baseline does not.

    The images are up to four of each shift, then of the sets on which the model gains most over the baseline, one of each corruption,
    spread over the first batches: the images of a folder are sorted by class. All models were measured on the sets; `records`: {row:
    records of its sets}. The baseline's model is loaded for the captions, if there are images. Returns path and caption, or None.
    """
    names = {one.name: evaluation.parse_metric(one.name) for one in sets}
    correct = {
        row: {
            one["set"]: evaluation.correctness(one)
            for one in of_row
            if one["kind"] == "accuracy" and one["set"] in names and names[one["set"]].family in _GAIN_FAMILIES
        }
        for row, of_row in records.items()
    }
    batch_size = evaluation.batch_size_of(source.image_shape)
    limit = min(_SEARCHED * batch_size, len(source))
    chosen = {row: _choose(names, own, correct[baseline], limit) for row, own in correct.items() if row != baseline}
    if not any(chosen.values()):
        return None
    predict, lines, opened = load_baseline(), [], {one.name: one for one in sets}
    for row, members in chosen.items():
        images, captions = [], []
        for name, position in members:
            number, place = divmod(position, batch_size)
            batch, labels = (part.numpy() for part in next(itertools.islice(opened[name].batches(), number, None)))
            wrong = int(np.argmax(predict(batch[place : place + 1]), axis=1)[0])
            metric = names[name]
            title = f"{metric.name.replace('_', ' ')} {metric.severity}" if metric.severity else metric.name or name.upper()
            images.append(batch[place])
            captions.append(f"{title}\n{class_name(source, labels[place])}, not {class_name(source, wrong)}")
        if images:
            lines.append((f"{row} correct, {baseline} wrong", np.stack(images), captions))
    path = captioned_images(os.path.join(folder, "gains.png"), lines)
    return path, f"Images that the row classifies correctly and {baseline} does not, with the true class and that of {baseline}."


def _choose(names, correct, baseline, limit):
    """Returns [(name of a set, position < limit)] of images that a model classifies correctly and the baseline does not."""
    shifts = {name for name in names if names[name].family == "shift"}
    common = [name for name in names if name in correct and name in baseline]
    common.sort(key=lambda name: (name not in shifts, -(correct[name].mean() - baseline[name].mean())))  # the largest gains first
    chosen: list[tuple[str, int]] = []
    used: dict[str, set[int]] = {}  # positions of each shift, and of all other sets
    known: set[str] = set()  # corruptions
    for name in common:
        kind = names[name].name or name
        positions = used.setdefault(name if name in shifts else "", set())
        gained = np.flatnonzero((correct[name] & ~baseline[name])[:limit]).tolist()
        for _ in range(0 if kind in known else _GAINS_OF_SHIFT if name in shifts else 1):
            if (new := [position for position in gained if position not in positions]) and len(chosen) < _GAINS:
                place = (3 * len(chosen) % _GAINS + 0.5) * limit / _GAINS  # in another part of the images each time
                chosen.append((name, min(new, key=lambda position: abs(position - place))))
                positions.add(chosen[-1][1])
                known.add(kind)
    return chosen
