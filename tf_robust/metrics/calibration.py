"""Calibration errors and proper scores: agreement of confidences with accuracies.

A confidence is the largest softmax probability of an example; `correct` states whether its class is the label.
RMS error (100 examples per bin), L1 error (equal bins) and the scores below cannot be compared with each other.
"""

import numpy as np
from numpy.typing import ArrayLike

from tf_robust.metrics import checks

BIN_SIZE = 100  # examples in a bin


def rms_calibration_error(confidences: ArrayLike, correct: ArrayLike, bin_size: int = BIN_SIZE, compat: bool = False) -> float:
    """Returns the root mean square calibration error over bins of equally many examples (URRL, section 3.3; NoisyMix, Table 11).

    sqrt(sum over bins b of n_b / N * (mean confidence of b - accuracy of b)^2), bins as in `reliability_bins`.
    Chance alone gives a perfectly calibrated model about sqrt(mean of p (1 - p) / bin_size), up to 0.05 with 100 per bin.

    Args:
        confidences: [N] in [0, 1].
        correct: bool [N], or 0 and 1.
        bin_size: examples per bin, >= 1.
        compat: leave out the bin of the most confident examples (N stays the divisor), as the published evaluation code
            of ImageNet-A and ImageNet-R does; with N < 2 bin_size nothing remains and the error is 0.

    Returns:
        float in [0, 1], lower is better.

    Raises:
        ValueError: bad values or shapes; in compat mode also N < bin_size, where the published code fails.

    Examples:
        >>> round(tfr.metrics.rms_calibration_error([0.9, 0.9, 0.6, 0.6], [1, 1, 1, 0], bin_size=2), 3)
        0.1
    """
    means, accuracies, counts = reliability_bins(confidences, correct, bin_size)
    squares = counts * (means - accuracies) ** 2
    if compat:
        if counts.sum() < bin_size:
            raise ValueError(f"Expected at least bin_size = {bin_size} examples with compat=True. Received: {counts.sum()}")
        squares = squares[:-1]
    return float(np.sqrt(squares.sum() / counts.sum()))


def reliability_bins(confidences: ArrayLike, correct: ArrayLike, bin_size: int = BIN_SIZE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns bins of `bin_size` consecutive examples by rising confidence; the last one also takes the remainder.

    Examples of equal confidence keep their order (a stable sort), so a bin's edge may divide them.

    Args:
        confidences: [N] in [0, 1].
        correct: bool [N], or 0 and 1.
        bin_size: examples per bin, >= 1; with N < bin_size all examples are one bin.

    Returns:
        (mean confidences [B], accuracies [B], counts [B]), B = max(1, N // bin_size).

    Examples:
        >>> means, accuracies, counts = tfr.metrics.reliability_bins([0.9, 0.9, 0.6, 0.6], [1, 1, 1, 0], bin_size=2)
        >>> means, accuracies, counts
        (array([0.6, 0.9]), array([0.5, 1. ]), array([2, 2]))
    """
    confidences, correct = checks.outcomes(confidences, correct)
    bin_size = checks.positive_integer(bin_size, "bin_size")
    order = np.argsort(confidences, kind="stable")
    starts = bin_size * np.arange(max(1, len(order) // bin_size))
    counts = np.diff(starts, append=len(order))
    return (np.add.reduceat(confidences[order], starts) / counts, np.add.reduceat(correct[order], starts) / counts, counts)


def expected_calibration_error(confidences: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """Returns the expected calibration error, L1 over bins of equal width.

    Guo et al., "On Calibration of Modern Neural Networks", 2017, eq. 3: the sum over bins b of n_b / N * |mean confidence of b -
    accuracy of b|; the b-th bin is ((b - 1) / bins, b / bins], and a confidence of 0 is in the first.

    Args:
        confidences: [N] in [0, 1].
        correct: bool [N], or 0 and 1.
        bins: number of bins, >= 1.

    Returns:
        float in [0, 1], lower is better.

    Examples:
        >>> round(tfr.metrics.expected_calibration_error([0.9, 0.9, 0.6, 0.6], [1, 1, 1, 0], bins=10), 3)
        0.1
    """
    confidences, correct = checks.outcomes(confidences, correct)
    gaps = np.bincount(equal_width_bins(confidences, bins), weights=confidences - correct)
    return float(np.abs(gaps).sum() / len(confidences))


def equal_width_bins(confidences: np.ndarray, bins: int) -> np.ndarray:
    """Returns the bin of each confidence, int [N]; bins as in `expected_calibration_error`."""
    return np.searchsorted(np.arange(1, checks.positive_integer(bins, "bins")) / bins, confidences, side="left")


def brier_score(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Returns the mean over examples of the sum over classes of (probability - one-hot label)^2 (Brier, 1950).

    Arguments as in `brier_scores`. In [0, 2], lower is better.

    Examples:
        >>> round(tfr.metrics.brier_score([[0.8, 0.2], [0.4, 0.6]], [0, 0]), 3)
        0.4
    """
    return float(brier_scores(probabilities, labels).mean())


def brier_scores(probabilities: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """Returns the Brier score of each example.

    Args:
        probabilities: [N, C] in [0, 1], rows sum to 1 (within 0.001).
        labels: int [N].

    Returns:
        float64 [N] in [0, 2], lower is better.

    Examples:
        >>> tfr.metrics.brier_scores([[0.8, 0.2], [0.4, 0.6]], [0, 0]).round(3)
        array([0.08, 0.72])
    """
    probabilities, labels = checks.labelled(probabilities, labels, "probabilities")
    probabilities = checks.fractions(probabilities, "probabilities")
    sums = probabilities.sum(axis=1)
    if np.abs(sums - 1).max() > 1e-3:
        raise ValueError(f"Expected probabilities that sum to 1 for every example. Received: sums in [{sums.min():g}, {sums.max():g}]")
    probabilities[np.arange(len(labels)), labels] -= 1.0
    return (probabilities**2).sum(axis=1)


def negative_log_likelihood(logits: ArrayLike, labels: ArrayLike) -> float:
    """Returns the mean of `negative_log_likelihoods` over examples, >= 0; lower is better.

    Examples:
        >>> round(tfr.metrics.negative_log_likelihood([[2.0, 0.0], [0.0, 2.0]], [0, 0]), 3)
        1.127
    """
    return float(negative_log_likelihoods(logits, labels).mean())


def negative_log_likelihoods(logits: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """Returns -log softmax(logits)[label] of each example, in nats; large logits do not overflow.

    Args:
        logits: [N, C], finite.
        labels: int [N].

    Returns:
        float64 [N], >= 0, lower is better.

    Examples:
        >>> tfr.metrics.negative_log_likelihoods([[2.0, 0.0], [0.0, 2.0]], [0, 0]).round(3)
        array([0.127, 2.127])
    """
    logits, labels = checks.labelled(logits, labels, "logits")
    logits = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
