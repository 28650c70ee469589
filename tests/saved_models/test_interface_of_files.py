"""Exported files take and return what the model takes and returns; another interface is asked for, and recorded in the card."""

import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.command_line import main
from tests.saved_models.loading_models import CLASSES, SHAPE, sample_images
from tests.small_runs import read
from tf_robust.saved_models import export, loading
from tf_robust.saved_models.export import Deployable, export_calibrated
from tf_robust.saved_models.formats import FORMATS
from tf_robust.saved_models.formats.keras_files import compiled_as_given
from tf_robust.saved_models.loading import ModelInterface, load_classifier

litert = pytest.importorskip("ai_edge_litert.interpreter")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")
layers = keras.layers
NAMES = ("savedmodel", "keras", "tflite", "onnx")
PIXELS = np.round(255 * sample_images())
ENDS = {
    "softmax": lambda: layers.Dense(CLASSES, "softmax"),
    "sigmoid": lambda: layers.Dense(1, "sigmoid"),
    "logits": lambda: layers.Dense(CLASSES),
}


def network(end="softmax", dtype="float32"):
    """Images in 0..255 -> probabilities or logits."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input(SHAPE, dtype=dtype), layers.Rescaling(1 / 255), layers.Conv2D(4, 3, activation="relu"), layers.Flatten(), ENDS[end]()]
    )


def run(name, path, values):
    """(name of the output, output) of a file in its own runtime."""
    if name == "keras":
        return "", keras.saving.load_model(path)(values).numpy()
    if name == "savedmodel":
        outputs = tf.saved_model.load(path).signatures["serving_default"](images=tf.constant(values))
    elif name == "onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        outputs = {one.name: result for one, result in zip(session.get_outputs(), session.run(None, {"images": values}), strict=True)}
    else:
        outputs = litert.Interpreter(model_path=path).get_signature_runner()(images=values)
    return ",".join(sorted(outputs)), np.asarray(next(outputs[kind] for kind in ("probabilities", "logits") if kind in outputs and
                                                      (kind == "probabilities" or len(outputs) == 1)))  # fmt: skip


# both types for the writers that convert
@pytest.mark.parametrize("name, dtype", [*((name, "uint8") for name in NAMES), ("tflite", "float32"), ("onnx", "float32")])
def test_pixels_in_and_probabilities_out(name, dtype, tmp_path):
    model = network(dtype=dtype)
    classifier = loading.classifier_of(model, ModelInterface(input_range="0,255", outputs="probabilities"))
    path = str(tmp_path / FORMATS[name].file)
    export.write(name, Deployable(classifier, SHAPE), path, {})
    outputs, found = run(name, path, PIXELS.astype(dtype))
    np.testing.assert_allclose(found, model(PIXELS.astype(dtype)), atol=1e-5)
    assert outputs in ("", "probabilities")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("end", ["sigmoid", "logits"])
def test_one_sigmoid_stays_one_and_logits_stay_logits(name, end, tmp_path):
    model, kind = network(end), "probabilities" if end == "sigmoid" else "logits"
    classifier = loading.classifier_of(model, ModelInterface(input_range="0,255", outputs=kind))
    path = str(tmp_path / FORMATS[name].file)
    export.write(name, Deployable(classifier, SHAPE), path, {})
    if (end, name) == ("logits", "savedmodel"):
        found = tf.saved_model.load(path).signatures["serving_default"](images=tf.constant(PIXELS))["logits"]
    else:
        found = run(name, path, PIXELS)[1]
    assert found.shape == model.output_shape[:0] + (5, model.output_shape[1])
    np.testing.assert_allclose(found, model(PIXELS), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_another_interface_is_asked_for(name, tmp_path):
    model = network()
    classifier = loading.classifier_of(model, ModelInterface(input_range="0,255", outputs="probabilities"))
    path = str(tmp_path / FORMATS[name].file)
    export.write(name, Deployable(classifier, SHAPE, unit_range=True, logits=True), path, {})
    if name == "savedmodel":
        found = tf.saved_model.load(path).signatures["serving_default"](images=tf.constant(PIXELS / np.float32(255)))["logits"]
    else:
        found = run(name, path, PIXELS / np.float32(255))[1]
    np.testing.assert_allclose(found, np.log(model(PIXELS)), atol=1e-4)


def test_a_saved_model_brings_encoded_images_to_the_scale_of_the_model(tmp_path):
    model = network()
    classifier = loading.classifier_of(model, ModelInterface(input_range="0,255", outputs="probabilities"))
    export.write("savedmodel", Deployable(classifier, SHAPE), str(tmp_path / "m"), {})
    assert run("savedmodel", str(tmp_path / "m"), PIXELS)[0] == "probabilities"
    encoded = tf.constant([tf.io.encode_png(image.astype(np.uint8)).numpy() for image in PIXELS])
    found = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_bytes"](encoded=encoded)["probabilities"]
    np.testing.assert_allclose(found, model(PIXELS), atol=1e-5)


def test_images_are_resized_before_the_file(tmp_path):
    model = network()
    classifier = loading.classifier_of(model, ModelInterface(input_range="0,255", outputs="probabilities", input_size=8))
    deployable, large = Deployable(classifier, (16, 16, 3)), sample_images((16, 16, 3))
    export.write("onnx", deployable, str(tmp_path / "m.onnx"), {})
    assert deployable.spec.shape.as_list() == [None, *SHAPE]
    np.testing.assert_allclose(
        deployable.scores(large), run("onnx", str(tmp_path / "m.onnx"), classifier.model_input(large).numpy())[1], atol=1e-5
    )


def test_the_command_records_the_interface_which_then_binds(tmp_path, capsys):
    model, labels = network(), np.arange(40) % CLASSES
    images = np.round(255 * sample_images(count=40)).astype(np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    model.save(tmp_path / "model.keras")
    common = ["export", f"{tmp_path}/model.keras", f"--data=npz:{tmp_path}/data.npz", "--check_inputs=false", "--input_range=0,255"]
    main(*common, "--formats=keras,tflite", f"--workdir={tmp_path}/own")
    assert "scale 0,255 and return probabilities" in capsys.readouterr().out
    main(*common, "--formats=tflite", "--unit_range", "--logits", f"--workdir={tmp_path}/other")
    assert "scale 0,1 and return logits" in capsys.readouterr().out
    expected = np.log(model(images.astype(np.float32)))
    for file, interface in (("own/model.keras", "0,255"), ("own/model.tflite", "0,255"), ("other/model.tflite", "0,1")):
        card = read(f"{tmp_path}/{file}.json")
        assert card["input"]["range"] == [float(one) for one in interface.split(",")]
        assert card["output"] == ("logits" if file.startswith("other") else "probabilities") and card["check"]["largest_difference"] < 1e-5
        logits = load_classifier(tmp_path / file)(images / np.float32(255)).numpy()
        np.testing.assert_allclose(logits - logits[:, :1], expected - expected[:, :1], atol=1e-3)
    with pytest.raises(ValueError, match="Expected input_range=0,255, .*Received: input_range=0,1"):
        load_classifier(tmp_path / "own" / "model.tflite", ModelInterface(input_range="0,1"))


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_keras_files_are_compiled_as_the_given_one(suffix, tmp_path):
    model = network()
    model.compile(keras.optimizers.SGD(0.125, momentum=0.5), "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    model.save(tmp_path / f"given{suffix}")
    classifier = load_classifier(tmp_path / f"given{suffix}", ModelInterface(input_range="0,255", outputs="probabilities"))
    export.write("keras", Deployable(classifier, SHAPE), str(tmp_path / "new.keras"), {})
    new = keras.saving.load_model(tmp_path / "new.keras")
    assert new.compiled and type(new.optimizer) is keras.optimizers.SGD and float(new.optimizer.learning_rate) == 0.125
    assert new.evaluate(PIXELS, np.arange(5) % CLASSES, verbose=0) == pytest.approx(
        model.evaluate(PIXELS, np.arange(5) % CLASSES, verbose=0)
    )
    plain = network()
    plain.save(tmp_path / f"plain{suffix}")
    assert not compiled_as_given(plain, str(tmp_path / f"plain{suffix}")).compiled


def test_the_calibrated_model_takes_what_the_model_takes(tmp_path, source):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((16, 16, 1)), layers.Flatten(), layers.Dense(3, "softmax")])
    classifier = loading.classifier_of(model, ModelInterface(input_range="-1,1", outputs="probabilities"))
    export_calibrated(classifier, source(), str(tmp_path / "m"), scale=0.5, bias=0.0, card={})
    images = sample_images((16, 16, 1))
    served = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"](images=tf.constant(2 * images - 1))
    np.testing.assert_allclose(served["logits"], 0.5 * np.log(model(2 * images - 1)), atol=1e-4)
    np.testing.assert_allclose(load_classifier(tmp_path / "m")(images), served["logits"], atol=1e-4)
    assert json.load(open(os.path.join(tmp_path, "m", "card.json")))["input"]["range"] == [-1.0, 1.0]
