"""Recipes of fine-tuning that a search tries, and the variations of a promising one."""

import dataclasses
import typing
from collections.abc import Collection, Mapping, Sequence

from tf_robust import metrics

LEARNING_RATE = 0.02  # peak, at a batch of 64; the search lowers it for models that it harms
_COSTS = {"fcl": 4, "gaussian": 2, "similarity": 2, "input_gradient": 2, "adversarial": 6, "trades": 7}  # of a step of a method
_AUGMIX = ("clean", "augmix", "augmix")
NOISES = {"noise", "noise_corruptions", *metrics.GROUPS["noise"]}  # parts of a target, the kind of images on which some recipes train
_JSD: dict[str, typing.Any] = {"mixing": False, "noise": "none", "jsd_weight": 12.0}

Settings = Mapping[str, typing.Any]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One recipe of fine-tuning with its settings."""

    recipe: str
    method: str
    settings: Settings = dataclasses.field(default_factory=dict)  # hyperparameters of the method
    views: tuple[str, ...] = ("clean",)  # or `extra_corruptions`, `noise`
    augmentations: tuple[str, ...] = ()  # before the views
    layers: str = "all"  # layers to train: `all`, `first half` (of those with weights), or `all but batch norm`
    learning_rate: float = LEARNING_RATE  # peak of SGD with momentum 0.9 and cosine decay
    strengths: Mapping[str, Settings] = dataclasses.field(default_factory=dict)  # further settings to try, by name
    control: bool = False  # whether it is plain fine-tuning, for comparison
    variation: str = ""  # difference to the recipe's first settings

    @property
    def name(self) -> str:
        return f"{self.recipe}, {self.variation}" if self.variation else self.recipe

    @property
    def cost(self) -> int:
        """Passes through the model in a step, about, relative to plain fine-tuning."""
        return _COSTS.get(self.method, len(self.views))

    @property
    def trains_on_noise(self) -> bool:
        """Whether it trains on images with noise; the extra corruptions have speckle noise."""
        noises = {"noise", "patch_gaussian", "extra_corruptions"}
        with_noise = self.method in ("gaussian", "fcl") or self.method == "noisymix" and self.settings.get("noise") != "none"
        return with_noise or not noises.isdisjoint(self.views)


def candidates(
    target: Collection[str], norm: str = "linf", radius: float = 4 / 255, values: int = 3072, skip: Sequence[str] = ()
) -> list[Candidate]:
    """Returns the recipes for the parts of a target: the control first, then the most promising, without the methods `skip`.

    `norm` and `radius` are for the target adversarial; `values`: numbers in an image, of which FCL perturbs a twelfth, as in its paper.
    """
    jsd = {"JSD weight 4": {"jsd_weight": 4.0}, "JSD weight 25": {"jsd_weight": 25.0}}
    sigma, sigmas = 0.3 if {*target} == {"noise"} else 0.1, {"sigma 0.2": {"sigma": 0.2}, "sigma 0.05": {"sigma": 0.05}}
    fcl = {"weight 0.03": {"weight": 0.03}, "weight 0.003": {"weight": 0.003}}
    attack, betas = {"norm": norm, "radius": radius, "steps": 5}, {"beta 1": {"beta": 1.0}, "beta 6": {"beta": 6.0}}
    recipes = [
        Candidate("AugMix + JSD", "noisymix", _JSD, _AUGMIX, strengths=jsd),
        Candidate("AugMix + extra corruptions + JSD", "noisymix", _JSD, ("clean", "augmix", "extra_corruptions"), strengths=jsd),
        Candidate("NoisyMix", "noisymix", {"jsd_weight": 12.0}, _AUGMIX, strengths={"alpha 0.2": {"alpha": 0.2}}),
        Candidate("extra corruptions", "cross_entropy", {}, ("extra_corruptions",)),
        Candidate("Patch Gaussian", "cross_entropy", {}, ("patch_gaussian",)),
        Candidate("Gaussian", "gaussian", {"weight": 0.5, "sigma": sigma, "batch_norm": "joint"}, strengths=sigmas),
        Candidate("FCL", "fcl", {"weight": 0.01, "k": max(1, values // 12)}, strengths=fcl),
        Candidate("similarity to the initial model, AugMix", "similarity", {}, ("augmix",)),
        Candidate("input gradient", "input_gradient", {"weight": 0.1}, strengths={"weight 1": {"weight": 1.0}}),
    ]
    noise = Candidate("noise of random strength", "cross_entropy", {}, ("noise",))
    if {*target} == {"noise"}:
        by_name = {recipe.recipe: recipe for recipe in recipes}
        order = ("FCL", "NoisyMix", "Gaussian", "Patch Gaussian", "extra corruptions", "AugMix + extra corruptions + JSD")
        recipes = [noise, *(by_name[name] for name in order)]
    elif not NOISES.isdisjoint(target):
        recipes = [noise, *recipes]
    if "adversarial" in target:
        recipes = [
            Candidate("adversarial training", "adversarial", attack, strengths={"half the radius": {"radius": radius / 2}}),
            Candidate("TRADES", "trades", {**attack, "beta": 3.0}, strengths=betas),
            Candidate("input gradient", "input_gradient", {"weight": 1.0}, strengths={"weight 10": {"weight": 10.0}}),
        ]
    control = Candidate("plain fine-tuning", "cross_entropy", control=True)
    return [control, *(recipe for recipe in recipes if recipe.method not in skip)]


def mixture_views(target: Collection[str]) -> tuple[str, ...]:
    """Returns the views of the images from which batch normalization's moving averages are estimated anew: unchanged and changed ones."""
    return ("clean", "augmix", *["noise"] * (not NOISES.isdisjoint(target)))


def variations(candidate: Candidate, *, has_batch_norm: bool, has_layers: bool) -> list[Candidate]:
    """Returns a recipe with other learning rates, strengths, augmentations and sets of trained layers, one change in each."""
    rate = candidate.learning_rate
    changes: dict[str, dict[str, typing.Any]] = {
        f"learning rate {rate / 4:g}": {"learning_rate": rate / 4},
        "crop and flip": {"augmentations": ("crop_flip",)},
        **{name: {"settings": {**candidate.settings, **settings}} for name, settings in candidate.strengths.items()},
        **({"batch norm frozen": {"layers": "all but batch norm"}} if has_batch_norm else {}),
        **({"first half of the layers": {"layers": "first half"}} if has_layers else {}),
        f"learning rate {rate * 2.5:g}": {"learning_rate": rate * 2.5},
    }
    return [dataclasses.replace(candidate, variation=name, **fields) for name, fields in changes.items()]
