"""Errors on corrupted images: the mean corruption error, and plain means over groups of corruptions.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", 2019.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from tf_robust.metrics import checks, references
from tf_robust.utils.errors import unknown

GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
SEVERITIES = (1, 2, 3, 4, 5)
BENCHMARK = tuple(name for names in GROUPS.values() for name in names)  # the 15, in the order of the papers' tables
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")  # made for validation; in no group
_BOTH_BARS = ("blue_noise_sample", "brownish_noise", "checkerboard_cutout", "inverse_sparkles", "sparkles")
BAR = {
    "cifar": (*_BOTH_BARS, "circular_motion_blur", "lines", "pinch_and_twirl", "ripple", "transverse_chromatic_aberration"),
    "imagenet": (
        *_BOTH_BARS,
        *("caustic_refraction", "concentric_sine_waves", "perlin_noise", "plasma_noise", "single_frequency_grayscale"),
    ),
}  # the ten of CIFAR-10-C-bar and of ImageNet-C-bar (Mintun et al., 2021); in none of the means below
MEANS = {
    "mean15": BENCHMARK,
    "mean19": BENCHMARK + EXTRA,
    "mean_without_noise": tuple(name for name in BENCHMARK if name not in GROUPS["noise"]),
    "mean16": BENCHMARK + ("speckle_noise",),
    **GROUPS,
}
_ALTERNATIVE = "the mean error over the 15 corruptions (`corruption_means(errors)['mean15']`)"


BySeverity = Mapping[str, Sequence[float]]  # {corruption: [5]}


def mean_corruption_error(errors: BySeverity, reference: references.Reference = "alexnet") -> float:
    """Returns the mCE: the mean over the 15 corruptions of the error over the reference's, each a mean over severities.

    Args:
        errors: {corruption: [5]}, top-1 errors by severity, fractions; exactly the corruptions of `BENCHMARK`.
        reference: the network to divide by, measured on ImageNet-C at 224 pixels: "alexnet", or your own table
            {"errors": {corruption: [5]}, "source", "verified"}. CIFAR-C and Tiny ImageNet-C have none.

    Returns:
        float, percent of the reference's errors; lower is better.

    Raises:
        ValueError: missing or additional corruptions, not 5 severities, values outside [0, 1], an unknown
            reference, no reference.

    Examples:
        >>> errors = {name: [0.5] * 5 for name in tfr.metrics.BENCHMARK}
        >>> round(tfr.metrics.mean_corruption_error(errors), 1)
        64.7
    """
    table = references.resolve(reference, "imagenet_c", "errors", _ALTERNATIVE)
    return fmean(references.divide(_of_the_15(errors, "errors"), _reference_errors(table)).values())


def relative_mean_corruption_error(errors: BySeverity, clean_error: float, reference: references.Reference = "alexnet") -> float:
    """Returns the relative mCE: `mean_corruption_error` of the *increase* over the error on clean images.

    Args:
        errors: as in `mean_corruption_error`.
        clean_error: the model's top-1 error on clean images, a fraction.
        reference: as in `mean_corruption_error`; your own table also has `clean_error`.

    Returns:
        float, percent of the reference's increase; lower is better, negative if corruptions help.

    Raises:
        ValueError: as in `mean_corruption_error`; a clean error outside [0, 1].

    Examples:
        >>> errors = {name: [0.5] * 5 for name in tfr.metrics.BENCHMARK}
        >>> round(tfr.metrics.relative_mean_corruption_error(errors, clean_error=0.25), 1)
        81.4
    """
    table = references.resolve(reference, "imagenet_c", "errors", _ALTERNATIVE)
    if "clean_error" not in table:
        raise ValueError(f"Expected a reference table with clean_error. Received: {sorted(table)}")
    increases = _minus(_of_the_15(errors, "errors"), clean_error)
    return fmean(references.divide(increases, _minus(_reference_errors(table), table["clean_error"])).values())


def corruption_means(accuracies: BySeverity) -> dict[str, float]:
    """Returns means over sets of corruptions, every corruption with the same weight.

    Args:
        accuracies: {corruption: [5]}, by severity, fractions (or errors); names of `BENCHMARK` and `EXTRA`.

    Returns:
        {name: mean}, of the sets whose corruptions are all present: `mean15`, `mean19` (with the extras),
        `mean_without_noise` (12 of the 15), `mean16` (15 and speckle noise), and the four `GROUPS`.

    Raises:
        ValueError: no corruption or an unknown one, not 5 severities, values outside [0, 1].

    Examples:
        >>> means = tfr.metrics.corruption_means({name: [0.9, 0.8, 0.7, 0.6, 0.5] for name in tfr.metrics.GROUPS["noise"]})
        >>> {name: round(mean, 3) for name, mean in means.items()}
        {'noise': 0.7}
    """
    if not accuracies:
        raise ValueError("Expected accuracies of at least one corruption. Received: none")
    for name in accuracies:
        if name not in BENCHMARK + EXTRA:
            raise unknown("corruption", str(name), BENCHMARK + EXTRA)
    means = _over_severities(accuracies, "accuracies")
    return {name: fmean(means[member] for member in members) for name, members in MEANS.items() if means.keys() >= set(members)}


def _of_the_15(errors: BySeverity, name: str) -> dict[str, float]:
    checks.exactly(errors, BENCHMARK, name)
    return _over_severities(errors, name)


def _reference_errors(table: dict) -> dict[str, float]:
    """The reference's errors on the 15 corruptions, without those on further ones."""
    return _of_the_15({name: row for name, row in table["errors"].items() if name not in EXTRA}, "reference errors")


def _over_severities(values: BySeverity, kind: str) -> dict[str, float]:
    """Returns {corruption: mean over severities}."""
    for name, row in values.items():
        if np.shape(row) != (len(SEVERITIES),):
            raise ValueError(f"Expected {kind} of {name!r} for {len(SEVERITIES)} severities. Received shape: {np.shape(row)}")
    return {name: float(checks.fractions(row, f"{kind} of {name!r}").mean()) for name, row in values.items()}


def _minus(errors: Mapping[str, float], clean_error: float) -> dict[str, float]:
    clean = float(checks.fractions(clean_error, "clean_error"))
    return {name: error - clean for name, error in errors.items()}
