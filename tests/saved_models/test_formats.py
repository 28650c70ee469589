"""The same model gives the same logits and input gradients in every format; files that are no models are refused."""

import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.saved_models.loading_models import CLASSES, SHAPE, input_gradient, sample_images, small_network
from tf_robust.cli import checks
from tf_robust.hardening.trainable import check_format
from tf_robust.saved_models import formats
from tf_robust.saved_models.loading import ModelInterface, load_classifier
from tf_robust.saved_models.signatures import Signature


@pytest.fixture(scope="module")
def model():
    return small_network()


class WithCallable(tf.Module):
    """A module without signatures, whose function has the argument `training` as in tf.keras."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        for training in (True, False):
            self.__call__.get_concrete_function(tf.TensorSpec([None, *SHAPE]), training)

    @tf.function
    def __call__(self, images, training=False):
        return self.model(images, training=False) + (1.0 if training else 0.0)


def write(model, kind, folder):
    """Writes a model in a format and returns its path."""
    path = str(folder / f"model.{kind}")
    if kind == "export":
        model.export(path, verbose=False)
    elif kind == "callable":
        tf.saved_model.save(WithCallable(model), path)
    else:
        model.save(path)
    return path


@pytest.mark.parametrize("kind", ["keras", "h5", "export", "callable"])
def test_formats_with_gradients(model, kind, tmp_path):
    classify = load_classifier(write(model, kind, tmp_path), ModelInterface(input_range="-1,1"))
    np.testing.assert_allclose(classify(sample_images()), model(2 * sample_images() - 1), atol=1e-4)
    found, expected = (
        input_gradient(lambda images: function(images)[:, 2], sample_images()) for function in (classify, lambda x: model(2 * x - 1))
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert classify.has_graph and classify.num_classes == CLASSES and classify.input_shape.as_list() == [None, *SHAPE]


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_lambda_layers_run_only_if_the_file_is_trusted(suffix, tmp_path):
    path = str(tmp_path / f"m.{suffix}")
    keras.Sequential([keras.Input(SHAPE), keras.layers.Lambda(lambda x: 2 * x), keras.layers.Flatten()]).save(path)
    with pytest.raises(ValueError, match="Lambda layer.*trust"):
        load_classifier(path)
    logits = load_classifier(path, ModelInterface(trust=True))(sample_images())
    np.testing.assert_allclose(logits, 2 * sample_images().reshape(5, -1), rtol=1e-6)


def test_files_that_are_no_models(model, tmp_path):
    weights = str(tmp_path / "only.weights.h5")
    model.save_weights(weights)
    with pytest.raises(ValueError, match="weights only"):
        load_classifier(weights)
    for name in ("m.h5", "m.keras", "m.pkl"):
        (tmp_path / name).write_bytes(b"damaged")
        with pytest.raises(ValueError, match=name):
            load_classifier(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        archive.writestr("other.txt", "")
    with pytest.raises(ValueError, match="m.keras.*config.json"):
        load_classifier(tmp_path / "m.keras")


def test_a_format_of_a_user_is_one_entry(tmp_path, monkeypatch):
    def read(path, trust):
        matrix = np.load(path)
        images, scores = tf.TensorSpec([None, *SHAPE], tf.float32), tf.TensorSpec([None, CLASSES], tf.float32)
        signature = Signature(
            lambda images: {"scores": tf.numpy_function(lambda x: x.reshape(len(x), -1) @ matrix, [images], tf.float32)},
            {"images": images},
            {"scores": scores},
            has_graph=False,
        )
        return {"serving_default": signature}, matrix

    monkeypatch.setitem(formats.FORMATS, "mine", formats.Format(read, suffixes=(".mine",), gradients=False, graph=False))
    matrix = np.random.RandomState(0).normal(size=(np.prod(SHAPE), CLASSES)).astype(np.float32)
    path = tmp_path / "m.mine"
    with open(path, "wb") as file:
        np.save(file, matrix)
    classify = load_classifier(path, ModelInterface(outputs="logits"))
    np.testing.assert_allclose(classify(sample_images()), sample_images().reshape(5, -1) @ matrix, rtol=1e-4, atol=1e-5)
    assert formats.format_of(path).reader is read and ".mine" in formats.suffixes() and "mine" not in formats.files()
    assert checks._command_for(str(path)) == f"evaluate {path} --data=NAME"
    for check, message in ((formats.check_convertible, "can be converted"), (check_format, "without gradients")):
        with pytest.raises(ValueError, match=message):
            check(str(path))


@pytest.mark.parametrize(
    "path, name",
    [
        *[(f"a.b{suffix}", name) for name in ("keras", "hdf5", "tflite", "onnx", "torch") for suffix in formats.FORMATS[name].suffixes],
        *[(f"{name}:a/b.h5", name) for name in ("zoo", "applications", "keras_hub")],
        ("A.KERAS", "keras"),
        ("zoo", None),
        ("module:function", None),
        ("model.pkl", None),
    ],
)
def test_names_have_the_format_of_their_prefix_or_suffix(path, name):
    assert formats.format_of(path) is (formats.FORMATS[name] if name else None)


def test_folders_have_the_format_of_their_marker(tmp_path):
    for marker, name in (("saved_model.pb", "savedmodel"), ("task.json", "keras_hub")):
        (tmp_path / name).mkdir()
        (tmp_path / name / marker).write_bytes(b"")
        assert formats.format_of(tmp_path / name) is formats.FORMATS[name]
    assert formats.format_of(tmp_path) is None
