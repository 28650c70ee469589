"""APGD against the paper's algorithm box written for one image in NumPy, and closed forms on linear classifiers."""

import fractions
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.attacks.oracles import ORDERS, SHAPE, Linear, Waves, median_radius, sizes, wrong
from tf_robust.attacks import auto_pgd
from tf_robust.attacks.auto_pgd import AutoProjectedGradientDescent, TargetedAutoPGD, checkpoints
from tf_robust.attacks.criterion import Criterion

CASES = [("linf", "cross_entropy"), ("l2", "margin"), ("linf", "difference_of_logits_ratio")]  # each norm and each loss
RADII = {"linf": 0.4, "l2": 2.0}


def algorithm_box(loss, image, queries, norm, radius, steps):
    """Runs Algorithm 1 of the paper on one image; returns (points x(1)..x(N), the best one, the conditions at the checkpoints).

    Each point is computed from the attack's own points before it, `queries`, so that rounding errors do not accumulate.
    """

    def project(x):
        moved = x - image
        moved = np.clip(moved, -radius, radius) if norm == "linf" else moved * min(1, radius / np.linalg.norm(moved))
        return np.clip(image + moved, 0, 1)

    def ascent(x, size):
        gradient = loss(x)[1]
        return project(x + size * (np.sign(gradient) if norm == "linf" else gradient / np.linalg.norm(gradient)))

    p = [fractions.Fraction(0), fractions.Fraction(22, 100)]
    while p[-1] < 1:
        p.append(p[-1] + max(p[-1] - p[-2] - fractions.Fraction(3, 100), fractions.Fraction(6, 100)))
    checked = {math.ceil(fraction * steps) for fraction in p}
    size, x, computed, conditions = 2 * radius, list(queries[:2]), [ascent(queries[0], 2 * radius)], []
    best = max(x, key=lambda x: loss(x)[0])
    last, last_size, last_best = 0, size, loss(best)[0]
    for k in range(1, steps):
        z = ascent(x[k], size)
        computed.append(project(x[k] + 0.75 * (z - x[k]) + 0.25 * (x[k] - x[k - 1])))
        x.append(queries[k + 1])
        if loss(x[-1])[0] > loss(best)[0]:
            best = x[-1]
        if k in checked:
            few = sum(loss(x[i + 1])[0] > loss(x[i])[0] for i in range(last, k)) < 0.75 * (k - last)
            stuck = last_size == size and last_best == loss(best)[0]
            last, last_size, last_best = k, size, loss(best)[0]
            conditions.append((few, stuck))
            if few or stuck:
                size, x[k + 1] = size / 2, best
    return computed, best, conditions


def test_checkpoints_equal_the_papers():
    assert checkpoints(100) == [0, 22, 41, 57, 70, 80, 87, 93, 99]
    assert checkpoints(10) == [0, 3, 5, 6, 7, 8, 9, 10]
    assert checkpoints(1) == [0, 1]


@pytest.mark.parametrize("norm, loss", CASES)
def test_every_point_equals_the_algorithm_box(norm, loss):
    # the ratio's gradient vanishes where the label has the third largest logit, so there class 0 is always the largest
    model, steps, all_conditions = Waves(ahead=15.0 if loss == "difference_of_logits_ratio" else 0.0), 60, []
    images = np.random.RandomState(1).uniform(0.2, 0.8, (5, *SHAPE)).astype(np.float32)
    labels = np.argmax(model(images), axis=1)
    attack = AutoProjectedGradientDescent(norm=norm, radius=RADII[norm], loss=loss, steps=steps, early_stop=False)
    model.queries.clear()
    attacked = attack(model, images, labels).numpy()
    points = np.stack(model.queries[-steps - 1 :], axis=1)  # [N, steps + 1, ...]
    assert points.shape == (5, steps + 1, *SHAPE)
    for i, (image, label) in enumerate(zip(images.astype(np.float64), labels)):
        computed, best, conditions = algorithm_box(
            lambda x: model.loss(loss, x, label), image, points[i].astype(np.float64), norm, RADII[norm], steps
        )
        np.testing.assert_allclose(points[i, 1:], computed, atol=1e-4)
        np.testing.assert_allclose(attacked[i], best, atol=1e-7)
        all_conditions += conditions
    assert 0.5 < np.mean([few for few, _ in all_conditions]) < 0.95  # sizes were halved, and kept


@pytest.mark.parametrize(
    "rises, period, best_unchanged, halved, expected",
    [
        (7, 10, False, False, True),
        (8, 10, False, False, False),  # fewer than 0.75 of the steps rose
        (8, 10, True, False, True),
        (8, 10, True, True, False),  # the best loss stayed, at a size that was kept
        (0, -1, True, False, False),  # no checkpoint
    ],
)
def test_each_condition_halves_the_step_by_itself(rises, period, best_unchanged, halved, expected):
    points, best, gradients = (np.full([1, *SHAPE], value, np.float32) for value in (0.3, 0.6, 2.0))
    state = auto_pgd._State(
        indices=tf.zeros([1], tf.int32),
        points=tf.constant(points),
        previous=tf.constant(points),
        best=tf.constant(best),
        best_gradient=tf.constant(gradients),
        best_loss=tf.ones([1]),
        checkpoint_loss=tf.fill([1], float(best_unchanged)),
        last_loss=tf.fill([1], 0.5),
        step_size=tf.fill([1], 0.2),
        rises=tf.fill([1], float(rises)),
        halved=tf.constant([halved]),
    )
    after, gradient = auto_pgd._adapt(state, tf.fill([1], 0.25), tf.zeros([1, *SHAPE]), float(period))
    np.testing.assert_allclose(after.step_size, 0.1 if expected else 0.2)
    np.testing.assert_allclose(after.points, best if expected else points)
    np.testing.assert_allclose(gradient, gradients if expected else 0.0)
    # returning to the best counts as the first rise after the checkpoint
    assert after.rises == (rises if period < 0 else 0) + expected and after.last_loss == (1.0 if expected else 0.25)
    assert after.halved == (halved if period < 0 else expected) and after.checkpoint_loss == state.checkpoint_loss + (
        period >= 0 and not best_unchanged
    )


@pytest.mark.parametrize("norm, loss", CASES)
def test_on_a_linear_classifier_it_succeeds_exactly_where_possible(norm, loss):
    """Two of the classes are never near, so that all losses have one maximum in a ball. In l2 with target classes."""
    model = Linear(classes=4)
    model.offset[2:] -= 30
    images, labels, distances, radius = median_radius(model, norm, 64)
    certain = np.abs(distances / radius - 1) > 0.01
    attack = AutoProjectedGradientDescent(norm=norm, radius=radius, loss=loss, steps=30)
    attacked = attack(model, images, labels, targets=1 - labels if norm == "l2" else None).numpy()
    assert sizes(attacked - images, norm).max() <= radius * (1 + 1e-5)
    np.testing.assert_array_equal(wrong(model, attacked, labels)[certain], (distances < radius)[certain])


def test_a_misclassified_point_is_returned_even_if_the_loss_was_higher_before():
    """Near gray all classes are about as likely; where class 1 is the likeliest, most of the others are unlikely."""

    def model(images):
        brighter = tf.reduce_mean(images, axis=[1, 2]) - 0.5  # [N, 1]
        rest = tf.tile(-0.01 - 30.0 * tf.nn.relu(brighter - 0.05), [1, 9])
        return tf.concat([0.0 * brighter, 5.0 * brighter - 0.05, rest], axis=1)

    images, labels = np.full([20, *SHAPE], 0.5, np.float32), np.zeros(20, int)
    attacked = AutoProjectedGradientDescent(radius=0.1, steps=20)(model, images, labels).numpy()
    start = AutoProjectedGradientDescent(radius=0.1).start(images, [0, 0], np.arange(20), 0.1)
    assert wrong(model, attacked, labels).all()
    before, after = (Criterion(tf.constant(labels)).cross_entropy(model(points)).numpy() for points in (start, attacked))
    correct = ~wrong(model, start, labels)
    assert correct.sum() > 5 and (after < before)[correct].all()


def test_flat_model_and_zero_radius():
    images, labels = np.full([2, *SHAPE], 0.5, np.float32), np.array([0, 1])
    flat = lambda x: x[:, :2, 0, 0] * 0.0 + [[1.0, 0.0]]
    for model, radius in ((flat, 0.1), (Linear(), 0.0)):
        attack = AutoProjectedGradientDescent(norm="l2", radius=radius, steps=5, skip_misclassified=False)
        assert sizes(attack(model, images, labels).numpy() - images, "l2").max() <= radius + 1e-6


def test_targeted_losses_equal_brute_force():
    random = np.random.RandomState(0)
    logits, labels = random.randn(30, 6).astype(np.float32), random.randint(0, 6, 30)
    for rank in range(7):
        goal = Criterion(tf.constant(labels)).against(tf.constant(logits), rank)
        others = random.randn(30, 6).astype(np.float32)  # the logits of other points, which do not change the rivals
        for i, label in enumerate(labels):
            rivals = sorted((j for j in range(6) if j != label), key=lambda j: -logits[i, j])
            rival, z = rivals[min(rank, 4)], others[i].astype(float)
            ordered = np.sort(z)[::-1]
            expected = {
                "margin": z[rival] - z[label],
                "difference_of_logits_ratio": -(z[label] - z[rival]) / (ordered[0] - (ordered[2] + ordered[3]) / 2),
                "cross_entropy": z[rival] - np.log(np.exp(np.delete(z, rival)).sum()),  # minus the log-odds
            }
            for loss, value in expected.items():
                assert getattr(goal.at([i]), loss)(others[i : i + 1]).numpy()[0] == pytest.approx(value, rel=1e-4, abs=1e-5), loss
        np.testing.assert_array_equal(goal.reached(others), np.argmax(others, axis=1) != labels)  # any class but the label
    target = Criterion(tf.constant(labels), targeted=True)
    assert target.against(tf.constant(logits), 0) is target
    own, ordered = np.eye(6, dtype=bool)[labels], np.sort(logits, axis=1)[:, ::-1]
    margins = logits[own] - logits[~own].reshape(30, 5).max(axis=1)
    np.testing.assert_allclose(target.margin(tf.constant(logits)), margins, rtol=1e-5)
    ratios = margins / (ordered[:, 0] - ordered[:, 2:4].mean(axis=1))
    np.testing.assert_allclose(target.difference_of_logits_ratio(tf.constant(logits)), ratios, rtol=1e-4)
    with pytest.raises(ValueError, match="at least 4 classes"):
        Criterion(tf.zeros([1], tf.int64)).against(tf.zeros([1, 3]), 0).difference_of_logits_ratio(tf.zeros([1, 3]))


@pytest.mark.parametrize("norm", ORDERS)
def test_targeted_apgd_succeeds_exactly_where_possible_on_a_linear_classifier(norm):
    """Logits of different scales, so that the class with the second highest logit is often not the nearest."""
    model = Linear(classes=4)
    scales = np.array([0.3, 1.0, 2.0, 4.0], np.float32)
    model.weights, model.offset = model.weights * scales, model.offset * scales
    images, labels, distances, radius = median_radius(model, norm, 64)
    attack = TargetedAutoPGD(norm=norm, radius=radius, steps=30, loss="margin")
    attacked = attack(model, images, labels).numpy()
    assert sizes(attacked - images, norm).max() <= radius * (1 + 1e-5)
    certain = np.abs(distances / radius - 1) > 0.01
    np.testing.assert_array_equal(wrong(model, attacked, labels)[certain], (distances < radius)[certain])
    if norm == "linf":
        first = TargetedAutoPGD(norm=norm, radius=radius, steps=30, loss="margin", target_classes=1)(model, images, labels)
        assert wrong(model, first, labels).sum() < wrong(model, attacked, labels).sum()
