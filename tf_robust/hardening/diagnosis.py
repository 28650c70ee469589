"""Diagnosis of a model: its accuracy on a few hundred validation images, unchanged and changed in many ways.

It costs about 6,000 forward passes (500 images: unchanged, four families of corruptions, two sets of noise, five small changes), and PGD
of 5 steps on 100 images. The small changes seem harmless to a user. Their sizes are relative to the image. Nothing is random: directions
and signs alternate from image to image. Beyond its border an image is mirrored.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.special
import tensorflow as tf

from tf_robust import attacks, corruptions, metrics
from tf_robust.attacks.attack import Predict
from tf_robust.corruptions.digital import jpeg_compression
from tf_robust.corruptions.weather import brightness as hsv_brightness
from tf_robust.data.subsets import stratified_order
from tf_robust.evaluation import scoring
from tf_robust.hardening.config import GROUPS
from tf_robust.hardening.target import NOISE_SETS, LabeledImages, ValidationSet, pairs_of, predict_logits, versions
from tf_robust.ops import image_ops, warps
from tf_robust.report.sections import Cell, Section, frame_of, interval, number

MAX_IMAGES = 500
ATTACKED_IMAGES = 100
ATTACK_STEPS = 5
MIN_OF_CLASS = 10  # images, for a statement on a class
SHOWN = 3  # classes
BATCH = 100  # images of a small change: bounds the memory
TRANSLATION = 1 / 16  # of the side
DEGREES = 5.0
ZOOM = 8 / 7  # ImageNet's central crop: 224 of 256 pixels
QUALITY = 75  # Pillow's default
BRIGHTNESS = 0.1
_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))


@dataclasses.dataclass(frozen=True)
class Row:
    """Accuracy on changed images, and its difference to the same images unchanged, with the 95 % interval, paired per image."""

    name: str
    kind: str  # corruptions, noise, small change, attack, or new conditions: other images than the unchanged ones
    accuracy: float
    count: int
    difference: float
    low: float | None  # None with one image
    high: float | None

    @property
    def cell(self) -> Cell:
        """The difference and its interval."""
        return Cell(self.difference, f"{self.difference:+z.3f}", interval(self.low, self.high, "+"))


@dataclasses.dataclass(frozen=True)
class ClassRow:
    """Accuracy on the images of one class, unchanged (`clean`) and under the worst change."""

    name: str
    clean: float
    accuracy: float
    count: int


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The changes that break a model."""

    clean: float  # accuracy on unchanged images
    count: int  # number of images
    calibration: float  # RMS calibration error on unchanged images
    rows: tuple[Row, ...]  # one per change
    worst: str  # name of the change, other than an attack and new conditions, under which the accuracy falls most
    classes: tuple[ClassRow, ...]  # under `worst`, the largest fall first; without classes of fewer than 10 images

    def lines(self) -> list[str]:
        """Returns the lines for the terminal: the accuracy under each change, the largest fall first, and the classes that fall most."""
        lines = [f"Clean accuracy {self.clean:.3f} on {self.count} validation images, RMS calibration error {self.calibration:.3f}."]
        lines += ["Breaks it most: accuracy on changed images, difference and 95 % interval"]
        for row in sorted(self.rows, key=lambda row: row.difference):
            lines.append(f"  {row.name:<20} {row.accuracy:.3f}  {row.cell}  {row.count} images")
        return [*lines, *self._class_lines()]

    def _class_lines(self):
        lines = []
        if self.classes:
            least = min(self.classes, key=lambda row: row.clean)
            falls = ", ".join(f"{row.name} {row.clean:.2f} -> {row.accuracy:.2f}" for row in self.classes[:SHOWN])
            lines.append(f"Least accurate class of the unchanged images: {least.name}, {least.clean:.2f} ({least.count} images).")
            lines.append(f"Classes by their fall under {self.worst}: {falls}.")
        return lines

    def section(self) -> Section:
        """Returns the table for a report."""
        lines: dict[str, list[Cell | None]] = {"unchanged": [number(self.count), number(self.clean), None]}
        lines |= {row.name: [number(row.count), number(row.accuracy), row.cell] for row in self.rows}
        caption = (
            "The initial model on validation images; an image has one corruption of a family. Differences to the same images unchanged, "
            "with 95% intervals, paired per image; new conditions are other images. RMS calibration error on unchanged images: "
            f"{self.calibration:.3f}. {' '.join(self._class_lines())}"
        )
        return Section("Diagnosis", frame_of("change", lines, ("images", "accuracy", "difference")), caption)


def diagnose(
    predict: Predict,
    validation: ValidationSet,
    class_names: Sequence[str],
    norm: str = "linf",
    radius: float = 1 / 255,
    max_images: int = MAX_IMAGES,
) -> Diagnosis:
    """Returns the diagnosis of a model, float32 [N, H, W, C] in [0, 1] -> logits [N, classes], on at most `max_images`; deterministic.

    The attack has this `norm` and `radius`, on the [0, 1] pixel scale.
    """
    order = stratified_order(validation.labels)[:max_images]
    attacked, order = np.sort(order[:ATTACKED_IMAGES]), np.sort(order)
    images, labels, mask = validation.images[order], validation.labels[order], validation.class_mask
    masked = scoring.masked(predict, mask)
    logits = predict_logits(masked, images)
    clean = logits.argmax(axis=1) == labels
    results = {name: (kind, LabeledImages(one, labels, mask).correct(predict)) for name, kind, one in _changes(images)}
    rows = [_row(name, kind, result, clean) for name, (kind, result) in results.items()]
    worst = min(rows, key=lambda row: row.difference).name
    attack = attacks.ProjectedGradientDescent(norm=norm, radius=radius, steps=ATTACK_STEPS)
    points = attack(masked, validation.images[attacked], validation.labels[attacked]).numpy()
    robust = LabeledImages(points, validation.labels[attacked], mask).correct(predict)
    levels = round(radius * 255)
    size = f"{levels}/255" if 0 < levels < 77 and math.isclose(levels, radius * 255, abs_tol=1e-6) else f"{radius:g}"
    rows.append(_row(f"PGD ({norm} {size})", "attack", robust, clean[np.searchsorted(order, attacked)]))
    if validation.shift:  # other images than the unchanged ones, so that the interval is not paired
        shifted = validation.shift.correct(predict)
        accuracy, before = float(shifted.mean()), float(clean.mean())
        ends = ((one.mean(), *metrics.wilson_interval(one.sum(), len(one))) for one in (shifted, clean))
        name = "new conditions"
        rows.append(Row(name, name, accuracy, len(shifted), accuracy - before, *metrics.newcombe_interval(*ends)))
    confidences = scipy.special.softmax(logits.astype(np.float64), axis=1).max(axis=1)
    calibration = metrics.rms_calibration_error(confidences, clean)
    classes = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if len(members) >= MIN_OF_CLASS:
            before, after = (float(one[members].mean()) for one in (clean, results[worst][1]))
            classes.append(ClassRow(str(class_names[label]), before, after, len(members)))
    classes.sort(key=lambda row: row.accuracy - row.clean)
    return Diagnosis(float(clean.mean()), len(labels), calibration, tuple(rows), worst, tuple(classes))


def _changes(images):
    """Yields (name, kind, changed images)."""
    for group in GROUPS:
        yield f"{group} corruptions", "corruptions", versions(images, pairs_of(f"{group}_corruptions"), 1)[0]
    probabilities = corruptions.nonuniform_probabilities(corruptions.location_std([images]))
    for name in NOISE_SETS:
        yield name.replace("_", " ").replace("nonuniform", "non-uniform"), "noise", versions(images, [(name, 1)], 1, probabilities)[0]
    for name in SMALL_CHANGES:
        yield "JPEG" if name == "jpeg" else name, "small change", change(images, name)


def _row(name, kind, correct, clean):
    paired = metrics.paired_difference(correct, clean)
    return Row(name, kind, float(correct.mean()), len(correct), paired["mean"], paired["low"], paired["high"])


def translation(images: tf.Tensor, numbers: np.ndarray) -> tf.Tensor:
    """Moves images by 1/16 of their side, rounded to pixels and at least one: to the left, up, to the right, down in turn."""
    height, width = images.shape[1:3]
    steps = np.array([max(1, round(side * TRANSLATION)) for side in (width, height)])
    maps = np.tile(np.eye(2, 3, dtype=np.float32), [len(numbers), 1, 1])
    maps[:, :, 2] = np.array(_DIRECTIONS)[numbers % 4] * steps
    return _affine(images, maps)


def rotation(images: tf.Tensor, numbers: np.ndarray) -> tf.Tensor:
    """Rotates images about their center by 5 degrees, in one direction and the other in turn."""
    height, width = images.shape[1:3]
    angles = np.where(numbers % 2, -1.0, 1.0) * math.radians(DEGREES)
    turn = np.moveaxis(np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]]), -1, 0)  # [N, 2, 2]
    center = np.array([(width - 1) / 2, (height - 1) / 2])
    return _affine(images, np.concatenate([turn, (center - turn @ center)[..., None]], axis=2))


def crop(images: tf.Tensor, _: np.ndarray) -> tf.Tensor:
    """Enlarges the central 7/8 of each side."""
    return image_ops.clipped_zoom(images, ZOOM)


def jpeg(images: tf.Tensor, _: np.ndarray) -> tf.Tensor:
    """Compresses images as JPEG of quality 75."""
    return jpeg_compression.apply(images, QUALITY)


def brightness(images: tf.Tensor, numbers: np.ndarray) -> tf.Tensor:
    """Adds and subtracts in turn 0.1 to the HSV value."""
    signs = np.where(numbers % 2, -1.0, 1.0).astype(np.float32)
    return hsv_brightness.apply(images, BRIGHTNESS * signs[:, None, None, None])


def _affine(images, maps):
    rows, columns = warps.affine_coordinates(tf.constant(maps, tf.float32), *images.shape[1:3])
    return warps.bilinear(images, rows, columns, "reflect")


SMALL_CHANGES: dict[str, Callable[[tf.Tensor, np.ndarray], tf.Tensor]] = {
    f.__name__: f for f in (translation, rotation, crop, jpeg, brightness)
}


def change(images: np.ndarray, name: str) -> np.ndarray:
    """Returns images with one of `SMALL_CHANGES`, a function of an image and its position; both float32 [N, H, W, C] in [0, 1]."""
    parts = []
    for numbers in np.split(np.arange(len(images)), range(BATCH, len(images), BATCH)):
        parts.append(SMALL_CHANGES[name](tf.constant(images[numbers]), numbers).numpy())
    return np.clip(np.concatenate(parts), 0.0, 1.0)
