"""A loaded model equals the original on images that are prepared by hand, and is differentiable."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.saved_models import loading_models
from tests.saved_models.loading_models import CLASSES, MEAN, NORMALIZATION, SHAPE, STD, WEIGHTS, sample_images, saved, spec
from tf_robust.saved_models import export, loading, signatures
from tf_robust.saved_models.loading import ModelInterface, load_classifier
from tf_robust.utils import hyperparameters

plain = loading_models.plain  # the fixture


def scores_by_hand(values):
    """A linear classifier on [N, 8, 8, 3]; the tests' modules compute the same in TensorFlow."""
    return values.reshape(len(values), -1).astype(np.float64) @ WEIGHTS


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    "input_range, by_hand",
    [
        ("0,1", lambda x: x),
        ("-1,1", lambda x: 2 * x - 1),
        ("0,255", lambda x: 255 * x),
        ("-2,0.5", lambda x: 2.5 * x - 2),
        (NORMALIZATION, lambda x: (x - MEAN) / STD),
        ("imagenet", lambda x: (x - MEAN) / STD),
        ("0,255 bgr", lambda x: 255 * x[..., ::-1]),
        ("imagenet bgr", lambda x: ((x - MEAN) / STD)[..., ::-1]),
        ("caffe", lambda x: 255 * x[..., ::-1] - (103.939, 116.779, 123.68)),
        ("mean=0.5 std=0.25", lambda x: (x - 0.5) / 0.25),
        ("mean=0.1,0.2,0.3 std=0.5", lambda x: (x - (0.1, 0.2, 0.3)) / 0.5),
    ],
)
def test_input_range(plain, input_range, by_hand):
    logits = load_classifier(plain, ModelInterface(input_range=input_range))(sample_images())
    expected = scores_by_hand(by_hand(sample_images()))
    assert logits.dtype == tf.float32
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name, factor", [("doubled", 2), ("any_channels", 1), ("any_shape", 1), ("any_size", 1)])
def test_signatures(plain, name, factor):
    classify = load_classifier(plain, ModelInterface(signature=name))
    np.testing.assert_allclose(classify(sample_images()), factor * scores_by_hand(sample_images()), rtol=1e-4, atol=1e-4)
    assert repr(name) in classify.description


def test_half_precision_outputs_are_cast_to_float32(plain):
    logits = load_classifier(plain, ModelInterface(signature="half"))(sample_images())
    assert logits.dtype == tf.float32
    np.testing.assert_allclose(logits, scores_by_hand(sample_images()), atol=0.05)


@pytest.mark.parametrize("input_range", ["0,1", "0,255"])
def test_uint8_is_rounded(plain, input_range):
    classify = load_classifier(plain, ModelInterface(signature="bytes", input_range=input_range))
    images = sample_images()
    images[0, 0, 0] = (0.0, 1.0, 0.4999 / 255)
    np.testing.assert_allclose(classify(images), scores_by_hand(np.round(255 * images)), rtol=1e-4, atol=0.02)
    assert "uint8" in classify.description and "no gradients" in classify.description
    images = tf.constant(images)
    with tf.GradientTape() as tape:
        tape.watch(images)
        total = tf.reduce_sum(classify(images))
    assert tape.gradient(total, images) is None


@pytest.mark.parametrize("side", [5, 13])
def test_resized_input(plain, side):
    images = sample_images((side, side, 3))
    classify = load_classifier(plain, ModelInterface(input_size=8, input_range="-1,1"))
    resized = np.stack(
        [
            np.stack([np.asarray(Image.fromarray(image[:, :, c], "F").resize((8, 8), Image.BILINEAR)) for c in range(3)], axis=-1)
            for image in images
        ]
    )
    np.testing.assert_allclose(classify(images), scores_by_hand(2 * resized - 1), atol=1e-3)
    assert classify.input_shape.as_list() == [None, None, None, 3] and "input_size 8" in classify.description


def test_probabilities_become_logits_whose_softmax_gives_them_back(plain):
    classify = load_classifier(plain, ModelInterface(signature="soft", outputs="probabilities"))
    logits = classify(sample_images()).numpy()
    expected = softmax(scores_by_hand(sample_images()))
    np.testing.assert_allclose(logits, np.log(expected), atol=1e-4)
    np.testing.assert_allclose(softmax(logits.astype(np.float64)), expected, atol=1e-5)
    assert classify.check(logits) == ""
    certain = load_classifier(plain, ModelInterface(signature="soft", outputs="probabilities", input_range="0,255"))
    np.testing.assert_allclose(certain(sample_images()).numpy().min(), np.log(1e-35), rtol=1e-5)


def test_outputs_that_contradict_the_interface_are_reported(tmp_path):
    path = saved(
        tmp_path / "m",
        **{
            "serving_default": (lambda m, x: {"predictions": tf.nn.softmax(m.scores(x))}, spec(*SHAPE)),
            "scores": (lambda m, x: {"predictions": m.scores(x)}, spec(*SHAPE)),
        },
    )
    classify = load_classifier(path, ModelInterface(outputs="logits"))
    assert "pass outputs=probabilities" in classify.check(classify(sample_images()))
    assert "pass outputs=probabilities" in classify.check(np.array([[64, 64, 129], [0, 0, 256]]) / 256)  # rounded to 8 bits
    for scores in ([[0.5, 0.5, 0.0], [0.0, -0.0005, 1.0]], [[0.5, 0.5, 0.0], [0.0, 0.0, 1.03]], np.zeros([0, 3])):
        assert classify.check(scores) == ""
    scores = load_classifier(path, ModelInterface(signature="scores", outputs="logits"))
    assert scores.check(scores(sample_images())) == ""
    wrong = load_classifier(path, ModelInterface(signature="scores", outputs="probabilities"))
    assert "pass outputs=logits" in wrong.check(wrong(sample_images()))


@pytest.mark.parametrize(
    "name, kind",
    [("serving_default", "auto"), ("doubled", "logits"), ("soft", "probabilities"), ("two_outputs", "probabilities"), ("half", "auto")],
)
def test_the_kind_of_the_outputs_is_that_of_their_name(plain, name, kind):
    assert load_classifier(plain, ModelInterface(signature=name)).interface.outputs == kind


def rounded(scores):
    """Probabilities in steps of 1/256, as 8-bit models return them."""
    return tf.round(256 * tf.nn.softmax(scores)) / 256


@pytest.mark.parametrize(
    "last, kind",
    [
        (tf.identity, "logits"),
        (tf.nn.softmax, "probabilities"),
        (rounded, "probabilities"),
        (tf.nn.sigmoid, "logits"),  # sums differ from 1
        (tf.zeros_like, "logits"),
        (lambda x: x * np.nan, "logits"),
        (lambda x: 10 * tf.nn.softmax(x), "logits"),
        (lambda x: tf.nn.softmax(x) + (5, -5, 0, 0), "logits"),  # negative numbers
    ],
)
def test_the_kind_of_unnamed_outputs_is_told_by_their_sums(last, kind):
    model = loading_models.Module()
    classify = loading.classifier_of(lambda images: last(model.scores(images))).with_known_outputs(sample_images())
    assert classify.interface.outputs == kind
    declared = loading.classifier_of(lambda images: last(model.scores(images)), ModelInterface(outputs=kind))
    np.testing.assert_array_equal(classify(sample_images()), declared(sample_images()))
    assert kind == "logits" or classify(sample_images()).numpy().max() <= 0


@pytest.mark.parametrize("declared", ["logits", "probabilities"])
def test_a_declared_kind_is_kept(plain, declared):
    classify = load_classifier(plain, ModelInterface(outputs=declared))
    assert classify.with_known_outputs(sample_images()) is classify


@pytest.mark.parametrize("names, taken", [(("logits", "probabilities"), "logits"), (("other", "probabilities"), "probabilities")])
def test_outputs_in_a_dictionary(names, taken):
    model = loading_models.Module()
    scores = {name: (i + 1) * model.scores(sample_images()) for i, name in enumerate(names)}
    np.testing.assert_array_equal(loading.classifier_of(lambda images: scores)(sample_images()), scores[taken])


@pytest.mark.parametrize("kind", ["export", "save"])
def test_keras_models(tmp_path, kind):
    keras.utils.set_random_seed(0)
    images = keras.Input(SHAPE, name="images")
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(3, 3, activation="silu")(images))
    x = keras.layers.Dense(CLASSES)(keras.layers.Dropout(0.5)(keras.layers.Flatten()(x)))
    model = keras.Model({"images": images}, {"embedding": x + 1, "logits": x})
    model({"images": sample_images(seed=2)}, training=True)  # moves the batch statistics
    path = str(tmp_path / ("m" if kind == "export" else "m.keras"))
    model.export(path, verbose=False) if kind == "export" else model.save(path)
    classify = load_classifier(path, ModelInterface(input_range="-1,1"))
    np.testing.assert_allclose(classify(sample_images()), model({"images": 2 * sample_images() - 1})["logits"], atol=1e-5)
    assert classify.num_classes == CLASSES and classify.input_shape.as_list() == [None, *SHAPE]
    assert "images float32 [None, 8, 8, 3]" in classify.description


def test_keras_file_of_a_sequential_model_that_takes_uint8(tmp_path):
    model = keras.Sequential(
        [
            keras.Input(SHAPE, dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.save(tmp_path / "m.keras")
    classify = load_classifier(tmp_path / "m.keras", ModelInterface(outputs="probabilities"))
    expected = np.log(model(np.round(255 * sample_images()).astype(np.uint8)))
    np.testing.assert_allclose(classify(sample_images()), expected, atol=1e-5)


def test_our_own_export_and_its_workdir(network, tmp_path):
    model, path = network(), str(tmp_path / "saved_model")
    export.export(model, path, {"method": "test"})
    expected = model(sample_images((16, 16, 1)))["logits"]
    for folder in (path, str(tmp_path)):
        classify = load_classifier(folder)
        np.testing.assert_allclose(classify(sample_images((16, 16, 1))), expected, atol=1e-5)
        assert classify.path == path and classify.card == {"method": "test"} and classify.num_classes == 3
        assert classify.input_shape.as_list() == [None, 16, 16, 1]
    probable = load_classifier(path, ModelInterface(outputs="probabilities"))(sample_images((16, 16, 1)))
    np.testing.assert_allclose(probable, tf.nn.log_softmax(expected), atol=1e-4)
    with pytest.raises(ValueError, match="'serving_bytes' .* takes strings.*\n.*serving_default: images") as error:
        load_classifier(path, ModelInterface(signature="serving_bytes"))
    assert str(error.value).endswith("Try: signature=serving_default.")


@pytest.mark.parametrize(
    "interface, by_hand",
    [
        (ModelInterface(input_range="-1,1"), lambda gradient: 2 * gradient),
        (ModelInterface(input_range=NORMALIZATION), lambda gradient: gradient / STD),
    ],
)
def test_gradients_flow_through_the_scaling_in_a_graph(plain, interface, by_hand):
    classify = load_classifier(plain, interface)

    @tf.function(input_signature=[tf.TensorSpec([None, *SHAPE])])
    def gradient(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            total = tf.reduce_sum(classify(images)[:, 2])
        return tape.gradient(total, images)

    expected = by_hand(WEIGHTS[:, 2].reshape(1, *SHAPE).repeat(5, axis=0))
    np.testing.assert_allclose(gradient(sample_images()), expected, rtol=1e-4)


def test_gradients_flow_through_resizing_and_the_logarithm(plain):
    classify = load_classifier(plain, ModelInterface(signature="soft", outputs="probabilities", input_size=8))
    images = tf.constant(sample_images((16, 16, 3)))
    with tf.GradientTape() as tape:
        tape.watch(images)
        total = tf.reduce_sum(classify(images)[:, 0])
    gradient, step = tape.gradient(total, images).numpy(), sample_images((16, 16, 3), seed=3) - 0.5
    shifted = [float(tf.reduce_sum(classify(images + sign * 0.01 * step)[:, 0])) for sign in (-1, 1)]
    np.testing.assert_allclose((gradient * step).sum(), (shifted[1] - shifted[0]) / 0.02, rtol=1e-2)


def test_in_a_dataset(plain):
    logits = next(iter(tf.data.Dataset.from_tensors(sample_images()).map(load_classifier(plain))))
    np.testing.assert_allclose(logits, scores_by_hand(sample_images()), atol=1e-4)


def test_the_interface_makes_flags():
    parameters = hyperparameters.parameters(ModelInterface)
    assert list(parameters) == ["input_range", "outputs", "signature", "input_size", "trust", "check_inputs"]
    assert all(parameter.help for parameter in parameters.values())
    assert parameters["outputs"].choices == ("auto", *signatures.OUTPUTS) and NORMALIZATION in parameters["input_range"].help


def test_cards(plain, tmp_path):
    path = shutil.copytree(plain, tmp_path / "m")
    assert load_classifier(path).card == {}
    (path / "card.json").write_text("[1]")
    assert load_classifier(path).card == {}
    (path / "card.json").write_text('{"half": ')
    with pytest.raises(ValueError, match="Expected JSON in .*card.json"):
        load_classifier(path)
