"""Recipes of fine-tuning that a search tries, and the variations of a promising one."""

import dataclasses
import typing
from collections.abc import Mapping, Sequence

LEARNING_RATE = 0.02  # peak, at a batch of 64; the search lowers it for models that it harms
CONTROL = "plain fine-tuning"
_AUGMIX = ("clean", "augmix", "augmix")
_JSD: dict[str, typing.Any] = {"mixing": False, "noise": "none", "jsd_weight": 12.0}
_GAUSSIAN: dict[str, typing.Any] = {"weight": 0.5, "sigma": 0.1, "batch_norm": "joint"}

Settings = Mapping[str, typing.Any]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One recipe of fine-tuning with its settings; `variation` says how they differ from the recipe's first ones."""

    recipe: str
    method: str
    settings: Settings = dataclasses.field(default_factory=dict)  # hyperparameters of the method
    views: tuple[str, ...] = ("clean",)  # or `extra_corruptions`
    augmentations: tuple[str, ...] = ()  # before the views
    layers: str = "all"  # those that are trained: `all`, `first half` (of those with weights), or `all but batch norm`
    learning_rate: float = LEARNING_RATE  # peak of SGD with momentum 0.9 and cosine decay
    strengths: Mapping[str, Settings] = dataclasses.field(default_factory=dict)  # further settings to try, by name
    control: bool = False  # whether it is plain fine-tuning, for comparison
    variation: str = ""

    @property
    def name(self) -> str:
        return f"{self.recipe}, {self.variation}" if self.variation else self.recipe


def candidates(target: str, norm: str = "linf", radius: float = 4 / 255, values: int = 3072, skip: Sequence[str] = ()) -> list[Candidate]:
    """Returns the recipes for a target: the control first, then the most promising, without the methods `skip`.

    `norm` and `radius` are for the target adversarial; `values`: numbers in an image, of which FCL perturbs a twelfth, as in its paper.
    """
    recipes = _adversarial(norm, radius) if target == "adversarial" else _natural(values)
    if target == "noise":
        first = ("FCL", "NoisyMix", "Gaussian", "Patch Gaussian", "extra corruptions", "AugMix + extra corruptions + JSD")
        recipes = [recipe for name in first for recipe in recipes if recipe.recipe == name]
        stronger = {**_GAUSSIAN, "sigma": 0.3}
        recipes = [dataclasses.replace(recipe, settings=stronger) if recipe.recipe == "Gaussian" else recipe for recipe in recipes]
    control = Candidate(CONTROL, "cross_entropy", control=True)
    return [control, *(recipe for recipe in recipes if recipe.method not in skip)]


def _natural(values):
    jsd_weights = {"JSD weight 4": {"jsd_weight": 4.0}, "JSD weight 25": {"jsd_weight": 25.0}}
    return [
        Candidate("AugMix + JSD", "noisymix", _JSD, _AUGMIX, strengths=jsd_weights),
        Candidate("AugMix + extra corruptions + JSD", "noisymix", _JSD, ("clean", "augmix", "extra_corruptions"), strengths=jsd_weights),
        Candidate("NoisyMix", "noisymix", {"jsd_weight": 12.0}, _AUGMIX, strengths={"alpha 0.2": {"alpha": 0.2}}),
        Candidate("extra corruptions", "cross_entropy", {}, ("extra_corruptions",)),
        Candidate("Patch Gaussian", "cross_entropy", {}, ("patch_gaussian",)),
        Candidate("Gaussian", "gaussian", _GAUSSIAN, strengths={"sigma 0.2": {"sigma": 0.2}, "sigma 0.05": {"sigma": 0.05}}),
        Candidate(
            "FCL",
            "fcl",
            {"weight": 0.01, "k": max(1, values // 12)},
            strengths={"weight 0.03": {"weight": 0.03}, "weight 0.003": {"weight": 0.003}},
        ),
        Candidate("similarity to the initial model, AugMix", "similarity", {}, ("augmix",)),
        Candidate("input gradient", "input_gradient", {"weight": 0.1}, strengths={"weight 1": {"weight": 1.0}}),
    ]


def _adversarial(norm, radius):
    attack = {"norm": norm, "radius": radius, "steps": 5}
    weaker = {"half the radius": {"radius": radius / 2}}
    return [
        Candidate("adversarial training", "adversarial", attack, strengths=weaker),
        Candidate("TRADES", "trades", {**attack, "beta": 3.0}, strengths={"beta 1": {"beta": 1.0}, "beta 6": {"beta": 6.0}}),
        Candidate("input gradient", "input_gradient", {"weight": 1.0}, strengths={"weight 10": {"weight": 10.0}}),
    ]


def variations(candidate: Candidate, *, has_batch_norm: bool, has_layers: bool) -> list[Candidate]:
    """Returns a recipe with other learning rates, strengths, augmentations and sets of trained layers, one change in each."""

    def changed(variation, **fields):
        return dataclasses.replace(candidate, variation=variation, **fields)

    rate = candidate.learning_rate
    return [
        changed(f"learning rate {rate / 4:g}", learning_rate=rate / 4),
        changed("crop and flip", augmentations=("crop_flip",)),
        *(changed(name, settings={**candidate.settings, **settings}) for name, settings in candidate.strengths.items()),
        *([changed("batch norm frozen", layers="all but batch norm")] if has_batch_norm else []),
        *([changed("first half of the layers", layers="first half")] if has_layers else []),
        changed(f"learning rate {rate * 2.5:g}", learning_rate=rate * 2.5),
    ]
