"""The figure of a comparison: images that the baseline misclassifies and the other models classify correctly."""

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tf_robust import evaluation, report
from tf_robust.attacks.attack import Predict
from tf_robust.data.source import Source
from tf_robust.experiments.figures import class_name

SHOWN = 8  # images per model
_FAMILIES = ("un", "nun", *evaluation.CORRUPTION_FAMILIES)


def draw_gains(
    folder: str,
    source: Source,
    sets: Sequence[evaluation.EvaluationSet],
    records: Mapping[str, Sequence[dict]],
    baseline: str,
    load_baseline: Callable[[], Predict],
) -> tuple[str, str] | None:
    """Draws, for each model, corrupted and noisy images that it classifies correctly and the baseline does not.

    The images are of the sets on which the model gains most over the baseline, one of each corruption, in the set's first batch.

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
    first_batch = evaluation.sets.batch_size_of(source.image_shape)
    chosen = {row: _choose(sets, correct[row], correct[baseline], first_batch) for row in records if row != baseline}
    if not any(chosen.values()):
        return None
    predict, lines = load_baseline(), []
    for row, members in chosen.items():
        images, captions = [], []
        for one, position in members:
            batch, labels = (part.numpy() for part in next(iter(one.open())))
            wrong = int(np.argmax(predict(batch[position : position + 1]), axis=1)[0])
            images.append(batch[position])
            true, predicted = (class_name(source, label) for label in (labels[position], wrong))
            captions.append(f"{_title(one.name)}\n{true}, not {predicted}")
        if images:
            lines.append((row, np.stack(images), captions))
    path = report.captioned_images(os.path.join(folder, "gains.png"), lines)
    return path, f"Images that the row classifies correctly and {baseline} does not, with the true class and that of {baseline}."


def _correctness(records):
    """{set: bool [N]} of noise and corruptions."""
    measured = (record for record in records if record["kind"] == "accuracy")
    return {one["set"]: evaluation.correctness(one) for one in measured if evaluation.parse_measure(one["set"]).family in _FAMILIES}


def _choose(sets, correct, baseline, first_batch):
    """[(set, position)] of images that a model classifies correctly and the baseline does not, the largest gains first."""
    common = [one for one in sets if one.name in correct and one.name in baseline]
    common.sort(key=lambda one: -(correct[one.name].mean() - baseline[one.name].mean()))
    chosen: dict[str, tuple] = {}
    used: set[int] = set()
    for one in common:
        gained = np.flatnonzero((correct[one.name] & ~baseline[one.name])[:first_batch])
        new = [position for position in gained if position not in used]
        kind = evaluation.parse_measure(one.name).name or one.name
        if new and kind not in chosen and len(chosen) < SHOWN:
            chosen[kind] = one, new[0]
            used.add(new[0])
    return list(chosen.values())


def _title(name):
    measure = evaluation.parse_measure(name)
    return f"{measure.name.replace('_', ' ')} {measure.severity}" if measure.severity else name.upper()
