"""Recipes of fine-tuning that a search tries, each with a few learning rates."""

import dataclasses
import typing
from collections.abc import Mapping, Sequence

from tf_robust import corruptions
from tf_robust.data.augment import VIEWS
from tf_robust.data.pipeline import Augmentation
from tf_robust.layers.augmentations import RandomCorruption

LEARNING_RATES = (0.02, 0.005)
EXTRA = tuple(corruption.name for corruption in corruptions.EXTRA)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One recipe of fine-tuning.

    Attributes:
        name: for tables.
        method: name of a training method.
        hyperparameters: of the method.
        views: names of views, or `extra_corruptions`.
        learning_rate: peak learning rate of SGD with momentum 0.9, cosine decay; 0: batch norm's moving averages are re-estimated on the
            first view, and no weight is trained.
        control: plain fine-tuning, for comparison.
    """

    name: str
    method: str
    hyperparameters: Mapping[str, typing.Any] = dataclasses.field(default_factory=dict)
    views: tuple[str, ...] = ("clean",)
    learning_rate: float = LEARNING_RATES[0]
    control: bool = False


_AUGMIX = ("clean", "augmix", "augmix")
_AUGMIX_JSD = {"mixing": False, "noise": "none", "jsd_weight": 12.0}
_RECIPES: dict[str, tuple[str, dict, tuple[str, ...]]] = {
    "AugMix + JSD": ("noisymix", _AUGMIX_JSD, _AUGMIX),
    "NoisyMix": ("noisymix", {"jsd_weight": 12.0}, _AUGMIX),
    "Patch Gaussian": ("cross_entropy", {}, ("patch_gaussian",)),
    "extra corruptions": ("cross_entropy", {}, ("extra_corruptions",)),
    "Gaussian": ("gaussian", {"weight": 0.5, "batch_norm": "joint"}, ("clean",)),
    "FCL": ("fcl", {"weight": 0.01}, ("clean",)),
    "similarity to the start": ("similarity", {}, ("augmix",)),
    "input gradient": ("input_gradient", {"weight": 0.1}, ("clean",)),
}
CONTROL = "plain fine-tuning"


def candidates(target: str, *, norm: str = "linf", radius: float = 4 / 255, skip: Sequence[str] = ()) -> list[Candidate]:
    """Returns the candidates for a target, the most promising first; each recipe with its first learning rate comes before any second one.

    Args:
        target: one of `hardening.target.TARGETS`.
        norm: of the ball, for the target adversarial.
        radius: of the ball, for the target adversarial.
        skip: names of methods that the model does not suit.
    """
    ball = {"norm": norm, "radius": radius}
    attacked = {
        "adversarial training": ("adversarial", {**ball, "steps": 5}, ("clean",)),
        "TRADES": ("trades", {**ball, "steps": 5, "beta": 3.0}, ("clean",)),
        "input gradient": _RECIPES["input gradient"],
    }
    noisy = ("NoisyMix", "Gaussian", "Patch Gaussian", "FCL", "AugMix + JSD", "extra corruptions")
    recipes = {"adversarial": attacked, "noise": {name: _RECIPES[name] for name in noisy}}.get(target, _RECIPES)
    tried = [
        Candidate(f"{name}, rate {rate:g}", method, hyperparameters, views, rate)
        for rate in LEARNING_RATES
        for name, (method, hyperparameters, views) in recipes.items()
        if method not in skip
    ]
    control = Candidate(CONTROL, "cross_entropy", learning_rate=LEARNING_RATES[0], control=True)
    estimated = Candidate("batch norm re-estimated on AugMix images", "cross_entropy", views=("augmix",), learning_rate=0.0)
    return [control, estimated, *tried]


def view_functions(names: Sequence[str]) -> list[Augmentation]:
    """Returns the functions (images, seed) -> images of views by name."""
    return [RandomCorruption(EXTRA).augment if name == "extra_corruptions" else VIEWS[name] for name in names]
