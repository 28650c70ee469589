"""NoisyMix's expansions against exact losses: lemmas by brute force, remainders as epsilon goes to 0, the bound."""

import functools
import json
import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from research import noisymix_theory
from research.noisymix_theory import demonstration, exact
from tests.conftest import ROOT

SEEDS = (0, 1, 2)
EPSILONS = 2.0 ** -np.array([8, 9, 10])
EXPANSIONS = ("theorem_1", "proposition_1", "theorem_2")


def points_of(seed, count=4):
    random = np.random.RandomState(seed)
    points = random.normal(size=(count, 3))
    augmented = points + 0.4 * random.normal(size=points.shape)
    return demonstration.vicinity(random), points, augmented, np.arange(count) % 2.0


def pairs(points, vicinity):
    """Every mixed and noised point and its chance, straight from eq. 5 and 6: (share, i, j, factor, added, chance)."""
    level, added_level = vicinity.multiplicative_level, vicinity.additive_level
    for share, weight in zip(*exact.beta_nodes(vicinity.alpha, vicinity.beta)):
        for i, j in np.ndindex(len(points), len(points)):
            for factor, chance in zip(vicinity.multiplicative.values, vicinity.multiplicative.chances):
                for added, other in zip(vicinity.additive.values, vicinity.additive.chances):
                    yield share, i, j, 1.0 + level * factor, added_level * added, weight * chance * other / len(points) ** 2


@pytest.mark.parametrize("model", [noisymix_theory.Network, noisymix_theory.Softmax])
def test_derivatives_are_those_of_finite_differences(model):
    network = noisymix_theory.Network.random(3, 5, 3, np.random.RandomState(0))
    network = network if model is noisymix_theory.Network else noisymix_theory.Softmax(network)
    points, step = np.random.RandomState(1).normal(size=(2, 4, 3)), 1e-5
    values, gradients, hessians = network.derivatives(points)
    np.testing.assert_allclose(values, network(points), rtol=1e-12)
    for axis, move in enumerate(step * np.eye(3)):
        above, below = network.derivatives(points + move), network.derivatives(points - move)
        np.testing.assert_allclose(gradients[..., axis], (above[0] - below[0]) / (2 * step), atol=1e-8)
        np.testing.assert_allclose(hessians[..., axis], (above[1] - below[1]) / (2 * step), atol=1e-8)


def test_quadrature_is_of_the_beta_distribution():
    nodes, weights = exact.beta_nodes(1.5, 0.8)
    assert weights @ nodes == pytest.approx(1.5 / 2.3, rel=1e-12)
    assert weights @ nodes**2 == pytest.approx(1.5 * 2.5 / (2.3 * 3.3), rel=1e-12)
    first, second = points_of(0)[0].moments()  # of D-tilde: share x and 1 - x, chosen with chances x and 1 - x
    mean, square = 1.5 / 2.3, 1.5 * 2.5 / (2.3 * 3.3)
    assert first == pytest.approx(2 * (mean - square), rel=1e-12)
    assert second == pytest.approx(mean - square, rel=1e-12)  # E[x (1 - x)^2 + (1 - x) x^2]


def test_lemma_1_is_the_loss_with_mixed_labels():
    vicinity, points, _, labels = points_of(0, 2)
    network = noisymix_theory.Network.random(3, 4, 1, np.random.RandomState(3))
    found = 0.0
    for share, i, j, factor, added, chance in pairs(points, vicinity):
        mixed = factor * (share * points[i] + (1 - share) * points[j]) + added
        found += chance * exact.loss(network(mixed)[0], share * labels[i] + (1 - share) * labels[j])
    loss = noisymix_theory.nfm_loss(lambda x: network(x)[..., 0], points, labels, vicinity, 1.0)
    assert loss == pytest.approx(found, rel=1e-6)


def test_lemma_2_is_the_divergence_of_views_that_share_everything():
    vicinity, points, augmented, _ = points_of(1, 2)
    classifier, found = noisymix_theory.Softmax(noisymix_theory.Network.random(3, 4, 2, np.random.RandomState(3))), 0.0
    for share, i, j, factor, added, chance in pairs(points, vicinity):
        p, q = (classifier(factor * (share * x[i] + (1 - share) * x[j]) + added) for x in (points, augmented))
        found += chance * sum(0.5 * np.sum(one * np.log(2 * one / (p + q))) for one in (p, q))
    assert noisymix_theory.stability_loss(classifier, points, augmented, vicinity, 1.0) == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", EXPANSIONS)
def test_what_is_left_over_vanishes_faster_than_epsilon_squared(name, seed):
    case = demonstration.cases(seed)[name]
    left = np.array([case.remainder(epsilon) for epsilon in EPSILONS])
    assert left[-1] < 0.02
    assert np.all(np.log2(left[:-1] / left[1:]) > 0.8)  # the next term is of third order


@pytest.mark.parametrize("name", EXPANSIONS)
def test_no_term_can_be_missing_or_have_another_factor(name):
    case = demonstration.cases(0)[name]
    loss = functools.cache(case.loss)
    for term, (order, value) in case.terms.items():
        for factor in (0.0, 0.5, 2.0, -1.0):
            changed = demonstration.Case(loss, {**case.terms, term: (order, factor * value)})
            near, nearer = changed.remainder(EPSILONS[-2]), changed.remainder(EPSILONS[-1])
            assert nearer > 0.8 * near, (term, factor)  # does not go to 0
            assert nearer == pytest.approx(abs(factor - 1) * abs(value) * EPSILONS[-1] ** (order - 2), rel=0.4)


def test_theorem_1_as_printed_is_no_expansion():
    case = demonstration.cases(0)["theorem_1_as_printed"]
    assert case.remainder(EPSILONS[-1]) > 1.9 * case.remainder(EPSILONS[-2])


@pytest.mark.parametrize("seed", SEEDS)
def test_adversarial_loss_is_the_largest_in_the_ball(seed):
    direction, points, labels = demonstration.linear(seed)
    radii = noisymix_theory.adversarial_radii(direction, points, points_of(seed)[0], 0.3)
    steps = np.random.RandomState(0).normal(size=(200_000, 3))
    steps /= np.linalg.norm(steps, axis=1, keepdims=True)
    worst = [exact.loss((point + radius * steps) @ direction, label).max() for point, radius, label in zip(points, radii, labels)]
    assert noisymix_theory.adversarial_loss(direction, points, labels, radii) == pytest.approx(np.mean(worst), rel=1e-4)
    assert noisymix_theory.adversarial_loss(direction, points, labels, radii) >= np.mean(worst)


@pytest.mark.parametrize("equal_norms", [False, True])
def test_radii_are_those_of_equation_45(equal_norms):
    direction, points, _ = demonstration.linear(0, equal_norms)
    vicinity = points_of(0)[0]
    radii = noisymix_theory.adversarial_radii(direction, points, vicinity, 0.1)
    distances = np.abs(points @ direction) / np.linalg.norm(direction)  # of the points from the boundary
    shares = np.linalg.norm(points, axis=1).min() / np.linalg.norm(points, axis=1)
    np.testing.assert_allclose(radii, 0.1 * vicinity.moments()[0] * distances * shares, rtol=1e-12)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("equal_norms", [False, True])
def test_theorem_3_bounds_the_loss_from_below(seed, equal_norms):
    margins = [demonstration.margin(seed, epsilon, equal_norms) for epsilon in EPSILONS]
    assert min(margins) > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_theorem_3_is_sharp_to_first_order_where_norms_are_equal(seed):
    """Then only E[(1 - share)^2] - E[1 - share]^2 is between loss and bound."""
    direction, points, labels = demonstration.linear(seed, equal_norms=True)
    vicinity = demonstration.vicinity(np.random.RandomState(seed))
    (first, second), outputs = vicinity.moments(), points @ direction
    curvature = 1 / (2 + 2 * np.cosh(outputs))
    gap = (second - first**2) / 2 * np.mean(curvature * (outputs**2 + np.mean(outputs**2)))
    assert demonstration.margin(seed, 2.0**-12, equal_norms=True) == pytest.approx(gap, rel=0.02)


@pytest.mark.slow
def test_the_recorded_command_gives_the_recorded_numbers(tmp_path):
    """The command that results/noisymix/theory.md prints, in an empty folder."""
    recorded = os.path.join(ROOT, "results", "noisymix")
    with open(os.path.join(recorded, "theory.md"), encoding="utf-8") as file:
        words = shlex.split(re.search(r"^python (-m research\.noisymix_theory .*)$", file.read(), re.MULTILINE).group(1))
    subprocess.run([sys.executable, *words], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": ROOT})
    written = tmp_path / "results" / "noisymix"
    rows = [json.loads((folder / "theory.json").read_text())["rows"] for folder in (written, type(written)(recorded))]
    assert [row["row"] for row in rows[0]] == [row["row"] for row in rows[1]]
    for row, expected in zip(*rows):
        np.testing.assert_allclose(row["values"], expected["values"], rtol=1e-4)
    assert (written / "theory.md").stat().st_size and (written / "theory.png").stat().st_size


def test_bad_input():
    direction, points, labels = demonstration.linear(0)
    vicinity = points_of(0)[0]
    with pytest.raises(ValueError, match="Expected points of mean 0"):
        noisymix_theory.bound(direction, points + 1.0, labels, vicinity, 0.1)
    with pytest.raises(ValueError, match="all classified correctly"):
        noisymix_theory.bound(direction, points, 1 - labels, vicinity, 0.1)
    with pytest.raises(ValueError, match="Expected noise of mean 0"):
        noisymix_theory.Noise(np.ones((2, 3)), np.array([0.5, 0.5]))
