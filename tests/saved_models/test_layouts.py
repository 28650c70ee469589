"""ONNX models whose input has symbolic sizes: the order of the axes is found by trial; failures of the runtime are one line."""

import numpy as np
import pytest
import tensorflow as tf

from tests.saved_models.loading_models import CLASSES, sample_images, write_onnx
from tf_robust.saved_models.loading import load_classifier
from tf_robust.saved_models.signatures import Signature

WEIGHTS = np.random.RandomState(0).normal(size=(3, CLASSES)).astype(np.float32)


def write(path, shape, axes, of_one_image=False):
    """A file that computes the mean of each channel over `axes`, times the weights."""
    nodes = [("ReduceMean", "x", "means", {"axes": axes, "keepdims": 0}), ("MatMul", "means weights", "y", {})]
    if of_one_image:
        nodes[1:] = [("Reshape", "means shape", "row", {}), ("MatMul", "row weights", "y", {})]
    return write_onnx(path, nodes, {"weights": WEIGHTS, "shape": np.array([1, 3])}, shape)


@pytest.mark.parametrize("in_a_graph", [False, True])
@pytest.mark.parametrize("shape, axes", [
    (["n", "c", "h", "w"], [2, 3]), (["n", 3, "h", "w"], [2, 3]), (["n", "c", 8, 6], [2, 3]),
    (["n", "h", "w", "c"], [1, 2]), (["n", "h", "w", 3], [1, 2]),
])  # fmt: skip
def test_the_order_of_the_axes(shape, axes, in_a_graph, tmp_path):
    classify = load_classifier(write(tmp_path / "m.onnx", shape, axes))
    images = sample_images((8, 6, 3))
    logits = (tf.function(lambda values: classify(values)) if in_a_graph else classify)(tf.constant(images))
    np.testing.assert_allclose(logits, images.mean(axis=(1, 2)) @ WEIGHTS, atol=1e-5)
    np.testing.assert_allclose(classify(images[:2]), images[:2].mean(axis=(1, 2)) @ WEIGHTS, atol=1e-5)


def test_a_failure_of_the_runtime_names_the_model_and_the_shape(tmp_path):
    classify = load_classifier(write(tmp_path / "broken.onnx", ["n", 3, 8, 8], [2, 3], of_one_image=True))
    assert classify(sample_images(count=1)).shape == (1, CLASSES)
    with pytest.raises(ValueError, match=r"broken.onnx .* images \[5, 8, 8, 3\]. Received: .*Reshape") as caught:
        classify(sample_images())
    assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)
    neither = load_classifier(write(tmp_path / "neither.onnx", ["n", "c", "h", "w"], [1, 3]))
    with pytest.raises(ValueError, match="neither.onnx .*channels first: .*channels last: "):
        neither(sample_images((8, 6, 3)))


@pytest.mark.parametrize("shape, transposed", [
    ([None, 3, 8, 6], True), ([None, None, 8, 6], True), ([None, 8, 6, 3], False), ([None, None, None, None], False),
    ([None, 8, 6, None], False), ([None, None, None, 4], False), ([None, None, 8, 3], False),
])  # fmt: skip
def test_shapes_that_say_the_order(shape, transposed):
    signature = Signature(lambda x: {"y": x}, {"x": tf.TensorSpec(shape)}, {"y": tf.TensorSpec([None, 3])})
    assert (signature.channels_last() is not signature) == transposed
