"""Values of the schedules against the papers; LARS against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_robust.training import optimizers


def values(kind, steps, **options):
    schedule = optimizers.learning_rate_schedule(kind, 1.0, steps_per_epoch=10, epochs=450, **options)
    return np.array([float(schedule(step)) for step in steps])


def test_exponential_decays_once_per_epoch():
    np.testing.assert_allclose(values("exponential", [0, 9, 10, 25], decay_rate=0.89), [1, 1, 0.89, 0.89**2], rtol=1e-6)


def test_steps_after_a_linear_ramp_as_in_the_fcl_paper():
    rates = values("steps", [0, 74, 149, 1999, 2000, 3000, 4000, 4499], warmup_epochs=15, decay_epochs=(200, 300, 400))
    np.testing.assert_allclose(rates, [1 / 150, 0.5, 1, 1, 0.1, 0.01, 0.001, 0.001], rtol=1e-5)


def test_cosine_ends_at_zero_and_constant_is_constant():
    np.testing.assert_allclose(values("cosine", [0, 2250, 4500]), [1, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(values("constant", [0, 4000]), [1, 1])


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match="cosin"):
        values("cosin", [0])
    with pytest.raises(ValueError, match="adma"):
        optimizers.build("adma", 0.1)
    with pytest.raises(ValueError, match="learning_rate"):
        optimizers.learning_rate_schedule("constant", 0.0, steps_per_epoch=1, epochs=1)


@pytest.mark.parametrize("excluded_first", [True, False])
def test_lars_scales_only_kernels(excluded_first):
    random = np.random.RandomState(0)
    names = ("conv/kernel", "conv/bias", "logits/kernel", "zero/kernel")
    shapes = ((3, 2), (2,), (2, 3), (2, 2))
    values = [random.randn(*shape) * (name != "zero/kernel") for name, shape in zip(names, shapes)]
    variables = [keras.Variable(value.astype(np.float32), name=name.split("/")[1]) for name, value in zip(names, values)]
    optimizer = optimizers.build("lars", 0.5, momentum=0.9)
    steps = [lambda: optimizer.exclude_from_scaling(variables[2:3]), lambda: optimizer.build(variables)]
    for step in steps if excluded_first else reversed(steps):
        step()
    velocities = [np.zeros(shape) for shape in shapes]
    for _ in range(3):
        gradients = [random.randn(*shape) for shape in shapes]
        for i, (name, gradient) in enumerate(zip(names, gradients)):
            ratio = 1.0
            if name in ("conv/kernel", "zero/kernel") and np.linalg.norm(values[i]) > 0:
                ratio = 0.001 * np.linalg.norm(values[i]) / np.linalg.norm(gradient)
            velocities[i] = 0.9 * velocities[i] + 0.5 * ratio * gradient
            values[i] = values[i] - velocities[i]
        optimizer.apply([tf.constant(g, tf.float32) for g in gradients], variables)
    for variable, value in zip(variables, values):
        np.testing.assert_allclose(variable.numpy(), value, atol=1e-5)
