"""The vision transformer: its number of weights by a formula, its outputs against NumPy, training, and refused sizes."""

import keras
import numpy as np
import pytest
import scipy.special

from tests.conftest import tiny_source
from tf_robust import methods, models
from tf_robust.training import loop


def tiny(shape=(16, 16, 1), classes=3, width=16, depth=3):
    keras.utils.set_random_seed(0)
    return models.vit.vit_tiny4(shape, classes, width=width, depth=depth)


def count_of(shape, classes, width, depth):
    height, columns, channels = shape
    embedding = 16 * channels * width + (height // 4) * (columns // 4) * width
    attention = 4 * (width * width + width)
    perceptron = width * 2 * width + 2 * width + 2 * width * width + width
    return embedding + depth * (attention + perceptron + 2 * 2 * width) + 2 * width + width * classes + classes


def test_it_has_as_many_weights_as_the_formula():
    assert models.build("vit_tiny4", (32, 32, 3), 10).count_params() == count_of((32, 32, 3), 10, 192, 6) == 1_805_962
    assert tiny((16, 8, 1), 7).count_params() == count_of((16, 8, 1), 7, 16, 3)


def normalized(x, gamma, beta):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * gamma + beta


def oracle(model, images):
    """Returns the logits, from the weights in the order of the layers, one token, head and patch at a time."""
    weights = iter([v.numpy().astype(np.float64) for v in model.variables])
    kernel, position = next(weights), next(weights)
    x = 2 * images.astype(np.float64) - 1
    count, side = len(x), x.shape[1] // 4
    tokens = np.stack(
        [x[:, 4 * r : 4 * r + 4, 4 * c : 4 * c + 4].reshape(count, -1) @ kernel for r in range(side) for c in range(side)], axis=1
    )
    tokens = tokens + position
    for _ in range(3):
        y = normalized(tokens, next(weights), next(weights))
        (query, query_bias), (key, key_bias), (value, value_bias), (output, output_bias) = (
            (next(weights), next(weights)) for _ in range(4)
        )
        attended = np.zeros_like(tokens)
        for head in range(query.shape[1]):
            q, k, v = (y @ w[:, head] + b[head] for w, b in ((query, query_bias), (key, key_bias), (value, value_bias)))
            attention = scipy.special.softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]), axis=-1)
            attended += attention @ v @ output[head]
        tokens = tokens + attended + output_bias
        y = normalized(tokens, next(weights), next(weights))
        y = y @ next(weights) + next(weights)
        y = y * 0.5 * (1 + scipy.special.erf(y / np.sqrt(2)))
        tokens = tokens + y @ next(weights) + next(weights)
    embedding = normalized(tokens, next(weights), next(weights)).mean(axis=1)
    logits = embedding @ next(weights) + next(weights)
    assert next(weights, None) is None
    return logits


@pytest.mark.parametrize("width", [16, 128])  # one head, two heads
def test_logits_are_those_of_numpy(width):
    model, random = tiny(width=width), np.random.RandomState(0)
    for variable in model.variables:  # zeros and ones of the initialization would hide an error
        variable.assign(variable.numpy() + 0.1 * random.randn(*variable.shape))
    images = random.rand(2, 16, 16, 1).astype(np.float32)
    np.testing.assert_allclose(model(images)["logits"], oracle(model, images), rtol=0, atol=1e-4)


def test_it_learns():
    """With the mixing and the noise of NoisyMix in the tokens of a stage."""
    method = methods.NoisyMix(tiny(), jsd_weight=0.0, stages=(1,))
    method.compile(keras.optimizers.Adam(0.01))
    loop.fit(method, tiny_source(96), epochs=6, batch_size=24)
    source = tiny_source(30)
    logits = method.classifier(source.images / np.float32(255), training=False)["logits"]
    assert (np.argmax(logits, axis=1) == source.labels).mean() > 0.9


def test_sizes_that_do_not_fit_are_refused():
    for options, message in (({"shape": (30, 30, 3)}, "30x30.*image_size=32"), ({"depth": 4}, "16, 4"), ({"width": 200}, "200, 3")):
        with pytest.raises(ValueError, match=message):
            tiny(**options)
