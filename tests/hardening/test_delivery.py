"""A delivered model computes what the hardened one in memory does, and has the kind, signatures and preprocessing of the initial model."""

import errno
import os
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import tiny_network
from tests.hardening import start_models
from tests.hardening.start_models import CLASSES, SHAPE, keras_model, sample_images
from tf_robust import models
from tf_robust.hardening import trainable as module
from tf_robust.hardening.trainable import trainable
from tf_robust.saved_models.loading import ModelInterface, classifier_of, load_classifier

PIXELS = ModelInterface(input_range="0,255")


def loaded(saved, name):
    """A model in memory, or a SavedModel."""
    return trainable(classifier_of(keras_model()) if name == "memory" else load_classifier(saved[name]))


def changed(start):
    """The start with other weights."""
    random = np.random.RandomState(3)
    start.network.set_weights([w * random.uniform(0.5, 1.5, w.shape).astype(w.dtype) for w in start.network.get_weights()])
    return start


def signatures(loaded):
    """Returns {signature: (inputs, outputs)} of a SavedModel, each {name: (type, shape)}."""

    def described(specs):
        return {name: (spec.dtype, str(spec.shape)) for name, spec in specs.items()}

    functions = loaded.signatures.items()
    return {name: (described(one.structured_input_signature[1]), described(one.structured_outputs)) for name, one in functions}


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".hdf5"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_keras_files(tmp_path, suffix):
    keras_model(0, 255).save(tmp_path / f"model{suffix}")
    start = changed(trainable(load_classifier(tmp_path / f"model{suffix}", PIXELS)))
    for number, given in enumerate(("robust", "robust.v2", f"robust{suffix}")):
        folder = tmp_path / f"new_{number}"
        path = start.save(folder / given)
        assert path == str(folder / given.removesuffix(suffix)) + suffix and os.listdir(folder) == [os.path.basename(path)]
    images = sample_images()
    after = load_classifier(path, PIXELS)(images)
    np.testing.assert_allclose(after, start.model(255 * images), atol=1e-5)  # probabilities, by its own rescaling
    assert np.abs(after - keras_model(0, 255)(255 * images)).max() > 0.01


def test_normalization_in_front_stays_outside(tmp_path):
    """The file of a model that takes normalized images takes them as before."""
    keras.utils.set_random_seed(0)
    keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Flatten(), keras.layers.Dense(3)]).save(tmp_path / "model.keras")
    interface = ModelInterface(input_range="imagenet")
    start = changed(trainable(load_classifier(tmp_path / "model.keras", interface)))
    path = start.save(tmp_path / "robust")
    images = sample_images(shape=(4, 4, 3))
    normalized = (images - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    dense = start.model.layers[-1]
    expected = normalized.reshape(6, -1) @ dense.kernel.numpy() + dense.bias.numpy()
    np.testing.assert_allclose(load_classifier(path, interface)(images), expected, atol=1e-4)


@pytest.mark.parametrize(
    "classifier",
    [
        lambda: classifier_of(keras_model()),
        lambda: classifier_of(tiny_network(SHAPE, CLASSES)),
        lambda: load_classifier("zoo:digits/lenet_augmix"),
    ],
    ids=("keras", "own", "zoo"),
)
def test_models_in_memory_and_of_the_zoo_give_a_keras_file(tmp_path, classifier):
    given = classifier()
    start = changed(trainable(given))
    path, images = start.save(tmp_path / "robust"), sample_images(shape=start.network.input_shape[1:])
    assert path.endswith("robust.keras")
    np.testing.assert_allclose(load_classifier(path)(images), given(images), atol=1e-5)


def test_applications_give_a_keras_file_with_their_preprocessing(tmp_path, monkeypatch):
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(7, 3), keras.layers.GlobalAveragePooling2D()])
    monkeypatch.setattr(keras.applications, "ResNet50", lambda weights, classifier_activation: model)
    start = changed(trainable(load_classifier("applications:ResNet50")))
    path, images = start.save(tmp_path / "robust"), sample_images(shape=(8, 8, 3))
    expected = model((255 * images[..., ::-1] - (103.939, 116.779, 123.68)).astype(np.float32)).numpy()
    np.testing.assert_allclose(load_classifier(path)(images), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["keras_export", "keras_save", "module", "ours", "bytes"])
def test_saved_models(tmp_path, saved, name):
    start, images = trainable(load_classifier(saved[name])), sample_images()
    before = start.classifier(images)
    path = changed(start).save(tmp_path / "deeper" / "robust")
    assert path == str(tmp_path / "deeper" / "robust")
    after = trainable(load_classifier(path))
    assert signatures(after.classifier.loaded) == signatures(start.classifier.loaded)
    np.testing.assert_allclose(after.classifier(images), start.classifier(images), atol=1e-5)
    assert np.abs(after.classifier(images) - before).max() > 0.01
    assert [w.shape for w in after.network.weights] == [w.shape for w in start.network.weights] and after.skip == start.skip
    if name not in ("keras_export", "module"):
        return
    again = changed(after).save(path)  # hardened again, in place
    np.testing.assert_allclose(trainable(load_classifier(again)).classifier(images), after.classifier(images), atol=1e-5)


def test_all_signatures_have_the_new_weights(tmp_path, saved):
    start = changed(trainable(load_classifier(saved["keras_save"])))
    loaded = tf.saved_model.load(start.save(tmp_path / "robust")).signatures
    scores, twice = (loaded[name](x=tf.constant(sample_images())) for name in ("serving_default", "twice"))
    np.testing.assert_allclose(twice["logits"], 2 * scores["scores"], atol=1e-6)


def test_an_exported_model_keeps_its_card_and_its_weights_can_be_loaded(tmp_path, saved):
    start = changed(trainable(load_classifier(saved["ours"])))
    path, network = start.save(tmp_path / "robust"), tiny_network(SHAPE, CLASSES, seed=5)
    assert load_classifier(path).card == {"method": "tested"}
    models.load_encoder(network, path, head=True)
    np.testing.assert_allclose(network(sample_images())["logits"], start.classifier(sample_images()), atol=1e-5)


def test_weights_of_another_model_are_not_delivered(tmp_path, saved):
    np.savez(os.path.join(saved["module"], "weights.npz"), **{"00000:other": np.zeros(3)})
    path = trainable(load_classifier(saved["module"])).save(tmp_path / "robust")
    os.remove(os.path.join(saved["module"], "weights.npz"))
    assert not os.path.exists(os.path.join(path, "weights.npz"))


def test_assets_are_delivered(tmp_path):
    (tmp_path / "classes.txt").write_text("zero\none\ntwo\n")

    class WithNames(start_models.Callable):
        def __init__(self):
            super().__init__()
            self.names = tf.saved_model.Asset(str(tmp_path / "classes.txt"))

    module = WithNames()
    file = tf.function(
        lambda x: {"logits": module(x), "file": tf.io.read_file(module.names.asset_path)}, input_signature=[start_models.SPEC]
    )
    tf.saved_model.save(module, str(tmp_path / "start"), signatures={"serving_default": file})
    (tmp_path / "start" / "assets.extra").mkdir()
    (tmp_path / "start" / "assets.extra" / "note").write_text("kept")
    start = changed(trainable(load_classifier(tmp_path / "start")))
    path = start.save(tmp_path / "robust")
    os.rename(tmp_path / "start", tmp_path / "moved")
    (tmp_path / "classes.txt").unlink()
    outputs = tf.saved_model.load(path).signatures["serving_default"](x=tf.constant(sample_images()))
    assert outputs["file"].numpy() == b"zero\none\ntwo\n"
    assert (tmp_path / "robust" / "assets.extra" / "note").read_text() == "kept"
    np.testing.assert_allclose(outputs["logits"], sample_images().reshape(6, -1) @ start.network.get_weights()[0], atol=1e-5)


@pytest.mark.parametrize("name, given", [("memory", "robust.h5"), ("memory", "robust.onnx"), ("ours", "robust.keras")])
def test_a_wrong_suffix(tmp_path, saved, name, given):
    with pytest.raises(ValueError, match=given):
        loaded(saved, name).save(tmp_path / given)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name, folder", [("memory", "robust.keras"), ("ours", "robust")])
def test_other_content_is_not_replaced(tmp_path, saved, name, folder):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "thesis.txt").write_text("five years")
    with pytest.raises(FileExistsError, match=folder):
        loaded(saved, name).save(tmp_path / "robust")
    assert (tmp_path / folder / "thesis.txt").read_text() == "five years"


@pytest.mark.parametrize(
    "name, failure, message",
    [
        ("memory", OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        ("ours", OSError(errno.EACCES, "Permission denied"), "Permission denied"),
    ],
)
def test_a_failed_write_leaves_nothing(tmp_path, saved, monkeypatch, name, failure, message):
    start = loaded(saved, name)
    path = start.save(tmp_path / "robust")
    before = {folder: files for folder, _, files in os.walk(tmp_path)}
    images, old = sample_images(), load_classifier(path)(sample_images())
    changed(start)

    def fails(*_args, **_kwargs):
        raise failure

    monkeypatch.setattr(module.shutil, "copyfileobj", fails)
    monkeypatch.setattr(module, "_write_weights", fails)
    with pytest.raises(OSError, match=f"{re.escape(path)}.*{message}"):
        start.save(tmp_path / "robust")
    assert {folder: files for folder, _, files in os.walk(tmp_path)} == before
    np.testing.assert_array_equal(load_classifier(path)(images), old)


def test_a_model_that_keras_cannot_save(tmp_path):
    class Custom(keras.Sequential):
        def get_config(self):
            raise NotImplementedError("no configuration")

    model = Custom([keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(CLASSES)])
    with pytest.raises(ValueError, match="no configuration"):
        trainable(classifier_of(model)).save(tmp_path / "robust")
    assert not os.listdir(tmp_path)
