"""FGSM and PGD against closed forms on linear classifiers, a loop written in NumPy, and finite differences."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.attacks.oracles import ORDERS, Linear, sample_images, sizes, wrong
from tf_robust import attacks
from tf_robust.attacks.attack import loss_and_gradient
from tf_robust.attacks.criterion import LOSSES, Criterion

KINDS = {"fast_gradient": attacks.FastGradient, "pgd": functools.partial(attacks.ProjectedGradientDescent, steps=40, step_size=0.25)}


def tiny_images(count=12):
    return np.random.RandomState(0).uniform(0.1, 0.9, (count, 16, 16, 1)).astype(np.float32)


@pytest.mark.parametrize("norm", ORDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_linear_classifier_exactly_radii_above_the_distance_succeed(norm, kind):
    """Distances are proportional to the difference from gray, so that images of chosen distances share one graph."""
    model = Linear()
    images, labels = sample_images(model, count=5)
    distances = model.distances(images, labels, ORDERS[norm])
    radius = distances.min() * {"linf": 1.0, "l2": 0.4}[norm]
    scaled = [0.5 + (images - 0.5) * (radius / factor / distances)[:, None, None, None] for factor in (0.98, 1.02)]
    points, both, expected = np.concatenate(scaled).astype(np.float32), np.tile(labels, 2), np.repeat([False, True], 5)
    np.testing.assert_array_equal(radius > model.distances(points, both, ORDERS[norm]), expected)
    attacked = KINDS[kind](norm=norm, radius=radius)(model, points, both).numpy()
    np.testing.assert_array_equal(wrong(model, attacked, both), expected)


def test_gradient_equals_finite_differences(network):
    model, images = network(), tiny_images(3)
    labels = tf.constant([0, 1, 2], tf.int64)
    for loss in LOSSES:

        def value(x):
            return getattr(Criterion(labels), loss)(model(x)["logits"])

        values, gradient, _ = loss_and_gradient(lambda x: model(x)["logits"], tf.constant(images), getattr(Criterion(labels), loss))
        np.testing.assert_allclose(values, value(images), atol=1e-6)
        direction = np.random.RandomState(1).randn(*images.shape).astype(np.float32)
        step = 1e-3
        slope = (value(images + step * direction) - value(images - step * direction)) / (2 * step)
        np.testing.assert_allclose(tf.reduce_sum(gradient * direction, [1, 2, 3]), slope, rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("norm", ORDERS)
def test_pgd_equals_a_numpy_loop(norm, network):
    model, images, labels = network(), tiny_images(), np.arange(12) % 3
    radius, steps, step_size = {"linf": 0.03, "l2": 0.4}[norm], 5, 0.3
    attack = attacks.ProjectedGradientDescent(
        norm=norm, radius=radius, steps=steps, step_size=step_size, random_start=False, early_stop=False, skip_misclassified=False
    )
    points = images.astype(np.float64)
    for _ in range(steps):
        x = tf.Variable(points.astype(np.float32))
        with tf.GradientTape() as tape:
            loss = keras.losses.sparse_categorical_crossentropy(labels, model(x)["logits"], from_logits=True)
        gradient = tape.gradient(loss, x).numpy().astype(np.float64)
        for i in range(len(points)):
            if norm == "linf":
                moved = points[i] + step_size * radius * np.sign(gradient[i]) - images[i]
                moved = np.clip(moved, -radius, radius)
            else:
                moved = points[i] + step_size * radius * gradient[i] / np.linalg.norm(gradient[i]) - images[i]
                moved *= min(1.0, radius / np.linalg.norm(moved))
            points[i] = np.clip(images[i] + moved, 0, 1)
    attacked = attack(model, images, labels).numpy()
    assert np.abs(attacked - images).max() > 0.005
    np.testing.assert_allclose(attacked, points, atol=2e-5)


@pytest.mark.parametrize("norm", ORDERS)
def test_random_starts_fill_the_ball_uniformly(norm):
    attack = attacks.ProjectedGradientDescent(norm=norm, radius=0.3)
    images = np.full([4000, 2, 2, 1], 0.5, np.float32)
    drawn = attack.start(images, [0, 0], np.arange(4000), 0.3).numpy() - images
    lengths = sizes(drawn, norm) / 0.3
    assert lengths.max() <= 1.0 + 1e-6
    np.testing.assert_allclose(np.quantile(lengths, [0.1, 0.5, 0.9]), np.array([0.1, 0.5, 0.9]) ** (1 / 4), atol=0.02)
    assert np.abs(drawn.mean(axis=0)).max() < 0.01


def test_restarts_draw_anew_and_keep_successes():
    linear = Linear()

    def model(x):  # rough, so that the result of a step depends on its start
        return linear(x) + tf.sin(200.0 * tf.reshape(x, [-1, 16])[:, :2])

    images, labels = sample_images(model, count=60)

    def broken(restarts):
        attack = attacks.ProjectedGradientDescent(norm="l2", radius=0.15, steps=1, restarts=restarts)
        return wrong(model, attack(model, images, labels).numpy(), labels)

    many, one = broken(8), broken(1)
    assert (many >= one).all() and many.sum() > one.sum()


@pytest.mark.parametrize("norm", ORDERS)
def test_bisection_finds_the_distance_of_a_linear_classifier(norm):
    model = Linear(classes=3)
    images, labels = sample_images(model)
    attacked = attacks.MinimalPGD(norm=norm, rounds=12, steps=40)(model, images, labels).numpy()
    assert wrong(model, attacked, labels).all()
    ratios = sizes(attacked - images, norm) / model.distances(images, labels, ORDERS[norm])
    assert ratios.min() > 0.999 and np.quantile(ratios, 0.9) < 1.01, ratios


def test_the_ratio_needs_three_classes():
    model = Linear()
    with pytest.raises(ValueError, match="at least 3 classes"):
        attacks.ProjectedGradientDescent(loss="difference_of_logits_ratio")(model, *sample_images(model, count=4))


def test_models_are_traced_once_with_folded_batch_normalization(network):
    model, own, traced = network(), keras.layers.BatchNormalization.call, []

    def predict(images):
        traced.append(keras.layers.BatchNormalization.call is not own)
        return model(images)

    attacks.ProjectedGradientDescent(norm="l2", radius=1.0, restarts=2)(predict, tiny_images(3), [0, 1, 2])
    assert traced == [True] and keras.layers.BatchNormalization.call is own
