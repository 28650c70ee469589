"""Configuration of hardening; the flags of the command line are derived from it."""

import dataclasses
import fractions
import os
import re
import sys
import typing

from tf_robust.utils.errors import unknown
from tf_robust.utils.hyperparameters import seconds_of

GROUPS = ("noise", "blur", "weather", "digital")
SHIFT = "shift="  # before the name of data: the target is accuracy on these images
TARGETS = ("corruptions", *(f"{group}_corruptions" for group in GROUPS), "noise", "adversarial")
MIN_WEIGHT, MAX_WEIGHT = 0.01, 20
EVALUATIONS = ("clean", "noise", "corruptions", "corruptions_bar", "calibration")  # of the final evaluation, by default


class Budget(typing.NamedTuple):
    """Length of hardening: seconds, or training steps of its search, with which it is reproducible."""

    amount: float
    in_steps: bool


def parse_budget(text: str) -> Budget:
    """Returns the budget of a text such as 90s, 30m, 1.5h or 2000steps; raises ValueError for any other text."""
    steps = re.fullmatch(r"(\d+(?:\.\d+)?)\s*steps", text.strip())
    if steps and float(steps[1]):
        return Budget(float(steps[1]), True)
    try:
        return Budget(seconds_of(text), False)
    except ValueError:
        raise ValueError(f"Expected a budget as a time (90s, 30m, 2h) or as training steps (2000steps). Received: {text!r}") from None


@dataclasses.dataclass(frozen=True)
class HardenConfig:
    """Configuration of hardening.

    Args:
        target: what to improve: corruptions (mean accuracy over 15 corruptions), one group of them (noise_corruptions,
            blur_corruptions, weather_corruptions, digital_corruptions), noise (uniform and non-uniform), or the name of a corruption;
            several of these, and weights, as in noise,fog:2. Each corruption has the severity at which the initial model is nearest to
            halfway between its clean accuracy and chance. Or adversarial (PGD), or shift=DATA, accuracy on images of the same classes
            under new conditions: a folder (shift=night or shift=folder:night) or any other name of data. Half of them are for
            validation, half for the final evaluation.
        adapt: also train on the images of target=shift=DATA: a third for training, for validation and for the final evaluation each.
        max_clean_loss: maximum loss of accuracy on unchanged validation images, as a fraction.
        max_class_loss: maximum loss of accuracy of any class, and with groups of any group, on unchanged validation images, as a fraction;
            1: no limit.
        budget: time for everything (90s, 30m, 2h), from reading the data to the report, or training steps of the search (2000steps).
        attack_norm: norm of the perturbations for the target adversarial, `linf` or `l2`.
        attack_radius: radius of the perturbations for the target adversarial, on the [0, 1] pixel scale; the default is 4/255.
        require_recipe: whether a recipe must do better than plain fine-tuning; if none does, the exit code is 1.
        state_dict: file of the PyTorch weights (torch.save of a state_dict, TorchScript or .pt2) from which an ONNX file was exported; the
            hardened ones are written too.
    """

    target: str = "corruptions"
    adapt: bool = False
    max_clean_loss: float = 0.01
    max_class_loss: float = 1.0
    budget: str = "30m"
    attack_norm: str = "linf"
    attack_radius: float = 4 / 255
    require_recipe: bool = False
    state_dict: str = ""

    def __post_init__(self):
        self.weights  # noqa: B018, raises for an unknown name
        if self.adapt and not self.shift:
            raise ValueError(f"Expected target=shift=DATA with adapt, images to train on. Received: target={self.target}")
        for name in ("max_clean_loss", "max_class_loss"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Expected {name} in [0, 1]. Received: {getattr(self, name)}")
        parse_budget(self.budget)
        if self.state_dict and not os.path.isfile(self.state_dict):
            raise ValueError(f"Expected a file of weights, of torch.save(module.state_dict(), FILE). Not found: {self.state_dict}")

    @property
    def shift(self) -> str:
        """Name of the data with images under new conditions, if they are the target; empty otherwise."""
        return self.target.removeprefix(SHIFT) if self.target.startswith(SHIFT) else ""

    @property
    def weights(self) -> dict[str, fractions.Fraction]:
        """{group of corruptions, noise, or corruption: weight} of the target; empty for adversarial and a shift."""
        if self.shift or self.target == "adversarial":
            return {}
        weights: dict[str, fractions.Fraction] = {}
        for text in self.target.split(","):
            name, _, weight = text.strip().partition(":")
            if name in weights or name == "adversarial" or len(text) > len(SHIFT) and text.startswith(SHIFT):
                raise ValueError(f"Expected each name once in a target, and adversarial and {SHIFT}DATA alone. Received: {self.target}")
            if name not in TARGETS:
                _check_corruption(name)
            weights[name] = _weight(weight or "1")
        return weights


def _check_corruption(name):
    """Raises ValueError if a target may not have this name. TensorFlow is not imported: of a plug-in, which did, its corruptions count."""
    from tf_robust.metrics.corruption_error import BAR, BENCHMARK, EXTRA

    if name in EXTRA:
        raise ValueError(f"Expected a target on which no recipe trains. Received: {name}, one of the extra corruptions")
    imported = sys.modules.get("tf_robust.corruptions")
    known = imported.CORRUPTIONS if imported else (*BENCHMARK, *(one for names in BAR.values() for one in names))
    if name not in known:
        raise unknown("target", name, {*TARGETS, f"{SHIFT}DATA", *known} - {*EXTRA})


def _weight(text):
    """A positive number as a fraction with a small denominator."""
    number = float(text) if re.fullmatch(r"\d*\.?\d+", text) else 0.0
    if not MIN_WEIGHT <= number <= MAX_WEIGHT:
        raise ValueError(f"Expected weights from {MIN_WEIGHT} to {MAX_WEIGHT} in a target, as in fog:2. Received: {text!r}")
    return fractions.Fraction(number).limit_denominator(100)


def evaluations_of(target: str) -> tuple[str, ...]:
    """Returns the evaluations that give the metrics of a target, which may be misspelled; none for a shift."""
    names = () if target.startswith(SHIFT) else [one.strip().partition(":")[0] for one in target.split(",")]
    return tuple(dict.fromkeys(name if name in ("noise", "adversarial") else "corruptions" for name in names))
