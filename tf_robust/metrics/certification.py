"""Certificates of randomized smoothing (Cohen et al., 2019): the smoothed classifier returns the most frequent class under Gaussian noise.

If a class has at least the probability p > 1/2 under noise of standard deviation sigma, no change of the image smaller than
sigma Phi^-1(p) in l2 changes the smoothed classifier's decision (Theorem 1). Radii have the unit of sigma.
"""

import math

import numpy as np
import numpy.typing as npt
import scipy.special

from tf_robust.metrics.intervals import clopper_pearson_lower


def certified_radii(hits: npt.ArrayLike, samples: int, sigma: float, alpha: float) -> np.ndarray:
    """Returns certified l2 radii, float64 [N]; NaN where the classifier abstains (CERTIFY of Cohen et al., 2019).

    Args:
        hits: int [N], number of noisy copies that were assigned to the class that was selected on other copies.
        samples: number of noisy copies of each image.
        sigma: standard deviation of the noise, > 0.
        alpha: probability that a certificate is wrong, for each image.

    Examples:
        >>> tfr.metrics.certified_radii([1000, 900, 500], samples=1000, sigma=0.25, alpha=0.001).round(3)
        array([0.616, 0.279,   nan])
    """
    bounds = clopper_pearson_lower(hits, samples, 1 - alpha)
    return np.where(bounds > 0.5, sigma * scipy.special.ndtri(np.maximum(bounds, 0.5)), np.nan)


def largest_radius(samples: int, sigma: float, alpha: float) -> float:
    """Returns the radius that is certified if all samples agree; NaN if even then the classifier abstains. See `certified_radii`.

    Examples:
        >>> round(tfr.metrics.largest_radius(samples=1000, sigma=0.25, alpha=0.001), 3)
        0.616
    """
    return float(certified_radii([samples], samples, sigma, alpha)[0])


def samples_needed(radius: float, sigma: float, alpha: float) -> float:
    """Returns the smallest number of samples with which `radius` can be certified: alpha^(1/n) >= Phi(radius / sigma).

    Args:
        radius: l2, >= 0; beyond about 8 sigma the number is infinite in floating point.
        sigma: standard deviation of the noise.
        alpha: probability that a certificate is wrong.

    Examples:
        >>> tfr.metrics.samples_needed(radius=0.5, sigma=0.25, alpha=0.001)
        301
        >>> tfr.metrics.samples_needed(radius=1.0, sigma=0.25, alpha=0.001)
        218105
    """
    log_probability = float(scipy.special.log_ndtr(radius / sigma))
    needed = math.log(alpha) / log_probability if log_probability else math.inf
    return math.ceil(needed) if math.isfinite(needed) else math.inf
