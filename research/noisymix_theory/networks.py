"""Small smooth networks with their derivatives, float64. Points are [..., d]."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Network:
    """x -> outputs tanh(weights x + biases): R^d -> R^K, infinitely differentiable.

    Attributes:
        weights: [M, d]. biases: [M]. outputs: [K, M].
    """

    weights: np.ndarray
    biases: np.ndarray
    outputs: np.ndarray

    @classmethod
    def random(cls, dimensions, hidden, outputs, random):
        """Returns a network with weights and biases from a NumPy generator."""
        return cls(0.5 * random.normal(size=(hidden, dimensions)), random.normal(size=hidden), random.normal(size=(outputs, hidden)))

    def __call__(self, points):
        """[..., d] -> [..., K]"""
        return np.tanh(points @ self.weights.T + self.biases) @ self.outputs.T

    def derivatives(self, points):
        """Values [..., K], gradients [..., K, d], Hessians [..., K, d, d]."""
        hidden = np.tanh(points @ self.weights.T + self.biases)
        slope = 1.0 - hidden**2
        gradients = np.einsum("km,...m,md->...kd", self.outputs, slope, self.weights)
        hessians = np.einsum("km,...m,md,me->...kde", self.outputs, -2.0 * hidden * slope, self.weights, self.weights)
        return hidden @ self.outputs.T, gradients, hessians


@dataclasses.dataclass(frozen=True)
class Softmax:
    """Probabilities of K classes from a network's K outputs."""

    network: Network

    def __call__(self, points):
        """[..., d] -> [..., K], each row of sum 1"""
        return _softmax(self.network(points))

    def derivatives(self, points):
        """Values [..., K], gradients [..., K, d], Hessians [..., K, d, d]."""
        logits, slopes, curvatures = self.network.derivatives(points)
        values = _softmax(logits)
        apart = slopes - _mean(values, slopes)[..., None, :]  # a logit's gradient minus the mean over the classes
        squares = np.einsum("...kd,...ke->...kde", apart, apart)
        hessians = squares + curvatures - _mean(values, squares + curvatures)[..., None, :, :]
        return values, values[..., None] * apart, values[..., None, None] * hessians


def _mean(values, derivatives):
    """The mean over the classes, weighted by their probabilities: [..., K], [..., K, *D] -> [..., *D]."""
    flat = derivatives.reshape(*values.shape, -1)
    return np.einsum("...k,...kx->...x", values, flat).reshape(*values.shape[:-1], *derivatives.shape[values.ndim :])


def _softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
