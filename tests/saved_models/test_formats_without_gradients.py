"""TensorFlow Lite and ONNX models give the logits of the Keras model that they were made of; attacks with gradients are refused."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.saved_models.loading_models import CLASSES, SHAPE, sample_images
from tf_robust import attacks
from tf_robust.saved_models.loading import ModelInterface, load_classifier


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            layers.Conv2D(5, 3, activation="silu"),
            layers.BatchNormalization(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES),
        ]
    )


def write_tflite(model, path, batch=None, quantized=False):
    converter = tf.lite.TFLiteConverter.from_keras_model(keras.Sequential([keras.Input(SHAPE, batch_size=batch), *model.layers]))
    if quantized:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([sample_images(count=1, seed=seed)] for seed in range(50))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.uint8
    path.write_bytes(converter.convert())
    return str(path)


def write_onnx(model, path, batch="batch"):
    """Writes the same network in channels first, from the weights of the Keras model."""
    onnx = pytest.importorskip("onnx")
    kernel, bias, *normalization, matrix, offset = model.get_weights()
    tensors = {
        **{"kernel": kernel.transpose(3, 2, 0, 1), "bias": bias, "matrix": matrix, "offset": offset},
        **dict(zip(("gamma", "beta", "mean", "variance"), normalization, strict=True)),
    }
    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [
            node("Conv", ["x", "kernel", "bias"], ["conv"]),
            node("Sigmoid", ["conv"], ["sigmoid"]),
            node("Mul", ["conv", "sigmoid"], ["silu"]),
            node("BatchNormalization", ["silu", "gamma", "beta", "mean", "variance"], ["normalized"], epsilon=1e-3),
            node("GlobalAveragePool", ["normalized"], ["pooled"]),
            node("Flatten", ["pooled"], ["flat"]),
            node("Gemm", ["flat", "matrix", "offset"], ["y"]),
        ],
        "network",
        [value("x", onnx.TensorProto.FLOAT, [batch, 3, 8, 8])],
        [value("y", onnx.TensorProto.FLOAT, [batch, CLASSES])],
        [onnx.numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def write(model, kind, folder, batch=None):
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
        return write_onnx(model, folder / "m.onnx", *([batch] if batch else []))
    pytest.importorskip("ai_edge_litert")
    return write_tflite(model, folder / "m.tflite", batch)


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


def test_attacks(model, tmp_path):
    classify = load_classifier(write(model, "onnx", tmp_path))
    images = sample_images()
    labels = model(images).numpy().argmax(axis=1)
    with pytest.raises(ValueError, match="without gradients.*attack=square"):
        attacks.ProjectedGradientDescent(norm="linf", radius=0.3)(classify, images, labels)
    attacked = attacks.Square(norm="linf", radius=0.3, steps=20)(classify, images, labels)
    assert np.abs(attacked - images).max() <= 0.3 + 1e-6


@pytest.mark.parametrize("kind", ["tflite", "onnx"])
def test_damaged_files_and_missing_packages(kind, tmp_path, monkeypatch):
    path = tmp_path / f"m.{kind}"
    path.write_bytes(b"damaged")
    pytest.importorskip({"tflite": "ai_edge_litert", "onnx": "onnxruntime"}[kind])
    with pytest.raises(ValueError, match=f"Expected a model that can be loaded. Received: .*m.{kind}.*Try: copy it"):
        load_classifier(path)
    without = {"tflite": "ai_edge_litert.interpreter", "onnx": "onnxruntime"}[kind]
    monkeypatch.setitem(sys.modules, without, None)
    with pytest.raises(ImportError, match=rf"pip install 'tf_robust\[{kind}\]'"):
        load_classifier(path)
