"""Models by name as networks to train: preprocessing, heads, Keras weight files, and refusals."""

import inspect
import sys

import keras
import numpy as np
import pytest

from tests.conftest import sweep
from tests.models.keras_hub_models import resnet_backbone
from tf_robust import methods, models
from tf_robust.models import named
from tf_robust.saved_models import export, loading
from tf_robust.training import loop

FAMILIES = sorted(
    name for name, module in vars(keras.applications).items() if inspect.ismodule(module) and hasattr(module, "preprocess_input")
)
CODE = """
import keras

def build(input_shape, num_classes):
    images = keras.Input(input_shape)
    x = keras.layers.Conv2D(4, 3, strides=2, activation="relu")(keras.layers.Rescaling(2.0, -1.0)(images))
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dense(6, activation="relu")(keras.layers.GlobalAveragePooling2D()(x))
    return keras.Model(images, keras.layers.Dense(num_classes)(x))

def of_seven():
    return build((16, 16, 1), 7)

MODEL = build((16, 16, 1), 3)

def fixed():
    return MODEL

def network():
    from tf_robust import models
    return models.build("resnet8", (16, 16, 1), 3)

def of_64_pixels():
    return build((64, 64, 3), 3)

class Subclassed(keras.Model):
    def __init__(self, num_classes):
        super().__init__()
        self.convolution, self.logits = keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Dense(num_classes)

    def call(self, x):
        return self.logits(keras.ops.mean(self.convolution(x), axis=(1, 2)))

def subclassed(input_shape, num_classes):
    model = Subclassed(num_classes)
    model(keras.ops.zeros((1, *input_shape)))
    return model

def no_model():
    return keras.layers.Dense(3)
"""


def images_of(shape, count=2):
    return np.random.RandomState(0).rand(count, *shape).astype(np.float32)


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """A module `own_nets` in the working directory."""
    (tmp_path / "own_nets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_nets", None)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_preprocessing_of_each_family_is_a_scale_and_an_offset(family):
    preprocess, images = getattr(keras.applications, family).preprocess_input, images_of((8, 8, 3))
    scale, offset, is_reversed = named._affine(preprocess)
    ours = scale * images + offset
    ours = ours[..., ::-1] if is_reversed else ours
    np.testing.assert_allclose(ours, preprocess(255 * images), rtol=1e-5, atol=1e-3)


def tiny_application(monkeypatch, name):
    """Replaces a model of keras.applications by a small one without its output layer. Returns a list of the weights that are asked for."""
    asked = []

    def build(include_top, weights, input_shape):
        asked.append(weights)
        images = keras.Input(input_shape)
        return keras.Model(images, keras.layers.Conv2D(4, 3, name="convolution")(images), name="tiny")

    monkeypatch.setattr(keras.applications, name, build)
    return asked


@pytest.mark.parametrize(
    "name, preprocess",
    [
        ("MobileNetV2", lambda x: 2 * x - 1),
        ("ResNet50", lambda x: 255 * x[..., ::-1] - (103.939, 116.779, 123.68)),
        ("DenseNet121", lambda x: (x - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)),
        ("EfficientNetB0", lambda x: 255 * x),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_applications_get_their_input_and_a_head_of_the_data(name, preprocess, channels, monkeypatch):
    tiny_application(monkeypatch, name)
    network, images = models.build(f"applications:{name}", (16, 16, channels), 5), images_of((16, 16, channels))
    color = images.repeat(3, axis=3) if channels == 1 else images
    expected = np.mean(network.get_layer("tiny")(preprocess(color).astype(np.float32)), axis=(1, 2))
    outputs = network(images)
    np.testing.assert_allclose(outputs["embedding"], expected, rtol=1e-3, atol=1e-3)
    assert outputs["logits"].shape == (2, 5)


def first_blocks(monkeypatch, name, last):
    """Replaces a model of keras.applications by its first layers, up to the layer `last`: an addition of blocks among them."""
    complete = getattr(keras.applications, name)

    def build(include_top, weights, input_shape):
        model = complete(include_top=include_top, weights=weights, input_shape=input_shape)
        return keras.Model(model.input, model.get_layer(last).output, name=model.name)

    monkeypatch.setattr(keras.applications, name, build)


LAST = {
    "MobileNetV2": "block_2_add",
    "EfficientNetB0": "block2a_project_bn",
    "ConvNeXtTiny": "convnext_tiny_downsampling_block_0",
    "DenseNet121": "pool2_pool",
    "ResNet50V2": "conv2_block3_out",
}


@pytest.mark.parametrize("name", sweep(LAST, ["MobileNetV2"]))
def test_applications_train_and_export(name, source, tmp_path, monkeypatch, request):
    if name != "ConvNeXtTiny":  # whose grouped convolutions have a gradient on the CPU in functions of XLA alone
        request.getfixturevalue("eagerly")
    first_blocks(monkeypatch, name, LAST[name])
    train = source(24, shape=(32, 32, 3))
    method = methods.NoisyMix(models.build(f"applications:{name}", (32, 32, 3), 3), jsd_weight=0.0)
    method.compile("sgd")
    before = [v.numpy() for v in method.classifier.trainable_variables]
    loop.fit(method, train, epochs=1, batch_size=12)
    assert sum(np.abs(a - b.numpy()).max() > 0 for a, b in zip(before, method.classifier.trainable_variables)) > len(before) / 2
    export.export(method.classifier, str(tmp_path / "saved_model"), {})
    images = images_of((32, 32, 3))
    np.testing.assert_allclose(
        loading.load_classifier(str(tmp_path / "saved_model"))(images), method.classifier(images, training=False)["logits"], atol=1e-3
    )
    again = models.build(f"applications:{name}", (32, 32, 3), 4, seed=1)
    models.load_encoder(again, str(tmp_path / "saved_model"))
    np.testing.assert_allclose(
        again(images, training=False)["embedding"], method.classifier(images, training=False)["embedding"], rtol=1e-3, atol=1e-3
    )


def test_initial_weights_of_applications_depend_on_the_seed_alone(monkeypatch):
    tiny_application(monkeypatch, "MobileNet")
    first, same, other = (models.build("applications:MobileNet", (32, 32, 3), 3, seed=seed).get_weights() for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, same)) and not all(np.array_equal(a, b) for a, b in zip(first, other))


def test_imagenet_names_the_pretrained_weights(monkeypatch):
    asked = tiny_application(monkeypatch, "MobileNetV2")
    models.build("applications:MobileNetV2", (16, 16, 3), 5, weights="imagenet")
    assert asked == ["imagenet"]
    with pytest.raises(ValueError, match="lenet"):
        models.build("lenet", (16, 16, 3), 5, weights="imagenet")


@pytest.mark.parametrize("name", ["build", "subclassed"])
def test_a_function_is_given_the_shape_and_the_classes(name, nets, source, eagerly):
    network, images = models.build(f"own_nets:{name}", (16, 16, 1), 3), images_of((16, 16, 1))
    assert network(images)["logits"].shape == (2, 3)
    method = methods.NoisyMix(network, jsd_weight=0.0)
    method.compile("sgd")
    loop.fit(method, source(24), epochs=1, batch_size=12)
    export.export(method.classifier, str(nets / "saved_model"), {})
    loaded = loading.load_classifier(str(nets / "saved_model"))
    np.testing.assert_allclose(loaded(images), network(images, training=False)["logits"], atol=1e-5)


def test_a_model_of_other_classes_gets_a_new_head(nets):
    network = models.build("own_nets:of_seven", (16, 16, 1), 3)
    outputs = network(images_of((16, 16, 1)))
    assert outputs["logits"].shape == (2, 3) and outputs["embedding"].shape == (2, 6)
    assert [v.shape for v in network.get_layer("logits").variables] == [(6, 3), (3,)]


def test_a_model_of_the_same_classes_keeps_its_head(nets):
    network, images = models.build("own_nets:fixed", (16, 16, 1), 3), images_of((16, 16, 1))
    np.testing.assert_allclose(network(images)["logits"], named.model_of_function("own_nets:MODEL")(images), atol=1e-6)
    other = models.build("own_nets:network", (16, 16, 1), 4)
    assert other(images)["logits"].shape == (2, 4) and models.stages(other)


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5", ".h5"])
def test_weights_are_read_from_keras_files(suffix, nets):
    """Of the same model, with the head; and of one with other classes, without."""
    keras.utils.set_random_seed(3)
    saved, images = named.model_of_function("own_nets:build", input_shape=(16, 16, 1), num_classes=3), images_of((16, 16, 1))
    path = str(nets / f"saved{suffix}")
    (saved.save_weights if suffix == ".weights.h5" else saved.save)(path)
    network = models.build("own_nets:build", (16, 16, 1), 3, seed=1)
    models.load_encoder(network, path, head=True)
    np.testing.assert_allclose(network(images)["logits"], saved(images), atol=1e-6)
    features = keras.Model(saved.input, saved.layers[-1].input)
    other = models.build("own_nets:build", (16, 16, 1), 5, seed=1)
    logits = [v.numpy() for v in other.variables[-2:]]
    models.load_encoder(other, path)
    np.testing.assert_allclose(other(images)["embedding"], features(images), atol=1e-6)
    for a, b in zip(logits, other.variables[-2:]):
        np.testing.assert_array_equal(a, b.numpy())


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_weights_of_our_models_are_read_from_keras_files(suffix, tmp_path):
    saved, path = models.build("resnet8", (16, 16, 3), 3, seed=3), str(tmp_path / f"saved{suffix}")
    (saved.save_weights if suffix == ".weights.h5" else saved.save)(path)
    model, images = models.build("resnet8", (16, 16, 3), 7), images_of((16, 16, 3))
    models.load_encoder(model, path)
    np.testing.assert_allclose(model(images)["embedding"], saved(images)["embedding"], atol=1e-6)
    before = [v.numpy() for v in model.variables]
    with pytest.raises(ValueError, match="Received: 2 of .* logits/kernel"):
        models.load_encoder(model, path, head=True)  # of three classes
    wider = models.build("resnet8", (16, 16, 1), 3)
    with pytest.raises(ValueError, match=r"conv2d\S*/kernel \(3, 3, 1, 16\)"):
        models.load_encoder(wider, path)
    for a, b in zip(before, model.variables):  # nothing is changed
        np.testing.assert_array_equal(a, b.numpy())


def test_weights_of_applications_with_their_output_layer(tmp_path):
    keras.utils.set_random_seed(3)
    saved = keras.applications.MobileNet(weights=None, input_shape=(32, 32, 3), classes=6)
    saved.save(tmp_path / "saved.keras")
    network, images = models.build("applications:MobileNet", (32, 32, 3), 3), images_of((32, 32, 3))
    models.load_encoder(network, str(tmp_path / "saved.keras"))
    pooled = keras.Model(saved.input, saved.get_layer("conv_pw_13_relu").output)
    np.testing.assert_allclose(
        network(images, training=False)["embedding"], np.mean(pooled(2 * images - 1, training=False), axis=(1, 2)), atol=1e-5
    )


@pytest.mark.parametrize(
    "name, shape, message",
    [
        ("applications:MobileNet2", (32, 32, 3), "'MobileNet2'"),
        ("applications:MobileNetV2", (8, 8, 3), "applications:MobileNetV2.*at least 32x32"),
        ("own_nets:missing", (16, 16, 1), "'missing'"),
        ("no_such_module:build", (16, 16, 1), "'no_such_module'"),
        ("own_nets:no_model", (16, 16, 1), "own_nets:no_model.*Dense"),
        ("own_nets:of_64_pixels", (16, 16, 1), r"\(16, 16, 1\).*\(64, 64, 3\)"),
    ],
)
def test_models_that_cannot_be_are_refused(name, shape, message, nets):
    with pytest.raises(ValueError, match=message):
        models.build(name, shape, 3)


def test_files_that_cannot_be_are_refused(tmp_path):
    model = models.build("resnet8", (16, 16, 3), 3)
    with pytest.raises(FileNotFoundError, match="none.keras"):
        models.load_encoder(model, str(tmp_path / "none.keras"))
    (tmp_path / "damaged.h5").write_bytes(b"no HDF5")
    with pytest.raises(ValueError, match="damaged.h5.*missing"):
        models.load_encoder(model, str(tmp_path / "damaged.h5"))


def test_a_preset_of_keras_hub(tmp_path, source):
    hub = pytest.importorskip("keras_hub")
    keras.utils.set_random_seed(0)
    backbone = resnet_backbone((None, None, 3))
    converter = hub.layers.ResNetImageConverter(image_size=(32, 32), scale=1 / 127.5, offset=-1.0)
    task = hub.models.ResNetImageClassifier(backbone, 5, hub.models.ResNetImageClassifierPreprocessor(image_converter=converter))
    task.save_to_preset(str(tmp_path / "preset"))
    network, images = models.build(f"keras_hub:{tmp_path / 'preset'}", (16, 16, 3), 3), images_of((16, 16, 3))
    expected = np.mean(backbone(2 * images - 1, training=False), axis=(1, 2))
    np.testing.assert_allclose(network(images, training=False)["embedding"], expected, rtol=1e-4, atol=1e-5)
    method = methods.CrossEntropy(network)
    method.compile("sgd")
    loop.fit(method, source(24, shape=(16, 16, 3)), epochs=1, batch_size=12)
    export.export(network, str(tmp_path / "saved_model"), {})
    np.testing.assert_allclose(
        loading.load_classifier(str(tmp_path / "saved_model"))(images), network(images, training=False)["logits"], atol=1e-4
    )
