"""The target of hardening: accuracy on changed validation images.

The search compares many models, so an image stands for few corruptions: each validation image is given a fixed number of (corruption,
severity) pairs in rotation, so that every pair has as many images. The mean accuracy over these estimates the mean over all pairs, and
models are compared per image. Where a model is nearly perfect, or guesses, no gain can be seen: each corruption of a target has the
severity at which the initial model is nearest to halfway between its clean accuracy and chance.
"""

import dataclasses
import fractions
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_robust import attacks, corruptions, metrics
from tf_robust.attacks.attack import Predict
from tf_robust.corruptions import noise_sets
from tf_robust.evaluation import scoring
from tf_robust.ops import image_ops

SEED = 23  # of corruptions and attacks on validation images
PAIRS_PER_IMAGE = 3
NOISE_SETS = ("uniform_noise", "nonuniform_noise")
BATCH = 250
BATCH_PIXELS = 1 << 21  # of a batch, at most: 41 images at 224 pixels, whose feature maps take little memory


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The images that a model classifies correctly."""

    clean: np.ndarray  # bool [N], unchanged validation images
    target: np.ndarray  # float [M], fraction of each image's versions under the target; the M images are some of the N, or of a shift


@dataclasses.dataclass(frozen=True)
class LabeledImages:
    """Images, float32 [M, H, W, C] in [0, 1] or uint8, and labels, int64 [M], columns of the model's output; None: all columns count."""

    images: np.ndarray
    labels: np.ndarray
    class_mask: Sequence[int] | None = None

    def correct(self, predict: Predict) -> np.ndarray:
        """Returns bool [M]: which of the images a model, images -> logits, classifies correctly."""
        return predict_logits(scoring.masked(predict, self.class_mask), self.images).argmax(axis=1) == self.labels


@dataclasses.dataclass(eq=False)
class ValidationSet:
    """Validation images, float32 [N, H, W, C] in [0, 1], and labels, int64 [N], unchanged and under a target."""

    images: np.ndarray
    labels: np.ndarray
    pairs: Sequence[tuple[str, int]]  # (corruption, severity) of the target, which images have in rotation; none: see `attack`, `shift`
    _: dataclasses.KW_ONLY
    clean: LabeledImages | None = None  # for the accuracy on unchanged images, more than `images`; None: `images`
    groups: np.ndarray | None = None  # text [N], of each unchanged image; None: there are none
    probabilities: np.ndarray | None = None  # [H, W], for non-uniform noise
    attack: attacks.Attack | None = None  # for the target adversarial
    class_mask: Sequence[int] | None = None  # columns of the model's output that count; None: all
    shift: LabeledImages | None = None  # images under new conditions, which are the target; None: the images themselves are, changed

    def __post_init__(self):
        arrays = versions(self.images, self.pairs, PAIRS_PER_IMAGE, self.probabilities) if self.pairs else []
        self.changed = [self.shift] if self.shift else [LabeledImages(array, self.labels, self.class_mask) for array in arrays]

    def evaluate(self, predict: Predict) -> Outcome:
        """Returns which images a model, images -> logits, classifies correctly."""
        clean = self.clean or LabeledImages(self.images, self.labels, self.class_mask)
        changed = self.changed
        if self.attack and not changed:
            attacked = self.attack(scoring.masked(predict, self.class_mask), self.images, self.labels).numpy()
            changed = [LabeledImages(attacked, self.labels, self.class_mask)]
        return Outcome(clean.correct(predict), np.mean([one.correct(predict) for one in changed], axis=0))


def corruptions_of(name: str) -> tuple[str, ...]:
    """Returns the corruptions of a part of a target: of a group, of the noise sets, or the corruption itself."""
    if name == "noise":
        return NOISE_SETS
    return metrics.BENCHMARK if name == "corruptions" else metrics.GROUPS.get(name.removesuffix("_corruptions"), (name,))


def pairs_of(name: str) -> list[tuple[str, int]]:
    """Returns the (corruption, severity) pairs of a part of a target, in a fixed order."""
    return list(itertools.product(corruptions_of(name), metrics.SEVERITIES))


def weighted_pairs(weights: Mapping[str, fractions.Fraction], severities: Mapping[str, int]) -> list[tuple[str, int]]:
    """Returns the pairs of a target at one severity of each corruption, as often as the weight of its part demands."""
    shares: dict[str, fractions.Fraction] = {}
    for part, weight in weights.items():
        for name in (names := corruptions_of(part)):
            shares[name] = shares.get(name, fractions.Fraction(0)) + weight / len(names)
    unit = fractions.Fraction(
        math.gcd(*(one.numerator for one in shares.values())), math.lcm(*(one.denominator for one in shares.values()))
    )
    return [(name, severities[name]) for name, share in shares.items() for _ in range(int(share / unit))]


def halfway_severities(
    predict: Predict, images: LabeledImages, names: Sequence[str], per_corruption: int, probabilities: np.ndarray | None = None
) -> dict[str, int]:
    """Returns the severity of each corruption at which a model is nearest to halfway between its clean accuracy and chance.

    It is measured on `per_corruption` images, the next ones for each corruption, at all severities; the more severe one of equals. A noise
    set replaces as many times its usual number of locations. `probabilities` [H, W] are for non-uniform noise.
    """
    classes = len(images.class_mask) if images.class_mask is not None else np.shape(predict(tf.constant(images.images[:1])))[-1]
    middle = (images.correct(predict).mean() + 1 / classes) / 2
    found, count = {}, min(per_corruption, len(images.images))
    for number, name in enumerate(names):
        chosen = np.arange(number * count, (number + 1) * count) % len(images.images)
        changed = [_changed(images.images[chosen], name, severity, chosen, probabilities) for severity in metrics.SEVERITIES]
        labels = np.tile(images.labels[chosen], len(changed))
        correct = LabeledImages(np.concatenate(changed), labels, images.class_mask).correct(predict)
        accuracies = correct.reshape(len(changed), count).mean(axis=1)
        found[name] = min(reversed(metrics.SEVERITIES), key=lambda severity: abs(accuracies[severity - 1] - middle))
    return found


def _changed(images, name, severity, indices, probabilities):
    """Images with a corruption, uint8."""
    if name in NOISE_SETS:
        rate = severity * (noise_sets.RATE if name == NOISE_SETS[0] else probabilities)
        changed = noise_sets.replace_locations(images, rate, seed=SEED, indices=indices)
    else:
        changed = corruptions.corrupt(images, name, severity, SEED, indices)
    return image_ops.to_levels(changed).numpy()


def versions(
    images: np.ndarray, pairs: Sequence[tuple[str, int]], per_image: int, probabilities: np.ndarray | None = None
) -> list[np.ndarray]:
    """Returns `per_image` arrays like `images`, float32 [N, H, W, C] in [0, 1], each with the next (corruption, severity) of every image.

    They are rounded to 8 bits, uint8. `probabilities` [H, W] are for non-uniform noise.
    """
    per_image, order = min(per_image, len(pairs)), np.random.default_rng(SEED).permutation(len(pairs))
    arrays = []
    for turn in range(per_image):
        changed = np.empty(images.shape, np.uint8)
        chosen = order[(np.arange(len(images)) * per_image + turn) % len(pairs)]
        for number in np.unique(chosen):
            members = np.flatnonzero(chosen == number)
            name, severity = pairs[number]
            changed[members] = _changed(images[members], name, severity, members, probabilities)
        arrays.append(changed)
    return arrays


def batch_of(height: int, width: int) -> int:
    """Returns the number of images of a batch of this size."""
    return max(1, min(BATCH, BATCH_PIXELS // (height * width)))


def compact(images: np.ndarray) -> np.ndarray:
    """Returns images, float32 in [0, 1], as uint8 if they have been, a quarter of the memory; otherwise unchanged."""
    levels = image_ops.to_levels(images)
    return levels.numpy() if np.abs(image_ops.to_float(levels).numpy() - images).max(initial=0.0) < 1e-6 else images


def predict_logits(predict: Predict, images: np.ndarray) -> np.ndarray:
    """Returns the logits [N, classes] of a model. The last batch is filled up, so that a graph is traced for one shape."""
    logits, size = [], min(len(images), batch_of(*images.shape[1:3]))
    for start in range(0, len(images), size):
        batch = images[start : start + size]
        batch = image_ops.to_float(batch).numpy() if batch.dtype == np.uint8 else batch
        full = np.concatenate([batch, np.zeros((size - len(batch), *batch.shape[1:]), batch.dtype)])
        logits.append(np.asarray(predict(tf.constant(full)))[: len(batch)])
    return np.concatenate(logits)
