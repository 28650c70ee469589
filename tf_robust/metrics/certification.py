"""Certificates of randomized smoothing (Cohen et al., 2019): the smoothed classifier returns the most frequent class under Gaussian noise.

If a class has at least the probability p > 1/2 under noise of standard deviation sigma, no change of the image smaller than
sigma Phi^-1(p) in l2 changes the smoothed classifier's decision (Theorem 1). Radii have the unit of sigma.
"""

import math

import numpy as np
import numpy.typing as npt
import scipy.special


def lower_bound(hits: npt.ArrayLike, samples: int, alpha: float) -> np.ndarray:
    """Returns the lower Clopper-Pearson bounds of probabilities, float64 [N], each one-sided with confidence 1 - alpha.

    Args:
        hits: int [N], number of samples in which the event occurred.
        samples: number of samples of each.
        alpha: probability that a bound is too high, in (0, 1).
    """
    hits = np.asarray(hits, np.float64)
    return np.where(hits > 0, scipy.special.betaincinv(np.maximum(hits, 1), samples - hits + 1, alpha), 0.0)


def certified_radii(hits: npt.ArrayLike, samples: int, sigma: float, alpha: float) -> np.ndarray:
    """Returns certified l2 radii, float64 [N]; NaN where the classifier abstains (CERTIFY of Cohen et al., 2019).

    Args:
        hits: int [N], number of noisy copies that were assigned to the class that was selected on other copies.
        samples: number of noisy copies of each image.
        sigma: standard deviation of the noise, > 0.
        alpha: probability that a certificate is wrong, for each image.
    """
    bounds = lower_bound(hits, samples, alpha)
    return np.where(bounds > 0.5, sigma * scipy.special.ndtri(np.maximum(bounds, 0.5)), np.nan)


def largest_radius(samples: int, sigma: float, alpha: float) -> float:
    """Returns the radius that is certified if all samples agree; NaN if even then the classifier abstains. See `certified_radii`."""
    return float(certified_radii([samples], samples, sigma, alpha)[0])


def samples_needed(radius: float, sigma: float, alpha: float) -> float:
    """Returns the smallest number of samples with which `radius` can be certified: alpha^(1/n) >= Phi(radius / sigma).

    Args:
        radius: l2, >= 0; beyond about 8 sigma the number is infinite in floating point.
        sigma: standard deviation of the noise.
        alpha: probability that a certificate is wrong.
    """
    log_probability = float(scipy.special.log_ndtr(radius / sigma))
    needed = math.log(alpha) / log_probability if log_probability else math.inf
    return math.ceil(needed) if math.isfinite(needed) else math.inf
