"""Adversarial attacks on any differentiable classifier."""

from collections.abc import Callable

from tf_robust.attacks.attack import Attack
from tf_robust.attacks.auto_attack import AutoAttack
from tf_robust.attacks.auto_pgd import AutoProjectedGradientDescent, TargetedAutoPGD
from tf_robust.attacks.fast_adaptive_boundary import FastAdaptiveBoundary
from tf_robust.attacks.gradient import FastGradient, MinimalPGD, ProjectedGradientDescent
from tf_robust.attacks.proximal_log_barrier import ProximalLogBarrier
from tf_robust.attacks.square import Square
from tf_robust.utils import hyperparameters
from tf_robust.utils.errors import unknown

ATTACKS: dict[str, type[Attack]] = {
    "fgsm": FastGradient,
    "pgd": ProjectedGradientDescent,
    "pgd_distance": MinimalPGD,
    "auto_pgd": AutoProjectedGradientDescent,
    "auto_pgd_targeted": TargetedAutoPGD,
    "fab": FastAdaptiveBoundary,
    "square": Square,
    "autoattack": AutoAttack,
    "plb": ProximalLogBarrier,
}


def options(name: str) -> set[str]:
    """Returns the names of the keyword arguments of an attack.

    Raises:
        ValueError: there is no attack of this name.

    Examples:
        >>> sorted(tfr.attacks.options("fgsm"))
        ['batch_size', 'loss', 'norm', 'radius', 'restarts', 'seed', 'skip_misclassified']
    """
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    attack: Callable = ATTACKS[name]
    return {*hyperparameters.parameters(attack)} - ({"loss"} if attack in (FastAdaptiveBoundary, Square) else set())
