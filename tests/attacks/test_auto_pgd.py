"""APGD against the paper's algorithm box written for one image in NumPy, and closed forms on linear classifiers."""

import fractions
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.attacks.oracles import ORDERS, SHAPE, Linear, sample_images, sizes, wrong
from tf_robust.attacks import auto_pgd
from tf_robust.attacks.auto_pgd import AutoProjectedGradientDescent, TargetedAutoPGD, checkpoints
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.gradient import ProjectedGradientDescent

CASES = [("linf", "cross_entropy"), ("l2", "margin"), ("linf", "difference_of_logits_ratio")]  # each norm and each loss
RADII = {"linf": 0.4, "l2": 2.0}


class Waves:
    """Logits V sin(W x + b) + c, in TensorFlow and, with losses and their derivatives by hand, in float64 NumPy.

    Class 0 gets `ahead` more than the others. It records its queries.
    """

    def __init__(self, classes=4, width=12, seed=0, ahead=0.0):
        random = np.random.RandomState(seed)
        self.c = ahead * np.eye(classes)[0]
        self.w, self.b = 1.5 * random.randn(int(np.prod(SHAPE)), width), random.randn(width)
        self.v = random.randn(width, classes)
        self.queries = []

    def __call__(self, images):
        w, b, v, c = (tf.constant(part, tf.float32) for part in (self.w, self.b, self.v, self.c))
        tf.numpy_function(lambda images: self.queries.append(images.copy()), [images], [])
        return tf.sin(tf.reshape(images, [-1, len(self.w)]) @ w + b) @ v + c

    def loss(self, kind, x, label):
        """Returns (loss, its derivative with respect to x) of one image."""
        inner = x.reshape(-1) @ self.w + self.b
        z = np.sin(inner) @ self.v + self.c
        by_z = np.zeros_like(z)
        other = max((j for j in range(len(z)) if j != label), key=lambda j: z[j])
        if kind == "cross_entropy":
            p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
            value, by_z = -np.log(p[label]), p - np.eye(len(z))[label]
        else:
            value = z[other] - z[label]
            by_z[other], by_z[label] = 1.0, -1.0
        if kind == "difference_of_logits_ratio":
            first, _, third = np.argsort(-z)[:3]
            range_ = z[first] - z[third]
            by_z /= range_
            by_z[first] -= value / range_**2
            by_z[third] += value / range_**2
            value /= range_
        return value, (self.w @ (np.cos(inner) * (self.v @ by_z))).reshape(x.shape)


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
    images, labels = sample_images(model, count=64)
    distances = model.distances(images, labels, ORDERS[norm])
    radius = float(np.median(distances))
    certain = np.abs(distances / radius - 1) > 0.01
    attack = AutoProjectedGradientDescent(norm=norm, radius=radius, loss=loss, steps=30)
    attacked = attack(model, images, labels, targets=1 - labels if norm == "l2" else None).numpy()
    assert sizes(attacked - images, norm).max() <= radius * (1 + 1e-5)
    np.testing.assert_array_equal(wrong(model, attacked, labels)[certain], (distances < radius)[certain])


@pytest.mark.parametrize("norm, loss", [("linf", "margin"), ("l2", "difference_of_logits_ratio")])
def test_of_four_classes_the_margins_find_the_nearest_and_none_is_nearer_than_possible(norm, loss):
    model = Linear(classes=4)
    images, labels = sample_images(model, count=48)
    distances = model.distances(images, labels, ORDERS[norm])
    radius = float(np.median(distances))
    attack = AutoProjectedGradientDescent(norm=norm, radius=radius, loss=loss, steps=30, restarts=2)
    attacked = wrong(model, attack(model, images, labels).numpy(), labels)
    assert not attacked[distances > radius].any()
    assert attacked[distances < 0.9 * radius].mean() > 0.9


def test_only_unsuccessful_images_are_queried_again():
    model = Waves()
    images = np.random.RandomState(1).uniform(0.2, 0.8, (40, *SHAPE)).astype(np.float32)
    labels = np.argmax(model(images), axis=1)
    model.queries.clear()
    attack = AutoProjectedGradientDescent(radius=0.02, steps=20)
    attacked = attack(model, images, labels).numpy()
    queries = list(model.queries[1:])
    active, counts = np.arange(40), []
    for points in queries:
        counts.append(len(active))
        assert len(points) == len(active)
        reached = np.argmax(model(points), axis=1) != labels[active]
        np.testing.assert_array_equal(attacked[active[reached]], points[reached])
        active = active[~reached]
    assert len(queries) == 21 and counts[0] == 40 and len(active) and counts[-1] < 35
    np.testing.assert_array_equal(np.flatnonzero(~wrong(model, attacked, labels)), active)


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


def test_more_steps_are_not_weaker_and_apgd_is_not_weaker_than_pgd_of_as_many():
    model = Waves(classes=5)
    images = np.random.RandomState(1).uniform(0.2, 0.8, (64, *SHAPE)).astype(np.float32)
    labels = tf.argmax(model(images), axis=1)

    def reached(kind, steps):
        attack = kind(norm="l2", radius=0.2, steps=steps, loss="margin", early_stop=False)
        return Criterion(labels).margin(model(attack(model, images, labels))).numpy().mean()

    few, many = (reached(AutoProjectedGradientDescent, steps) for steps in (5, 50))
    assert many > few and many > reached(ProjectedGradientDescent, 50) - 0.01


def test_flat_model_and_zero_radius():
    images, labels = np.full([2, *SHAPE], 0.5, np.float32), np.array([0, 1])
    for norm in ORDERS:
        attack = AutoProjectedGradientDescent(norm=norm, radius=0.1, steps=5, skip_misclassified=False)
        attacked = attack(lambda x: x[:, :2, 0, 0] * 0.0 + [[1.0, 0.0]], images, labels).numpy()
        assert np.isfinite(attacked).all() and sizes(attacked - images, norm).max() <= 0.1 + 1e-6
    attack = AutoProjectedGradientDescent(norm="l2", radius=0.0, steps=5, skip_misclassified=False)
    np.testing.assert_array_equal(attack(Linear(), images, labels), images)


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
    with pytest.raises(ValueError, match="at least 4 classes"):
        Criterion(tf.zeros([1], tf.int64)).against(tf.zeros([1, 3]), 0).difference_of_logits_ratio(tf.zeros([1, 3]))


@pytest.mark.parametrize("norm", ORDERS)
def test_targeted_apgd_succeeds_exactly_where_possible_on_a_linear_classifier(norm):
    """Logits of different scales, so that the class with the second highest logit is often not the nearest."""
    model = Linear(classes=4)
    scales = np.array([0.3, 1.0, 2.0, 4.0], np.float32)
    model.weights, model.offset = model.weights * scales, model.offset * scales
    images, labels = sample_images(model, count=64)
    distances = model.distances(images, labels, ORDERS[norm])
    radius = float(np.median(distances))
    attack = TargetedAutoPGD(norm=norm, radius=radius, steps=30, loss="margin")
    attacked = attack(model, images, labels).numpy()
    assert sizes(attacked - images, norm).max() <= radius * (1 + 1e-5)
    certain = np.abs(distances / radius - 1) > 0.01
    np.testing.assert_array_equal(wrong(model, attacked, labels)[certain], (distances < radius)[certain])
    if norm == "linf":
        first = TargetedAutoPGD(norm=norm, radius=radius, steps=30, loss="margin", target_classes=1)(model, images, labels)
        assert wrong(model, first, labels).sum() < wrong(model, attacked, labels).sum()
