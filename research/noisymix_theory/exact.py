"""Exact losses of NoisyMix's appendix: finite sums over partners and noise, Gauss quadrature over mixing coefficients.

Points and their augmented versions A(x) are [n, d]; models take [..., d]. h(z) = log(1 + e^z), and an image's loss is
h(p(x)) - y p(x) with labels y in {0, 1}: binary cross-entropy.
"""

import dataclasses

import numpy as np
import scipy.special

_NODES = 16  # integrates polynomials of degree 31 exactly


@dataclasses.dataclass(frozen=True)
class Noise:
    """A distribution of vectors with finitely many values and mean 0.

    Attributes:
        values: [V, d].
        chances: [V], probabilities with sum 1.
    """

    values: np.ndarray
    chances: np.ndarray

    def __post_init__(self):
        if not np.allclose(self.chances @ self.values, 0.0, atol=1e-12) or not np.isclose(self.chances.sum(), 1.0):
            raise ValueError(
                f"Expected noise of mean 0 and chances with sum 1. Received: mean {self.chances @ self.values}, sum {self.chances.sum()}"
            )

    @classmethod
    def skewed(cls, mixture):
        """Returns the noise mixture @ v, where v has independent values: -1 with probability 2/3, else 2. mixture: [d, d]."""
        corners = np.array(np.meshgrid(*[[-1.0, 2.0]] * len(mixture))).reshape(len(mixture), -1).T
        return cls(corners @ np.transpose(mixture), np.where(corners < 0, 2 / 3, 1 / 3).prod(axis=1))

    @property
    def covariance(self):
        """E[xi xi^T], [d, d]."""
        return np.einsum("v,vd,ve->de", self.chances, self.values, self.values)


@dataclasses.dataclass(frozen=True)
class Vicinity:
    """Vicinal distribution around a point: mixing and noise, before they are scaled by epsilon.

    Attributes:
        additive, multiplicative: `Noise`, independent of each other.
        additive_level, multiplicative_level: sigma_add and sigma_mult.
        alpha, beta: parameters of the mixing coefficient's distribution Beta(alpha, beta).
    """

    additive: Noise
    multiplicative: Noise
    additive_level: float
    multiplicative_level: float
    alpha: float
    beta: float

    def rest(self):
        """Returns 1 - lam under D-tilde, the mixture of two Beta distributions of Lemma 1: (nodes [L], weights [L])."""
        total = self.alpha + self.beta
        first, second = beta_nodes(self.alpha + 1, self.beta), beta_nodes(self.beta + 1, self.alpha)
        return (1.0 - np.concatenate([first[0], second[0]]), np.concatenate([self.alpha / total * first[1], self.beta / total * second[1]]))

    def moments(self):
        """Returns E[1 - lam] and E[(1 - lam)^2] under D-tilde."""
        rest, weights = self.rest()
        return weights @ rest, weights @ rest**2

    def chances(self):
        """Returns the probabilities [L, A, M] of each value of 1 - lam, additive and multiplicative noise."""
        return np.einsum("l,a,m->lam", self.rest()[1], self.additive.chances, self.multiplicative.chances)

    def displaced(self, points, epsilon):
        """Returns x_i + epsilon e_i for every partner r, value of 1 - lam, and noise (eq. 8): [n, n, L, A, M, d]."""
        here, offsets = points[:, None, None, None, None, :], points[None] - points[:, None]
        mixup = self.rest()[0][:, None, None, None] * offsets[:, :, None, None, None]
        added = self.additive_level * self.additive.values[:, None]
        factor = self.multiplicative_level * self.multiplicative.values
        return here + epsilon * ((1.0 + epsilon * factor) * mixup + factor * here + added)


def beta_nodes(alpha, beta):
    """Returns the Gauss quadrature for Beta(alpha, beta): (nodes [Q] in (0, 1), weights [Q] with sum 1)."""
    nodes, weights = scipy.special.roots_sh_jacobi(_NODES, alpha + beta - 1, alpha)
    return nodes, weights / weights.sum()


def loss(outputs, labels):
    """Returns h(p) - y p."""
    return np.logaddexp(0.0, outputs) - labels * outputs


def nfm_loss(model, points, labels, vicinity, epsilon):
    """Returns the loss of Noisy Feature Mixup in the form of Lemma 1 (eq. 7), a scalar.

    Args:
        model: [..., d] -> [...]. points: [n, d]. labels: [n]. epsilon: scales mixing and noise; with 1 it is eq. 5.
    """
    values = loss(model(vicinity.displaced(points, epsilon)), np.reshape(labels, (-1, 1, 1, 1, 1)))
    return np.einsum("irlam,lam->", values, vicinity.chances()) / len(points) ** 2


def stability_loss(model, points, augmented, vicinity, epsilon):
    """Returns the Jensen-Shannon stability loss in the form of Lemma 2 (eq. 23); the views share partner, coefficient and noise.

    Args:
        model: [..., d] -> [..., K]. points, augmented: [n, d], x and A(x). epsilon: with 1 it is eq. 20.
    """
    views = [model(vicinity.displaced(view, epsilon)) for view in (points, augmented)]
    return np.einsum("irlam,lam->", jensen_shannon(views, [0.5, 0.5]), vicinity.chances()) / len(points) ** 2


def jensen_shannon(distributions, weights):
    """Returns H(sum of w_l p_l) - sum of w_l H(p_l): list of [..., K] -> [...]."""
    mixture = sum(w * p for w, p in zip(weights, distributions))
    return sum(w * (p * np.log(p / mixture)).sum(axis=-1) for w, p in zip(weights, distributions))
