"""The input-gradient penalty against finite differences, and its two forms against each other."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods.common import batches, build, weights
from tf_robust import data, losses


def smooth(network):
    return network(batch_norm=False)


def terms(method, batch):
    loss_terms, _ = method.loss_terms(batch, training=True)
    return {name: np.asarray(value, np.float64) for name, value in loss_terms.items()}


def test_the_penalty_is_half_lambda_times_the_squared_gradient(network, source):
    method, batch = build("input_gradient", smooth(network), weight=3.0), next(batches(source(), 1))
    images, labels = batch.views[0].numpy().astype(np.float64), batch.labels
    losses_of = tf.function(lambda x: losses.cross_entropy(labels, method.classifier(x)["logits"]), autograph=False)

    def loss(x):
        return losses_of(tf.constant(x, tf.float32)).numpy().astype(np.float64)

    random, squares, step = np.random.RandomState(0), [], 0.01
    for _ in range(400):  # E (g . v)^2 = |g|^2 for independent signs v
        signs = random.choice([-1.0, 1.0], images.shape)
        squares.append(((loss(images + step * signs) - loss(images - step * signs)) / (2 * step)) ** 2)
    expected = 1.5 * np.mean(squares, axis=0)
    penalties = terms(method, batch)["input_gradient"]
    assert penalties.min() > 0
    np.testing.assert_allclose(penalties, expected, rtol=0.35)
    assert penalties.sum() == pytest.approx(expected.sum(), rel=0.1)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_batch_mean_penalizes_the_gradient_of_the_mean_loss(network, batch_norm):
    random = np.random.RandomState(0)
    images, labels = random.uniform(0, 1, (3, 8, 8, 1)).astype(np.float32), tf.constant([0, 1, 2], tf.int64)
    batch = data.Batch((tf.constant(images),), labels, tf.zeros([3], tf.int64))
    method = build("input_gradient", network((8, 8, 1), batch_norm=batch_norm), weight=3.0, loss="batch_mean")
    squares, step = 0.0, 0.01

    @tf.function(autograph=False)
    def losses_of(x):
        with keras.StatelessScope():
            return losses.cross_entropy(labels, method.classifier(x, training=True)["logits"])

    for index in np.ndindex(*images.shape):
        sides = []
        for side in (step, -step):
            moved = images.copy()
            moved[index] += side
            sides.append(float(np.mean(losses_of(tf.constant(moved)))))
        squares += ((sides[0] - sides[1]) / (2 * step)) ** 2
    assert terms(method, batch)["input_gradient"].mean() == pytest.approx(3.0 / 2 * squares, rel=0.02)
    printed = build("input_gradient", method.classifier, weight=3.0)
    np.testing.assert_allclose(terms(printed, batch)["input_gradient"], 3 * terms(method, batch)["input_gradient"], rtol=1e-4)


def test_weight_gradients_equal_finite_differences(network, source):
    method, batch = build("input_gradient", smooth(network), weight=5.0), next(batches(source(), 1))
    gradients, *_ = method.gradients(batch, batch.step[0])
    for variable, gradient in zip(method.trainable_variables, gradients):
        value = variable.numpy()
        direction = np.random.RandomState(1).randn(*value.shape).astype(np.float32)
        direction /= np.linalg.norm(direction)
        sides = []
        for side in (0.01, -0.01):
            variable.assign(value + side * direction)
            sides.append(sum(term.mean() for term in terms(method, batch).values()))
        variable.assign(value)
        assert float(tf.reduce_sum(gradient * direction)) == pytest.approx((sides[0] - sides[1]) / 0.02, rel=0.02, abs=2e-4)


def test_both_forms_agree(network, source):
    batch = next(batches(source(), 1))
    exact, difference = (
        build("input_gradient", smooth(network), weight=5.0, form=form, **more)
        for form, more in (("exact", {}), ("finite_difference", {"difference": 0.01}))
    )
    np.testing.assert_allclose(terms(difference, batch)["input_gradient"], terms(exact, batch)["input_gradient"], rtol=0.05)
    for a, b in zip(exact.gradients(batch, 0)[0], difference.gradients(batch, 0)[0]):
        np.testing.assert_allclose(b, a, rtol=0.05, atol=0.05 * float(tf.reduce_max(tf.abs(a))))


@pytest.mark.slow
def test_the_penalty_makes_gradients_smaller(network, source):
    plain, penalized = build("cross_entropy", network()), build("input_gradient", network(), weight=10.0)
    metric, last = build("input_gradient", network(), weight=2.0), next(batches(source(), 1))
    sizes = []
    for method in (plain, penalized):
        for batch in batches(source(), 12):
            method.train_step(batch)
        metric.classifier.set_weights(weights(method))
        sizes.append(terms(metric, last)["input_gradient"].mean())
    assert sizes[1] < 0.7 * sizes[0]
