"""What embeddings are worth before anything is trained on them. Embeddings count by their direction alone."""

import numpy as np


def nearest_neighbour_accuracy(known, known_labels, embeddings, labels, *, neighbours=200, temperature=0.1):
    """Share of the embeddings that their nearest known ones vote for rightly (Wu et al., 2018, section 3.4).

    The k known embeddings of the highest cosine similarity s vote for their classes with weight exp(s / temperature).

    Args:
        known: [M, E], with known_labels int [M]. embeddings: [N, E], with labels int [N].
        neighbours: k; no more than M are taken. temperature: > 0.

    Raises:
        ValueError: values that are not finite, a setting out of its range.
    """
    if neighbours < 1 or not temperature > 0:
        raise ValueError(f"Expected neighbours >= 1 and temperature > 0. Received: {neighbours}, {temperature}")
    known, embeddings = _unit(known), _unit(embeddings)
    known_labels, labels, neighbours = np.asarray(known_labels), np.asarray(labels), min(neighbours, len(known))
    right = 0
    for start in range(0, len(embeddings), 256):
        similarities = embeddings[start:start + 256] @ known.T
        nearest = np.argpartition(-similarities, neighbours - 1, axis=1)[:, :neighbours]
        weights = np.exp((np.take_along_axis(similarities, nearest, axis=1) - 1.0) / temperature)
        votes = np.zeros([len(nearest), int(known_labels.max()) + 1])
        np.add.at(votes, (np.arange(len(nearest))[:, None], known_labels[nearest]), weights)
        right += np.sum(votes.argmax(axis=1) == labels[start:start + 256])
    return float(right / len(embeddings))


def alignment(first, second):
    """Mean of |u - v|^2 over the pairs of embeddings of the same image (Wang and Isola, 2020): from 0 to 4, 0 is best.

    Args:
        first, second: [N, E], of two views.
    """
    return float(np.mean(np.sum((_unit(first) - _unit(second)) ** 2, axis=1)))


def uniformity(embeddings):
    """log of the mean of exp(-2 |u - v|^2) over all pairs of different images (Wang and Isola, 2020): 0 if all are the
    same, lower the more evenly they fill the sphere.

    Args:
        embeddings: [N, E], N >= 2.

    Raises:
        ValueError: fewer than two.
    """
    unit = _unit(embeddings)
    if len(unit) < 2:
        raise ValueError(f"Expected at least 2 embeddings. Received: {len(unit)}")
    similarities = (unit @ unit.T)[np.triu_indices(len(unit), 1)]
    return float(np.log(np.mean(np.exp(-4.0 * (1.0 - similarities)))))


def _unit(vectors):
    vectors = np.asarray(vectors, np.float64)
    if vectors.ndim != 2 or not vectors.size:
        raise ValueError(f"Expected embeddings [N, E]. Received shape: {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError(f"Expected finite embeddings. Received NaN or infinity for {np.sum(~np.isfinite(vectors).all(1))} of "
                         f"{len(vectors)} examples")
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
