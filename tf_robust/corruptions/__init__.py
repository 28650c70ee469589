"""Reproducible corruptions of images: pure functions of (seed, index)."""

from tf_robust.corruptions.corruption import Corruption
from tf_robust.corruptions.noise_sets import (
    FLOOR,
    RATE,
    default_floor,
    location_std,
    nonuniform_noise,
    nonuniform_probabilities,
    uniform_noise,
)
from tf_robust.corruptions.sequences import SEQUENCES, perturb, sequence_names
from tf_robust.corruptions.suite import CORRUPTIONS, PROTOCOLS, corrupt, describe, store, user_code

__all__ = [
    "CORRUPTIONS",
    "Corruption",
    "SEQUENCES",
    "corrupt",
    "describe",
    "location_std",
    "nonuniform_noise",
    "nonuniform_probabilities",
    "perturb",
    "uniform_noise",
]
