"""Quality of embeddings, without training on them. Only their directions count."""

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike


def nearest_neighbour_accuracy(
    known: ArrayLike, known_labels: ArrayLike, embeddings: ArrayLike, labels: ArrayLike, *, neighbours: int = 200, temperature: float = 0.1
) -> float:
    """Returns the accuracy of a weighted k-nearest-neighbor classifier (Wu et al., 2018, section 3.4).

    The k known embeddings with the highest cosine similarity s vote for their classes with weight exp(s / temperature).

    Args:
        known: [M, E].
        known_labels: int [M].
        embeddings: [N, E], to classify.
        labels: int [N].
        neighbours: k; at most M are used.
        temperature: > 0.

    Raises:
        ValueError: values that are not finite, neighbours or temperature out of range.

    Examples:
        >>> known, embeddings = [[1.0, 0.0], [0.0, 1.0]], [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]
        >>> round(tfr.metrics.nearest_neighbour_accuracy(known, [0, 1], embeddings, [0, 1, 1], neighbours=1), 3)
        0.667
    """
    if neighbours < 1 or not temperature > 0:
        raise ValueError(f"Expected neighbours >= 1 and temperature > 0. Received: {neighbours}, {temperature}")
    known, embeddings = _unit(known), _unit(embeddings)
    known_labels, labels, neighbours = np.asarray(known_labels), np.asarray(labels), min(neighbours, len(known))
    correct = 0
    for start in range(0, len(embeddings), 256):
        similarities = embeddings[start : start + 256] @ known.T
        nearest = np.argpartition(-similarities, neighbours - 1, axis=1)[:, :neighbours]
        weights = np.exp((np.take_along_axis(similarities, nearest, axis=1) - 1.0) / temperature)
        votes = np.zeros([len(nearest), int(known_labels.max()) + 1])
        np.add.at(votes, (np.arange(len(nearest))[:, None], known_labels[nearest]), weights)
        correct += np.sum(votes.argmax(axis=1) == labels[start : start + 256])
    return float(correct / len(embeddings))


def alignment(first: ArrayLike, second: ArrayLike) -> float:
    """Returns the mean of |u - v|^2 over pairs of embeddings of the same image (Wang and Isola, 2020): from 0 to 4, 0 is best.

    Args:
        first: [N, E], of one view.
        second: [N, E], of another view.

    Examples:
        >>> round(tfr.metrics.alignment([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]]), 3)
        0.293
    """
    return float(np.mean(np.sum((_unit(first) - _unit(second)) ** 2, axis=1)))


def uniformity(embeddings: ArrayLike) -> float:
    """Returns log of the mean of exp(-2 |u - v|^2) over all pairs of different images (Wang and Isola, 2020).

    It is 0 if all embeddings are equal, and lower the more evenly they fill the sphere.

    Args:
        embeddings: [N, E], N >= 2.

    Raises:
        ValueError: fewer than two.

    Examples:
        >>> round(tfr.metrics.uniformity([[1.0, 0.0], [1.0, 0.0]]), 3)
        0.0
        >>> round(tfr.metrics.uniformity([[1.0, 0.0], [-1.0, 0.0]]), 3)
        -8.0
    """
    unit = _unit(embeddings)
    if len(unit) < 2:
        raise ValueError(f"Expected at least 2 embeddings. Received: {len(unit)}")
    similarities = (unit @ unit.T)[np.triu_indices(len(unit), 1)]
    return float(np.log(np.mean(np.exp(-4.0 * (1.0 - similarities)))))


def rank_correlations(first: ArrayLike, second: ArrayLike) -> np.ndarray:
    """Returns Spearman's rank correlation of the values of each image: [N], from -1 to 1; 0 where all values of one are equal.

    Args:
        first: [N, ...], such as contextual sensitivity.
        second: of the same shape, such as contextual utility.

    Examples:
        >>> tfr.metrics.rank_correlations([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], [[10.0, 20.0, 90.0], [5.0, 5.0, 5.0]])
        array([1., 0.])
    """
    ranks = [scipy.stats.rankdata(np.reshape(values, [len(np.asarray(values)), -1]), axis=1) for values in (first, second)]
    centered = [values - values.mean(axis=1, keepdims=True) for values in ranks]
    norms = np.prod([np.linalg.norm(values, axis=1) for values in centered], axis=0)
    return np.sum(centered[0] * centered[1], axis=1) / np.where(norms > 0, norms, 1.0)


def _unit(vectors: ArrayLike) -> np.ndarray:
    vectors = np.asarray(vectors, np.float64)
    if vectors.ndim != 2 or not vectors.size:
        raise ValueError(f"Expected embeddings [N, E]. Received shape: {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError(
            f"Expected finite embeddings. Received: NaN or infinity for {np.sum(~np.isfinite(vectors).all(1))} of {len(vectors)} examples"
        )
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
