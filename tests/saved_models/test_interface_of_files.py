"""Exported files take and return what the model takes and returns; another interface is asked for, and recorded in the card."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.command_line import main
from tests.saved_models.loading_models import CLASSES, SHAPE, sample_images, written
from tests.small_runs import read
from tf_robust.saved_models import loading
from tf_robust.saved_models.export import Deployable
from tf_robust.saved_models.formats.keras_files import compiled_as_given
from tf_robust.saved_models.loading import ModelInterface, load_classifier

litert = pytest.importorskip("ai_edge_litert.interpreter")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")
layers = keras.layers
NAMES = ("savedmodel", "keras", "tflite", "onnx")
PIXELS = np.round(255 * sample_images())


def network(end=None, dtype="float32"):
    """(a model, images in 0..255 -> probabilities; its classifier)."""
    keras.utils.set_random_seed(0)
    first = [keras.Input(SHAPE, dtype=dtype), layers.Rescaling(1 / 255), layers.Conv2D(4, 3, activation="relu"), layers.Flatten()]
    model = keras.Sequential([*first, end or layers.Dense(CLASSES, "softmax")])
    return model, loading.classifier_of(model, ModelInterface(input_range="0,255", outputs="probabilities"))


def run(name, path, values):
    """{name of an output: output} of a file in its own runtime."""
    if name == "keras":
        return {"probabilities": keras.saving.load_model(path)(values)}
    if name == "savedmodel":
        return tf.saved_model.load(path).signatures["serving_default"](images=tf.constant(values))
    if name == "onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return {one.name: result for one, result in zip(session.get_outputs(), session.run(None, {"images": values}), strict=True)}
    return litert.Interpreter(model_path=path).get_signature_runner()(images=values)


# both types for the writers that convert
@pytest.mark.parametrize("name, dtype", [*((name, "uint8") for name in NAMES), ("tflite", "float32"), ("onnx", "float32")])
def test_pixels_in_and_probabilities_out(name, dtype, tmp_path):
    model, classifier = network(dtype=dtype)
    outputs = run(name, written(name, classifier, tmp_path), PIXELS.astype(dtype))
    assert [*outputs] == ["probabilities"]
    np.testing.assert_allclose(outputs["probabilities"], model(PIXELS.astype(dtype)), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_one_sigmoid_stays_one(name, tmp_path):
    model, classifier = network(layers.Dense(1, "sigmoid"))
    found = run(name, written(name, classifier, tmp_path), PIXELS)["probabilities"]
    assert found.shape == (5, 1)
    np.testing.assert_allclose(found, model(PIXELS), atol=1e-5)


def test_a_saved_model_brings_encoded_images_to_the_scale_of_the_model(tmp_path):
    model, classifier = network()
    encoded = tf.constant([tf.io.encode_png(image.astype(np.uint8)).numpy() for image in PIXELS])
    signatures = tf.saved_model.load(written("savedmodel", classifier, tmp_path)).signatures
    np.testing.assert_allclose(signatures["serving_bytes"](encoded=encoded)["probabilities"], model(PIXELS), atol=1e-5)


def test_images_are_resized_before_the_file(tmp_path):
    classifier, large = network()[1].with_interface(input_size=8), sample_images((16, 16, 3))
    deployable = Deployable(classifier, (16, 16, 3))
    assert deployable.spec.shape.as_list() == [None, *SHAPE]
    outputs = run("onnx", written("onnx", classifier, tmp_path, (16, 16, 3)), classifier.model_input(large).numpy())
    np.testing.assert_allclose(deployable.scores(large), outputs["probabilities"], atol=1e-5)


def test_the_command_writes_and_records_another_interface(tmp_path):
    model, _ = network()
    images = np.round(255 * sample_images(count=40)).astype(np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(40) % CLASSES)
    model.save(tmp_path / "model.keras")
    data = f"--data=npz:{tmp_path}/data.npz", "--check_inputs=false", "--input_range=0,255"
    main("export", f"{tmp_path}/model.keras", *data, "--formats=tflite", "--unit_range", "--logits", f"--workdir={tmp_path}/out")
    card, expected = read(tmp_path / "out" / "model.tflite.json"), np.log(model(images.astype(np.float32)))
    assert card["input"]["range"] == [0, 1] and card["output"] == "logits" and card["check"]["largest_difference"] < 1e-5
    logits = load_classifier(tmp_path / "out" / "model.tflite")(images / np.float32(255)).numpy()
    np.testing.assert_allclose(logits - logits[:, :1], expected - expected[:, :1], atol=1e-3)


def test_keras_files_are_compiled_as_the_given_one(tmp_path):
    model, _ = network()
    model.compile(keras.optimizers.SGD(0.125, momentum=0.5), "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    model.save(tmp_path / "given.keras")
    classifier = load_classifier(tmp_path / "given.keras", ModelInterface(input_range="0,255", outputs="probabilities"))
    new = keras.saving.load_model(written("keras", classifier, tmp_path))
    assert new.compiled and type(new.optimizer) is keras.optimizers.SGD and float(new.optimizer.learning_rate) == 0.125
    labels = np.arange(5) % CLASSES
    assert new.evaluate(PIXELS, labels, verbose=0) == pytest.approx(model.evaluate(PIXELS, labels, verbose=0))
    plain, _ = network()
    plain.save(tmp_path / "plain.keras")
    assert not compiled_as_given(plain, str(tmp_path / "plain.keras")).compiled
