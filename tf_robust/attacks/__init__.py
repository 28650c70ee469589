"""Pictures that a classifier gets wrong, made from those it gets right: attacks on any differentiable classifier."""

from tf_robust.attacks.gradient import BisectedDescent, FastGradient, ProjectedGradientDescent

ATTACKS = {"fast_gradient": FastGradient, "pgd": ProjectedGradientDescent,
           "pgd_distance": BisectedDescent}
