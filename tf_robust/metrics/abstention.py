"""A threshold of confidence below which a model abstains, such that the accuracy on what it answers is at least a wanted one.

The threshold is chosen by split fixed-sequence testing (Angelopoulos et al., "Learn then Test", 2021; fixed sequences: Bauer, 1991).
One part of the validation data proposes thresholds and the first one to test. The other part tests them in decreasing order, each by an
exact binomial test at the full level, until one fails: the probability that the chosen threshold has a lower accuracy than wanted is then
at most 1 - confidence, over draws of the validation data, however many thresholds are tested and whatever the model. It holds for data from
the same distribution, so for clean images alone.
"""

import dataclasses
import math

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from tf_robust.metrics import checks
from tf_robust.metrics.intervals import clopper_pearson_lower

CONFIDENCE = 0.95
_PROPOSED = 200  # thresholds


@dataclasses.dataclass(frozen=True)
class Threshold:
    """A threshold with a guaranteed accuracy.

    Attributes:
        value: predictions with confidences >= it are answered.
        answered: number of examples of the testing part that are answered.
        correct: number of these that are correct.
        low: lower Clopper-Pearson bound of the accuracy among the answered, at least the wanted accuracy.

    Examples:
        >>> threshold = tfr.metrics.Threshold(value=0.8, answered=100, correct=97, low=0.924)
        >>> threshold.correct / threshold.answered
        0.97
    """

    value: float
    answered: int
    correct: int
    low: float


def accuracy_threshold(
    proposing: tuple[ArrayLike, ArrayLike], testing: tuple[ArrayLike, ArrayLike], accuracy: float, confidence: float = CONFIDENCE
) -> Threshold:
    """Returns the lowest threshold that is certified to have a wanted accuracy among the answered examples.

    Args:
        proposing: (confidences [M] in [0, 1], correct [M]), which choose the sequence of thresholds.
        testing: (confidences [N], correct [N]), independent of the former and from the same distribution.
        accuracy: wanted, in (0, 1).
        confidence: with which it is met, in (0, 1).

    Raises:
        ValueError: fewer examples than are needed if all are correct (the message has the number), or no threshold reaches the
            accuracy (the message has the highest that is met).

    Examples:
        >>> confidences = np.linspace(0, 1, 200)
        >>> outcomes = confidences, confidences > 0.3  # correct if the confidence is above 0.3
        >>> threshold = tfr.metrics.accuracy_threshold(outcomes, outcomes, accuracy=0.9)
        >>> threshold.answered, threshold.correct, round(threshold.low, 3)
        (148, 140, 0.905)
    """
    first, second = checks.outcomes(*proposing), checks.outcomes(*testing)
    needed, available = examples_needed(accuracy, confidence), min(len(first[0]), len(second[0]))
    if available < needed:
        raise ValueError(
            f"Expected at least {2 * needed} validation images to show an accuracy of {accuracy:g} with {confidence:.0%} confidence: one "
            "half proposes thresholds, the other tests them. "
            f"Received: {len(first[0]) + len(second[0])}. Try: a lower accuracy, or more images"
        )
    candidates = np.unique(np.quantile(first[0], np.linspace(0, 1, _PROPOSED, endpoint=False), method="higher"))[::-1]
    proposed, (counts, hits) = _answered(first, candidates), _answered(second, candidates)
    low = clopper_pearson_lower(hits, counts, confidence)
    last = _last_certified(proposed, low, accuracy)
    if last is None:
        lower = np.arange(math.ceil(1000 * accuracy) - 1, 0, -1) / 1000
        highest = next((one for one in lower if _last_certified(proposed, low, one) is not None), None)
        reached = f"the highest that is met is {highest:.3f}" if highest else "none is met"
        raise ValueError(
            f"Expected an accuracy that some threshold of confidence meets with {confidence:.0%} confidence. Received: {accuracy:g}; on "
            f"{len(second[0])} validation images {reached}. Try: a lower accuracy, or more validation images"
        )
    return Threshold(float(candidates[last]), int(counts[last]), int(hits[last]), float(low[last]))


def examples_needed(accuracy: float, confidence: float = CONFIDENCE) -> int:
    """Returns the smallest number of answered examples that, if all are correct, show an accuracy: accuracy^N <= 1 - confidence.

    Args:
        accuracy: in (0, 1).
        confidence: in (0, 1).

    Examples:
        >>> tfr.metrics.examples_needed(0.95)
        59
        >>> tfr.metrics.examples_needed(0.99)
        299
    """
    for name, value in (("accuracy", accuracy), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"Expected {name} in (0, 1). Received: {value}")
    return math.ceil(math.log(1 - confidence) / math.log(accuracy) - 1e-9)


def answered(confidences: ArrayLike, correct: ArrayLike, threshold: float) -> tuple[int, int]:
    """Returns (number of examples with confidences >= threshold, number of these that are correct).

    Examples:
        >>> tfr.metrics.answered([0.9, 0.8, 0.6, 0.4], [1, 1, 0, 1], threshold=0.5)
        (3, 2)
    """
    confidences, correct = checks.outcomes(confidences, correct)
    above = confidences >= threshold
    return int(above.sum()), int(correct[above].sum())


def _last_certified(proposed, low, accuracy):
    """The last threshold of the sequence before a test fails; None if the first one fails."""
    counts, correct = proposed
    first = int(np.argmin(scipy.stats.binom.sf(correct - 1, counts, accuracy)))  # the lowest p value of the exact binomial test
    met = low[first:] >= accuracy  # the binomial test rejects a lower accuracy
    count = len(met) if met.all() else int(np.argmin(met))
    return first + count - 1 if count else None


def _answered(outcomes, thresholds):
    """(number of examples with confidences >= each threshold, number of these that are correct)."""
    order = np.argsort(-outcomes[0], kind="stable")
    counts = np.searchsorted(-outcomes[0][order], -thresholds, side="right")
    return counts, np.concatenate([[0], np.cumsum(outcomes[1][order])])[counts].astype(int)


def response_rate_curve(confidences: ArrayLike, correct: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns the accuracy among the k most confident examples, for k = 1..N.

    Examples of equal confidence have no order, so the curve is the mean over all their orders: each of them counts
    with the accuracy among them. It does not depend on the order of the examples.

    Args:
        confidences: [N] in [0, 1].
        correct: bool [N], or 0 and 1.

    Returns:
        (response rates k / N [N], accuracies [N])

    Examples:
        >>> rates, accuracies = tfr.metrics.response_rate_curve([0.9, 0.8, 0.6, 0.4], [1, 1, 0, 1])
        >>> rates
        array([0.25, 0.5 , 0.75, 1.  ])
        >>> accuracies.round(2)
        array([1.  , 1.  , 0.67, 0.75])
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

    Examples:
        >>> round(tfr.metrics.aurra([0.9, 0.8, 0.6, 0.4], [1, 1, 0, 1]), 3)
        0.854
        >>> round(tfr.metrics.aurra([0.9, 0.8, 0.6, 0.4], [0, 1, 1, 1]), 3)
        0.479
    """
    return float(response_rate_curve(confidences, correct)[1].mean())
