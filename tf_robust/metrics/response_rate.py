"""Accuracy of a model that may abstain, over the fraction of examples that it answers, the most confident first."""

import numpy as np
from numpy.typing import ArrayLike

from tf_robust.metrics import checks


def response_rate_curve(confidences: ArrayLike, correct: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns the accuracy among the k most confident examples, for k = 1..N.

    Examples of equal confidence have no order, so the curve is the mean over all their orders: each of them counts
    with the accuracy among them. It does not depend on the order of the examples.

    Args:
        confidences: [N] in [0, 1].
        correct: bool [N], or 0 and 1.

    Returns:
        (response rates k / N [N], accuracies [N])
    """
    confidences, correct = checks.outcomes(confidences, correct)
    _, group, sizes = np.unique(-confidences, return_inverse=True, return_counts=True)  # the most confident first
    fractions = np.bincount(group, weights=correct) / sizes
    answered = np.arange(1, len(correct) + 1)
    return answered / len(correct), np.cumsum(np.repeat(fractions, sizes)) / answered


def aurra(confidences: ArrayLike, correct: ArrayLike) -> float:
    """Returns the area under the response rate accuracy curve: the mean of its N accuracies.

    Hendrycks et al., "Natural Adversarial Examples", 2021; Table 11 of the NoisyMix paper. 1 - AURRA is known as AURC.

    Args:
        confidences: [N] in [0, 1].
        correct: bool [N], or 0 and 1.

    Returns:
        float in [0, 1], higher is better.
    """
    return float(response_rate_curve(confidences, correct)[1].mean())
