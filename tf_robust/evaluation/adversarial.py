"""Evaluation by attacks: robust accuracy, distances to the nearest misclassified images, and checks of the attacks themselves.

`accuracy`, `distances` and `checks` return functions (predict, evaluation set) -> record, for `EvaluationSet.score`.
"""

from collections.abc import Collection, Iterable

import numpy as np
import scipy.stats
import tensorflow as tf

from tf_robust import attacks
from tf_robust.attacks import norms
from tf_robust.attacks.attack import Predict
from tf_robust.attacks.criterion import Criterion
from tf_robust.configs.evaluation import parse_threat
from tf_robust.evaluation import auto_attack
from tf_robust.evaluation.batches import SEED
from tf_robust.evaluation.evaluation_set import ScoreSet
from tf_robust.models.outputs import checked_logits
from tf_robust.ops import image_ops
from tf_robust.ops.draws import Draws
from tf_robust.utils import progress
from tf_robust.utils.arrays import decoded, encoded

PGD_STEPS, PGD_STARTS = 40, 2
AUTOATTACK_CARD = {
    "attack": "autoattack",
    "members": ["apgd_ce", "apgd_t", "fab_t", "square"],
    "steps": 100,
    "restarts": 1,
    "target_classes": 9,
    "seed": SEED,
}  # its budget besides the queries of Square; results with the attack "ensemble" lack APGD-T and FAB-T
CURVES = {"pgd": attacks.MinimalPGD, "plb": attacks.ProximalLogBarrier}
CHECKED = 200  # images on which the attacks are checked
_CHECK_QUERIES = 1000
_TOLERANCE = 0.01  # by which ordered accuracies may be out of order
_LOSS_TOLERANCE = 0.05  # the same, of PGD on different losses
_BROKEN = 0.02  # largest accuracy of a model at a radius that can make any image gray


def largest_radii(threats: Iterable[str]) -> dict[str, float]:
    """Returns {norm: the largest radius} of threats NORM_RADIUS, at which the attacks are checked."""
    largest: dict[str, float] = {}
    for norm, radius in map(parse_threat, threats):
        largest[norm] = max(radius, largest.get(norm, 0.0))
    return largest


def accuracy_attack(name: str, norm: str, radius: float, queries: int) -> attacks.Attack:
    """Returns the attack of a robust accuracy.

    Args:
        name: one of `ATTACKS`.
        norm: l2 or linf.
        radius: on the [0, 1] pixel scale.
        queries: of the model by Square, per image.
    """
    if name == "pgd":
        return attacks.ProjectedGradientDescent(norm=norm, radius=radius, steps=PGD_STEPS, restarts=PGD_STARTS, seed=SEED)
    if name == "square":
        return attacks.Square(norm=norm, radius=radius, steps=queries, seed=SEED)
    return attacks.AutoAttack(norm=norm, radius=radius, queries=queries, seed=SEED)


def minimal_attack(name: str, norm: str) -> attacks.Attack:
    """Returns the attack of a curve, which searches for the smallest perturbation.

    Args:
        name: one of `CURVES`.
        norm: name of the norm.
    """
    return CURVES[name](norm=norm, seed=SEED)


def median_interval(record: dict) -> tuple[float, float, float, int]:
    """Returns median, low, high and count of a record of distances.

    `low` and `high` are the ends of the 95 % interval by order statistics. The median is infinite if most distances are.
    """
    values = np.sort(read_distances(record))
    low, high = scipy.stats.binom.ppf([0.025, 0.975], len(values), 0.5).astype(int)
    return float(np.median(values)), float(values[max(0, low - 1)]), float(values[min(len(values) - 1, high)]), len(values)


def read_distances(record: dict) -> np.ndarray:
    """Returns float32 [N]: the distances of a record."""
    return decoded(record["distances"], np.float32)


def correct_at(records: Iterable[dict], radius: float) -> np.ndarray:
    """Returns bool [N]: the images that are classified correctly and for which no attack finds a misclassified perturbation up to a radius.

    Args:
        records: of the distances of attacks in the same norm, at least one.
        radius: in that norm, on the [0, 1] pixel scale.
    """
    return np.min([read_distances(record) for record in records], axis=0) > radius


def transferred_attack(norm: str, radius: float) -> attacks.Attack:
    """Returns the attack that is computed on a surrogate: PGD, which goes on after the surrogate is wrong."""
    return attacks.ProjectedGradientDescent(
        norm=norm, radius=radius, steps=PGD_STEPS, early_stop=False, skip_misclassified=False, seed=SEED
    )


def transferred_accuracy(attack: attacks.Attack, positions: np.ndarray, surrogate: Predict) -> ScoreSet:
    """Returns a function that counts the images that are classified correctly, and still after an attack on another model.

    Args:
        attack: any attack.
        positions: int [N], of the images in the data set.
        surrogate: the differentiable model that is attacked.
    """

    def score(predict, evaluation_set):
        correct, start = [], 0
        for images, labels in progress.batches(evaluation_set.open(), evaluation_set.name):
            images, labels = image_ops.check_images(images), labels.numpy()
            attacked = attack(surrogate, images, labels, indices=positions[start : start + len(images)])
            both = (checked_logits(predict(part), labels, repr(evaluation_set.name)) for part in (tf.constant(images), attacked))
            correct.append(np.all([logits.argmax(axis=1) == labels for logits in both], axis=0))
            start += len(images)
        return _accuracy_record(np.concatenate(correct))

    return score


def accuracy(attack: attacks.Attack, positions: np.ndarray) -> ScoreSet:
    """Returns a function that counts the images that are classified correctly after an attack.

    Args:
        attack: any attack.
        positions: int [N], of the images in the data set.
    """

    def score(predict, evaluation_set):
        return _accuracy_record(np.concatenate([right for *_, right in _attacked(predict, evaluation_set, attack, positions)]))

    return score


def _accuracy_record(correct):
    return {"kind": "accuracy", "count": len(correct), "correct": int(correct.sum()), "which": encoded(np.packbits(correct))}


def distances(attack: attacks.Attack, positions: np.ndarray) -> ScoreSet:
    """Returns a function that records the sizes of the smallest perturbations that are misclassified.

    The size is 0 for images that are already misclassified without an attack, infinity where the attack fails.

    Args:
        attack: as `minimal_attack` returns it.
        positions: int [N], of the images in the data set.
    """

    def score(predict, evaluation_set):
        batches = []
        for images, attacked, right in _attacked(predict, evaluation_set, attack, positions):
            sizes = norms.NORMS[attack.norm.name].size(tf.constant(attacked - images)).numpy()
            batches.append(np.where(right, np.inf, sizes))
        values = np.concatenate(batches).astype(np.float32)
        return {"kind": "distances", "count": len(values), "distances": encoded(values)}

    return score


def _attacked(predict, evaluation_set, attack, positions):
    """Yields (images, attacked images, bool [B]: still classified correctly) of each batch of a set."""
    start = 0
    for images, labels in progress.batches(evaluation_set.open(), evaluation_set.name):
        images, labels = image_ops.check_images(images), labels.numpy()
        attacked = attack(predict, images, labels, indices=positions[start : start + len(images)]).numpy()
        logits = checked_logits(predict(tf.constant(attacked)), labels, repr(evaluation_set.name))
        yield images, attacked, logits.argmax(axis=1) == labels
        start += len(images)
    if not start:
        raise ValueError(f"Expected images to evaluate {evaluation_set.name!r} on. Received: none")


class RandomNoise(attacks.Attack):
    """Adds noise of the same size: a random point on the surface of the ball.

    Args:
        norm: name of the norm.
        radius: of the ball.
    """

    def __init__(self, *, norm: str, radius: float, **kwargs):
        super().__init__(**kwargs)
        self.norm, self.radius = norms.norm(norm), radius

    def perturb(self, predict: Predict, images: tf.Tensor, criterion: Criterion, seed: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        """Returns the noisy images. See `Attack.perturb`."""
        noise = self.norm.steepest(Draws(seed, indices, "noise").normal(images.shape[1:]))
        return tf.clip_by_value(images + self.radius * noise, 0.0, 1.0)


def checks(norm: str, radius: float, positions: np.ndarray, measured: Collection[str] = ()) -> ScoreSet:
    """Returns a function that checks the attacks for signs of masked gradients (Athalye et al., 2018; Carlini et al., 2019).

    Args:
        norm: name of the norm.
        radius: of the attacks.
        positions: int [N], of the images in the data set.
        measured: those of `ATTACKS` that are measured; pgd is compared with that on the margin.
    """

    def score(predict, evaluation_set):
        largest = norms.norm(norm).largest(evaluation_set.open().element_spec[0].shape[1:])
        correct = {
            name: np.concatenate([right for *_, right in _attacked(predict, evaluation_set, attack, positions)])
            for name, attack in check_attacks(norm, radius, largest, measured).items()
        }
        accuracies = {name: float(right.mean()) for name, right in correct.items()}
        failed = failed_checks(accuracies)
        if "autoattack" not in measured:  # whose record has these warnings
            images, labels = next(iter(evaluation_set.open()))
            failed += auto_attack.model_warnings(predict, image_ops.check_images(images), labels.numpy())
        return {
            "kind": "checks",
            "count": len(correct["noise"]),
            "radius": radius,
            "accuracies": accuracies,
            "failed": failed,
        }

    return score


def check_attacks(norm: str, radius: float, largest: float, measured: Collection[str] = ()) -> dict[str, attacks.Attack]:
    """Returns {name: attack} of the checks.

    The attacks use the gradient of the margin, except pgd, the one that is measured.

    Args:
        norm: name of the norm.
        radius: of the attacks.
        largest: the largest distance between two images.
        measured: as in `checks`.
    """
    ball: dict = {"norm": norm, "seed": SEED}

    def descent(radius, steps=10):
        return attacks.ProjectedGradientDescent(radius=radius, steps=steps, loss="margin", **ball)

    return {
        "noise": RandomNoise(radius=radius, **ball),
        "one_step": attacks.FastGradient(radius=radius, loss="margin", **ball),
        "ten_steps": descent(radius),
        "hundred_steps": descent(radius, steps=100),
        "half_radius": descent(radius / 2),
        "double_radius": descent(min(2 * radius, largest)),
        "large_radius": descent(largest / 2),
        "black_box": attacks.Square(radius=radius, steps=_CHECK_QUERIES, **ball),
        **({"pgd": accuracy_attack("pgd", norm, radius, 0)} if "pgd" in measured else {}),
    }


def failed_checks(accuracies: dict[str, float]) -> list[str]:
    """Returns a message for each sign that the attacks are too weak.

    Args:
        accuracies: {name of a check: accuracy}, as `checks` records them.
    """
    order = (
        ("noise", "ten_steps", "noise of the same size is stronger than the attack"),
        ("one_step", "ten_steps", "one step is stronger than ten"),
        ("ten_steps", "hundred_steps", "a hundred steps are weaker than ten"),
        ("black_box", "hundred_steps", "the black-box attack is stronger than the one with gradients"),
        ("half_radius", "ten_steps", "half the radius is stronger"),
        ("ten_steps", "double_radius", "twice the radius is weaker"),
    )
    messages = [
        f"{message} ({weaker} {accuracies[weaker]:.3f}, {stronger} {accuracies[stronger]:.3f})"
        for weaker, stronger, message in order
        if accuracies[stronger] > accuracies[weaker] + _TOLERANCE
    ]
    if accuracies.get("pgd", 0.0) > accuracies["hundred_steps"] + _LOSS_TOLERANCE:
        messages.append(
            f"PGD on the margin is stronger than the PGD that is measured ({accuracies['hundred_steps']:.3f}, {accuracies['pgd']:.3f})"
        )
    if accuracies["large_radius"] > _BROKEN:
        messages.append(f"a radius that can make any image gray leaves an accuracy of {accuracies['large_radius']:.3f}")
    return messages
