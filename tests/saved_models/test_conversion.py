"""Each format of deployment, run by its own runtime, gives the logits of the Keras model that it was made of."""

import os

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.saved_models.loading_models import CLASSES, SHAPE, Bessel, sample_images, written
from tf_robust.saved_models import latency, loading
from tf_robust.saved_models.formats import files, size

litert = pytest.importorskip("ai_edge_litert.interpreter")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")
layers = keras.layers


@pytest.fixture(scope="module")
def model():
    """A network of images in [0, 1] whose batch norm is not the identity."""
    keras.utils.set_random_seed(0)
    convolution = [layers.Conv2D(16, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(), layers.Conv2D(32, 3, strides=2)]
    network = keras.Sequential([keras.Input(SHAPE), *convolution, layers.GlobalAveragePooling2D(), layers.Dense(CLASSES)])
    network.layers[1].set_weights([np.linspace(low, high, 16) for low, high in ((0.5, 2), (-1, 1), (-0.2, 0.2), (0.1, 0.3))])
    return network


@pytest.fixture(scope="module")
def expected(model):
    return model(sample_images()).numpy()


@pytest.fixture(scope="module")
def paths(model, tmp_path_factory):
    """{format: path of the file}."""
    folder, classifier = tmp_path_factory.mktemp("formats"), loading.classifier_of(model)
    return {name: written(name, classifier, folder, calibration=sample_images(count=50, seed=1)) for name in files()}


def by_litert(path):
    """({name: details} of the inputs, that of the outputs, logits of the sample images) of LiteRT itself."""
    runner = litert.Interpreter(model_path=path).get_signature_runner()
    return runner.get_input_details(), runner.get_output_details(), runner(images=sample_images())["logits"]


@pytest.mark.parametrize("name, tolerance", [("tflite", 1e-6), ("tflite_float16", 2e-3)])
def test_litert_gives_the_logits_of_the_model(expected, paths, name, tolerance):
    inputs, outputs, logits = by_litert(paths[name])
    assert (list(inputs), list(outputs)) == (["images"], ["logits"])
    assert inputs["images"]["shape_signature"].tolist() == [-1, *SHAPE] and inputs["images"]["dtype"] == np.float32
    np.testing.assert_allclose(logits, expected, atol=tolerance * np.abs(expected).max())


def test_onnx_runtime_gives_the_logits_of_the_model(expected, paths):
    session = onnxruntime.InferenceSession(paths["onnx"], providers=["CPUExecutionProvider"])
    (given,), (returned,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape[1:], returned.name) == ("images", list(SHAPE), "logits")
    np.testing.assert_allclose(session.run(None, {"images": sample_images()})[0], expected, atol=1e-6 * np.abs(expected).max())


def test_int8_logits_are_multiples_of_the_scale_of_the_output_and_near_the_float_ones(expected, paths):
    interpreter = litert.Interpreter(model_path=paths["tflite_int8"], experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF)
    inputs, outputs, logits = by_litert(paths["tflite_int8"])
    assert inputs["images"]["dtype"] == outputs["logits"]["dtype"] == np.float32
    integers = [tensor for tensor in interpreter.get_tensor_details() if tensor["dtype"] == np.int8]
    scores = [tensor for tensor in integers if list(tensor["shape"]) == [1, CLASSES] and tensor["quantization"][0]]
    scale = scores[-1]["quantization"][0]
    np.testing.assert_allclose(logits / scale, np.round(logits / scale), atol=1e-3)
    assert scale < 0.05 * np.abs(expected).max() and np.abs(logits - expected).max() <= 3 * scale
    assert len(integers) > 5  # convolutions are computed with integers, too


def test_the_saved_model_takes_files_and_the_keras_file_takes_images(model, expected, paths):
    np.testing.assert_allclose(keras.saving.load_model(paths["keras"])(sample_images()), expected, rtol=1e-5)
    signatures = tf.saved_model.load(paths["savedmodel"]).signatures
    outputs = signatures["serving_default"](images=tf.constant(sample_images()))
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-5)
    np.testing.assert_allclose(outputs["probabilities"], tf.nn.softmax(expected), atol=1e-6)
    exact = np.round(255 * sample_images()).astype(np.uint8)
    encoded = [tf.io.encode_png(image).numpy() for image in exact]
    np.testing.assert_allclose(signatures["serving_bytes"](encoded=tf.constant(encoded))["logits"], model(exact / 255), atol=1e-4)


def test_quantized_files_are_smaller(paths):
    sizes = {name: size(path) for name, path in paths.items()}
    parameters = 3 * 9 * 16 + 16 + 16 * 9 * 32 + 32 + 32 * CLASSES + CLASSES  # batch norm is folded
    assert 4 * parameters < sizes["tflite"] < 4 * parameters + 6000
    assert sizes["tflite"] - sizes["tflite_float16"] == pytest.approx(2 * parameters, rel=0.2)
    assert sizes["tflite_int8"] < sizes["tflite_float16"] and sizes["onnx"] == os.path.getsize(paths["onnx"])


@pytest.mark.parametrize("input_range", ["-1,1", "0,255 bgr", "imagenet"])
def test_the_input_range_and_the_logarithm_of_probabilities_are_part_of_every_file_on_request(model, input_range, tmp_path):
    soft = keras.Sequential([keras.Input(SHAPE), *model.layers, layers.Softmax()])
    interface = loading.ModelInterface(input_range=input_range, outputs="probabilities")
    classifier = loading.classifier_of(soft, interface)
    values = {
        "-1,1": 2 * sample_images() - 1,
        "0,255 bgr": 255 * sample_images()[..., ::-1],
        "imagenet": (sample_images() - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225]),
    }[input_range]
    expected = np.log(np.maximum(soft(values), 1e-35))
    for name in ("savedmodel", "keras", "tflite", "onnx") if input_range == "imagenet" else ("keras", "onnx"):
        path = written(name, classifier, tmp_path, unit_range=True, logits=True)
        np.testing.assert_allclose(loading.load_classifier(path)(sample_images()), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["tflite", "onnx"])
def test_gelu(name, tmp_path):
    """ONNX has no erfc, of which TensorFlow makes it."""
    network = keras.Sequential([keras.Input(SHAPE), layers.Rescaling(6, -3), layers.Activation("gelu"), layers.Flatten()])
    path = written(name, loading.classifier_of(network), tmp_path)
    values = (6 * sample_images() - 3).astype(np.float64)
    expected = 0.5 * values * (1 + scipy.special.erf(values / np.sqrt(2)))
    np.testing.assert_allclose(loading.load_classifier(path)(sample_images()), expected.reshape(5, -1), atol=1e-5)


# 3, 192 and 1 constants; TensorFlow embeds few in the graph
@pytest.mark.parametrize("kind, axis", [("model", (1, 2, 3)), ("model", None), ("file", -1), ("savedmodel", (1, 2, 3))])
def test_constants_of_a_normalization_are_no_inputs_of_onnx_files(axis, kind, tmp_path):
    keras.utils.set_random_seed(0)
    normalization = layers.Normalization(axis)
    normalization.adapt(255 * sample_images(count=50, seed=1))
    network = keras.Sequential([keras.Input(SHAPE), normalization, layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(CLASSES)])
    if kind == "model":
        classifier = loading.classifier_of(network, loading.ModelInterface(input_range="0,255"))
    else:
        given = str(tmp_path / ("given.keras" if kind == "file" else "given"))
        network.save(given) if kind == "file" else network.export(given, verbose=False)
        classifier = loading.load_classifier(given, loading.ModelInterface(input_range="0,255"))
    session = onnxruntime.InferenceSession(written("onnx", classifier, tmp_path), providers=["CPUExecutionProvider"])
    assert [tensor.name for tensor in session.get_inputs()] == ["images"]
    logits, expected = session.run(["logits"], {"images": 255 * sample_images()})[0], network(255 * sample_images()).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())


@pytest.fixture(scope="module")
def of_uint8(tmp_path_factory):
    """(path of a SavedModel that takes uint8, the network, its logits by the plain converter)."""
    tmp_path = tmp_path_factory.mktemp("uint8")
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None, None, 3), dtype="uint8")
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(6, 3, activation="relu")(layers.Rescaling(1 / 127.5, -1)(inputs)))
    network = keras.Model(inputs, {"logits": layers.Dense(CLASSES)(x), "features": x})
    network.export(str(tmp_path / "given"), verbose=False)
    content = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "given")).convert()
    plain = litert.Interpreter(model_content=content).get_signature_runner()
    ((name, _),) = plain.get_input_details().items()
    pixels = np.round(255 * sample_images()).astype(np.uint8)
    expected = plain(**{name: pixels})["logits"]
    np.testing.assert_allclose(expected, network(pixels)["logits"], atol=1e-5)
    return tmp_path / "given", network, expected


@pytest.mark.parametrize("name", ["tflite", "tflite_float16", "tflite_int8", "onnx"])
def test_a_saved_model_of_uint8_is_that_of_the_plain_converter(name, of_uint8, tmp_path):
    given, network, expected = of_uint8
    path = written(name, loading.load_classifier(given), tmp_path, calibration=sample_images(count=50, seed=1))
    tolerance = {"tflite_float16": 0.01, "tflite_int8": 0.1}.get(name, 1e-5)
    images = np.concatenate([sample_images(), sample_images() * 3 - 1])  # also some that are clipped, which integers are not calibrated on
    expected = np.concatenate([expected, network(np.clip(np.round(255 * images[5:]), 0, 255).astype(np.uint8))["logits"]])
    compared = slice(5 if name == "tflite_int8" else None)
    logits = loading.load_classifier(path)(images)
    np.testing.assert_allclose(logits[compared], expected[compared], atol=tolerance * np.abs(expected).max())


class Fourier(layers.Layer):
    def call(self, images):
        return tf.math.real(tf.signal.fft2d(tf.cast(tf.transpose(images, [0, 3, 1, 2]), tf.complex64)))


@pytest.mark.parametrize("name", ["tflite", "tflite_int8", "onnx"])
@pytest.mark.parametrize("layer, operation", [(Fourier, "FFT2D"), (Bessel, "BesselI1e")])
def test_unsupported_operations_are_named_and_nothing_is_written(layer, operation, name, tmp_path, capfd):
    classifier = loading.classifier_of(keras.Sequential([keras.Input(SHAPE), layer(), layers.Flatten(), layers.Dense(CLASSES)]))
    with pytest.raises(ValueError, match=f"format {name} .*unsupported operations: .*{operation}"):
        written(name, classifier, tmp_path, calibration=sample_images())
    assert not os.listdir(tmp_path) and operation not in capfd.readouterr().err


def test_models_in_bfloat16_are_refused_by_converters(tmp_path):
    policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    network = keras.Sequential([keras.Input(SHAPE), layers.Conv2D(2, 3, dtype=policy), layers.Flatten(), layers.Dense(CLASSES)])
    classifier = loading.classifier_of(network)
    for name in ("tflite", "tflite_int8", "onnx"):
        with pytest.raises(ValueError, match=f"format {name}.* bfloat16"):
            written(name, classifier, tmp_path, calibration=sample_images())
    logits = loading.load_classifier(written("keras", classifier, tmp_path))(sample_images())
    np.testing.assert_allclose(logits, network(sample_images()), atol=1e-6)


def test_latency_is_the_median_of_the_runtime(paths):
    for name in ("tflite_int8", "onnx"):
        seconds = latency.measure(paths[name], SHAPE, trust=False)
        assert latency.MIN_CALLS <= len(seconds) <= latency.MAX_CALLS and min(seconds) > 0
    milliseconds, calls = latency.milliseconds(paths["onnx"], SHAPE)
    assert calls >= latency.MIN_CALLS and 0 < milliseconds < 1000
    with pytest.raises(RuntimeError, match="nowhere.onnx"):
        latency.milliseconds("nowhere.onnx", SHAPE)
