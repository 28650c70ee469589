import numpy as np
import pytest
import tensorflow as tf

from tf_robust.ops import batch_norm

EPSILON = 1e-3


def inputs(shape=(6, 5, 4, 3)):
    random = np.random.RandomState(0)
    x, upstream = random.normal(1.0, 2.0, shape), random.normal(size=shape)
    return [values.astype(np.float32) for values in (x, random.rand(shape[-1]) + 0.5, random.normal(size=shape[-1]), upstream)]


def in_float64(x, gamma, beta):
    x = x.astype(np.float64)
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) / np.sqrt(variance + EPSILON) * gamma + beta, mean, variance


@pytest.mark.parametrize("shape", [(6, 5, 4, 3), (1, 1, 1, 3), (2, 1, 1, 1)])
def test_forward(shape):
    x, gamma, beta, _ = inputs(shape)
    for found, expected in zip(batch_norm.batch_norm(x, gamma, beta, EPSILON), in_float64(x, gamma, beta)):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_low_precision(dtype):
    x, gamma, beta, _ = inputs()
    rounded = tf.cast(x, dtype)
    found, mean, variance = batch_norm.batch_norm(rounded, gamma, beta, EPSILON)
    expected = in_float64(tf.cast(rounded, tf.float32).numpy(), gamma, beta)
    assert found.dtype == dtype and mean.dtype == variance.dtype == tf.float32
    np.testing.assert_allclose(tf.cast(found, tf.float32), expected[0], atol=0.04)
    np.testing.assert_allclose(mean, expected[1], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(variance, expected[2], rtol=1e-3)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_gradients_are_finite_differences(jit_compile):
    *values, upstream = inputs((3, 2, 2, 2))

    @tf.function(jit_compile=jit_compile)
    def gradients(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = tf.reduce_sum(batch_norm.batch_norm(*tensors, EPSILON)[0] * upstream)
        return tape.gradient(loss, tensors)

    def loss(*numbers):
        return (in_float64(*numbers)[0] * upstream).sum()

    found = gradients(*map(tf.constant, values))
    for which, gradient in enumerate(found):
        numbers = [one.astype(np.float64) for one in values]
        for place in np.ndindex(numbers[which].shape):
            ends = []
            for change in (1e-4, -1e-4):
                moved = [one.copy() for one in numbers]
                moved[which][place] += change
                ends.append(loss(*moved))
            np.testing.assert_allclose(gradient.numpy()[place], (ends[0] - ends[1]) / 2e-4, rtol=2e-3, atol=2e-4)


def second_gradients(norm, x, gamma, beta, upstream):
    """Returns the gradients of an input-gradient penalty, which has terms of all inputs, with respect to all inputs."""
    with tf.GradientTape() as outer:
        outer.watch([x, gamma, beta])
        with tf.GradientTape() as inner:
            inner.watch([x, gamma, beta])
            loss = tf.reduce_sum(tf.sin(tf.cast(norm(x, gamma, beta), tf.float32)) * upstream)
        pairs = zip(inner.gradient(loss, [x, gamma, beta]), (x, gamma, beta))
        penalty = tf.add_n([tf.reduce_sum(tf.cast(gradient, tf.float32) ** 2 * tf.cast(values, tf.float32)) for gradient, values in pairs])
    return outer.gradient(penalty, [x, gamma, beta])


def normalized(x, gamma, beta):
    return batch_norm.batch_norm(x, gamma, beta, EPSILON)[0]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_second_gradients_are_those_of_single_operations(jit_compile):
    def of_operations(x, gamma, beta):
        return tf.nn.batch_normalization(x, *tf.nn.moments(x, [0, 1, 2]), beta, gamma, EPSILON)

    tensors = [*map(tf.constant, inputs())]
    found = tf.function(second_gradients, jit_compile=jit_compile)(normalized, *tensors)
    for one, expected in zip(found, second_gradients(of_operations, *tensors)):
        np.testing.assert_allclose(one, expected, rtol=2e-3, atol=2e-4)


def test_second_gradients_in_low_precision_are_those_of_float32():
    x, *others = map(tf.constant, inputs())
    rounded = tf.cast(x, tf.bfloat16)
    found, expected = (second_gradients(normalized, one, *others) for one in (rounded, tf.cast(rounded, tf.float32)))
    assert found[0].dtype == tf.bfloat16
    for one, other in zip(found, expected):
        scale = np.abs(other).max()
        np.testing.assert_allclose(tf.cast(one, tf.float32) / scale, other / scale, atol=0.03)


def test_no_gradient_of_statistics():
    x, gamma, beta, _ = map(tf.constant, inputs())
    with tf.GradientTape() as tape:
        tape.watch(x)
        _, mean, variance = batch_norm.batch_norm(x, gamma, beta, EPSILON)
        total = tf.reduce_sum(mean) + tf.reduce_sum(variance)
    assert tape.gradient(total, x) is None


def test_third_gradients_raise():
    x, gamma, beta, _ = map(tf.constant, inputs())
    with tf.GradientTape() as third, tf.GradientTape() as second, tf.GradientTape() as first:
        for tape in (first, second, third):
            tape.watch(x)
        loss = tf.reduce_sum(tf.sin(batch_norm.batch_norm(x, gamma, beta, EPSILON)[0]))
        of_x = first.gradient(loss, x)
        of_penalty = second.gradient(tf.reduce_sum(of_x**2), x)
    with pytest.raises(LookupError, match="differentiable twice"):
        third.gradient(of_penalty, x)
