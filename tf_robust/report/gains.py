"""The figure of a comparison: changed and shifted images that the baseline misclassifies and the other models classify correctly."""

import itertools
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tf_robust import evaluation, report
from tf_robust.attacks.attack import Predict
from tf_robust.data.source import Source
from tf_robust.report.model_figures import class_name

SHOWN = 8  # images per model
SEARCHED = 8  # batches of a set
SHOWN_OF_SHIFT = 4  # of these, for each shift: it is one set, not five severities
_FAMILIES = ("un", "nun", "shift", *evaluation.CORRUPTION_FAMILIES)


def draw_gains(
    folder: str,
    source: Source,
    sets: Sequence[evaluation.EvaluationSet],
    records: Mapping[str, Sequence[dict]],
    baseline: str,
    load_baseline: Callable[[], Predict],
) -> tuple[str, str] | None:
    """Draws, for each model, shifted, corrupted and noisy images that it classifies correctly and the baseline does not.

    The images are up to four of each shift, then of the sets on which the model gains most over the baseline, one of each corruption,
    spread over the first batches: the images of a folder are sorted by class.

    Args:
        folder: of the figure.
        source: evaluated images.
        sets: evaluation sets that all models were measured on.
        records: {row: records of its sets}.
        baseline: row to compare with.
        load_baseline: loads its model, for the predictions in the captions; called if there are images to show.

    Returns:
        Path and caption; None if there are no such images.
    """
    correct = {row: _correctness(of_row) for row, of_row in records.items()}
    batch_size = evaluation.batch_size_of(source.image_shape)
    limit = min(SEARCHED * batch_size, len(source))
    chosen = {row: _choose(sets, correct[row], correct[baseline], limit) for row in records if row != baseline}
    if not any(chosen.values()):
        return None
    predict, lines = load_baseline(), []
    for row, members in chosen.items():
        images, captions = [], []
        for one, position in members:
            number, place = divmod(position, batch_size)
            batch, labels = (part.numpy() for part in next(itertools.islice(one.open(), number, None)))
            wrong = int(np.argmax(predict(batch[place : place + 1]), axis=1)[0])
            images.append(batch[place])
            true, predicted = (class_name(source, label) for label in (labels[place], wrong))
            captions.append(f"{_title(one.name)}\n{true}, not {predicted}")
        if images:
            lines.append((f"{row} correct, {baseline} wrong", np.stack(images), captions))
    path = report.captioned_images(os.path.join(folder, "gains.png"), lines)
    return path, f"Images that the row classifies correctly and {baseline} does not, with the true class and that of {baseline}."


def _correctness(records):
    """{set: bool [N]} of shifts, noise and corruptions."""
    measured = (record for record in records if record["kind"] == "accuracy")
    return {one["set"]: evaluation.correctness(one) for one in measured if evaluation.parse_metric(one["set"]).family in _FAMILIES}


def _choose(sets, correct, baseline, limit):
    """[(set, position < limit)] of images that a model classifies correctly and the baseline does not, the largest gains first."""
    common = [one for one in sets if one.name in correct and one.name in baseline]
    common.sort(key=lambda one: (not _is_shift(one), -(correct[one.name].mean() - baseline[one.name].mean())))
    chosen: list[tuple] = []
    used: dict[str, set[int]] = {}  # {kind of images: positions}
    known: set[str] = set()
    for one in common:
        metric, gained = evaluation.parse_metric(one.name), np.flatnonzero((correct[one.name] & ~baseline[one.name])[:limit])
        positions = used.setdefault(one.name if _is_shift(one) else "", set())
        kind, most = metric.name or one.name, SHOWN_OF_SHIFT if _is_shift(one) else 1
        for _ in range(most * (kind not in known)):
            new = [int(position) for position in gained if position not in positions]
            if new and len(chosen) < SHOWN:
                place = (3 * len(chosen) % SHOWN + 0.5) * limit / SHOWN  # in another part of the images each time
                chosen.append((one, min(new, key=lambda position: abs(position - place))))
                positions.add(chosen[-1][1])
                known.add(kind)
    return chosen


def _is_shift(one):
    return evaluation.parse_metric(one.name).family == "shift"


def _title(name):
    metric = evaluation.parse_metric(name)
    if metric.family == "shift":
        return metric.name
    return f"{metric.name.replace('_', ' ')} {metric.severity}" if metric.severity else name.upper()
