"""The proximal operators against numerical minimization of their definition."""

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tf_robust.attacks import norms, proximal

SHAPE = (2, 3, 2)
N = 4
STRENGTHS = (0.05, 0.3, 1.0)


def perturbations(count=N, seed=0):
    return np.random.RandomState(seed).normal(size=(count, *SHAPE)).astype(np.float32) * 0.7


def apply(name, values, strength):
    return proximal.PROXIMAL[name](tf.constant(values), strength).numpy()


def objective(name, results, values, strength):
    sizes = norms.NORMS[name].size(tf.constant(results, tf.float32)).numpy().astype(np.float64)
    return strength * sizes + 0.5 * ((results.astype(np.float64) - values) ** 2).sum(axis=(1, 2, 3))


def minimize_split(values, strength, constraints):
    """Minimizes strength * height + |v - u|^2 / 2 for v = positive - negative parts, by SLSQP, which needs smoothness."""
    u = values.ravel().astype(np.float64)
    d = u.size

    def value(z):
        return strength * z[2 * d :].sum() + 0.5 * ((z[:d] - z[d : 2 * d] - u) ** 2).sum()

    def slope(z):
        residual = z[:d] - z[d : 2 * d] - u
        return np.concatenate([residual, -residual, np.full(len(z) - 2 * d, strength)])

    start = np.concatenate([np.maximum(u, 0), np.maximum(-u, 0), [np.abs(u).max()] * constraints])
    limits = {
        "type": "ineq",
        "fun": lambda z: z[-1] - z[:d] - z[d : 2 * d],
        "jac": lambda z: np.concatenate([-np.eye(d), -np.eye(d), np.ones((d, 1))], axis=1),
    }
    return scipy.optimize.minimize(
        value,
        start,
        jac=slope,
        bounds=[(0, None)] * len(start),
        constraints=[limits],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
    )


@pytest.mark.parametrize("strength", STRENGTHS)
def test_l0_keeps_or_drops_each_value_whichever_costs_less(strength):
    values = perturbations()
    cheaper = np.where(strength < values.astype(np.float64) ** 2 / 2, values, 0.0)
    np.testing.assert_array_equal(apply("l0", values, strength), cheaper)
    assert 0 < (cheaper == 0).mean() < 1
    grid = np.linspace(-2, 2, 401)  # any other value costs at least as much
    results = apply("l0", values, strength)[..., None].astype(np.float64)
    cost = strength * (results != 0) + (results - values[..., None]) ** 2 / 2
    assert (cost <= strength * (np.abs(grid) > 1e-9) + (grid - values[..., None]) ** 2 / 2 + 1e-7).all()


@pytest.mark.parametrize("strength", STRENGTHS)
def test_l1_minimizes_each_value_by_itself(strength):
    values = perturbations()
    results = apply("l1", values, strength)
    for value, result in zip(values.ravel(), results.ravel()):
        best = scipy.optimize.minimize_scalar(
            lambda v: strength * abs(v) + (v - value) ** 2 / 2, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9}
        )
        assert result == pytest.approx(best.x, abs=1e-5)
    assert (np.abs(results) <= np.abs(values)).all() and (results * values >= 0).all()


@pytest.mark.parametrize("strength", STRENGTHS + (5.0,))
def test_l2_minimizes_its_definition(strength):
    values = perturbations()
    results = apply("l2", values, strength)
    for value, result in zip(values.astype(np.float64), results):

        def cost(v):
            return strength * np.sqrt((v**2).sum() + 1e-16) + ((v - value.ravel()) ** 2).sum() / 2

        best = scipy.optimize.minimize(cost, value.ravel() * 0.7, method="BFGS", options={"gtol": 1e-9})
        np.testing.assert_allclose(result.ravel(), best.x, atol=1e-4)
    assert (results == 0).all() == (strength == 5.0)


@pytest.mark.parametrize("strength", STRENGTHS + (20.0,))
def test_linf_minimizes_its_definition(strength):
    values = perturbations()
    results = apply("linf", values, strength)
    for value, result in zip(values, results):
        best = minimize_split(value, strength, 1)
        half = value.size
        np.testing.assert_allclose(result.ravel(), best.x[:half] - best.x[half : 2 * half], atol=2e-4)
    assert (np.abs(results) < 1e-6).all() == (strength == 20.0)


@pytest.mark.parametrize("name", proximal.PROXIMAL)
@pytest.mark.parametrize("strength", STRENGTHS)
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


def test_a_point_inside_the_l1_ball_stays():
    inside = np.array([0.1, -0.2, 0.05, 0.0], np.float32).reshape(1, 2, 2, 1)
    np.testing.assert_array_equal(proximal.projected_on_l1_ball(tf.constant(inside), 1.0), inside)
    np.testing.assert_array_equal(apply("linf", inside, 1.0), 0 * inside)  # the projection is the point itself


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
