"""SAM and ASAM against one step in NumPy; gradients at shifted weights, of every method."""

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.conftest import sweep
from tests.methods.common import DISTINCT, batches, build, views
from tf_robust import data, methods

RANDOM = np.random.RandomState(0)
X, Y = RANDOM.rand(6, 3, 3, 1).astype(np.float32), RANDOM.randint(0, 4, 6)
BATCH = data.Batch((tf.constant(X),), tf.constant(Y), tf.zeros([6], tf.int64))
KERNEL, BIAS = RANDOM.normal(size=(9, 4)), RANDOM.normal(size=4)
RATE, DECAY = 0.5, 0.1


def linear():
    model = keras.Sequential([keras.Input((3, 3, 1)), keras.layers.Flatten(), keras.layers.Dense(4)])
    model.set_weights([KERNEL, BIAS])
    return model


def gradient(kernel, bias):
    """The gradient of the mean cross-entropy of softmax regression."""
    images = X.reshape(6, 9).astype(np.float64)
    error = (scipy.special.softmax(images @ kernel + bias, axis=1) - np.eye(4)[Y]) / 6
    return images.T @ error, error.sum(axis=0)


def step_in_numpy(name, radius, offset):
    g_kernel, g_bias = gradient(KERNEL, BIAS)
    t_kernel, t_bias = (np.abs(KERNEL) + offset, np.abs(BIAS) + offset) if name == "asam" else (1.0, 1.0)
    norm = np.sqrt(((t_kernel * g_kernel) ** 2).sum() + ((t_bias * g_bias) ** 2).sum())
    shifted = KERNEL + radius * t_kernel**2 * g_kernel / norm, BIAS + radius * t_bias**2 * g_bias / norm
    d_kernel, d_bias = gradient(*shifted)
    return KERNEL - RATE * (d_kernel + DECAY * KERNEL), BIAS - RATE * (d_bias + DECAY * BIAS)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name, options", [("sam", {}), ("asam", {"offset": 0.2})])
def test_a_step_of_a_linear_model(name, options, jit_compile):
    method = methods.METHODS[name](linear(), radius=0.7, weight_decay=DECAY, **options)
    method.compile(keras.optimizers.SGD(RATE), jit_compile=jit_compile)
    logs = method.train_step(BATCH)
    for received, expected in zip(method.classifier.get_weights(), step_in_numpy(name, 0.7, options.get("offset"))):
        np.testing.assert_allclose(received, expected, atol=1e-6)
    logits = X.reshape(6, 9) @ KERNEL + BIAS
    expected = (scipy.special.logsumexp(logits, axis=1) - logits[np.arange(6), Y]).mean()
    assert float(logs["cross_entropy"]) == pytest.approx(expected, rel=1e-5)  # at w


@pytest.mark.parametrize("name, same", [("sam", False), ("asam", True)])
def test_the_perturbation_of_asam_does_not_depend_on_the_scale_of_layers(name, same):
    layers = [keras.layers.Flatten(), keras.layers.Dense(5, use_bias=False), keras.layers.Dense(4, use_bias=False)]
    model = keras.Sequential([keras.Input((3, 3, 1)), *layers])
    first, second = RANDOM.normal(size=(9, 5)), RANDOM.normal(size=(5, 4))
    method = methods.METHODS[name](model, radius=0.3, **({"offset": 1e-9} if same else {}))
    losses = []
    for factor in (1.0, 3.0):
        model.set_weights([factor * first, second / factor])
        shift = method.perturbation(methods.base.Method.gradients(method, BATCH)[0])
        model.set_weights([w + s.numpy() for w, s in zip(model.get_weights(), shift)])
        losses.append(float(method.loss_terms(BATCH, training=False)[0]["cross_entropy"].numpy().mean()))
    assert (losses[0] == pytest.approx(losses[1], rel=1e-4)) == same


@pytest.mark.parametrize("name", sweep(DISTINCT, quick=("cross_entropy", "fcl", "trades")))
def test_gradients_at_shifted_weights_are_those_of_a_model_with_these_weights(name, network, source):
    """Also where a method computes in a scope of its own, as for further views."""
    method, batch = build(name, network()), next(batches(source(), 1, name=name))
    assert len(batch.views) == len(views(name))
    shift = [tf.constant(0.1 * np.random.RandomState(i).normal(size=v.shape), v.dtype) for i, v in enumerate(method.trainable_variables)]
    gradients, terms, logits, statistics = methods.base.Method.gradients(method, batch, shift=shift)
    unshifted = methods.base.Method.gradients(method, batch)[0]
    for variable, s in zip(method.trainable_variables, shift):
        variable.assign_add(s)
    expected = methods.base.Method.gradients(method, batch)
    for received, wanted in zip(tf.nest.flatten((gradients, terms, logits, statistics)), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(received, wanted, rtol=1e-4, atol=1e-5)
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(unshifted, gradients))


def test_a_gradient_of_zero_has_no_perturbation():
    zeros = methods.SAM(linear()).perturbation([tf.zeros([9, 4]), tf.zeros([4])])
    assert all(np.array_equal(one, np.zeros(one.shape)) for one in zeros)
