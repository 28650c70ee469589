"""What hardening improves: accuracy on images under a target, measured on the validation images.

The search compares many models, so an image stands for few corruptions: each validation image is given a fixed number of (corruption,
severity) pairs in rotation, so that every pair has as many images. The mean accuracy over these estimates that over all pairs, and
models are compared per image.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_robust import attacks, corruptions, metrics
from tf_robust.attacks.attack import Predict

SEED = 23  # of corruptions and attacks on validation images
SEVERITIES = (1, 2, 3, 4, 5)
PAIRS_PER_IMAGE = 3
NOISE_SETS = ("uniform_noise", "nonuniform_noise")
BATCH = 250
_GROUPS = ("noise", "blur", "weather", "digital")
TARGETS = ("corruptions", *(f"{group}_corruptions" for group in _GROUPS), "noise", "adversarial")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Which images a model classifies correctly.

    Attributes:
        clean: bool [N], unchanged validation images.
        target: float [N], the fraction of each image's versions under the target.
    """

    clean: np.ndarray
    target: np.ndarray


class ValidationSet:
    """Validation images, unchanged and under a target.

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        labels: int64 [N].
        target: one of `TARGETS`.
        probabilities: [H, W], of nonuniform noise; for the target noise.
        attack: for the target adversarial.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        target: str,
        *,
        probabilities: np.ndarray | None = None,
        attack: attacks.Attack | None = None,
    ):
        self.images, self.labels, self.attack = images, labels, attack if target == "adversarial" else None
        self.versions = [] if self.attack else _versions(images, target, probabilities)  # float32 [N, H, W, C] each

    def __len__(self) -> int:
        return len(self.labels)

    def evaluate(self, predict: Predict) -> Outcome:
        """Returns which images a model, images -> logits, classifies correctly."""
        clean = _correct(predict, self.images, self.labels)
        if self.attack:
            attacked = self.attack(predict, self.images, self.labels).numpy()
            return Outcome(clean, _correct(predict, attacked, self.labels).astype(np.float64))
        return Outcome(clean, np.mean([_correct(predict, images, self.labels) for images in self.versions], axis=0))


def pairs_of(target: str) -> list[tuple[str, int]]:
    """Returns the (corruption, severity) pairs of a target, in a fixed order."""
    if target == "noise":
        return [(name, 1) for name in NOISE_SETS]
    benchmark = [corruption.name for corruption in corruptions.BENCHMARK]
    members = benchmark if target == "corruptions" else metrics.GROUPS[target.removesuffix("_corruptions")]
    return list(itertools.product(members, SEVERITIES))


def _versions(images, target, probabilities):
    """The images under the target: arrays like `images`, in each of which an image has its next pair."""
    pairs, count = pairs_of(target), len(images)
    order = np.random.default_rng(SEED).permutation(len(pairs))
    versions = []
    for turn in range(min(PAIRS_PER_IMAGE, len(pairs))):
        changed = np.empty_like(images)
        chosen = order[(np.arange(count) * PAIRS_PER_IMAGE + turn) % len(pairs)]
        for number in np.unique(chosen):
            members = np.flatnonzero(chosen == number)
            name, severity = pairs[number]
            options = {"probabilities": probabilities} if name == "nonuniform_noise" else {}
            changed[members] = corruptions.corrupt(images[members], name, severity, SEED, members, **options).numpy()
        versions.append(changed)
    return versions


def _correct(predict: Callable, images: np.ndarray, labels: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns bool [N]. The last batch is filled up, so that a graph is traced for one shape."""
    predicted = []
    for start in range(0, len(images), BATCH):
        batch = images[start : start + BATCH]
        full = np.concatenate([batch, np.zeros((BATCH - len(batch), *batch.shape[1:]), batch.dtype)]) if len(batch) < BATCH else batch
        predicted.append(np.argmax(predict(tf.constant(full)), axis=1)[: len(batch)])
    return np.concatenate(predicted) == labels
