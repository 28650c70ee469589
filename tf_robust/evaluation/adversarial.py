"""Attacks as measures: robust accuracy, how far the nearest misclassified images are, and checks of the attacks themselves.

A threat is a norm and a radius, `l2_0.5` or `linf_8/255`, on the [0, 1] pixel scale. Each function here that returns a
`measure` gives what `EvaluationSet.measure` takes: (predict, set) -> record.
"""

import fractions

import numpy as np
import scipy.stats
import tensorflow as tf

from tf_robust import attacks
from tf_robust.attacks import norms
from tf_robust.evaluation.scoring import decoded, encoded
from tf_robust.models.outputs import checked_logits
from tf_robust.ops import image_ops
from tf_robust.ops.draws import Draws
from tf_robust.utils import progress
from tf_robust.utils.errors import unknown

SEED = 15  # of all attacks, so that every model meets the same starts
ATTACKS = {"ensemble": "robust/", "pgd": "robust/pgd/"}  # of robust accuracy, and what their measures begin with
PGD_STEPS, PGD_STARTS = 40, 2
CURVES = {"pgd": attacks.MinimalPGD, "plb": attacks.ProximalLogBarrier}
CHECKED = 200  # images that the attacks are checked on
_CHECK_QUERIES = 1000
_TOLERANCE = 0.01  # of accuracies that should be in order
_BROKEN = 0.02  # accuracy that is left of a model at a radius with which any image can be made gray


def threat(text):
    """(norm, radius) of NORM_RADIUS, where the radius is a number or a fraction.

    Raises:
        ValueError: it is not written so, or the norm is neither l2 nor linf.
    """
    name, _, radius = text.partition("_")
    norms.norm(name)
    try:
        return name, float(fractions.Fraction(radius))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"Expected a threat as NORM_RADIUS, say l2_0.5 or linf_8/255. Received: {text!r}") from None


def curve(text):
    """(attack, norm) of ATTACK_NORM, say plb_l2; a ValueError if there is no such attack or norm."""
    name, _, norm = text.partition("_")
    if name not in CURVES:
        raise unknown("attack of a curve", name, CURVES)
    norms.norm(norm, among=norms.BALLS if name == "pgd" else tuple(norms.NORMS))
    return name, norm


def strongest(name, norm, radius, queries):
    """The attack of a robust accuracy, one of `ATTACKS`."""
    if name == "pgd":
        return attacks.ProjectedGradientDescent(norm=norm, radius=radius, steps=PGD_STEPS, restarts=PGD_STARTS, seed=SEED)
    return attacks.Ensemble(norm=norm, radius=radius, queries=queries, seed=SEED)


def minimal(name, norm):
    """The attack of a curve, which looks for the smallest perturbation."""
    return CURVES[name](norm=norm, seed=SEED)


def medians(record):
    """(median, low, high, count) of a record of distances; low and high: 95 % by order statistics. Infinite where most are."""
    found = np.sort(stored(record))
    low, high = scipy.stats.binom.ppf([0.025, 0.975], len(found), 0.5).astype(int)
    return float(np.median(found)), float(found[max(0, low - 1)]), float(found[min(len(found) - 1, high)]), len(found)


def stored(record):
    """float32 [N]: the distances of a record."""
    return decoded(record["distances"], np.float32)


def accuracy(attack, positions):
    """The `measure` that counts what is classified correctly after an attack. positions: int [N], in the data set."""

    def measure(predict, one):
        correct = [right for *_, right in _attacked(predict, one, attack, positions)]
        correct = np.concatenate(correct)
        return {"kind": "accuracy", "count": len(correct), "correct": int(correct.sum()), "which": encoded(np.packbits(correct))}

    return measure


def distances(attack, positions):
    """The `measure` of how large perturbations are that a minimal attack needs: 0 of what is wrong anyway, else infinity."""

    def measure(predict, one):
        found = []
        for images, attacked, right in _attacked(predict, one, attack, positions):
            sizes = norms.NORMS[attack.norm.name].size(tf.constant(attacked - images)).numpy()
            found.append(np.where(right, np.inf, sizes))
        return {"kind": "distances", "count": sum(map(len, found)), "distances": encoded(np.concatenate(found).astype(np.float32))}

    return measure


def _attacked(predict, one, attack, positions):
    """Yields (images, attacked images, bool whether still classified correctly) of each batch of a set."""
    start = 0
    for images, labels in progress.batches(one.open(), one.name):
        images, labels = image_ops.check_images(images), labels.numpy()
        attacked = attack(predict, images, labels, indices=positions[start : start + len(images)]).numpy()
        logits = checked_logits(predict(tf.constant(attacked)), labels, repr(one.name))
        yield images, attacked, logits.argmax(axis=1) == labels
        start += len(images)
    if not start:
        raise ValueError(f"Expected images to evaluate {one.name!r} on. Received none")


class RandomNoise(attacks.Attack):
    """No attack: noise of the same size, a random point of the ball's surface."""

    def __init__(self, *, norm, radius, **kwargs):
        super().__init__(**kwargs)
        self.norm, self.radius = norms.norm(norm), radius

    def perturb(self, predict, images, criterion, seed, indices):
        drawn = self.norm.steepest(Draws(seed, indices, "noise").normal(images.shape[1:]))
        return tf.clip_by_value(images + self.radius * drawn, 0.0, 1.0)


def checks(norm, radius, positions):
    """The `measure` of the signs by which masked gradients show (Athalye et al., 2018; Carlini et al., 2019)."""

    def measure(predict, one):
        largest = norms.norm(norm).largest(one.open().element_spec[0].shape[1:])
        correct = {
            name: np.concatenate([right for *_, right in _attacked(predict, one, attack, positions)])
            for name, attack in check_attacks(norm, radius, largest).items()
        }
        accuracies = {name: float(right.mean()) for name, right in correct.items()}
        return {"kind": "checks", "count": len(correct["noise"]), "radius": radius, "accuracies": accuracies, "failed": failed(accuracies)}

    return measure


def check_attacks(norm, radius, largest):
    """{name: attack} of the checks. largest: the largest radius that the images have room for.

    Gradients are the margin's: the cross-entropy's vanish where a model is sure, which says nothing about the model.
    """
    ball = {"norm": norm, "seed": SEED}

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
    }


def failed(accuracies):
    """Sentences about accuracies (as `checks` records them) that are not as those of a sound attack."""
    order = (
        ("noise", "ten_steps", "noise of the same size is stronger than the attack"),
        ("one_step", "ten_steps", "one step is stronger than ten"),
        ("ten_steps", "hundred_steps", "a hundred steps are weaker than ten"),
        ("black_box", "hundred_steps", "the black-box attack is stronger than the one with gradients"),
        ("half_radius", "ten_steps", "half the radius is stronger"),
        ("ten_steps", "double_radius", "twice the radius is weaker"),
    )
    found = [
        f"{said} ({weaker} {accuracies[weaker]:.3f}, {stronger} {accuracies[stronger]:.3f})"
        for weaker, stronger, said in order
        if accuracies[stronger] > accuracies[weaker] + _TOLERANCE
    ]
    if accuracies["large_radius"] > _BROKEN:
        found.append(f"a radius with which any image can be made gray leaves {accuracies['large_radius']:.3f}")
    return found
