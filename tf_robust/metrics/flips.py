"""Flip probabilities: how often a prediction changes over a sequence of small perturbations of one image.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", 2019; the
formulas are also in section 4.1 of the NoisyMix paper. Rates divide by AlexNet's flip probabilities, which the authors
give in a spreadsheet only: the result of `mean_flip_rate` states whether the table in use was verified.
"""

from collections.abc import Collection, Mapping
from statistics import fmean
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike

from tf_robust.metrics import checks, references
from tf_robust.utils.errors import unknown

PERTURBATIONS = (
    "gaussian_noise",
    "shot_noise",
    "motion_blur",
    "zoom_blur",
    "snow",
    "brightness",
    "translate",
    "rotate",
    "tilt",
    "scale",
)  # the ten of ImageNet-P
CIFAR_PERTURBATIONS = tuple("spatter" if name == "snow" else name for name in PERTURBATIONS)  # of the CIFAR-P script
_ALTERNATIVE = "the mean flip probability (`mean_flip_probability`)"


class MeanFlipRate(TypedDict):
    """A mean flip rate.

    Attributes:
        mean: percent, over the ten perturbations.
        mean_without_noise: percent, over the eight that are not noise.
        rates: {perturbation: percent}.
        verified: whether the reference's numbers were compared with their source.
        source: of the reference's numbers.
        label: "mFR", with a reservation if they were not verified.
    """

    mean: float
    mean_without_noise: float
    rates: dict[str, float]
    verified: bool
    source: str
    label: str


def flip_probability(predictions: ArrayLike, noise: bool = False, stride: int = 1) -> float:
    """Returns the fraction of frames whose predicted class differs from that of an earlier frame.

    Args:
        predictions: int [sequences, frames], the class of each frame. All sequences of a set have the same length.
        noise: compare with the first frame, the clean one, since the frames of noise sequences are independent of each other.
            Otherwise compare with the frame `stride` before.
        stride: the difficulty, >= 1. Harder noise sequences are separate sets, so with noise only 1.

    Returns:
        float in [0, 1], lower is better.

    Raises:
        ValueError: not integers, not [sequences, frames], no more frames than the stride, a stride with noise.

    Examples:
        >>> predictions = [[3, 3, 5, 5], [7, 7, 7, 7]]  # two sequences of four frames
        >>> round(tfr.metrics.flip_probability(predictions), 3)
        0.167
        >>> round(tfr.metrics.flip_probability(predictions, noise=True), 3)
        0.333
    """
    predictions, stride = np.asarray(predictions), checks.positive_integer(stride, "stride")
    if predictions.ndim != 2 or not len(predictions) or predictions.shape[1] <= stride:
        raise ValueError(f"Expected predictions [sequences, frames], frames > stride = {stride}. Received shape: {predictions.shape}")
    if not np.issubdtype(predictions.dtype, np.integer):
        raise ValueError(f"Expected int predictions, classes and not scores. Received dtype: {predictions.dtype}")
    if noise and stride != 1:
        raise ValueError(f"Expected stride=1 with noise=True. Received: {stride}")
    earlier = predictions[:, :1] if noise else predictions[:, :-stride]
    return float((predictions[:, stride:] != earlier).mean())


def flip_rate(probability: float, name: str, reference: references.Reference = "alexnet") -> float:
    """Returns a flip probability divided by the reference's for the same perturbation.

    Args:
        probability: in [0, 1].
        name: of the perturbation.
        reference: as in `mean_flip_rate`.

    Returns:
        float, percent of the reference's; lower is better.

    Raises:
        ValueError: a value outside [0, 1]; an unknown perturbation or reference; no reference.

    Examples:
        >>> round(tfr.metrics.flip_rate(0.03, "brightness"), 1)
        61.3
    """
    known = _probabilities(_reference(reference)["flip_probabilities"])
    if name not in known:
        raise unknown("perturbation of the reference", str(name), known)
    return references.divide(_probabilities({name: probability}), known)[name]


def mean_flip_probability(probabilities: Mapping[str, float], names: Collection[str] | None = None) -> float:
    """Returns the mFP: the mean of flip probabilities, not divided by a reference network's.

    Args:
        probabilities: {perturbation: p in [0, 1]}.
        names: exactly the expected perturbations; report them with the mean. None: `PERTURBATIONS` (ImageNet-P), or
            `CIFAR_PERTURBATIONS` (spatter instead of snow).

    Returns:
        float in [0, 1], lower is better.

    Raises:
        ValueError: other perturbations than those, values outside [0, 1].

    Examples:
        >>> probabilities = {name: 0.06 if "noise" in name else 0.01 for name in tfr.metrics.PERTURBATIONS}
        >>> round(tfr.metrics.mean_flip_probability(probabilities), 3)
        0.02
    """
    if names is None:
        names = CIFAR_PERTURBATIONS if "spatter" in probabilities else PERTURBATIONS
    checks.exactly(probabilities, names, "flip probabilities")
    return fmean(_probabilities(probabilities).values())


def mean_flip_rate(probabilities: Mapping[str, float], reference: references.Reference = "alexnet") -> MeanFlipRate:
    """Returns the mFR: the mean of flip rates over the ten perturbations of ImageNet-P, and the source of the reference.

    Args:
        probabilities: {perturbation: p in [0, 1]}, exactly `PERTURBATIONS`, difficulty 1.
        reference: the network to divide by: "alexnet", or your own table
            {"flip_probabilities": {perturbation: p}, "source", "verified"}. CIFAR-P has none.

    Raises:
        ValueError: missing or additional perturbations, values outside [0, 1], an unknown reference, no
            reference.

    Examples:
        >>> rate = tfr.metrics.mean_flip_rate({name: 0.05 for name in tfr.metrics.PERTURBATIONS})
        >>> round(rate["mean"], 1), rate["label"]
        (49.6, 'mFR (by an unverified reference table)')
    """
    table = _reference(reference)
    checks.exactly(probabilities, PERTURBATIONS, "flip probabilities")
    known = _probabilities(table["flip_probabilities"])
    if missing := set(PERTURBATIONS) - known.keys():
        raise ValueError(f"Expected reference flip probabilities of {', '.join(PERTURBATIONS)}. Missing: {sorted(missing)}")
    rates = references.divide(_probabilities(probabilities), known)
    return {
        "mean": fmean(rates.values()),
        "mean_without_noise": fmean(rate for name, rate in rates.items() if not name.endswith("_noise")),
        "rates": rates,
        "verified": table["verified"] is True,
        "source": table["source"],
        "label": "mFR" if table["verified"] is True else "mFR (by an unverified reference table)",
    }


def _reference(reference: references.Reference) -> dict:
    return references.resolve(reference, "imagenet_p", "flip_probabilities", _ALTERNATIVE)


def _probabilities(probabilities: Mapping[str, float]) -> dict[str, float]:
    for name, probability in probabilities.items():
        if np.ndim(probability):
            raise ValueError(f"Expected one flip probability of {name!r}. Received shape: {np.shape(probability)}")
    return {name: float(checks.fractions(p, f"flip probability of {name!r}")) for name, p in probabilities.items()}
