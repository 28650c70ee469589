"""Quantities for the command and the tests: three expansions and one inequality, on a few points in three dimensions."""

import dataclasses
import typing

import numpy as np

from research.noisymix_theory import exact, expansions
from research.noisymix_theory.networks import Network, Softmax

DIMENSIONS, POINTS, HIDDEN = 3, 5, 6
EPSILONS = 2.0 ** -np.arange(1, 11)


@dataclasses.dataclass(frozen=True)
class Case:
    """loss: epsilon -> number. terms: its expansion, as `expansions` gives it."""

    loss: typing.Callable
    terms: dict

    def remainder(self, epsilon):
        """|loss(epsilon) - expansion(epsilon)| / epsilon^2"""
        return abs(self.loss(epsilon) - expansions.evaluate(self.terms, epsilon)) / epsilon**2


def vicinity(random):
    """Returns a vicinity with skewed and correlated noises, levels 0.6 and 0.4, and mixing coefficients from Beta(1.5, 0.8)."""
    mixtures = 0.5 * random.normal(size=(2, DIMENSIONS, DIMENSIONS))
    additive, multiplicative = map(exact.Noise.skewed, mixtures)
    return exact.Vicinity(additive, multiplicative, 0.6, 0.4, 1.5, 0.8)


def cases(seed):
    """Returns {name: Case} for Theorem 1, Theorem 1 as printed, Proposition 1 (three classes, three views) and Theorem 2."""
    random = np.random.RandomState(seed)
    around, points = vicinity(random), random.normal(size=(POINTS, DIMENSIONS))
    labels = np.arange(POINTS) % 2.0
    augmented = points + 0.4 * random.normal(size=points.shape)
    network = Network.random(DIMENSIONS, HIDDEN, 1, random)
    classifier = Softmax(Network.random(DIMENSIONS, HIDDEN, 2, random))

    def mixed(epsilon):
        return exact.nfm_loss(lambda x: network(x)[..., 0], points, labels, around, epsilon)

    return {
        "theorem_1": Case(mixed, expansions.theorem_1(network, points, labels, around)),
        "theorem_1_as_printed": Case(mixed, expansions.as_printed(network, points, labels, around)),
        "proposition_1": divergence(random),
        "theorem_2": Case(
            lambda epsilon: exact.stability_loss(classifier, points, augmented, around, epsilon),
            expansions.theorem_2(classifier, points, augmented, around),
        ),
    }


def divergence(random):
    """Returns the case of Proposition 1 with three views that move along curves, with unequal weights."""
    classifier, weights = Softmax(Network.random(DIMENSIONS, HIDDEN, 3, random)), np.array([0.5, 0.3, 0.2])
    starts, first, second = random.normal(size=(3, 3, DIMENSIONS))

    def moved(epsilon):
        views = starts + first * np.sin(epsilon) + second * (1.0 - np.cos(epsilon))
        return exact.jensen_shannon(list(classifier(views)), weights)

    return Case(moved, expansions.proposition_1(classifier, starts, first, second, weights))


def linear(seed, equal_norms=False):
    """Returns data that satisfy Theorem 3: (direction [d], points [6, d] with mean 0, labels that agree with p(x) = direction^T x)."""
    random = np.random.RandomState(seed)
    points, direction = random.normal(size=(3, DIMENSIONS)), random.normal(size=DIMENSIONS)
    if equal_norms:
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        points = np.concatenate([points, -points])
    else:
        points = np.concatenate([points, random.normal(size=points.shape)])
        points -= points.mean(axis=0)
    return direction, points, (points @ direction >= 0).astype(float)


def margin(seed, epsilon, equal_norms=False):
    """Returns (NFM loss - its bound) / epsilon^2 (Theorem 3), which is at least 0 as epsilon goes to 0."""
    direction, points, labels = linear(seed, equal_norms)
    around = vicinity(np.random.RandomState(seed))
    loss = exact.nfm_loss(lambda x: x @ direction, points, labels, around, epsilon)
    return (loss - expansions.bound(direction, points, labels, around, epsilon)) / epsilon**2
