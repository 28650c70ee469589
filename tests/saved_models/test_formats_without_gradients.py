"""TensorFlow Lite and ONNX models give the logits of the Keras model that they were made of."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.saved_models.loading_models import CLASSES, SHAPE, sample_images, small_network, write_onnx
from tf_robust.saved_models.loading import ModelInterface, load_classifier


@pytest.fixture(scope="module")
def model():
    return small_network()


def write_tflite(model, path, batch=None, quantized=False):
    converter = tf.lite.TFLiteConverter.from_keras_model(keras.Sequential([keras.Input(SHAPE, batch_size=batch), *model.layers]))
    if quantized:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([sample_images(count=1, seed=seed)] for seed in range(50))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.uint8
    path.write_bytes(converter.convert())
    return str(path)


def write(model, kind, folder, batch=None):
    """Writes a network in TensorFlow Lite, or in channels first, from its weights, in ONNX."""
    if kind == "tflite":
        pytest.importorskip("ai_edge_litert")
        return write_tflite(model, folder / "m.tflite", batch)
    nodes = [
        ("Conv", "x kernel bias", "conv", {}),
        ("Sigmoid", "conv", "sigmoid", {}),
        ("Mul", "conv sigmoid", "silu", {}),
        ("BatchNormalization", "silu gamma beta mean variance", "normalized", {"epsilon": 1e-3}),
        ("GlobalAveragePool", "normalized", "pooled", {}),
        ("Flatten", "pooled", "flat", {}),
        ("Gemm", "flat matrix offset", "y", {}),
    ]
    names = ("kernel", "bias", "gamma", "beta", "mean", "variance", "matrix", "offset")
    weights = dict(zip(names, model.get_weights(), strict=True))
    weights["kernel"] = weights["kernel"].transpose(3, 2, 0, 1)
    return write_onnx(folder / "m.onnx", nodes, weights, [batch or "n", 3, 8, 8])


@pytest.mark.parametrize("kind, batch", [("tflite", None), ("tflite", 3), ("onnx", None), ("onnx", 1), ("onnx", 3)])
def test_logits(model, kind, batch, tmp_path):
    classify = load_classifier(write(model, kind, tmp_path, batch), ModelInterface(input_range="-1,1"))
    for count in (5, 2):
        images = sample_images(count=count)
        np.testing.assert_allclose(classify(images), model(2 * images - 1), atol=1e-4)
    images = tf.data.Dataset.from_tensor_slices(sample_images()).batch(2)
    in_a_graph = np.concatenate(list(images.map(classify)))
    np.testing.assert_allclose(in_a_graph, model(2 * sample_images() - 1), atol=1e-4)
    assert not classify.has_graph and classify.num_classes == CLASSES and classify.input_shape.as_list() == [None, *SHAPE]


def test_quantized_inputs_and_outputs(model, tmp_path):
    pytest.importorskip("ai_edge_litert")
    classify = load_classifier(write_tflite(model, tmp_path / "m.tflite", quantized=True))
    expected = model(sample_images()).numpy()
    np.testing.assert_allclose(classify(sample_images()), expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["tflite", "onnx"])
def test_damaged_files_and_missing_packages(kind, tmp_path, monkeypatch):
    path, package = tmp_path / f"m.{kind}", {"tflite": "ai_edge_litert.interpreter", "onnx": "onnxruntime"}[kind]
    path.write_bytes(b"damaged")
    pytest.importorskip(package)
    with pytest.raises(ValueError, match=f"m.{kind}"):
        load_classifier(path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'tf_robust\[{kind}\]'"):
        load_classifier(path)
