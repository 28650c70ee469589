"""The target of hardening: accuracy on changed images, measured on the validation images.

The search compares many models, so an image stands for few corruptions: each validation image is given a fixed number of (corruption,
severity) pairs in rotation, so that every pair has as many images. The mean accuracy over these estimates that over all pairs, and
models are compared per image.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_robust import attacks, corruptions, metrics
from tf_robust.attacks.attack import Predict
from tf_robust.evaluation import scoring

SEED = 23  # of corruptions and attacks on validation images
PAIRS_PER_IMAGE = 3
NOISE_SETS = ("uniform_noise", "nonuniform_noise")
BATCH = 250


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The images that a model classifies correctly.

    Attributes:
        clean: bool [N], unchanged validation images.
        target: float [M], the fraction of each image's versions under the target, or whether an image of the shift is classified
            correctly; the M images are some of the N, or those of the shift.
    """

    clean: np.ndarray
    target: np.ndarray


@dataclasses.dataclass(frozen=True)
class LabeledImages:
    """Images, float32 [M, H, W, C] in [0, 1], and labels, int64 [M], columns of the model's output; None: all columns count."""

    images: np.ndarray
    labels: np.ndarray
    class_mask: Sequence[int] | None = None


class ValidationSet:
    """Validation images, float32 [N, H, W, C] in [0, 1], and labels, int64 [N], unchanged and under a target.

    Args:
        clean: images for the accuracy on unchanged images, more than `images`; None: `images`.
        probabilities: [H, W], of non-uniform noise; for the target noise.
        attack: for the target adversarial.
        class_mask: the columns of the model's output that count; None: all.
        shift: images under new conditions, which are the target; None: the images themselves are, changed.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        target: str,
        *,
        clean: LabeledImages | None = None,
        probabilities: np.ndarray | None = None,
        attack: attacks.Attack | None = None,
        class_mask: Sequence[int] | None = None,
        shift: LabeledImages | None = None,
    ):
        self.images, self.labels, self.class_mask, self.shift = images, labels, class_mask, shift
        self.clean = clean or LabeledImages(images, labels)
        self.attack = attack if target == "adversarial" else None
        changed = not self.attack and not shift
        self.versions = versions(images, pairs_of(target), PAIRS_PER_IMAGE, probabilities) if changed else []  # [N, H, W, C] each

    def evaluate(self, predict: Predict) -> Outcome:
        """Returns which images a model, images -> logits, classifies correctly."""
        masked = scoring.masked(predict, self.class_mask)
        clean = correct(masked, self.clean.images, self.clean.labels)
        if self.shift:
            shifted = correct(scoring.masked(predict, self.shift.class_mask), self.shift.images, self.shift.labels)
            return Outcome(clean, shifted.astype(np.float64))
        if self.attack:
            attacked = self.attack(masked, self.images, self.labels).numpy()
            return Outcome(clean, correct(masked, attacked, self.labels).astype(np.float64))
        return Outcome(clean, np.mean([correct(masked, images, self.labels) for images in self.versions], axis=0))


def pairs_of(target: str) -> list[tuple[str, int]]:
    """Returns the (corruption, severity) pairs of a target, in a fixed order."""
    if target == "noise":
        return [(name, 1) for name in NOISE_SETS]
    members = metrics.BENCHMARK if target == "corruptions" else metrics.GROUPS[target.removesuffix("_corruptions")]
    return list(itertools.product(members, metrics.SEVERITIES))


def versions(
    images: np.ndarray, pairs: Sequence[tuple[str, int]], per_image: int, probabilities: np.ndarray | None = None
) -> list[np.ndarray]:
    """Returns `per_image` arrays like `images`, float32 [N, H, W, C] in [0, 1], in each of which an image has its next of the pairs of a
    corruption, or noise set, and a severity. `probabilities` [H, W] are those of non-uniform noise."""
    per_image, order = min(per_image, len(pairs)), np.random.default_rng(SEED).permutation(len(pairs))
    arrays = []
    for turn in range(per_image):
        changed = np.empty_like(images)
        chosen = order[(np.arange(len(images)) * per_image + turn) % len(pairs)]
        for number in np.unique(chosen):
            members = np.flatnonzero(chosen == number)
            name, severity = pairs[number]
            corrupted = corruptions.corrupt(images[members], name, severity, SEED, members, probabilities=probabilities)
            changed[members] = corrupted.numpy()
        arrays.append(changed)
    return arrays


def correct(predict: Predict, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns bool [N]: which images a model classifies correctly."""
    return predicted(predict, images).argmax(axis=1) == labels


def predicted(predict: Predict, images: np.ndarray) -> np.ndarray:
    """Returns the logits [N, classes] of a model. The last batch is filled up, so that a graph is traced for one shape."""
    logits = []
    for start in range(0, len(images), BATCH):
        batch = images[start : start + BATCH]
        full = np.concatenate([batch, np.zeros((BATCH - len(batch), *batch.shape[1:]), batch.dtype)]) if len(batch) < BATCH else batch
        logits.append(np.asarray(predict(tf.constant(full)))[: len(batch)])
    return np.concatenate(logits)
