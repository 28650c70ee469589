"""Models whose outputs for an image depend on the other images of its batch are noticed; rounding is not taken for that."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_robust as tfr
from tests.saved_models.loading_models import CLASSES, SHAPE, sample_images, write_onnx
from tf_robust.saved_models import input_check
from tf_robust.saved_models.input_check import batch_dependence
from tf_robust.saved_models.loading import ModelInterface, classifier_of, load_classifier
from tf_robust.utils.progress import NOTED

layers = keras.layers


def network(normalization=None, dropout=None, dtype="float32"):
    """Images -> logits; normalization and dropout: whether these layers are always in training mode."""
    keras.utils.set_random_seed(0)
    images = keras.Input(SHAPE)
    x = layers.Conv2D(6, 3, activation="relu", dtype=dtype)(images)
    x = layers.BatchNormalization(dtype=dtype)(x, training=normalization)
    x = layers.Dropout(0.3)(layers.GlobalAveragePooling2D(dtype=dtype)(x), training=dropout)
    return keras.Model(images, layers.Dense(CLASSES)(x))


def alone_and_together(model, images):
    """The largest difference of the logits of the first images alone and in a batch, by Keras."""
    together = model(images).numpy()
    return max(np.abs(model(images[i : i + 1]).numpy() - together[i]).max() for i in range(input_check.ALONE))


def as_it_is(model):
    """The classifier of a function: a keras.Model would be called in inference mode."""
    return classifier_of(lambda values: model(values), name="a function")


@pytest.mark.parametrize("kind", ["savedmodel", "function"])
def test_batch_normalization_in_training_mode(kind, tmp_path):
    model, images = network(normalization=True), sample_images(count=16)
    if kind == "savedmodel":
        model.export(str(tmp_path / "m"), verbose=False)
    classify = load_classifier(tmp_path / "m") if kind == "savedmodel" else as_it_is(model)
    found = batch_dependence(classify, images)
    assert found["largest_difference"] >= alone_and_together(model, images[: input_check.COMPARED]) * 0.999 > 0.01
    assert "batch normalization" in found["cause"] and found["largest_score"] == pytest.approx(np.abs(model(images[:8])).max(), rel=1e-4)


def test_random_outputs_have_another_cause():
    assert "dropout" in batch_dependence(as_it_is(network(dropout=True)), sample_images(count=16))["cause"]


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_rounding_is_no_dependence(dtype):
    model = network(dtype=dtype)
    for interface in (ModelInterface(input_range="0,255"), ModelInterface()):
        assert batch_dependence(classifier_of(model, interface), sample_images(count=16)) == {}


def test_the_tolerance_is_that_of_the_type_of_floats():
    """A difference of 1 % of the scores is rounding in half precision, and none in float32."""

    def wobbling(dtype):
        scores = lambda x: tf.cast(tf.reduce_mean(x, [1, 2]) * (1 + 0.005 * tf.cast(tf.shape(x)[0] == 1, tf.float32)), dtype)
        return classifier_of(tf.function(lambda x: tf.cast(scores(x), tf.float32)))

    assert batch_dependence(wobbling(tf.float32), sample_images(count=16))
    assert not batch_dependence(wobbling(tf.float16), sample_images(count=16))
    assert input_check.tolerance(tf.float32) < input_check.tolerance(tf.float16) < input_check.tolerance(tf.bfloat16) < 0.1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_images(count):
    found = batch_dependence(as_it_is(network(normalization=True)), sample_images(count=count))
    assert bool(found) == (count > 1)


def test_it_is_printed_and_recorded_in_the_card(capsys):
    model, labels = network(normalization=True), np.arange(40) % CLASSES
    function = lambda values: model(values)
    images = np.round(255 * sample_images(count=40)).astype(np.uint8)
    options = {"data": (images, labels), "evaluations": "clean", "outputs": "logits", "check_inputs": False}
    recorded = tfr.evaluate(function, **options).evaluation["card"]
    printed = capsys.readouterr().out
    assert recorded["batch_dependence"]["largest_difference"] > 0.01 and "'<lambda>'" in printed and "batch normalization" in printed
    assert "batch_dependence" not in tfr.evaluate(network(), **options).evaluation["card"]
    NOTED.clear()
    arrays = (images[:20] / np.float32(255), labels[:20])
    tfr.attack(function, *arrays, "fgsm", radius=0.1, norm="linf", check_inputs=False)
    assert "depend on the other images of its batch" in capsys.readouterr().out


def test_onnx_files_that_use_the_range_of_the_batch(tmp_path):
    nodes = [
        ("GlobalAveragePool", "x", "pooled", {}),
        ("Flatten", "pooled", "flat", {}),
        ("DynamicQuantizeLinear", "flat", "quantized scale zero", {}),
        ("DequantizeLinear", "quantized scale zero", "values", {}),
        ("MatMul", "values weights", "y", {}),
    ]
    path = write_onnx(tmp_path / "m.onnx", nodes, {"weights": np.eye(3, CLASSES, dtype=np.float32)}, ["n", 3, 8, 8])
    images = sample_images(count=16) * np.linspace(0.1, 1, 16, dtype=np.float32)[:, None, None, None]
    found = batch_dependence(load_classifier(path), images[::-1])
    assert "dynamic quantization" in found["cause"] and 0 < found["largest_difference"] < 0.02
