import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import sweep
from tf_robust import models
from tf_robust.models.batch_norms import folded_batch_norms

ROUNDINGS = 16  # of weights, scales, features and gradients to bfloat16, in the gradient of a penalty
IMAGES = np.random.RandomState(0).normal(0.5, 1.0, (5, 8, 7, 4)).astype(np.float32)
CONVOLUTIONS = {
    "default": {},
    "bias": {"use_bias": True},
    "strides": {"strides": 2, "padding": "same"},
    "mixed precision": {"dtype": "mixed_bfloat16"},
}
NORMS = {"default": {}, "no scale": {"scale": False}, "no offset": {"center": False}, "epsilon": {"epsilon": 0.3}}


def randomize(model):
    random = np.random.RandomState(1)
    model.set_weights(
        [random.uniform(0.4, 1.6, values.shape) * np.where(random.rand(*values.shape) < 0.3, -1, 1) for values in model.get_weights()]
    )
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.moving_variance.assign(np.abs(layer.moving_variance))
    return model


def small(convolution, norm):
    dtype = convolution.get("dtype")
    layers = [keras.layers.Conv2D(6, 3, **{"use_bias": False, **convolution}), keras.layers.BatchNormalization(**norm, dtype=dtype)]
    return randomize(keras.Sequential([keras.Input(IMAGES.shape[1:]), *layers, keras.layers.ReLU(dtype="float32")]))


def traced(model, fold):
    """Returns outputs, the gradients with respect to images and weights, and those of an input-gradient penalty; and the operations."""

    @tf.function(autograph=False)
    def outputs_and_gradients(images):
        variables = [variable.value for variable in model.trainable_variables]
        with tf.GradientTape() as outer:
            with tf.GradientTape(persistent=True) as inner:
                inner.watch(images)
                with folded_batch_norms() if fold else contextlib.nullcontext():
                    outputs = model(images, training=False)
                loss = tf.reduce_mean(tf.cast(outputs, tf.float32) ** 3)
            of_images = inner.gradient(loss, images)
            penalty = tf.reduce_sum(of_images**2)
        return outputs, of_images, inner.gradient(loss, variables), outer.gradient(penalty, variables)

    concrete = outputs_and_gradients.get_concrete_function(tf.TensorSpec([None, *IMAGES.shape[1:]]))
    return tf.nest.flatten(concrete(tf.constant(IMAGES))), [operation.type for operation in concrete.graph.get_operations()]


@pytest.mark.parametrize(
    "convolution, norm",
    [*((one, "default") for one in CONVOLUTIONS), ("default", "no scale"), ("bias", "no offset"), ("strides", "epsilon")],
)
def test_equals_keras(convolution, norm):
    model = small(CONVOLUTIONS[convolution], NORMS[norm])
    (found, operations), (expected, keras_operations) = traced(model, True), traced(model, False)
    low = convolution == "mixed precision"
    for one, other in zip(found, expected, strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one / scale, other / scale, atol=ROUNDINGS * 2**-8 if low else 2e-6)
    assert operations.count("Conv2D") > keras_operations.count("Conv2D") and operations.count("BiasAdd") > keras_operations.count("BiasAdd")


def test_outputs_are_those_of_the_formula():
    model = small({}, {})
    convolution, norm = model.layers[:2]
    with folded_batch_norms():
        found = tf.function(model)(IMAGES)
    gamma, beta, mean, variance = (np.float64(values) for values in norm.get_weights())
    expected = (np.float64(convolution(IMAGES)) - mean) / np.sqrt(variance + norm.epsilon) * gamma + beta
    np.testing.assert_allclose(found, np.maximum(expected, 0), rtol=1e-4, atol=1e-4)


def test_variables_may_change_after_tracing():
    model = small({}, {})
    with folded_batch_norms():
        predict = tf.function(model).get_concrete_function(tf.TensorSpec([None, *IMAGES.shape[1:]]))
    model.set_weights([values * 0.7 for values in model.get_weights()])
    np.testing.assert_allclose(predict(tf.constant(IMAGES)), model(IMAGES), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sweep(["resnet8", "preact_resnet18", "wide_resnet28_2"], ["resnet8"]))
def test_networks(name):
    model = randomize_scales(models.build(name, (32, 32, 3), 5))
    images = tf.constant(np.random.RandomState(2).rand(3, 32, 32, 3), tf.float32)
    with folded_batch_norms():
        found = tf.function(model)(images)["logits"]
    np.testing.assert_allclose(found, model(images)["logits"], rtol=1e-3, atol=1e-4)


def randomize_scales(model):
    random = np.random.RandomState(3)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([random.uniform(0.7, 1.3, values.shape) for values in layer.get_weights()])
    return model


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.ReLU(),
        keras.layers.DepthwiseConv2D(2),
        keras.layers.Conv2D(4, 2, dilation_rate=2),
        keras.layers.Conv2D(4, 2, activation="relu"),
    ],
)
def test_other_inputs_are_normalized_by_keras(layer):
    model = keras.Sequential([keras.Input(IMAGES.shape[1:]), layer, keras.layers.BatchNormalization()])
    expected = tf.function(model)(IMAGES)
    with folded_batch_norms():
        np.testing.assert_array_equal(tf.function(model)(IMAGES), expected)


def test_training_eager_execution_and_everything_afterwards_are_those_of_keras():
    model = small({}, {})
    expected = model(IMAGES)
    own = keras.layers.BatchNormalization.call
    with pytest.raises(RuntimeError), folded_batch_norms():
        assert keras.layers.BatchNormalization.call is not own
        np.testing.assert_array_equal(model(IMAGES), expected)
        trained = tf.function(model)(IMAGES, training=True)
        raise RuntimeError
    assert keras.layers.BatchNormalization.call is own
    model = small({}, {})
    np.testing.assert_allclose(trained, model(IMAGES, training=True), rtol=1e-4, atol=1e-4)


def test_a_convolution_outside_the_graph_is_not_folded():
    """As in an attack on features: the gradient of the convolution's output exists."""
    convolution, norm = small({}, {}).layers[:2]

    @tf.function
    def outer(images):
        features = convolution(images)

        @tf.function
        def inner():
            with folded_batch_norms():
                return norm(features)

        return inner()

    np.testing.assert_allclose(outer(tf.constant(IMAGES)), norm(convolution(IMAGES)), rtol=1e-4, atol=1e-4)
