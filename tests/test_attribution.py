"""Contextual utility and sensitivity against finite differences of a network written in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_robust import attribution

SHAPE, WIDTH, CLASSES = (4, 3, 2), 6, 3
IMAGES = np.random.RandomState(0).uniform(0.1, 0.9, size=(3, *SHAPE))
LABELS = np.array([2, 0, 1])


@pytest.fixture(scope="module")
def net():
    """Returns softplus(tanh(x W + b) V + c) with random weights; its dropout is inactive in inference mode."""
    keras.utils.set_random_seed(0)
    images = keras.Input(SHAPE)
    x = keras.layers.Dropout(0.9)(keras.layers.Flatten()(images))
    embedding = keras.layers.Dense(WIDTH, activation="tanh", bias_initializer="normal")(x)
    logits = keras.layers.Dense(CLASSES, activation="softplus", bias_initializer="normal")(embedding)
    return keras.Model(images, {"embedding": embedding, "logits": logits})


@pytest.fixture(scope="module")
def formulas(net):
    """Returns x -> (embedding, softmax) in float64 NumPy, with the net's weights."""
    w, b, v, c = (np.asarray(weight, np.float64) for weight in net.get_weights())

    def forward(images):
        embedding = np.tanh(images.reshape(len(images), -1) @ w + b)
        exponentials = np.exp(np.log1p(np.exp(embedding @ v + c)))
        return embedding, exponentials / exponentials.sum(axis=1, keepdims=True)

    return forward


def jacobian(function, images, step=1e-5):
    """Returns the Jacobian by central finite differences: [N, H, W, C] -> [N, E, H, W, C]."""
    columns = []
    for index in np.ndindex(images.shape[1:]):
        shift = np.zeros(images.shape[1:])
        shift[index] = step
        columns.append((function(images + shift) - function(images - shift)) / (2 * step))
    return np.stack(columns, axis=-1).reshape(len(images), -1, *images.shape[1:])


@pytest.fixture(scope="module")
def sensitivity(formulas):
    return np.sqrt((jacobian(lambda x: formulas(x)[0], IMAGES) ** 2).sum(axis=1))


def test_utility_equals_finite_differences(net, formulas):
    expected = np.abs(jacobian(lambda x: -np.log(formulas(x)[1][range(3), LABELS])[:, None], IMAGES)[:, 0])
    np.testing.assert_allclose(attribution.contextual_utility(net, IMAGES, LABELS), expected, rtol=1e-4, atol=1e-6)
    result = attribution.contextual_utility(lambda x: net(x)["logits"], IMAGES, LABELS)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("memory_limit", [1, 2**10, 2**11, 2**12, 2**29])
def test_sensitivity_equals_finite_differences_at_every_memory_limit(net, sensitivity, memory_limit):
    np.testing.assert_allclose(attribution.contextual_sensitivity(net, IMAGES, memory_limit=memory_limit), sensitivity, rtol=1e-4)


def test_sensitivity_of_an_encoder_of_bfloat16(net, sensitivity):
    result = attribution.contextual_sensitivity(lambda x: tf.cast(net(x)["embedding"], tf.bfloat16), IMAGES)
    np.testing.assert_allclose(result, sensitivity, rtol=0.05, atol=0.02 * sensitivity.max())


@pytest.mark.parametrize("memory_limit", [1, 3 * 400 * np.prod(SHAPE), 2**29])
def test_sensitivity_of_a_function(net, sensitivity, memory_limit):
    result = attribution.contextual_sensitivity(lambda x: net(x)["embedding"], IMAGES, memory_limit=int(memory_limit))
    np.testing.assert_allclose(result, sensitivity, rtol=1e-4)


def test_sensitivity_of_a_subclassed_model(net, sensitivity):
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.flatten, self.dense = keras.layers.Flatten(), net.layers[3]

        def call(self, images):
            return self.dense(self.flatten(images))

    np.testing.assert_allclose(attribution.contextual_sensitivity(Subclassed(), IMAGES), sensitivity, rtol=1e-4)


def test_the_memory_limit_bounds_the_batch():
    def encoder(images):
        tf.debugging.assert_less_equal(tf.shape(images)[0], 2)
        return tf.tanh(tf.reduce_sum(images, axis=(1, 2)))

    guess = 100 * 4 * int(np.prod(SHAPE))  # bytes per image if the layers are unknown
    attribution.contextual_sensitivity(encoder, IMAGES, memory_limit=2 * guess)


def test_the_memory_limit_counts_the_layers_of_a_nested_model():
    class AtMostTwo(keras.layers.Layer):
        def call(self, images):
            tf.debugging.assert_less_equal(tf.shape(images)[0], 2)
            return images

    images = keras.Input(SHAPE)
    wide = keras.layers.Conv2D(1000, 1, activation="tanh")(AtMostTwo()(images))
    inner = keras.Model(images, keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(2, 1)(wide)))
    outer = keras.Model(images, inner(images))
    attribution.contextual_sensitivity(outer, IMAGES, memory_limit=2 * 8 * 1000 * 4 * 3)


@pytest.mark.slow
def test_the_estimate_converges_to_the_square(net, sensitivity):
    estimates = np.stack([attribution.squared_sensitivity_estimate(net, IMAGES, projections=8, seed=seed) for seed in range(40)])
    error = estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates))
    assert np.median(error / sensitivity**2) < 0.1
    np.testing.assert_array_less(np.abs(estimates.mean(axis=0) - sensitivity**2) / error, 5.0)


def test_the_estimate_depends_on_its_seed(net):
    first, again, other = (attribution.squared_sensitivity_estimate(net, IMAGES, projections=2, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    with pytest.raises(ValueError, match="projections >= 1. Received: 0"):
        attribution.squared_sensitivity_estimate(net, IMAGES, projections=0)


def test_appendix_a_utility_is_a_part_of_the_sensitivity_of_the_softmax(net, formulas):
    derivatives = jacobian(lambda x: formulas(x)[1], IMAGES)  # [N, C, H, W, C]
    others = np.stack([np.delete(d, label, axis=0) for d, label in zip(derivatives, LABELS)])
    f_y = formulas(IMAGES)[1][range(3), LABELS][:, None, None, None]
    utility = attribution.contextual_utility(net, IMAGES, LABELS)
    s = attribution.contextual_sensitivity(lambda x: tf.nn.softmax(net(x)["logits"]), IMAGES)
    np.testing.assert_allclose(f_y * utility, np.abs(derivatives[range(3), LABELS]), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(s**2, (f_y * utility) ** 2 + (others**2).sum(axis=1), rtol=1e-4, atol=1e-6)


def test_mean_by_class_takes_labels_modulo():
    values, labels = np.random.RandomState(1).rand(6, 2, 3), [0, 10, 3, 13, 13, 9]
    expected = np.zeros([10, 2, 3])
    expected[0], expected[3], expected[9] = values[:2].mean(0), values[2:5].mean(0), values[5]
    np.testing.assert_allclose(attribution.mean_by_class(values, labels), expected)
    np.testing.assert_allclose(attribution.mean_by_class(values, labels, modulo=1), values.mean(0)[None])


@pytest.mark.parametrize(
    "images, message",
    [
        (np.where(np.arange(3)[:, None, None, None] == 1, np.nan, IMAGES), "NaN or infinity in 1 of 3 .* index 1"),
        (255.0 * IMAGES, r"images in \[0, 1\]"),
        ((255 * IMAGES).astype(np.uint8), "Received dtype: uint8"),
        (IMAGES[0], r"Received shape: \(4, 3, 2\)"),
        (IMAGES[:0], r"at least one image. Received: images of shape \(0, 4, 3, 2\)"),
    ],
)
def test_invalid_images_raise(net, images, message):
    for metric in (
        lambda: attribution.contextual_utility(net, images, LABELS[: len(images)]),
        lambda: attribution.contextual_sensitivity(net, images),
        lambda: attribution.squared_sensitivity_estimate(net, images),
    ):
        with pytest.raises(ValueError, match=message):
            metric()


@pytest.mark.parametrize(
    "model",
    [
        lambda images: tf.stop_gradient(tf.reduce_mean(images, axis=[1, 2])),
        lambda images: tf.cast(tf.raw_ops.AdjustHue(images=images, delta=0.1)[:, 0, 0], tf.float32),
    ],
)
def test_a_model_without_gradients_raises(model):
    with pytest.raises(attribution.WithoutGradient, match="Expected a model that is differentiable"):
        attribution.contextual_utility(model, np.full([2, 4, 4, 3], 0.5, np.float32), np.array([0, 1]))
