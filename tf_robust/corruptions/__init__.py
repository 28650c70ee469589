"""What makes a picture worse, reproducibly: a pure function of (seed, index)."""

from tf_robust.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from tf_robust.corruptions.noise_sets import (RATE, location_deviation, nonuniform_noise, nonuniform_probabilities,
                                              uniform_noise)
