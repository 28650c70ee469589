"""What breaks a model: its accuracy on a few hundred validation images, unchanged and changed in many ways.

It costs about 6,000 forward passes (500 images: unchanged, four families of corruptions, two sets of noise, five small changes), and PGD
of 5 steps on 100 images.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tf_robust import attacks, corruptions, metrics
from tf_robust.attacks.attack import Predict
from tf_robust.data.subsets import stratified_order
from tf_robust.evaluation import scoring
from tf_robust.hardening import small_changes
from tf_robust.hardening.config import GROUPS
from tf_robust.hardening.target import NOISE_SETS, ValidationSet, correct, pairs_of, predicted, versions
from tf_robust.report.sections import Cell, Section, frame_of, interval, number

MAX_IMAGES = 500
ATTACKED_IMAGES = 100
ATTACK_STEPS = 5
MIN_OF_CLASS = 10  # images, for a statement on a class
SHOWN = 3  # changes and classes
_ATTACK, _SMALL, _SHIFT = "attack", "small change", "new conditions"


@dataclasses.dataclass(frozen=True)
class Row:
    """Accuracy on changed images.

    Attributes:
        name: of the change.
        kind: corruptions, noise, small change, attack, or new conditions: other images than the unchanged ones.
        accuracy: on the changed images.
        count: number of images.
        difference: to the accuracy on the same images unchanged.
        low: lower end of its 95 % interval, paired per image; None with one image.
        high: its upper end.
    """

    name: str
    kind: str
    accuracy: float
    count: int
    difference: float
    low: float | None
    high: float | None

    @property
    def falls(self) -> bool:
        """Whether the accuracy is lower than on unchanged images, outside the interval."""
        return self.high is not None and self.high < 0

    @property
    def interval(self) -> str:
        """The difference and its interval."""
        return f"{self.difference:+z.3f} {interval(self.low, self.high, '+')}".rstrip()


@dataclasses.dataclass(frozen=True)
class ClassRow:
    """Accuracy on one class, unchanged and under the worst change.

    Attributes:
        name: of the class.
        clean: accuracy on its unchanged images.
        accuracy: on the changed ones.
        count: number of its images.
    """

    name: str
    clean: float
    accuracy: float
    count: int


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What breaks a model.

    Attributes:
        clean: accuracy on unchanged images.
        count: number of images.
        calibration: RMS calibration error on unchanged images.
        rows: one per change.
        worst: name of the change, other than an attack and new conditions, under which the accuracy falls most.
        classes: accuracy per class under `worst`, the largest fall first; without classes of fewer than 10 images.
    """

    clean: float
    count: int
    calibration: float
    rows: tuple[Row, ...]
    worst: str
    classes: tuple[ClassRow, ...]

    def lines(self) -> list[str]:
        """Returns the lines for the terminal."""
        lines = [f"Clean accuracy {self.clean:.3f} on {self.count} validation images, RMS calibration error {self.calibration:.3f}."]
        broken = sorted((row for row in self.rows if row.falls), key=lambda row: row.difference)
        shown, more = broken[:SHOWN], [row for row in broken[SHOWN:] if row.kind == _SMALL]
        if shown:
            lines.append(f"Breaks it most: {_differences(shown)}.")
        else:
            lines.append("Nothing breaks it: no accuracy on changed images is lower outside its interval.")
        small = [row.name for row in self.rows if row.kind == _SMALL and not row.falls]
        if more:
            lines.append(f"Small changes that matter too: {_differences(more)}.")
        if small and shown:
            lines.append(f"Small changes that make no difference outside the interval: {', '.join(small)}.")
        target = [row for row in self.rows if row.kind == _SHIFT]
        lines += [f"The target, {row.name}: accuracy {row.accuracy:.3f} on {row.count} images, {row.interval}." for row in target]
        return [*lines, *self._class_lines()]

    def _class_lines(self):
        lines = []
        if len(self.classes) > 1:
            least = min(self.classes, key=lambda row: row.clean)
            lines.append(f"Least accurate class of the unchanged images: {least.name}, {least.clean:.2f} ({least.count} images).")
        falling = [row for row in self.classes if row.accuracy < row.clean][:SHOWN]
        if not falling:
            return lines
        first, *others = [f"{row.name}, {row.clean:.2f} -> {row.accuracy:.2f}" for row in falling]
        others = "".join(f"; {text}" for text in others)
        return [*lines, f"Under {self.worst} class {first} ({falling[0].count} images), falls most{others}."]

    def section(self) -> Section:
        """Returns the table for a report."""
        lines: dict[str, list[Cell | None]] = {"unchanged": [number(self.count), number(self.clean), None]}
        for row in self.rows:
            difference = Cell(row.difference, f"{row.difference:+z.3f}", interval(row.low, row.high, "+"))
            lines[row.name] = [number(row.count), number(row.accuracy), difference]
        other = "; those of new conditions are other images" if any(row.kind == _SHIFT for row in self.rows) else ""
        caption = (
            "The model as it was given, on validation images; an image has one corruption of a family. Differences to the same images "
            f"unchanged, with 95% intervals, paired per image{other}. RMS calibration error on unchanged images: {self.calibration:.3f}."
        )
        frame = frame_of("change", lines, ("images", "accuracy", "difference"))
        return Section("Diagnosis", frame, " ".join([caption, *self._class_lines()]))


def diagnose(
    predict: Predict, validation: ValidationSet, class_names: Sequence[str], norm: str = "linf", radius: float = 1 / 255
) -> Diagnosis:
    """Returns what breaks a model; deterministic.

    Args:
        predict: float32 [N, H, W, C] in [0, 1] -> logits [N, classes].
        validation: images, of which at most 500 are used, stratified.
        class_names: one per column of the logits.
        norm: of the attack, `linf` or `l2`.
        radius: of the attack, on the [0, 1] pixel scale.
    """
    order = stratified_order(validation.labels)[:MAX_IMAGES]
    attacked = np.sort(order[:ATTACKED_IMAGES])
    order = np.sort(order)
    images, labels = validation.images[order], validation.labels[order]
    masked = scoring.masked(predict, validation.class_mask)
    logits = predicted(masked, images)
    clean = logits.argmax(axis=1) == labels
    results = {name: (kind, correct(masked, one, labels)) for name, kind, one in _changes(images)}
    rows = [_row(name, kind, result, clean) for name, (kind, result) in results.items()]
    worst = min(rows, key=lambda row: row.difference).name
    attack = attacks.ProjectedGradientDescent(norm=norm, radius=radius, steps=ATTACK_STEPS)
    points = attack(masked, validation.images[attacked], validation.labels[attacked]).numpy()
    robust = correct(masked, points, validation.labels[attacked])
    rows.append(_row(f"PGD ({norm} {_radius(radius)})", _ATTACK, robust, clean[np.searchsorted(order, attacked)]))
    if validation.shift:
        shifted = correct(scoring.masked(predict, validation.shift.class_mask), validation.shift.images, validation.shift.labels)
        rows.append(_separate_row(shifted, clean))
    calibration = metrics.rms_calibration_error(_confidences(logits), clean)
    classes = _classes(results[worst][1], clean, labels, class_names)
    return Diagnosis(float(clean.mean()), len(labels), calibration, tuple(rows), worst, classes)


def _changes(images):
    """Yields (name, kind, changed images)."""
    for group in GROUPS:
        yield f"{group} corruptions", "corruptions", versions(images, pairs_of(f"{group}_corruptions"), 1)[0]
    probabilities = corruptions.nonuniform_probabilities(corruptions.location_std([images]))
    for name in NOISE_SETS:
        yield name.replace("_", " ").replace("nonuniform", "non-uniform"), "noise", versions(images, [(name, 1)], 1, probabilities)[0]
    for name in small_changes.SMALL_CHANGES:
        yield "JPEG" if name == "jpeg" else name, _SMALL, small_changes.changed(images, name)


def _differences(rows):
    return ", ".join(f"{row.name} {row.interval}" for row in rows)


def _row(name, kind, changed, clean):
    paired = metrics.paired_difference(changed, clean)
    return Row(name, kind, float(changed.mean()), len(changed), paired["mean"], paired["low"], paired["high"])


def _separate_row(shifted, clean):
    """The row of other images than the unchanged ones, whose interval is not paired."""
    low, high = metrics.newcombe_interval(*((one.mean(), *metrics.wilson_interval(one.sum(), len(one))) for one in (shifted, clean)))
    return Row(_SHIFT, _SHIFT, float(shifted.mean()), len(shifted), float(shifted.mean() - clean.mean()), low, high)


def _confidences(logits):
    exponents = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return exponents.max(axis=1) / exponents.sum(axis=1)


def _classes(changed, clean, labels, names):
    rows = [
        ClassRow(str(names[label]), float(clean[members].mean()), float(changed[members].mean()), len(members))
        for label in np.unique(labels)
        if len(members := np.flatnonzero(labels == label)) >= MIN_OF_CLASS
    ]
    return tuple(sorted(rows, key=lambda row: row.accuracy - row.clean))


def _radius(radius):
    """The radius as a fraction of 255 gray levels if it is one."""
    levels = radius * 255
    return f"{round(levels)}/255" if abs(levels - round(levels)) < 1e-6 and levels > 0.5 and radius < 0.3 else f"{radius:g}"
