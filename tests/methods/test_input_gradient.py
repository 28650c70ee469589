"""The input-gradient penalty against finite differences, and its two forms against each other."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods.common import batches, build
from tf_robust import data, losses


def smooth(network):
    return network(batch_norm=False)


def terms(method, batch):
    loss_terms, _ = method.loss_terms(batch, training=True)
    return {name: np.asarray(value, np.float64) for name, value in loss_terms.items()}


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_penalty_is_half_lambda_times_the_squared_gradient_of_each_image(network, batch_norm):
    """With `batch_mean` that of the mean loss, times the batch size; otherwise that of the sum."""
    random, step = np.random.RandomState(0), 0.01
    images, labels = random.uniform(0, 1, (3, 8, 8, 1)).astype(np.float32), tf.constant([0, 1, 2], tf.int64)
    batch = data.Batch((tf.constant(images),), labels, tf.zeros([3], tf.int64))
    of_mean = build("input_gradient", network((8, 8, 1), batch_norm=batch_norm), weight=3.0, loss="batch_mean")

    @tf.function(autograph=False)
    def mean_loss(x):
        with keras.StatelessScope():
            return tf.reduce_mean(losses.cross_entropy(labels, of_mean.classifier(x, training=True)["logits"]))

    slopes = np.zeros(images.shape)
    for index in np.ndindex(*images.shape):
        moved = images.copy()
        moved[index] += step
        slopes[index] = float(mean_loss(tf.constant(moved)))
        moved[index] -= 2 * step
        slopes[index] -= float(mean_loss(tf.constant(moved)))
    squares = np.sum((slopes / (2 * step)) ** 2, axis=(1, 2, 3))
    np.testing.assert_allclose(terms(of_mean, batch)["input_gradient"], 3.0 / 2 * squares * 3, rtol=0.02)
    of_image = build("input_gradient", of_mean.classifier, weight=3.0)
    np.testing.assert_allclose(terms(of_image, batch)["input_gradient"], 3 * terms(of_mean, batch)["input_gradient"], rtol=1e-4)


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
