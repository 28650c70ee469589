"""Models of keras.applications and keras_hub take images in [0, 1]; `module:function` names one's own."""

import functools

import keras
import numpy as np
import pytest

from tests.saved_models.loading_models import input_gradient, sample_images
from tf_robust.saved_models.loading import ModelInterface, load_classifier

SIDE = 32


@pytest.mark.parametrize(
    "name, preprocess",
    [
        ("MobileNetV2", lambda x: 2 * x - 1),
        ("ResNet50", lambda x: 255 * x[..., ::-1] - (103.939, 116.779, 123.68)),
    ],
)
def test_applications_with_their_preprocessing(name, preprocess, monkeypatch):
    """A small network in place of the models, whose weights would be downloaded."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((SIDE, SIDE, 3)), keras.layers.Conv2D(7, 3), keras.layers.GlobalAveragePooling2D()])
    monkeypatch.setattr(keras.applications, name, lambda weights, classifier_activation: model)
    classify = load_classifier(f"applications:{name}")
    images = sample_images((SIDE, SIDE, 3))
    expected = model(preprocess(images).astype(np.float32)).numpy()
    np.testing.assert_allclose(classify(images), expected, atol=1e-5 * np.abs(expected).max())
    assert input_gradient(classify, images) is not None
    assert classify.digest() == load_classifier(f"applications:{name}").digest()


def test_an_unknown_application():
    with pytest.raises(ValueError, match="'MobileNet2'.*Did you mean.*'MobileNetV2'"):
        load_classifier("applications:MobileNet2")


def test_a_preset_of_keras_hub(tmp_path):
    hub = pytest.importorskip("keras_hub")
    keras.utils.set_random_seed(0)
    backbone = hub.models.ResNetBackbone(
        input_conv_filters=[8],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[8, 8],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=(None, None, 3),
    )
    converter = hub.layers.ResNetImageConverter(image_size=(SIDE, SIDE), scale=1 / 127.5, offset=-1.0)
    model = hub.models.ResNetImageClassifier(backbone, 5, hub.models.ResNetImageClassifierPreprocessor(image_converter=converter))
    model.save_to_preset(tmp_path / "preset")
    images = sample_images((SIDE, SIDE, 3))
    for path in (f"keras_hub:{tmp_path}/preset", str(tmp_path / "preset")):
        classify = load_classifier(path)
        np.testing.assert_allclose(classify(images), model(2 * images - 1), atol=1e-4)
        assert input_gradient(classify, images) is not None
    assert classify(sample_images((48, 40, 3))).shape == [5, 5]
    with pytest.raises(ValueError, match=f"Received: {tmp_path}"):
        load_classifier("keras_hub:" + str(tmp_path))


MODULE = """
import keras
import tensorflow as tf

def build(classes=4):
    return keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(classes, kernel_initializer="ones")])

def scores(images):
    return tf.reshape(images, [-1, 192])[:, :4]

def fails():
    raise RuntimeError("no weights here")

def text():
    return "model"
"""


def test_functions_of_modules(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    images = sample_images()
    load = functools.partial(load_classifier, interface=ModelInterface(input_range="0,255"))
    sums = np.repeat(255 * images.sum(axis=(1, 2, 3))[:, None], 4, axis=1)
    np.testing.assert_allclose(load("own_models:build")(images), sums, rtol=1e-5)
    np.testing.assert_allclose(load("own_models:scores")(images), 255 * images.reshape(5, -1)[:, :4], rtol=1e-5)
    assert load("own_models:build").digest() == load("own_models:build").digest()
    assert load("own_models:scores").digest() == load("own_models:scores").digest()  # in one process
    for name, message in {
        "own_models:missing": "'missing'",
        "other_models:build": "'other_models'",
        "own_models:fails": "no weights here",
        "own_models:text": "own_models:text .*Received: str",
    }.items():
        with pytest.raises(ValueError, match=message):
            load(name)
