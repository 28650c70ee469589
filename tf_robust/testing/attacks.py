"""The contract of an attack."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tf_robust import losses
from tf_robust.attacks import Attack, norms
from tf_robust.testing.samples import expect, tiny_network, without_global_draws
from tf_robust.utils import hyperparameters

_RADII = {"linf": 0.05, "l2": 0.25}


def check_attack(attack: Callable[..., Attack], *, norm: str | None = None, random: bool | None = None, **options: Any) -> None:
    """Checks the contract of an attack on a network of one convolution and 9 images of 16 x 16 pixels.

    Attacked images are float32 in [0, 1], within the radius and at least 90 % of it away; the loss rises, that of target classes
    falls (or stays, if the attack has no radius). The result of an image depends on (seed, index) alone: not on its batch, its
    position or global generators. Images that are misclassified already are unchanged.

    Args:
        attack: the class in `ATTACKS`.
        norm: of the perturbations, `linf` or `l2`, ...; None: each of linf and l2 that the attack takes.
        random: whether another seed gives other images; None: not checked.
        **options: further arguments of the attack, such as fewer steps.

    Raises:
        AssertionError: the contract is broken.

    Examples:
        >>> from tf_robust import testing
        >>> class Idle(tfr.attacks.Attack):
        ...     def perturb(self, predict, images, criterion, seed, indices):
        ...         return images
        >>> testing.check_attack(Idle)
        Traceback (most recent call last):
        AssertionError: Expected images that Idle changes. Received: unchanged images
    """
    known = hyperparameters.signature(attack).parameters
    for number, one in enumerate([norm] if norm or "norm" not in known else _norms(attack)):
        ball = {"norm": one} if one else {}
        if one in _RADII and "radius" in known:
            ball["radius"] = _RADII[one]
        made = attack(batch_size=4, **{**ball, **options})
        model, images, labels = _check_images(made, random, "radius" in known)
        if not number:  # of one norm: target classes need a graph of their own
            _check_goals(made, model, images, labels, "radius" in known)


def _norms(attack):
    """The norms that an attack takes."""
    taken = []
    for name in _RADII:
        try:
            attack(norm=name)
        except ValueError:
            continue
        taken.append(name)
    expect(taken, f"a norm of {', '.join(_RADII)} that {attack.__name__} takes", "none")
    return taken


def _check_images(attack, random, has_radius):
    """Checks the attacked images; returns the model, the images and their labels."""
    name, model, draws = type(attack).__name__, tiny_network(seed=0), np.random.RandomState(0)
    images = draws.uniform(0, 1, (9, 16, 16, 1)).round(1).astype(np.float32)  # some values lie at the border
    labels, order = np.argmax(model(images)["logits"], axis=1), draws.permutation(9)
    keras.utils.set_random_seed(0)
    with without_global_draws(name):
        attacked = attack(model, images, labels).numpy()
    expect(attacked.dtype == np.float32, f"float32 images from {name}", attacked.dtype)
    inside = np.isfinite(attacked).all() and attacked.min() >= 0 and attacked.max() <= 1
    expect(inside, f"images in [0, 1] from {name}", f"{attacked.min()} to {attacked.max()}")
    expect(np.abs(attacked - images).max() > 1e-3, f"images that {name} changes", "unchanged images")
    if has_radius:
        size = norms.norm(getattr(attack.norm, "name", attack.norm)).size(attacked - images).numpy().max()
        expect(size <= attack.radius * (1 + 1e-5), f"perturbations of {name} within the radius {attack.radius}", f"size {size}")
        expect(size > 0.9 * attack.radius, f"perturbations of {name} that use the radius {attack.radius}", f"at most size {size}")
    keras.utils.set_random_seed(1)
    permuted = attack(model, images[order], labels[order], indices=order).numpy()
    difference = np.abs(permuted - attacked[order]).max()
    expect(difference <= 1e-4, f"images from {name} that depend on seed and index alone, in any order", f"a difference of {difference}")
    before, after = (np.mean(losses.cross_entropy(labels, model(x)["logits"])) for x in (images, attacked))
    expect(after > before, f"a loss that {name} raises", f"{before} before, {after} after")
    if random is not None:
        attack.seed += 1  # an argument of the graph: nothing is traced again
        difference = np.abs(attack(model, images, labels).numpy() - attacked).max()
        attack.seed -= 1
        expect((difference > 1e-4) == random, f"images from {name} that {'differ' if random else 'do not differ'} by seed", difference)
    return model, images, labels


def _check_goals(attack, model, images, labels, has_radius):
    """Checks misclassified images and target classes."""
    name, wrong = type(attack).__name__, (labels + 1) % 3
    unchanged = attack(model, images[:2], wrong[:2]).numpy()
    expect(np.array_equal(unchanged, images[:2]), f"misclassified images that {name} leaves as they are", "changed images")
    targeted = attack(model, images, labels, targets=wrong).numpy()
    before, after = (np.mean(losses.cross_entropy(wrong, model(x)["logits"])) for x in (images, targeted))
    lower = after < before if has_radius else after <= before  # one that minimizes the perturbation leaves an image where it fails
    expect(lower, f"a loss of the target classes that {name} lowers", f"{before} before, {after} after")
