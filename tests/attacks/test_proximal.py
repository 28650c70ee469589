"""The proximal operators against numerical minimization of their definition."""

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tf_robust.attacks import norms, proximal

SHAPE = (2, 3, 2)
N = 4
STRENGTHS = (0.05, 0.3, 1.0)


def perturbations(count=N):
    return np.random.RandomState(0).normal(size=(count, *SHAPE)).astype(np.float32) * 0.7


def apply(name, values, strength):
    return proximal.PROXIMAL[name](tf.constant(values), strength).numpy()


def objective(name, results, values, strength):
    sizes = norms.NORMS[name].size(tf.constant(results, tf.float32)).numpy().astype(np.float64)
    return strength * sizes + 0.5 * ((results.astype(np.float64) - values) ** 2).sum(axis=(1, 2, 3))


def minimize_l0(u, strength):
    """Keeps or drops each value, whichever costs less."""
    return np.where(strength < u**2 / 2, u, 0.0)


def minimize_l1(u, strength):
    """Minimizes each value by itself."""
    options = {"bounds": (-4, 4), "method": "bounded", "options": {"xatol": 1e-9}}
    cost = lambda v, value: strength * abs(v) + (v - value) ** 2 / 2
    return np.vectorize(lambda value: scipy.optimize.minimize_scalar(cost, args=(value,), **options).x)(u)


def minimize_l2(u, strength):
    cost = lambda v: strength * np.sqrt((v**2).sum() + 1e-16) + ((v - u.ravel()) ** 2).sum() / 2
    return scipy.optimize.minimize(cost, u.ravel() * 0.7, method="BFGS", options={"gtol": 1e-9}).x.reshape(SHAPE)


def minimize_linf(u, strength):
    """Minimizes strength * height + |v - u|^2 / 2 for v = positive - negative parts, by SLSQP, which needs smoothness."""
    u = u.ravel()
    d = u.size

    def value_and_slope(z):
        residual = z[:d] - z[d:-1] - u
        return strength * z[-1] + 0.5 * (residual**2).sum(), np.concatenate([residual, -residual, [strength]])

    start = np.concatenate([np.maximum(u, 0), np.maximum(-u, 0), [np.abs(u).max()]])
    height = {
        "type": "ineq",
        "fun": lambda z: z[-1] - z[:d] - z[d:-1],
        "jac": lambda z: np.concatenate([-np.eye(d), -np.eye(d), np.ones((d, 1))], axis=1),
    }
    options = {"bounds": [(0, None)] * len(start), "constraints": [height], "options": {"maxiter": 500, "ftol": 1e-14}}
    best = scipy.optimize.minimize(value_and_slope, start, jac=True, method="SLSQP", **options).x
    return (best[:d] - best[d:-1]).reshape(SHAPE)


MINIMA = {"l0": (minimize_l0, 0.0), "l1": (minimize_l1, 1e-5), "l2": (minimize_l2, 1e-4), "linf": (minimize_linf, 2e-4)}
CASES = [(name, strength) for name in proximal.PROXIMAL for strength in STRENGTHS]


@pytest.mark.parametrize("name, strength", [*CASES, ("l2", 5.0), ("linf", 20.0)])  # the last leave nothing
def test_operators_minimize_their_definition(name, strength):
    values, (minimize, tolerance) = perturbations(), MINIMA[name]
    results = apply(name, values, strength)
    expected = [minimize(value, strength) for value in values.astype(np.float64)]
    np.testing.assert_allclose(results, expected, rtol=0, atol=tolerance)
    assert (results == 0).all() == (strength > 1)


@pytest.mark.parametrize("name, strength", CASES)
def test_no_other_point_costs_less(name, strength):
    values = perturbations(1)
    results = apply(name, values, strength)
    distances = np.geomspace(1e-3, 1, 2000)[:, None, None, None]
    others = results + np.random.RandomState(1).normal(size=(2000, *SHAPE)) * distances
    others = np.concatenate([others, values, 0 * values])
    if name == "l0":
        others = np.concatenate([others, values * np.random.RandomState(2).randint(0, 2, (2000, *SHAPE))])
    assert objective(name, results, values, strength)[0] <= objective(name, others, values, strength).min() + 1e-6


@pytest.mark.parametrize("radius", [0.05, 0.5, 2.0, 4.0])
def test_projection_onto_the_l1_ball_equals_bisection(radius):
    values = perturbations() * np.array([0.1, 0.5, 1, 3], np.float32)[:, None, None, None]
    results = proximal.projected_on_l1_ball(tf.constant(values), radius).numpy()
    for value, result in zip(values.astype(np.float64), results):

        def excess(height):
            return np.maximum(np.abs(value) - height, 0).sum() - radius

        height = scipy.optimize.brentq(excess, 0, np.abs(value).max(), xtol=1e-12) if excess(0) > 0 else 0.0
        np.testing.assert_allclose(result, np.sign(value) * np.maximum(np.abs(value) - height, 0), atol=1e-5)


@pytest.mark.parametrize("name", proximal.PROXIMAL)
def test_strengths_are_per_image_and_0_changes_nothing(name):
    values = perturbations()
    strengths = np.array([0.0, 0.1, 0.5, 3.0], np.float32)
    results = apply(name, values, tf.constant(strengths))
    for value, strength, result in zip(values, strengths, results):
        np.testing.assert_allclose(apply(name, value[None], strength)[0], result, atol=1e-6)
    np.testing.assert_allclose(results[0], values[0], atol=1e-7)
    np.testing.assert_array_equal(apply(name, 0 * values, strengths), 0 * values)


@pytest.mark.parametrize("name", proximal.PROXIMAL)
def test_graph_code_for_any_number_of_images(name):
    compiled = tf.function(
        proximal.PROXIMAL[name], input_signature=[tf.TensorSpec([None, *SHAPE], tf.float32), tf.TensorSpec([], tf.float32)]
    )
    for count in (0, 1, 3):
        values = perturbations(count)
        np.testing.assert_allclose(compiled(values, 0.3), apply(name, values, 0.3), atol=1e-6)
