"""Averaged weights and batch statistics against a NumPy recursion; exact resume; clipping of the global norm."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods.common import weights
from tf_robust import methods
from tf_robust.training import loop, optimizers
from tf_robust.training.averaging import WeightAverage

MOMENTUM = 0.8


def build(network, ema=MOMENTUM, loss_scale=False, **options):
    method, optimizer = methods.CrossEntropy(network), optimizers.build("sgd", 0.1, ema=ema, **options)
    method.compile(keras.optimizers.LossScaleOptimizer(optimizer) if loss_scale else optimizer)
    return method


class Recorder(keras.callbacks.Callback):
    """Keeps the classifier's variables after each step."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(weights(self.model))


def recursion(steps):
    """Returns the averages: a copy of the first step's values, then a = m a + (1 - m) w."""
    averages = steps[0]
    for values in steps[1:]:
        averages = [MOMENTUM * a + (1 - MOMENTUM) * v for a, v in zip(averages, values)]
    return averages


@pytest.mark.parametrize("loss_scale", [False, True])
def test_the_model_has_the_averages_of_weights_and_batch_statistics(loss_scale, network, source):
    method, recorder = build(network(), loss_scale=loss_scale), Recorder()
    loop.fit(method, source(), epochs=2, batch_size=12, callbacks=[recorder])
    assert len(recorder.steps) == 8 and len(method.classifier.non_trainable_variables) == 2
    for values, last, expected in zip(weights(method), recorder.steps[-1], recursion(recorder.steps), strict=True):
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)
        assert np.abs(values - last).max() > 1e-5


@pytest.mark.usefixtures("eagerly")
def test_validation_is_of_the_averaged_weights_and_training_goes_on_with_its_own(network, source):
    plain, recorder = build(network(), ema=0.0), Recorder()
    loop.fit(plain, source(), epochs=2, batch_size=12, callbacks=[recorder])
    averaged, log, own = build(network()), keras.callbacks.History(), Recorder()
    loop.fit(averaged, source(), epochs=2, batch_size=12, validation=source(30), callbacks=[log, own])
    np.testing.assert_equal(own.steps[-1], recorder.steps[-1])  # a step is the same with averages, also after a validation
    data = source(30)
    logits = averaged.network(data.images / np.float32(255), training=False)["logits"]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(data.labels, logits)
    assert log.history["val_cross_entropy"][-1] == pytest.approx(float(loss), abs=1e-5)


@pytest.mark.usefixtures("eagerly")
def test_a_resumed_run_has_the_same_averages(network, source, tmp_path):
    options = {"epochs": 2, "batch_size": 12}
    uninterrupted = build(network())
    loop.fit(uninterrupted, source(), **options)
    for stop in (2, 7):
        with pytest.raises(loop.Interrupted):
            loop.fit(build(network(seed=stop - 2)), source(), checkpoint_folder=str(tmp_path), stop_after=stop, **options)
    for seed in (9, 6):  # resumed; then again, as after a kill between the last checkpoint and the export
        resumed = build(network(seed=seed))
        loop.fit(resumed, source(), checkpoint_folder=str(tmp_path), **options)
        np.testing.assert_equal(weights(resumed), weights(uninterrupted))


def test_averages_on_two_devices_are_those_of_one(network, source, two_replicas):
    one = build(network(batch_norm=False))
    loop.fit(one, source(), epochs=1, batch_size=12)
    with two_replicas.scope():
        two = build(network(batch_norm=False))
    loop.fit(two, source(), epochs=1, batch_size=12)
    for a, b in zip(weights(one), weights(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_a_long_average_of_a_short_training_is_warned_of(network, caplog):
    method = build(network(), ema=0.999)
    method.optimizer.build(method.trainable_variables)
    WeightAverage(method).warn_if_long(4000)
    assert not caplog.text
    WeightAverage(method).warn_if_long(100)
    assert "1000 steps, of 100" in caplog.text


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_the_global_norm_is_clipped(name):
    random = np.random.RandomState(0)
    gradients = [random.randn(3, 2).astype(np.float32), random.randn(2).astype(np.float32)]
    norm = np.sqrt(sum((g**2).sum() for g in gradients))
    assert norm > 0.5
    states = []
    for limit, factor in ((0.5, 1.0), (0.0, 0.5 / norm)):  # the clipped gradient is the one scaled by hand
        variables = [keras.Variable(np.ones_like(g)) for g in gradients]
        optimizer = optimizers.build(name, 0.1, global_clipnorm=limit)
        optimizer.build(variables)
        for _ in range(2):
            optimizer.apply([tf.constant(g * factor) for g in gradients], variables)
        states.append([v.numpy() for v in variables])
    for a, b in zip(*states):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_options_that_cannot_be_are_refused(network, source, two_replicas):
    for name, value in (("ema", 1.0), ("global_clipnorm", -1.0)):
        with pytest.raises(ValueError, match=name):
            optimizers.build("adam", 0.1, **{name: value})
    for loss_scale in (False, True):
        with two_replicas.scope():
            method = build(network(), global_clipnorm=1.0, loss_scale=loss_scale)
        with pytest.raises(ValueError, match="one device with global_clipnorm"):
            loop.fit(method, source(), epochs=1, batch_size=12)
