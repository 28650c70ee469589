"""Evaluation by attacks: robust accuracy, distances to the nearest misclassified images, and checks of the attacks themselves.

`score_attacked`, `score_members`, `score_distances` and `score_checks` compute the record of a model on an evaluation set. Their
`positions`, int [N], locate the images in the data set. Radii are on the [0, 1] pixel scale.
"""

import math
import time
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import scipy.stats
import tensorflow as tf

from tf_robust import attacks
from tf_robust.attacks import norms
from tf_robust.attacks.attack import Predict, at_radii, loss_and_gradient, occurring_classes
from tf_robust.attacks.criterion import Criterion
from tf_robust.configs.evaluation import parse_threat
from tf_robust.evaluation.scoring import SEED, EvaluationSet, accuracy_record, is_correct, read_batches, read_chosen
from tf_robust.models.outputs import are_probabilities, checked_logits
from tf_robust.ops import image_ops
from tf_robust.ops.draws import Draws
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import decoded, encoded
from tf_robust.utils.hyperparameters import signature
from tf_robust.utils.progress import duration

PGD_STEPS, PGD_STARTS = 40, 2
ATTACKING = "  Attacking"  # beginning of a line of the log
MEMBERS = {"apgd_ce": "APGD-CE", "apgd_t": "APGD-T", "fab_t": "FAB-T", "square": "Square"}  # of AutoAttack, and their titles
AUTOATTACK_CARD = {
    "attack": "autoattack",
    "members": [*MEMBERS],
    "steps": 100,
    "restarts": 1,
    "target_classes": 9,
    "seed": SEED,
}  # its budget besides the queries of Square; results with the attack "ensemble" lack APGD-T and FAB-T
CURVES = {"pgd": attacks.MinimalPGD, "plb": attacks.ProximalLogBarrier}
CHECKED = 200  # images on which the attacks are checked
_CHECK_QUERIES = 1000
_CHECK_ORDER = (  # (an attack, a stronger one, the sign of masked gradients where it is not stronger)
    ("noise", "ten_steps", "noise of the same size is stronger than the attack"),
    ("one_step", "ten_steps", "one step is stronger than ten"),
    ("ten_steps", "hundred_steps", "a hundred steps are weaker than ten"),
    ("black_box", "hundred_steps", "the black-box attack (Square) is stronger than the one with gradients"),
    ("half_radius", "ten_steps", "half the radius is stronger"),
    ("ten_steps", "double_radius", "twice the radius is weaker"),
)
_TOLERANCE = 0.01  # by which ordered accuracies may be out of order
_LOSS_TOLERANCE = 0.05  # the same, of PGD on different losses
_BROKEN = 0.02  # largest accuracy of a model at a radius that can make any image gray
_CALLS = 5  # with the same images, to notice random outputs
_RANDOM = 1e-4  # relative difference of the logits of two calls
_STEP = 2 / 255  # along the gradient, by which the margin must change
_ROUNDING = 8 * 2.0**-24  # of float32, relative: of a sum of a few numbers
_LONG = 20.0  # seconds of a member of AutoAttack that are announced
_SQUARE = 0.002  # of accuracy that Square may take away from what the attacks with gradients leave


def largest_radii(threats: Iterable[str]) -> dict[str, float]:
    """Returns {norm: the largest radius} of threats NORM_RADIUS, at which the attacks are checked."""
    largest: dict[str, float] = {}
    for norm, radius in map(parse_threat, threats):
        largest[norm] = max(radius, largest.get(norm, 0.0))
    return largest


def check_attack(name: str) -> None:
    """Raises ValueError unless a name belongs to an attack with the arguments norm and radius."""
    classes: dict[str, Any] = {**attacks.ATTACKS}
    known = [other for other, attack in classes.items() if {"norm", "radius"} <= signature(attack).parameters.keys()]
    if name not in known:
        raise unknown("attack", name, known)


def accuracy_attacks(name: str, norm: str, radii: Iterable[float], queries: int) -> list[attacks.Attack]:
    """Returns the attack of robust accuracies, one of `attacks.ATTACKS` in l2 or linf, at each radius.

    Square queries the model so often per image.
    """
    options = {
        "pgd": {"steps": PGD_STEPS, "restarts": PGD_STARTS},
        "square": {"steps": queries},
        "autoattack": {"queries": queries},
    }.get(name, {})
    return at_radii(attacks.ATTACKS[name], radii, norm=norm, seed=SEED, **options)


def transferred_attacks(norm: str, radii: Iterable[float]) -> list[attacks.Attack]:
    """Returns the attack that is computed on a surrogate, at each radius: PGD, which goes on after the surrogate is wrong."""
    options = {"norm": norm, "steps": PGD_STEPS, "early_stop": False, "skip_misclassified": False, "seed": SEED}
    return at_radii(attacks.ProjectedGradientDescent, radii, **options)


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

    The records have the distances of attacks in the norm of the radius; at least one.
    """
    return np.min([read_distances(record) for record in records], axis=0) > radius


def score_attacked(
    predict: Predict, evaluation_set: EvaluationSet, attack: attacks.Attack, positions: np.ndarray, surrogate: Predict | None = None
) -> dict:
    """Returns the record of the images that are classified correctly after an attack.

    If the attack is computed on a surrogate, a differentiable model, they must be classified correctly without the attack, too.
    """
    return accuracy_record(np.concatenate([right for *_, right in _attacked(predict, evaluation_set, attack, positions, surrogate)]))


def _attacked(predict, evaluation_set, attack, positions, surrogate=None):
    """Yields (images, attacked images, bool [B]: still classified correctly) of each batch of a set."""
    for images, labels, place in read_batches(evaluation_set):
        attacked = attack(predict if surrogate is None else surrogate, images, labels, indices=positions[place]).numpy()
        right = is_correct(predict, attacked, labels, evaluation_set.name)
        if surrogate is not None:
            right &= is_correct(predict, images, labels, evaluation_set.name)
        yield images, attacked, right


def score_distances(predict: Predict, evaluation_set: EvaluationSet, attack: attacks.Attack, positions: np.ndarray) -> dict:
    """Returns the record of the sizes of the smallest perturbations that are misclassified, by an attack of `CURVES`.

    The size is 0 for images that are already misclassified without an attack, infinity where the attack fails.
    """
    batches = []
    for images, attacked, right in _attacked(predict, evaluation_set, attack, positions):
        sizes = norms.NORMS[attack.norm.name].size(tf.constant(attacked - images)).numpy()
        batches.append(np.where(right, np.inf, sizes))
    values = np.concatenate(batches).astype(np.float32)
    return {"kind": "distances", "count": len(values), "distances": encoded(values)}


class SharedTime:
    """Time that several evaluation sets share, from when the first of them asks for its part.

    Args:
        seconds: of all.
        sets: their number; a set that needs less than its part leaves the rest to those after it.
    """

    def __init__(self, seconds: float, sets: int):
        self._seconds, self._sets, self._end = seconds, sets, 0.0

    def end_of_next(self) -> float:
        """Returns the end of the part of the next set, on the clock `time.monotonic`."""
        now = time.monotonic()
        self._end = self._end or now + self._seconds
        part, self._sets = (self._end - now) / max(self._sets, 1), self._sets - 1
        return now + part


def score_members(
    predict: Predict, evaluation_set: EvaluationSet, attack: attacks.AutoAttack, positions: np.ndarray, limit: SharedTime | None = None
) -> dict:
    """Returns the record of the images that are classified correctly after AutoAttack, with the number after each member in turn.

    A member attacks all images that the ones before it left, in batches of similar size. What it leaves of a batch is stored in the `parts`
    of the evaluation set: an interrupted evaluation resumes there. Before a member that may take long, a line says what is left and how
    long it takes at most. With a limit, a member attacks as many images as it has time for, and the others count as correct. Warnings say
    where the result may be too high.
    """
    clean: list[np.ndarray] = []
    warnings: list[str] = []
    seconds, classes, size = math.inf, 0, 0
    for images, labels, _ in read_batches(evaluation_set):
        if not clean:
            warnings = model_warnings(predict, images, labels)
            size = attack.images_per_batch(images.shape[1:])
        begin = time.monotonic()
        logits = checked_logits(predict(tf.constant(images)), labels, repr(evaluation_set.name))
        seconds, classes = min(seconds, (time.monotonic() - begin) / len(images)), max(classes, len(occurring_classes(logits)))
        clean.append(logits.argmax(axis=1) == labels)
    correct = np.concatenate(clean)
    counts = {"clean": int(correct.sum())}
    end = limit.end_of_next() if limit else math.inf
    missed: dict[str, np.ndarray] = {}  # {member: the images that it had no time for}
    for member, member_attack in attack.members(classes).items():
        of_image, left = _forward_passes(member_attack, classes) * seconds, correct
        while (chosen := left & (np.cumsum(left) <= max(0.0, end - time.monotonic()) / of_image)).any():
            longest = chosen.sum() * of_image
            if longest >= _LONG:
                advice = f" Try: --attack_subset to attack fewer than {len(correct)} images" if longest >= 30 * _LONG else ""
                evaluation_set.log(
                    f"{ATTACKING} by {MEMBERS[member]}: {evaluation_set.name}, {correct.sum()} of {len(correct)} images still correct "
                    f"({correct.mean():.4f}), at most {duration(longest)}.{advice}"
                )
            correct = _after_member(predict, evaluation_set, member, member_attack, positions, correct, chosen, size)
            left = left & ~chosen
        counts[member], missed[member] = int(correct.sum()), left
    if not_attacked := [f"{MEMBERS[member]} {count}" for member, of_member in missed.items() if (count := (of_member & correct).sum())]:
        warnings.append(
            f"attack_time was too short: of the {correct.sum()} images that are still correct, some were not attacked by every member "
            f"({', '.join(not_attacked)}), so the accuracy is an upper bound. Try: a longer attack_time, or a smaller attack_subset"
        )
    return {**accuracy_record(correct), "correct_after": counts, "warnings": [*warnings, *square_warnings(counts, len(correct))]}


def _after_member(predict, evaluation_set, member, attack, positions, correct, chosen, size):
    """Bool [N]: the images that are still classified correctly after a member of AutoAttack on the `chosen` of the `correct` ones."""
    after, parts = correct.copy(), evaluation_set.parts
    for images, labels, places in read_chosen(evaluation_set, chosen, size):
        part = f"{member}/{positions[places[0]]}/{len(places)}"
        if part not in parts:
            attacked = attack(predict, images, labels, indices=positions[places])
            parts[part] = encoded(np.packbits(is_correct(predict, attacked, labels, evaluation_set.name)))
        after[places] = np.unpackbits(decoded(parts[part], np.uint8), count=len(places)).astype(bool)
    return after


def _forward_passes(attack, classes):
    """About how many forward passes an attack takes for an image on which it fails, with a gradient as three."""
    passes = {attacks.Square: 1, attacks.FastAdaptiveBoundary: 4}.get(type(attack), 3)
    return attack.attempts(classes, False) * attack.steps * passes


def model_warnings(predict: Predict, images: np.ndarray, labels: np.ndarray) -> list[str]:
    """Returns a message for each property of a model that makes AutoAttack unreliable, as RobustBench warns of them.

    Signs are sought on images, float32 [N, H, W, C], with labels, int [N]. A model without gradients raises ValueError.
    """
    images = tf.constant(images)
    calls = [np.asarray(predict(images)) for _ in range(_CALLS)]
    correct = calls[0].argmax(axis=1) == labels
    messages = []
    finite = [np.where(np.isfinite(logits), logits, 0.0) for logits in calls]  # classes that are masked out are -infinity
    scaled = [logits / (np.linalg.norm(logits, axis=1, keepdims=True) + 1e-10) for logits in finite]
    largest = max(np.linalg.norm(one - scaled[0], axis=1).max() for one in scaled)
    if largest > _RANDOM:
        messages.append(
            f"The outputs for the same images differ between calls (by {largest:.2g} of their size): the model draws random numbers, "
            "and an attack that averages over them may be stronger."
        )
    if are_probabilities(calls[0]):
        messages.append(
            "The outputs look like probabilities, not logits: their gradients vanish where the model is confident. "
            "Try: outputs=probabilities"
        )
    if correct.any():
        criterion = Criterion(tf.constant(labels[correct], tf.int64))
        margins, gradients, _ = loss_and_gradient(predict, tf.boolean_mask(images, correct), criterion.margin)
        # a step along the gradient changes nothing beyond rounding; the gradient of a saturated softmax may be rounding alone
        moved = tf.clip_by_value(tf.boolean_mask(images, correct) + _STEP * tf.sign(gradients), 0.0, 1.0)
        changes = np.abs(criterion.margin(tf.convert_to_tensor(predict(moved))) - margins)
        if vanishing := int((changes <= _ROUNDING * np.abs(margins)).sum()):
            messages.append(
                f"The gradient vanishes for {vanishing} of {correct.sum()} images: attacks with gradients cannot find a direction."
            )
    return messages


def square_warnings(counts: dict[str, int], total: int) -> list[str]:
    """Returns a message if Square takes away more than 0.002 of the accuracy that the attacks with gradients leave.

    `counts` is {member: number of images that are classified correctly after it}.
    """
    taken = (counts["fab_t"] - counts["square"]) / total
    if taken <= _SQUARE:
        return []
    return [
        f"Square, which uses no gradients, takes away another {taken:.3f} of accuracy: gradients may be masked, and a stronger or adapted "
        "attack may find more."
    ]


class RandomNoise(attacks.Attack):
    """Adds noise of the same size: a random point on the surface of the ball."""

    def __init__(self, *, norm: str, radius: float, **kwargs):
        super().__init__(**kwargs)
        self.norm, self.radius = norms.norm(norm), radius

    def perturb(self, predict: Predict, images: tf.Tensor, criterion: Criterion, seed: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        """Returns the noisy images. See `Attack.perturb`."""
        noise = self.norm.steepest(Draws(seed, indices, "noise").normal(images.shape[1:]))
        return tf.clip_by_value(images + self.radius * noise, 0.0, 1.0)


def score_checks(
    predict: Predict, evaluation_set: EvaluationSet, norm: str, radius: float, positions: np.ndarray, measured: Collection[str] = ()
) -> dict:
    """Returns the record of checks of the attacks for signs of masked gradients (Athalye et al., 2018; Carlini et al., 2019).

    `measured` are the attacks that are measured: pgd is compared with PGD on the margin.
    """
    largest = norms.norm(norm).largest(evaluation_set.batches().element_spec[0].shape[1:])
    records = {
        name: score_attacked(predict, evaluation_set, attack, positions)
        for name, attack in check_attacks(norm, radius, largest, measured).items()
    }
    accuracies = {name: record["correct"] / record["count"] for name, record in records.items()}
    failed = failed_checks(accuracies)
    if "autoattack" not in measured:  # whose record has these warnings
        images, labels = next(iter(evaluation_set.batches()))
        failed += model_warnings(predict, image_ops.check_images(images), labels.numpy())
    return {"kind": "checks", "count": records["noise"]["count"], "radius": radius, "accuracies": accuracies, "failed": failed}


def check_attacks(norm: str, radius: float, largest: float, measured: Collection[str] = ()) -> dict[str, attacks.Attack]:
    """Returns {name: attack} of the checks, where `largest` is the largest distance between two images.

    The attacks use the gradient of the margin, except pgd, the one that is measured.
    """
    ball: dict = {"norm": norm, "seed": SEED}
    descent: dict = {**ball, "loss": "margin"}
    radii = {"ten_steps": radius, "half_radius": radius / 2, "double_radius": min(2 * radius, largest), "large_radius": largest / 2}
    ten_steps = dict(zip(radii, at_radii(attacks.ProjectedGradientDescent, radii.values(), steps=10, **descent)))
    return {
        "noise": RandomNoise(radius=radius, **ball),
        "one_step": attacks.FastGradient(radius=radius, **descent),
        **ten_steps,
        "hundred_steps": attacks.ProjectedGradientDescent(radius=radius, steps=100, **descent),
        "black_box": attacks.Square(radius=radius, steps=_CHECK_QUERIES, **ball),
        **({"pgd": accuracy_attacks("pgd", norm, [radius], 0)[0]} if "pgd" in measured else {}),
    }


def failed_notes(records: Iterable[dict]) -> list[str]:
    """Returns a note on the failed checks of each norm, from the records of a model."""
    return [
        f"a check of the attacks failed in {record['set'].partition('/')[2]}, radius {record['radius']:.4g}, {record['count']} images: "
        f"{'; '.join(record['failed'])}"
        for record in records
        if record.get("failed")
    ]


def failed_checks(accuracies: dict[str, float]) -> list[str]:
    """Returns a message for each sign that the attacks are too weak, from {name of a check: accuracy}."""
    messages = [
        f"{message} ({weaker} {accuracies[weaker]:.3f}, {stronger} {accuracies[stronger]:.3f})"
        for weaker, stronger, message in _CHECK_ORDER
        if round(accuracies[stronger] - accuracies[weaker], 6) > _TOLERANCE  # of fractions of a number of images
    ]
    strongest = accuracies["hundred_steps"]
    if accuracies.get("pgd", 0.0) > strongest + _LOSS_TOLERANCE:
        messages.append(f"PGD on the margin is stronger than the PGD that is measured ({strongest:.3f}, {accuracies['pgd']:.3f})")
    if accuracies["large_radius"] > _BROKEN:
        messages.append(f"a radius that can make any image gray leaves an accuracy of {accuracies['large_radius']:.3f}")
    return messages
