"""Expansions of the losses of NoisyMix's appendix.

An expansion is {name: (order, value)}; the loss is the sum of value * epsilon^order. d, points, labels and models are as in
`exact`. The expectation over partners is the mean over the points.
"""

import numpy as np
import scipy.special

from research.noisymix_theory import exact


def evaluate(terms, epsilon):
    """Returns the sum of value * epsilon^order."""
    return sum(value * epsilon**order for order, value in terms.values())


def theorem_1(network, points, labels, vicinity):
    """L_std + epsilon R1 + epsilon^2 (R2~ + R3~) (eq. 9 to 18), with h'(p(x_i)) - y_i in R1 (misprinted in eq. 12).

    Args:
        network: a network with one output and a method `derivatives`.

    Returns:
        The terms; `R2_add`, `R3_add`, `R2_mult` and `R3_mult` include their sigma^2.
    """
    return _theorem_1(network, points, labels, vicinity, lambda p: scipy.special.expit(p) - labels)


def as_printed(network, points, labels, vicinity):
    """Theorem 1 with R1 as printed in eq. 12, h'(p(x_i) - y_i), which is not an expansion of the loss."""
    wrong = _theorem_1(network, points, labels, vicinity, lambda p: scipy.special.expit(p - labels))
    return {**theorem_1(network, points, labels, vicinity), "R1": wrong["R1"]}


def _theorem_1(network, points, labels, vicinity, slope_of):
    p, gradients, hessians = (found[:, 0] for found in network.derivatives(points))
    curvature = scipy.special.expit(p) * scipy.special.expit(-p)  # h''
    slope = slope_of(p)
    terms = {
        "L_std": (0, exact.loss(p, labels).mean()),
        "R1": (1, vicinity.moments()[0] * np.mean(slope * _dot(gradients, points.mean(axis=0) - points))),
    }
    for name, (spread, _, _) in _spreads(points, points, vicinity).items():
        terms[f"R2{name}"] = 2, 0.5 * np.mean(curvature * _form(gradients, spread, gradients))
        terms[f"R3{name}"] = 2, 0.5 * np.mean(slope * _trace(hessians, spread))
    return terms


def theorem_2(classifier, points, augmented, vicinity):
    """L~_std + epsilon S1 + epsilon^2 S2~ (eq. 37 to 43): the stability loss of two views, each with weight 1/2.

    Args:
        classifier: [..., d] -> [..., K] probabilities, with `derivatives`. augmented: A(x), [n, d].

    Returns:
        The terms; `S2_add` and `S2_mult` include their sigma^2.
    """
    p, slopes, curvatures = classifier.derivatives(points)  # [n, K], [n, K, d], [n, K, d, d]
    q, other_slopes, other_curvatures = classifier.derivatives(augmented)
    first = _dot(slopes, (points.mean(axis=0) - points)[:, None]) * np.log(2 * p / (p + q)) + _dot(
        other_slopes, (augmented.mean(axis=0) - augmented)[:, None]
    ) * np.log(2 * q / (p + q))
    terms = {
        "L_std": (0, exact.jensen_shannon([p, q], [0.5, 0.5]).mean()),
        "S1": (1, 0.5 * vicinity.moments()[0] * first.sum(axis=1).mean()),
    }
    ours, others = _q(p, q, slopes, curvatures), _q(q, p, other_slopes, other_curvatures)
    for name, spreads in _spreads(points, augmented, vicinity).items():
        here, there, between = (spread[:, None] for spread in spreads)
        both = 2.0 * _form(slopes, between, other_slopes) / (p + q)
        terms[f"S2{name}"] = 2, 0.25 * (_trace(ours, here) + _trace(others, there) - both).sum(axis=1).mean()
    return terms


def _q(p, other, slopes, curvatures):
    """Returns q^k(x, y) of eq. 37, [n, K, d, d]."""
    logs, ratios = np.log(2 * p / (p + other)), other / (p * (p + other))
    return curvatures * logs[..., None, None] + np.einsum("nkd,nke->nkde", slopes, slopes) * ratios[..., None, None]


def _spreads(points, others, vicinity):
    """Second moments of the displacements of two views by mixing (""), additive and multiplicative noise.

    Returns:
        {name: (E[a a^T], E[b b^T], E[a b^T])}, each [n, d, d]: a is the displacement of a point, b of its other view.
    """

    def offsets(one, two):
        return np.einsum("nrd,nre->nde", one[None] - one[:, None], two[None] - two[:, None]) / len(one)

    def scaled(one, two):
        return vicinity.multiplicative.covariance * np.einsum("nd,ne->nde", one, two)

    added = np.broadcast_to(vicinity.additive.covariance, (len(points), *vicinity.additive.covariance.shape))
    pairs = (points, points), (others, others), (points, others)
    return {
        "": [vicinity.moments()[1] * offsets(*pair) for pair in pairs],
        "_add": [vicinity.additive_level**2 * added] * 3,
        "_mult": [vicinity.multiplicative_level**2 * scaled(*pair) for pair in pairs],
    }


def proposition_1(classifier, starts, first, second, weights):
    """Jensen-Shannon divergence of p(z_l + R_l(epsilon)) over l = 0..M (eq. 26).

    Args:
        starts, first, second: [M + 1, d], z_l, R_l'(0) and R_l''(0). weights: pi, [M + 1], sum 1.
    """
    p, slopes, curvatures = classifier.derivatives(starts)  # [l, K], ...
    mixture, moves = weights @ p, _dot(slopes, first[:, None])
    logs = np.log(p / mixture)
    bends = _trace(curvatures, np.einsum("ld,le->lde", first, first)[:, None]) + _dot(slopes, second[:, None])
    return {
        "JS": (0, exact.jensen_shannon(list(p), weights)),
        "slope": (1, (weights @ (moves * logs)).sum()),
        "bend": (2, 0.5 * (weights @ (bends * logs)).sum()),
        "apart": (2, 0.5 * (weights @ (moves**2 / p)).sum()),
        "together": (2, -0.5 * ((weights @ moves) ** 2 / mixture).sum()),
    }


def adversarial_radii(direction, points, vicinity, epsilon):
    """Returns epsilon_i^mix of eq. 45, [n], for p(x) = direction^T x.

    epsilon E[1 - lam] c_x sqrt(d) |cos(direction, x_i)|, where c_x sqrt(d) is the smallest norm of a point.
    """
    norms = np.linalg.norm(points, axis=1)
    cosines = points @ direction / (norms * np.linalg.norm(direction))
    return epsilon * vicinity.moments()[0] * norms.min() * np.abs(cosines)


def adversarial_loss(direction, points, labels, radii):
    """Returns the exact mean over i of the maximum over |delta| <= radius_i of the loss at x_i + delta, for p(x) = direction^T x."""
    against = (1.0 - 2.0 * labels) * radii * np.linalg.norm(direction)
    return exact.loss(points @ direction + against, labels).mean()


def theorem_3_regularizer(direction, points, vicinity):
    """Returns the first sum of L_reg (eq. 47 and 48) for p(x) = direction^T x.

    Eq. 48 has E[1 - lam]^2 where Theorem 1 has E[(1 - lam)^2], which is larger, so the bound is slightly loose.
    """
    first, _ = vicinity.moments()
    outputs = points @ direction
    curvature = scipy.special.expit(outputs) * scipy.special.expit(-outputs)
    mixed = first**2 * np.mean(outputs**2)
    squares = mixed + sum(_form(direction, spreads[0], direction) for name, spreads in _spreads(points, points, vicinity).items() if name)
    return 0.5 * np.mean(curvature * squares)


def bound(direction, points, labels, vicinity, epsilon):
    """Returns the right side of Theorem 3 without its stability loss (eq. 44 with gamma = 0), up to o(epsilon^2).

    The theorem assumes p(x) = gradient^T x, points with mean 0, and that all are classified correctly.

    Raises:
        ValueError: if the assumptions do not hold.
    """
    if not np.allclose(points.mean(axis=0), 0.0, atol=1e-12) or np.any((2 * labels - 1) * (points @ direction) < 0):
        raise ValueError(
            f"Expected points of mean 0, all classified correctly. Received: "
            f"mean {points.mean(axis=0)}, {np.sum((2 * labels - 1) * (points @ direction) < 0)} wrong"
        )
    radii = adversarial_radii(direction, points, vicinity, epsilon)
    return adversarial_loss(direction, points, labels, radii) + epsilon**2 * theorem_3_regularizer(direction, points, vicinity)


def _dot(one, other):
    return np.einsum("...d,...d->...", one, other)


def _form(left, matrix, right):
    return np.einsum("...d,...de,...e->...", left, matrix, right)


def _trace(one, other):
    return np.einsum("...de,...de->...", one, other)
