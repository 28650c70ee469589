"""A loaded model equals the original on images that are prepared by hand, and is differentiable."""

import shutil

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from PIL import Image

from tests.saved_models import loading_models
from tests.saved_models.loading_models import CLASSES, MEAN, NORMALIZATION, SHAPE, STD, WEIGHTS, input_gradient, sample_images
from tf_robust.saved_models import export, loading
from tf_robust.saved_models.loading import ModelInterface, load_classifier

plain = loading_models.plain  # the fixture


def scores_by_hand(values):
    """A linear classifier on [N, 8, 8, 3]; the tests' modules compute the same in TensorFlow."""
    return values.reshape(len(values), -1).astype(np.float64) @ WEIGHTS


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


def test_channels_first_models_are_transposed(plain):
    classify = load_classifier(plain, ModelInterface(signature="channels_first"))
    np.testing.assert_allclose(classify(sample_images()), scores_by_hand(sample_images()), rtol=1e-4, atol=1e-4)
    assert classify.input_shape.as_list() == [None, *SHAPE]


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
    assert input_gradient(classify, images) is None


@pytest.mark.parametrize("side", [5, 13])
def test_resized_input(plain, side):
    images = sample_images((side, side, 3))
    classify = load_classifier(plain, ModelInterface(input_size=8, input_range="-1,1"))
    planes = images.transpose(0, 3, 1, 2).reshape(-1, side, side)
    resized = [np.asarray(Image.fromarray(plane, "F").resize((8, 8), Image.BILINEAR)) for plane in planes]
    resized = np.reshape(resized, [5, 3, 8, 8]).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(classify(images), scores_by_hand(2 * resized - 1), atol=1e-3)
    assert classify.input_shape.as_list() == [None, None, None, 3]


def test_probabilities_become_logits_whose_softmax_gives_them_back(plain):
    classify = load_classifier(plain, ModelInterface(signature="soft", outputs="probabilities"))
    logits = classify(sample_images()).numpy()
    expected = scipy.special.softmax(scores_by_hand(sample_images()), axis=1)
    np.testing.assert_allclose(logits, np.log(expected), atol=1e-4)
    np.testing.assert_allclose(scipy.special.softmax(logits.astype(np.float64), axis=1), expected, atol=1e-5)
    assert classify.check(logits) == ""
    certain = load_classifier(plain, ModelInterface(signature="soft", outputs="probabilities", input_range="0,255"))
    np.testing.assert_allclose(certain(sample_images()).numpy().min(), np.log(1e-35), rtol=1e-5)


def test_outputs_that_contradict_the_interface_are_reported():
    model = loading_models.Module()
    classify = loading.classifier_of(lambda images: tf.nn.softmax(model.scores(images)), ModelInterface(outputs="logits"))
    assert "pass outputs=probabilities" in classify.check(classify(sample_images()))
    assert "pass outputs=probabilities" in classify.check(np.array([[64, 64, 129], [0, 0, 256]]) / 256)  # rounded to 8 bits
    for scores in ([[0.5, 0.5, 0.0], [0.0, -0.0005, 1.0]], [[0.5, 0.5, 0.0], [0.0, 0.0, 1.03]], np.zeros([0, 3])):
        assert classify.check(scores) == ""
    right, wrong = (loading.classifier_of(model.scores, ModelInterface(outputs=kind)) for kind in ("logits", "probabilities"))
    assert right.check(right(sample_images())) == ""
    assert "pass outputs=logits" in wrong.check(wrong(sample_images()))


@pytest.mark.parametrize(
    "name, kind",
    [("serving_default", "auto"), ("doubled", "logits"), ("soft", "probabilities"), ("two_outputs", "probabilities"), ("half", "auto")],
)
def test_the_kind_of_the_outputs_is_that_of_their_name(plain, name, kind):
    assert load_classifier(plain, ModelInterface(signature=name)).interface.outputs == kind


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


def test_keras_file_of_a_sequential_model_that_takes_uint8(tmp_path):
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(CLASSES, "softmax")]
    model = keras.Sequential([keras.Input(SHAPE, dtype="uint8"), *layers])
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


@pytest.mark.parametrize(
    "interface, by_hand",
    [
        (ModelInterface(input_range="-1,1"), lambda gradient: 2 * gradient),
        (ModelInterface(input_range=NORMALIZATION), lambda gradient: gradient / STD),
    ],
)
def test_gradients_flow_through_the_scaling_in_a_graph(plain, interface, by_hand):
    classify = load_classifier(plain, interface)
    gradient = tf.function(lambda images: input_gradient(lambda x: classify(x)[:, 2], images))
    expected = by_hand(WEIGHTS[:, 2].reshape(1, *SHAPE).repeat(5, axis=0))
    np.testing.assert_allclose(gradient(sample_images()), expected, rtol=1e-4)


def test_gradients_flow_through_resizing_and_the_logarithm(plain):
    classify = load_classifier(plain, ModelInterface(signature="soft", outputs="probabilities", input_size=8))
    images, step = sample_images((16, 16, 3)), sample_images((16, 16, 3), seed=3) - 0.5
    gradient = input_gradient(lambda x: classify(x)[:, 0], images).numpy()
    shifted = [float(tf.reduce_sum(classify(images + sign * 0.01 * step)[:, 0])) for sign in (-1, 1)]
    np.testing.assert_allclose((gradient * step).sum(), (shifted[1] - shifted[0]) / 0.02, rtol=1e-2)


def test_in_a_dataset(plain):
    logits = next(iter(tf.data.Dataset.from_tensors(sample_images()).map(load_classifier(plain))))
    np.testing.assert_allclose(logits, scores_by_hand(sample_images()), atol=1e-4)


def test_cards(plain, tmp_path):
    path = shutil.copytree(plain, tmp_path / "m")
    assert load_classifier(path).card == {}
    (path / "card.json").write_text("[1]")
    assert load_classifier(path).card == {}
    (path / "card.json").write_text('{"half": ')
    with pytest.raises(ValueError, match="card.json"):
        load_classifier(path)
