"""FAB: its projection against SciPy, each step against the formula in NumPy, distances of linear classifiers."""

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tests.attacks.oracles import ORDERS, SHAPE, Linear, sample_images, sizes, wrong
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.fast_adaptive_boundary import FastAdaptiveBoundary, nearest_on_hyperplane
from tf_robust.attacks.norms import NORMS

SIZE = int(np.prod(SHAPE))


def smallest_change(norm, point, slopes, change):
    """Returns the size of the smallest d with slopes @ d = change and point + d in [0, 1], by SciPy; None if there is none."""
    bounds = list(zip(-point, 1 - point))
    if norm == "l2":
        constraint = {"type": "eq", "fun": lambda d: slopes @ d - change, "jac": lambda d: slopes}
        solution = scipy.optimize.minimize(
            lambda d: d @ d, np.zeros(SIZE), jac=lambda d: 2 * d, bounds=bounds, constraints=constraint, method="SLSQP", tol=1e-10
        )
        return np.sqrt(solution.fun) if solution.success else None
    above = np.block([[np.eye(SIZE), -np.ones([SIZE, 1])], [-np.eye(SIZE), -np.ones([SIZE, 1])]])  # |d_i| <= the last variable
    solution = scipy.optimize.linprog(
        np.eye(SIZE + 1)[-1], above, np.zeros(2 * SIZE), np.append(slopes, 0)[None], [change], [*bounds, (0, None)]
    )
    return solution.fun if solution.success else None


@pytest.mark.parametrize("norm", ORDERS)
def test_projection_is_the_smallest_change_onto_the_hyperplane_inside_the_cube(norm):
    random, count = np.random.RandomState(0), 40
    points = random.uniform(0, 1, (count, *SHAPE)).round(1).astype(np.float32)  # some values at the faces
    scales = 10.0 ** random.randint(-12, 3, (count, 1, 1, 1))
    slopes = (random.randn(count, *SHAPE) * (random.rand(count, *SHAPE) < 0.8) * scales).astype(np.float32)
    change = (random.randn(count) * np.abs(slopes).sum(axis=(1, 2, 3)) * 0.25).astype(np.float32)
    steps = nearest_on_hyperplane(NORMS[norm], tf.constant(points), tf.constant(slopes), tf.constant(change)).numpy()
    assert (points + steps).min() >= 0 and (points + steps).max() <= 1 + 1e-6 and not steps[slopes == 0].any()
    reached = (slopes.astype(np.float64) * steps).sum(axis=(1, 2, 3))
    impossible = 0
    for i, scale in enumerate(np.abs(slopes).max(axis=(1, 2, 3))):  # SciPy's tolerances are absolute
        point, slope, wanted = points[i].reshape(-1).astype(float), slopes[i].reshape(-1) / scale, change[i] / scale
        expected = smallest_change(norm, point, slope, wanted)
        if expected is None:  # the corner of the cube that comes closest
            impossible += 1
            np.testing.assert_allclose(steps[i].reshape(-1), np.where(slope == 0, 0, (slope * wanted > 0) - point), atol=1e-6)
        else:
            assert reached[i] / scale == pytest.approx(wanted, abs=1e-4)
            assert sizes(steps[i : i + 1], norm)[0] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert 0 < impossible < count / 2


@pytest.mark.parametrize("norm", ORDERS)
def test_projection_of_large_images_reaches_the_hyperplane(norm):
    random = np.random.RandomState(0)
    points, slopes = random.uniform(0, 1, (8, 32, 32, 3)).astype(np.float32), random.standard_cauchy((8, 32, 32, 3)).astype(np.float32)
    room = np.where(slopes > 0, 1 - points, points)
    change = (np.linspace(0.0, 0.999, 8) * (np.abs(slopes) * room).sum(axis=(1, 2, 3))).astype(np.float32)
    steps = nearest_on_hyperplane(NORMS[norm], tf.constant(points), tf.constant(slopes), tf.constant(change)).numpy()
    np.testing.assert_allclose((slopes * steps).sum(axis=(1, 2, 3)), change, rtol=1e-4, atol=1e-5)
    nothing = nearest_on_hyperplane(NORMS[norm], tf.constant(points), tf.zeros_like(slopes), tf.fill([8], np.inf))
    np.testing.assert_array_equal(nothing, np.zeros_like(points))


def moved_by_formula(x, x0, slopes, offset, norm):
    """Returns the point after one step, for a boundary slopes @ x + offset = 0 and no face of the cube nearby."""
    step, step0 = (
        -(slopes @ start + offset) * (np.sign(slopes) / np.abs(slopes).sum() if norm == "linf" else slopes / (slopes @ slopes))
        for start in (x, x0)
    )
    size, size0 = (max(np.linalg.norm(d, ORDERS[norm]), 1e-8) for d in (step, step0))
    bias = min(size / (size + size0), 0.1)
    return (1 - bias) * (x + 1.05 * step) + bias * (x0 + 1.05 * step0)


def boundary(model, images, labels, i):
    """Returns the slopes and offset of the boundary between the label of an image and the class of its next highest logit."""
    rival = next(j for j in np.argsort(-model(images).numpy()[i]) if j != labels[i])
    slopes = model.weights[:, rival].astype(float) - model.weights[:, labels[i]]
    return slopes, float(model.offset[rival] - model.offset[labels[i]])


@pytest.mark.parametrize("norm", ORDERS)
def test_a_step_from_any_point_equals_the_formula(norm):
    model = Linear(classes=3)
    images, labels = sample_images(model, count=6)
    points = images + 0.02 * np.random.RandomState(0).randn(*images.shape).astype(np.float32)
    goal = Criterion(tf.constant(labels)).against(model(images), 0)
    moved = FastAdaptiveBoundary(norm=norm)._move(model, tf.constant(points), tf.constant(images), goal).numpy()
    for i in range(6):
        x, x0 = points[i].reshape(-1).astype(float), images[i].reshape(-1).astype(float)
        expected = moved_by_formula(x, x0, *boundary(model, images, labels, i), norm)
        np.testing.assert_allclose(moved[i].reshape(-1), expected, atol=1e-5)


@pytest.mark.parametrize("norm", ORDERS)
def test_each_point_of_a_search_equals_the_formula(norm):
    model = Linear(classes=3)
    images, labels = sample_images(model, count=6)
    queries = []

    def recorded(x):
        tf.numpy_function(lambda x: queries.append(x.copy()), [x], [])
        return model(x)

    attack = FastAdaptiveBoundary(norm=norm, radius=0.5 if norm == "linf" else 2.0, steps=4, early_stop=False, target_classes=1)
    attack(recorded, images, labels)
    points = [queries[-2 * step].reshape(6, -1).astype(float) for step in (3, 2, 1)]  # of the gradients
    for i in range(6):
        slopes, offset = boundary(model, images, labels, i)
        x = x0 = images[i].reshape(-1).astype(float)
        for following in points:
            x = moved_by_formula(x, x0, slopes, offset, norm)
            if slopes @ x + offset > 0:
                x = x0 + 0.9 * (x - x0)
            np.testing.assert_allclose(following[i], x, atol=1e-5)
            x = following[i]  # rounding errors do not accumulate


@pytest.mark.parametrize("norm, classes", [("linf", 2), ("l2", 4)])
def test_it_finds_the_distance_of_a_linear_classifier(norm, classes):
    model = Linear(classes=classes)
    images, labels = sample_images(model, count=32)
    distances = model.distances(images, labels, ORDERS[norm])
    radius = np.sort(distances)[15]
    # distances are proportional to the difference from gray: with one at 1.02 and at 0.98 radii
    points = np.concatenate([0.5 + (images - 0.5) / factor for factor in (0.98, 1.02)]).astype(np.float32)
    both, scaled = np.tile(labels, 2), np.concatenate([distances / 0.98, distances / 1.02])
    attacked = FastAdaptiveBoundary(norm=norm, radius=radius, steps=20)(model, points, both).numpy()
    assert sizes(attacked - points, norm).max() <= radius * (1 + 1e-5)
    certain = np.abs(scaled / radius - 1) > 0.008  # it stops just beyond the boundary
    np.testing.assert_array_equal(wrong(model, attacked, both)[certain], (scaled < radius)[certain])


@pytest.mark.parametrize("norm", ORDERS)
def test_without_a_small_radius_the_distance_to_the_other_class_is_found(norm):
    model = Linear(classes=2)
    images, labels = sample_images(model, count=32)
    attacked = FastAdaptiveBoundary(norm=norm, radius=1.0, steps=20, early_stop=False)(model, images, labels).numpy()
    np.testing.assert_allclose(sizes(attacked - images, norm), model.distances(images, labels, ORDERS[norm]), rtol=0.01)


def test_restarts_begin_elsewhere():
    model, starts = Linear(), []
    images, labels = sample_images(model, count=4)

    def recorded(x):
        tf.numpy_function(lambda x: starts.append(x.copy()), [x], [])
        return model(x)

    attack = FastAdaptiveBoundary(radius=1e-4, restarts=3, steps=1)
    assert [attack.attempts(classes, targeted) for classes, targeted in ((2, False), (4, False), (100, False), (4, True))] == [3, 9, 27, 3]
    attack(recorded, images, labels)
    first, second, third = starts[2::4]  # each attempt queries the image, its start, the next point and the result
    np.testing.assert_array_equal(first, images)
    assert 0 < np.abs(second - images).max() <= 0.5e-4 + 1e-7 and not np.array_equal(second, third)


def test_a_flat_model_leaves_images_unchanged():
    images, labels = np.full([2, *SHAPE], 0.5, np.float32), np.zeros(2, int)
    attacked = FastAdaptiveBoundary(norm="l2", steps=3)(lambda x: x[:, :2, 0, 0] * 0.0 + [[1.0, 0.0]], images, labels)
    np.testing.assert_array_equal(attacked, images)
