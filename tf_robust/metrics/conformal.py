"""Split conformal prediction sets: adaptive prediction sets (APS; Romano et al., "Classification with Valid and Adaptive Coverage", 2020).

A set contains the classes in decreasing order of probability until a threshold is reached; the last one is in with some probability, which
makes the coverage exact. The threshold is a quantile of the scores of validation data. For data from the same distribution a set contains
the label with at least the wanted probability, over draws of validation and test data; for others, such as corrupted images, it may not.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from tf_robust.metrics import checks


def aps_scores(probabilities: ArrayLike, uniforms: ArrayLike) -> np.ndarray:
    """Returns the score of every class: the probability of all that are more probable, and a random fraction of its own.

    Args:
        probabilities: [N, C] in [0, 1].
        uniforms: [N] in [0, 1), independent draws; those of an example are the same for all classes.

    Returns:
        float64 [N, C] in [0, 1]; classes of equal probability are ordered by number.

    Examples:
        >>> tfr.metrics.aps_scores([[0.7, 0.2, 0.1]], uniforms=[0.5])
        array([[0.35, 0.8 , 0.95]])
    """
    probabilities = checks.fractions(probabilities, "probabilities")
    order = np.argsort(-probabilities, axis=1, kind="stable")
    descending = np.take_along_axis(probabilities, order, axis=1)
    scores = np.cumsum(descending, axis=1) - descending * (1 - np.asarray(uniforms, np.float64)[:, None])
    result = np.empty_like(scores)
    np.put_along_axis(result, order, scores, axis=1)
    return result


def conformal_quantile(scores: ArrayLike, coverage: float) -> float:
    """Returns the ceil((N + 1) coverage)-th smallest score of the labels: the threshold of conformal sets.

    Args:
        scores: [N], of the labels of validation data.
        coverage: wanted, in (0, 1).

    Raises:
        ValueError: fewer scores than the coverage needs; the message has the number.

    Examples:
        >>> tfr.metrics.conformal_quantile(np.arange(1, 100) / 100, coverage=0.9)
        0.9
    """
    scores = np.asarray(scores, np.float64)
    if not 0 < coverage < 1:
        raise ValueError(f"Expected coverage in (0, 1). Received: {coverage}")
    needed = math.ceil(coverage / (1 - coverage) - 1e-9)
    if len(scores) < needed:
        raise ValueError(
            f"Expected at least {needed} validation images for sets with a coverage of {coverage:g}. Received: {len(scores)}. "
            "Try: a lower coverage, or more validation images"
        )
    rank = min(math.ceil((len(scores) + 1) * coverage - 1e-9), len(scores))
    return float(np.sort(scores)[rank - 1])
