"""Scores that are higher for images of the model's classes than for others, and how well they separate the two.

Sources: maximum softmax probability: Hendrycks and Gimpel, 2017; largest logit: Hendrycks et al., 2022; energy: Liu et al., 2020;
nearest neighbors: Sun et al., 2022.
"""

import numpy as np
import scipy.special
import sklearn.metrics
from numpy.typing import ArrayLike

_BATCH = 500  # embeddings whose distances are computed at once
_NORM = 1e-12  # smallest norm of an embedding that is divided by


def logit_scores(logits: ArrayLike) -> dict[str, np.ndarray]:
    """Returns {"max_softmax": largest probability, "max_logit": largest logit, "energy": log(sum(exp(logits)))}, float64 [N] each.

    `energy` is the negative free energy at temperature 1, so that like the others it is higher for images of the classes.

    Args:
        logits: [N, C].

    Examples:
        >>> scores = tfr.metrics.logit_scores([[3.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
        >>> {name: values.round(2).tolist() for name, values in scores.items()}
        {'max_softmax': [0.91, 0.42], 'max_logit': [3.0, 1.0], 'energy': [3.09, 1.86]}
    """
    logits = np.asarray(logits, np.float64)
    largest, energy = logits.max(axis=1), scipy.special.logsumexp(logits, axis=1)
    return {"max_softmax": np.exp(largest - energy), "max_logit": largest, "energy": energy}


def neighbor_scores(known: ArrayLike, embeddings: ArrayLike, neighbors: int) -> np.ndarray:
    """Returns the negative Euclidean distance of each embedding to its k-th nearest among known ones, after division by their norms.

    Args:
        known: [M, E], of training images.
        embeddings: [N, E].
        neighbors: k, 1 to M.

    Returns:
        float64 [N] in [-2, 0].

    Examples:
        >>> tfr.metrics.neighbor_scores([[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [-1.0, 0.0]], neighbors=1).round(3)
        array([-0.632, -1.414])
    """
    known, embeddings = _unit(known), _unit(embeddings)
    if not 1 <= neighbors <= len(known):
        raise ValueError(f"Expected neighbors in 1..{len(known)}, the number of known embeddings. Received: {neighbors}")
    starts = range(0, len(embeddings), _BATCH)
    kth = [np.partition(embeddings[i : i + _BATCH] @ known.T, -neighbors, axis=1)[:, -neighbors] for i in starts]  # cosine similarities
    return -np.sqrt(np.maximum(2 - 2 * np.concatenate(kth), 0.0)) if kth else np.zeros(0)


def auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """Returns the area under the ROC curve: the probability that an image of the classes has the higher score; ties count half.

    Args:
        inside: scores [N] of images of the classes.
        outside: scores [M] of others.

    Examples:
        >>> round(tfr.metrics.auroc(inside=[0.9, 0.8, 0.4], outside=[0.5, 0.3]), 3)
        0.833
    """
    inside, outside = np.asarray(inside), np.asarray(outside)
    positive = np.repeat([True, False], [len(inside), len(outside)])
    return float(sklearn.metrics.roc_auc_score(positive, np.concatenate([inside, outside])))


def false_positive_rate(inside: ArrayLike, outside: ArrayLike, true_positive_rate: float = 0.95) -> float:
    """Returns the fraction of other images that are accepted at the highest threshold that accepts a fraction of those of the classes.

    Args:
        inside: scores [N] of images of the classes.
        outside: scores [M] of others.
        true_positive_rate: fraction of `inside` with scores >= the threshold, in (0, 1].

    Examples:
        >>> tfr.metrics.false_positive_rate(inside=[0.9, 0.8, 0.4], outside=[0.5, 0.3])
        0.5
    """
    descending = np.sort(np.asarray(inside))[::-1]
    threshold = descending[int(np.ceil(true_positive_rate * len(descending) - 1e-9)) - 1]
    return float(np.mean(np.asarray(outside) >= threshold))


def _unit(embeddings):
    embeddings = np.asarray(embeddings, np.float64)
    return embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), _NORM)
