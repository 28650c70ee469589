"""Batch normalization by the statistics of the test batch, against normalization in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.saved_models.loading_models import sample_images
from tf_robust import models
from tf_robust.saved_models import export, loading

SHAPE = (4, 4, 3)


def network(trainable=True, dropout=0.0):
    """A model without a layer before the batch normalization, whose moving averages are not those of any batch."""
    inputs = keras.Input(SHAPE)
    norm = keras.layers.BatchNormalization(trainable=trainable, epsilon=1e-3)
    features = keras.layers.Flatten()(keras.layers.Dropout(dropout)(norm(inputs)))
    model = keras.Model(inputs, keras.layers.Dense(5)(features))
    random = np.random.RandomState(1)
    norm.set_weights([random.rand(3) + 0.5, random.randn(3), random.randn(3), random.rand(3) + 2.0])
    return model, norm


def by_numpy(model, norm, images, mean, variance):
    gamma, beta = norm.gamma.numpy(), norm.beta.numpy()
    values = gamma * (images - mean) / np.sqrt(variance + norm.epsilon) + beta
    kernel, bias = model.layers[-1].get_weights()
    return values.reshape(len(images), -1) @ kernel + bias


@pytest.mark.parametrize("trainable", [True, False])
def test_outputs_are_those_of_the_batch_statistics(trainable):
    model, norm = network(trainable, dropout=0.5)
    images, before = sample_images(SHAPE, 7), [weight.copy() for weight in model.get_weights()]
    adapted = loading.with_batch_statistics(loading.classifier_of(model))
    for batch in (images, images[:3]):
        expected = by_numpy(model, norm, batch, batch.mean(axis=(0, 1, 2)), batch.var(axis=(0, 1, 2)))
        np.testing.assert_allclose(adapted(batch), expected, rtol=1e-4, atol=1e-4)
    moving = by_numpy(model, norm, images, norm.moving_mean.numpy(), norm.moving_variance.numpy())
    np.testing.assert_allclose(model(images, training=False), moving, rtol=1e-4, atol=1e-4)  # the model itself is unchanged
    np.testing.assert_allclose(loading.classifier_of(model)(images), moving, rtol=1e-4, atol=1e-4)
    assert "call" not in vars(norm) and all(np.array_equal(*pair) for pair in zip(before, model.get_weights()))


def test_nested_models_and_files_are_adapted(tmp_path):
    inner, _ = network()
    outer = keras.Sequential([keras.Input(SHAPE), keras.layers.Rescaling(2.0), inner])
    path = str(tmp_path / "model.keras")
    outer.save(path)
    images = sample_images(SHAPE, 6)
    expected = loading.with_batch_statistics(loading.classifier_of(inner))(2 * images)
    for model in (loading.classifier_of(outer), loading.load_classifier(path)):
        np.testing.assert_allclose(loading.with_batch_statistics(model)(images), expected, rtol=1e-4, atol=1e-4)


def test_models_without_batch_norm_and_other_formats_are_refused(tmp_path):
    plain = keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(5)])
    with pytest.raises(ValueError, match="adaptation=none"):
        loading.with_batch_statistics(loading.classifier_of(plain))
    model, _ = network()
    model.export(str(tmp_path / "saved"), verbose=False)
    for other in (loading.load_classifier(str(tmp_path / "saved")), loading.classifier_of(lambda images: tf.zeros([len(images), 3]))):
        with pytest.raises(ValueError, match="adaptation=batch_norm"):
            loading.with_batch_statistics(other)


def test_the_saved_model_of_a_run_is_adapted_like_its_network(tmp_path):
    network, folder = models.build("resnet8", (32, 32, 3), 4), str(tmp_path / "saved_model")
    random = np.random.RandomState(2)
    network.set_weights([weight + 0.1 * random.rand(*weight.shape).astype(np.float32) for weight in network.get_weights()])
    card = {"method": "cross_entropy", "model": "resnet8", "classes": list("abcd"), "input": {"shape": [None, 32, 32, 3]}}
    export.export(network, folder, card)
    images = random.rand(6, 32, 32, 3).astype(np.float32)
    expected = network(images, training=True)["logits"]  # of a network without dropout
    adapted = loading.with_batch_statistics(loading.load_classifier(folder))
    np.testing.assert_allclose(adapted(images), expected, rtol=1e-3, atol=1e-3)
