"""Models to be trained share their weights with the classifier, and their gradients are those of the original model."""

import functools

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.conftest import tiny_network
from tests.hardening.start_models import CLASSES, SHAPE, keras_model, sample_images
from tf_robust import api, methods
from tf_robust.data.pipeline import Batch
from tf_robust.hardening.trainable import check_format, trainable
from tf_robust.saved_models.loading import ModelInterface, classifier_of, load_classifier

FUNCTIONS = ("keras_export", "keras_save", "module", "ours")
LABELS = np.arange(6) % CLASSES
log_softmax = functools.partial(scipy.special.log_softmax, axis=1)


def batch():
    return Batch((tf.constant(sample_images()),), tf.constant(LABELS), tf.zeros([len(LABELS)], tf.int64))


def logits_of(start, images):
    """The logits that a training method computes."""
    return methods.METHODS["cross_entropy"](start.network, **start.options).network(images, training=False)["logits"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_saved_model_shares_its_variables(saved, name):
    start, images = trainable(load_classifier(saved[name])), sample_images()
    classifier = start.classifier
    before, weights = classifier(images).numpy(), start.network.get_weights()
    np.testing.assert_allclose(log_softmax(logits_of(start, images)), log_softmax(before), atol=1e-5)
    start.network.set_weights([0.5 * weight for weight in weights])
    assert np.abs(log_softmax(classifier(images)) - log_softmax(before)).max() > 0.01
    np.testing.assert_allclose(log_softmax(logits_of(start, images)), log_softmax(classifier(images)), atol=1e-5)
    start.network.set_weights(weights)
    np.testing.assert_array_equal(classifier(images), before)
    variables = [weight.value for weight in start.network.weights]
    expected = [classifier.loaded.kernel] if name == "module" else classifier.loaded.signatures["serving_default"].variables
    assert {id(variable) for variable in variables} == {id(variable) for variable in expected}


def test_the_order_of_weights_is_that_of_the_file(saved):
    first, second = ([v.value.name for v in trainable(load_classifier(saved["keras_export"])).network.weights] for _ in range(2))
    kinds = ["kernel", "bias", "gamma", "beta", "kernel", "bias", "moving_mean", "moving_variance"]
    assert first == second and [name.rsplit("/", 1)[1] for name in first] == [f"{kind}:0" for kind in kinds]


def test_a_step_is_that_of_the_keras_model_in_inference_mode(saved):
    model, start = keras_model(), trainable(load_classifier(saved["keras_export"]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(LABELS, model(sample_images(), training=False)))
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    expected = [v.numpy() - 0.1 * g.numpy() for v, g in zip(model.trainable_variables, gradients)]
    statistics = [v.numpy() for v in model.layers[2].non_trainable_variables]
    method = methods.METHODS["cross_entropy"](start.network, **start.options)
    method.compile(optimizer=keras.optimizers.SGD(0.1))
    tf.function(method.train_step)(batch())
    for after, value, before in zip(
        start.network.get_weights(), [*expected, *statistics], [*model.trainable_variables, *[0] * 2], strict=True
    ):
        np.testing.assert_allclose(after, value, atol=1e-5)
        assert np.abs(value - before).max() > 1e-5  # the step moved it


def test_gradients_equal_finite_differences(saved):
    start, images, step = trainable(load_classifier(saved["ours"])), tf.constant(sample_images()), 1e-2

    def loss():
        return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(LABELS, start.network(images)["logits"], from_logits=True))

    with tf.GradientTape() as tape:
        value = loss()
    variables = start.network.trainable_variables
    for variable, gradient in zip(variables, tape.gradient(value, [v.value for v in variables])):
        direction = np.sign(np.random.RandomState(0).randn(*variable.shape)).astype(np.float32)
        old = variable.numpy()
        variable.assign(old + step * direction)
        above = loss().numpy()
        variable.assign(old - step * direction)
        below = loss().numpy()
        variable.assign(old)
        np.testing.assert_allclose((above - below) / (2 * step), np.sum(gradient * direction), rtol=0.02, atol=1e-3, err_msg=variable.name)


@pytest.mark.parametrize(
    "name, skipped",
    [
        ("ours", {"similarity"}),
        ("keras_export", {"similarity", "fcl"}),
        ("bytes", {"similarity", "fcl", "input_gradient"}),
        ("module", {"similarity", "fcl", "input_gradient"}),
    ],
)
def test_methods_to_skip(saved, name, skipped):
    """A linear function has an image gradient that depends on the weights."""
    start = trainable(load_classifier(saved[name]))
    assert set(start.skip) == (skipped - {"input_gradient"} if name == "module" else skipped)
    assert not start.has_batch_norm


def test_methods_train_a_saved_model(saved):
    """With a graph: test_a_step_is_that_of_the_keras_model_in_inference_mode."""
    start = trainable(load_classifier(saved["ours"]))
    before, options = start.network.get_weights(), {"fcl": {"k": 16}, "noisymix": {"jsd_weight": 0.0}}
    for name in ("noisymix", "gaussian", "input_gradient", "adversarial", "trades", "fcl"):
        start.network.set_weights(before)
        trained = methods.METHODS[name](start.network, seed=0, **options.get(name, {}), **start.options)
        trained.compile(optimizer=keras.optimizers.SGD(0.1))
        trained.train_step(batch())
        assert any(np.abs(new - old).max() > 0 for new, old in zip(start.network.get_weights(), before)), name
        assert all(np.isfinite(weight).all() for weight in start.network.get_weights()), name


def test_embeddings_of_an_exported_model_are_its_own(saved):
    start = trainable(load_classifier(saved["ours"]))
    expected = tiny_network(SHAPE, CLASSES)(sample_images())["embedding"]
    np.testing.assert_allclose(start.network(sample_images())["embedding"], expected, atol=1e-5)


def linear():
    return keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Flatten(), keras.layers.Dense(CLASSES)])


def with_features():
    inputs = keras.Input(SHAPE)
    features = keras.layers.Flatten()(inputs)
    return keras.Model(inputs, {"features": features, "logits": keras.layers.Dense(CLASSES)(features)})


def of_any_size():
    layers = [keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input((None, None, 1)), *layers])


class Subclass(keras.Model):
    def __init__(self):
        super().__init__()
        self.pooling, self.scores = keras.layers.GlobalMaxPooling2D(), keras.layers.Dense(CLASSES)

    def call(self, images):
        return self.scores(self.pooling(images))


@pytest.mark.parametrize(
    "build, input_range, shape",
    [
        (keras_model, "0,1", SHAPE),
        (lambda: keras_model(0, 255, False), "0,255", SHAPE),
        (lambda: keras_model(-1, 1), "-1,1", SHAPE),
        (lambda: keras_model(-2, 2, False), "mean=0.5 std=0.25", SHAPE),
        *((linear, name, (4, 4, 3)) for name in ("imagenet", "caffe", "0,255 bgr")),
        (lambda: tiny_network(SHAPE, CLASSES), "0,255", SHAPE),  # its normalized images differ from those in [0, 1]
        (with_features, "0,1", SHAPE),
        (of_any_size, "0,1", (12, 10, 1)),
        (Subclass, "0,1", SHAPE),
    ],
)
def test_methods_compute_the_logits_of_a_keras_model_from_images_on_its_pixel_scale(build, input_range, shape):
    keras.utils.set_random_seed(0)
    model, images = build(), sample_images(shape=shape)
    start = trainable(classifier_of(model, ModelInterface(input_range=input_range)), shape)
    expected = log_softmax(start.classifier(images))
    np.testing.assert_allclose(log_softmax(logits_of(start, images)), expected, atol=1e-5 * max(1.0, np.abs(expected).max()))
    assert start.network.trainable_variables[0] is model.trainable_variables[0] and not start.skip
    assert getattr(start.network, "input_shape", (None, *shape)) == (None, *shape)
    assert start.has_batch_norm == any(isinstance(layer, keras.layers.BatchNormalization) for layer in model.layers)


def frozen():
    model = keras_model()
    model.trainable = False
    return model


def quantized():
    model = keras_model()
    model.quantize("int8")
    return model


@pytest.mark.parametrize(
    "classifier, cause",
    [
        (lambda saved: classifier_of(frozen()), "are frozen"),
        (lambda saved: classifier_of(quantized()), "are quantized"),
        (lambda saved: classifier_of(lambda images: images[:, 0, :3, 0]), "a function"),
        (lambda saved: load_classifier(saved["constants"]), "constants"),
        (lambda saved: load_classifier(saved["keras_export"], ModelInterface(input_size=8)), "input_size=8"),
    ],
    ids=("frozen", "quantized", "function", "constants", "input_size"),
)
def test_models_that_cannot_be_trained(saved, classifier, cause):
    with pytest.raises(ValueError, match=cause):
        trainable(classifier(saved))


@pytest.mark.parametrize("path", ["model.TFLITE", "keras_hub:resnet_18_imagenet"])
def test_formats_that_cannot_be_trained(path):
    """Told before the file is read, and without the package that reads it."""
    with pytest.raises(ValueError, match=f"can be trained.*{path}"):
        check_format(path)
    with pytest.raises(ValueError, match=f"can be trained.*{path}"):
        api.harden(path, data=(sample_images(30), np.arange(30) % CLASSES))


def test_formats_that_can_be_trained():
    for path in ("model.keras", "model.h5", "model.onnx", "model.pt2", "folder", "zoo:digits/lenet_augmix", "applications:ResNet50", "a:b"):
        check_format(path)


class Scale(keras.layers.Layer):
    """A layer that is not registered, and whose configuration lacks its argument."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, images):
        return self.factor * images


def with_custom_layer():
    images = keras.Input(SHAPE)
    return keras.Model(images, keras.layers.Dense(CLASSES)(keras.layers.Flatten()(Scale(2.0)(images))))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_file_with_a_custom_layer(tmp_path, suffix):
    with_custom_layer().save(tmp_path / f"model{suffix}")
    with pytest.raises(ValueError, match="custom classes: Scale"):
        load_classifier(tmp_path / f"model{suffix}")


def test_a_model_in_memory_that_cannot_be_copied():
    with pytest.raises(ValueError, match="Keras can copy.*'trainable'"):
        api.harden(with_custom_layer(), data=(sample_images(30), np.arange(30) % CLASSES))


def test_a_model_with_two_inputs():
    inputs = keras.Input(SHAPE), keras.Input((CLASSES,))
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(keras.layers.Flatten()(inputs[0])) + inputs[1])
    with pytest.raises(ValueError, match="takes 2 tensors"):
        classifier_of(model)
