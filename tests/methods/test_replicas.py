"""In float64, two devices take the steps of one: weights, queues, memories and metrics after eight steps of plain SGD."""

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.conftest import sweep, tiny_network, tiny_source
from tests.methods import common
from tests.methods.replicas import SYNCHRONIZED, build, exact, state, trained
from tests.methods.users_models import darkened
from tf_robust import data, losses, methods
from tf_robust.training import distribution, loop


def metrics_of(method):
    return {name: float(value) for name, value in method.get_metrics_result().items()}


def grouped_fit(method, batches, monkeypatch):
    """Trains on one device by the mean of the gradients of a batch's halves, each with the draws of its replica."""
    group = tf.Variable(0, dtype=tf.int64, trainable=False)
    fold = tf.random.experimental.stateless_fold_in
    monkeypatch.setattr(
        type(method),
        "random_seed",
        lambda self, step, purpose: fold(fold(tf.stack([tf.constant(self.seed, tf.int64), step]), group), tf.constant(purpose, tf.int64)),
    )
    halves = tf.function(lambda batch: method.gradients(batch, batch.step[0]), autograph=False)
    for batch in batches:
        if not batch.step[0] % 4:  # an epoch begins
            method.reset_metrics()
        gradients, moved = [], []
        before = [variable.numpy() for variable in method.non_trainable_variables]
        for replica in range(2):
            group.assign(replica)
            half = tf.nest.map_structure(lambda part: tf.split(part, 2)[replica], batch)
            half_gradients, terms, logits, statistics = halves(half)
            for name, value in terms.items():
                method.trackers[name].update_state(value)
            method.accuracy.update_state(half.labels, logits)
            gradients.append([value.numpy() for value in half_gradients])
            moved.append([value.numpy() - old for value, old in zip(statistics, before)])
        for variable, old, *steps in zip(method.non_trainable_variables, before, *moved):
            variable.assign(old + sum(steps))  # each half moves the memories of its own images
        for variable, *both in zip(method.trainable_variables, *gradients):
            variable.assign_sub(0.125 * np.mean(both, axis=0))


@pytest.mark.parametrize("name", sweep(common.DISTINCT, quick=("cross_entropy", "fcl")))
def test_two_devices_take_the_steps_of_one(name, two_replicas, float64, monkeypatch):
    """Draws and partners are per replica: one device with the draws of each half gives the same result."""
    two = trained(name, two_replicas)
    if name in SYNCHRONIZED:
        one = trained(name, tf.distribute.get_strategy())
    else:
        one = build(name)
        views = common.views(name)
        grouped_fit(one, data.training_batches(tiny_source(), 12, seed=3, views=views).take(8), monkeypatch)
    for a, b in zip(state(one), state(two), strict=True):
        assert a.dtype == np.float64 or not a.shape  # a position in a queue is an integer
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-8)
    assert metrics_of(two) == pytest.approx(metrics_of(one), rel=1e-6)


IMAGES, LABELS = tiny_source(13).images / np.float32(255), tiny_source(13).labels  # batches of 6, 6 and 1


def softmax_regression(method, strategy, **options):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input(IMAGES.shape[1:]), keras.layers.Flatten(), keras.layers.Dense(3)])
        trained = method(model, **options)
        trained.compile(keras.optimizers.SGD(0.1))
    return trained


def test_a_last_batch_smaller_than_the_number_of_devices(two_replicas):
    """Against NumPy. The mean of the gradients counts the second device, which has no image of it, as in Keras."""
    trained = softmax_regression(methods.CrossEntropy, two_replicas)
    kernel, bias = (w.astype(np.float64) for w in trained.classifier.get_weights())
    history = trained.fit(IMAGES, LABELS, 6, 2, shuffle=False, verbose=0).history["loss"]
    x, expected = IMAGES.reshape(13, -1), []
    for _ in range(2):
        total = 0.0
        for part in (slice(0, 6), slice(6, 12), slice(12, 13)):
            log = scipy.special.log_softmax(x[part] @ kernel + bias, axis=1)
            total -= log[np.arange(len(log)), LABELS[part]].sum()
            error = (np.exp(log) - np.eye(3)[LABELS[part]]) / max(len(log), 2)
            kernel, bias = kernel - 0.1 * x[part].T @ error, bias - 0.1 * error.sum(axis=0)
        expected.append(total / 13)
    for received, weight in zip(trained.classifier.get_weights(), (kernel, bias)):
        np.testing.assert_allclose(received, weight, atol=1e-5)
    np.testing.assert_allclose(history, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "method, options",
    [
        (methods.CutMix, {}),
        pytest.param(methods.NoisyMix, {"views": ("clean", darkened("augmix"))}, marks=pytest.mark.slow),
        pytest.param(methods.AdversarialTraining, {"steps": 2}, marks=pytest.mark.slow),
    ],
)
def test_a_device_without_images_draws_nothing(method, options, two_replicas):
    trained = softmax_regression(method, two_replicas, **options)
    losses = trained.fit(IMAGES, LABELS, 6, 2, shuffle=False, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and all(np.isfinite(one).all() for one in trained.get_weights())


class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization()

    def call(self, images, training=False):
        return self.norm(images, training=training)


def test_batch_norm_inside_a_layer_is_synchronized():
    block = Block()
    distribution.synchronize_batch_norm(keras.Sequential([keras.Input([4, 4, 1]), block]))
    assert block.norm.synchronized


@pytest.mark.parametrize("synchronized", [False, True])
def test_batch_norm_uses_the_statistics_of_each_replica_or_of_all(synchronized, two_replicas, float64):
    with two_replicas.scope():
        method = methods.METHODS["cross_entropy"](tiny_network(), seed=3)
        if synchronized:
            distribution.synchronize_batch_norm(method)
        method.compile(optimizer=keras.optimizers.SGD(0.125))
    source, network = tiny_source(12), tiny_network()
    batch = next(iter(data.training_batches(source, 12, seed=3, views=(exact,))))
    features = keras.Model(network.input, network.get_layer("stage_1").output)(batch.views[0]).numpy()
    groups, parts = np.split(np.arange(12), 1 if synchronized else 2), []
    for group in groups:
        logits = network(tf.gather(batch.views[0], group), training=True)["logits"]
        parts.append(losses.cross_entropy(tf.gather(batch.labels, group), logits).numpy().mean())
    loop.fit(method, source, epochs=1, batch_size=12, views=(exact,))
    (norm,) = distribution.batch_norms(method.classifier)
    kept = features[groups[0]]  # the statistics of the first replica are kept
    np.testing.assert_allclose(norm.moving_mean.numpy(), 0.1 * kept.mean((0, 1, 2)), atol=1e-8)
    np.testing.assert_allclose(norm.moving_variance.numpy(), 0.9 + 0.1 * kept.var((0, 1, 2)), atol=1e-8)
    assert metrics_of(method)["cross_entropy"] == pytest.approx(np.mean(parts), abs=1e-6)
