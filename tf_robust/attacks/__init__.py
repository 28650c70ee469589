"""Adversarial attacks on any differentiable classifier."""

from tf_robust.attacks.attack import Attack
from tf_robust.attacks.auto_pgd import AutoProjectedGradientDescent
from tf_robust.attacks.ensemble import Ensemble
from tf_robust.attacks.gradient import FastGradient, MinimalPGD, ProjectedGradientDescent
from tf_robust.attacks.proximal_log_barrier import ProximalLogBarrier
from tf_robust.attacks.square import Square
from tf_robust.utils.deprecation import moved_names

__getattr__ = moved_names(__name__, {"BisectedDescent": "attacks.MinimalPGD"})

ATTACKS: dict[str, type[Attack]] = {
    "fast_gradient": FastGradient,
    "pgd": ProjectedGradientDescent,
    "pgd_distance": MinimalPGD,
    "auto_pgd": AutoProjectedGradientDescent,
    "square": Square,
    "ensemble": Ensemble,
    "plb": ProximalLogBarrier,
}
