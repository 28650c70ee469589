"""Probabilities are recognized by their sums, within the rounding of floats and of quantization; logits are not taken for them."""

import numpy as np
import pytest
import scipy.special

from tf_robust.saved_models.loading import ModelInterface, classifier_of


def outputs(scores):
    """The kind of output that a model with these scores [N, C] is taken to have, which its logits follow."""
    scores = np.asarray(scores, np.float32)
    images = np.zeros([len(scores), 1, 1, 1], np.float32)
    classify = classifier_of(lambda values: scores[: len(values)]).with_known_outputs(images)
    is_probability = classify.interface.outputs == "probabilities"
    np.testing.assert_allclose(classify(images), np.log(np.maximum(scores, 1e-35)) if is_probability else scores, rtol=1e-5, atol=1e-6)
    return classify.interface.outputs


def probabilities(classes, scale, count=50):
    return scipy.special.softmax(scale * np.random.RandomState(classes).normal(size=(count, classes)), axis=1)


@pytest.mark.parametrize("scale", [0.5, 2, 6])
@pytest.mark.parametrize("step", [0, 1 / 256, 1 / 255, 1e-3, 1 / 32768])
@pytest.mark.parametrize("classes", [2, 3, 10, 100, 1000])
def test_quantized_probabilities(classes, step, scale):
    exact = probabilities(classes, scale)
    rounded = np.minimum(np.round(exact / step) * step, 1 - step) if step else exact  # the largest integer is clipped
    if rounded.max() > 0:
        assert outputs(rounded) == "probabilities"


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_half_precision(dtype):
    assert outputs(probabilities(1000, 2).astype(dtype)) == "probabilities"


def test_logits():
    random = np.random.RandomState(0)
    normal = random.normal(size=(50, 10))
    assert outputs(normal) == outputs(np.maximum(normal, 0)) == outputs(np.abs(normal) / 5) == "logits"
    assert outputs(0 * normal) == outputs(np.nan * normal) == outputs(10 * probabilities(10, 2)) == "logits"
    assert outputs(probabilities(10, 2) + np.array([5, -5, *[0] * 8])) == "logits"  # negative numbers
    assert outputs(probabilities(10, 2) * 0.97) == "logits"  # continuous values that do not sum to 1
    assert outputs(np.round(np.maximum(normal, 0) * 32) / 256) == "logits"  # quantized ones, which sum to other values
    assert outputs(scipy.special.expit(normal)) == "logits"  # one sigmoid for each class


def test_sums_are_named_if_probabilities_were_declared():
    exact = probabilities(100, 1.5)
    quantized = np.round(exact * 256) / 256
    assert np.abs(quantized.sum(axis=1) - 1).max() > 0.02
    declared = classifier_of(lambda values: values[:, 0, 0], ModelInterface(outputs="probabilities"))
    logits = np.log(np.maximum(quantized, 1e-12)).astype(np.float32)
    assert declared.check(logits) == "" and declared.check(np.log(0.9 * exact)) != ""
