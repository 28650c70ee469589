"""Separate batch norm layers for a second branch, and instance norm next to batch norm, against NumPy."""

import keras
import numpy as np
import pytest

from tests.conftest import sweep
from tf_robust import models
from tf_robust.models import batch_norms, heads, torch_layers
from tf_robust.saved_models import export, loading

BATCH_NORM_VARIABLES = ("gamma", "beta", "moving_mean", "moving_variance")


def normalized(x, axes):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_half_of_the_channels_are_normalized_per_image_the_others_per_batch(training):
    random = np.random.RandomState(0)
    images = keras.Input((5, 4, 6))
    model = keras.Model(images, torch_layers.instance_batch_norm(images))
    for variable in model.variables:
        variable.assign(random.uniform(0.5, 2.0, size=variable.shape))
    values = {v.name + str(len(v.path.split("group")) - 1): v.numpy() for v in model.variables}
    x = random.normal(1.0, 3.0, size=(3, 5, 4, 6)).astype(np.float32)
    first = normalized(x[..., :3], (1, 2)) * values["gamma1"] + values["beta1"]
    if training:
        second = normalized(x[..., 3:], (0, 1, 2))
    else:
        second = (x[..., 3:] - values["moving_mean0"]) / np.sqrt(values["moving_variance0"] + 1e-5)
    expected = np.concatenate([first, second * values["gamma0"] + values["beta0"]], axis=-1)
    np.testing.assert_allclose(model(x, training=training), expected, atol=2e-5)
    means = 0.9 * values["moving_mean0"] + 0.1 * x[..., 3:].mean((0, 1, 2)) if training else values["moving_mean0"]
    np.testing.assert_allclose(model.variables[-2], means, rtol=1e-4)


@pytest.mark.parametrize("name", sweep(["resnet8", "resnet20_ibn", "resnet50_v2"], ["resnet20_ibn"]))
def test_everything_except_batch_norm_is_shared(name):
    """Also in nested models, as in ResNet-v2-50; the copy starts with equal values."""
    shape = (32, 32, 3) if name == "resnet50_v2" else (16, 16, 3)
    model, random = models.build(name, shape, 4), np.random.RandomState(0)
    for variable in model.variables:
        if variable.name == "moving_variance":
            variable.assign(random.uniform(0.5, 2.0, size=variable.shape))
    copy, images = batch_norms.with_own_batch_norm(model), random.rand(2, *shape).astype(np.float32)
    before = model(images)["logits"].numpy()
    np.testing.assert_allclose(copy(images)["logits"], before, atol=1e-5)
    separate = [(a, b) for a, b in zip(model.variables, copy.variables, strict=True) if a is not b]
    batch_normalized = [v for v in model.variables if v.name in BATCH_NORM_VARIABLES and "group" not in v.path]
    assert [a.path for a, _ in separate] == [v.path for v in batch_normalized] and len(separate) >= 28
    copy(images, training=True)
    np.testing.assert_array_equal(model(images)["logits"], before)
    assert np.abs(copy(images)["logits"] - before).max() > 1e-3


def test_models_that_cannot_be_copied_raise():
    class Subclassed(keras.Model):
        def call(self, images):
            return images

    class Inside(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.norm = keras.layers.BatchNormalization()

        def call(self, images):
            return self.norm(images)

    with pytest.raises(ValueError, match="Subclassed"):
        batch_norms.with_own_batch_norm(Subclassed())
    model = keras.Sequential([keras.Input((4, 4, 1)), Inside()])
    with pytest.raises(ValueError, match="moving_mean"):
        batch_norms.with_own_batch_norm(model)


def test_a_network_without_batch_norm_is_shared_completely(network):
    model = network(batch_norm=False)
    assert all(a is b for a, b in zip(model.variables, batch_norms.with_own_batch_norm(model).variables))


@pytest.mark.parametrize("name", ["resnet20", "preact_resnet18"])
def test_instance_norm_is_at_the_start_of_each_block_except_in_the_last_stage(name):
    """As many trained weights as without; half as many channels in each layer as the block has at its start."""
    model, plain = (models.build(known, (16, 16, 3), 4) for known in (f"{name}_ibn", name))
    halves = [layer.groups for layer in model.layers if isinstance(layer, keras.layers.GroupNormalization)]
    assert halves == {"resnet20": [8] * 3 + [16] * 3, "preact_resnet18": [32] * 3 + [64, 64, 128]}[name]
    trained, of_plain = (sum(int(np.prod(v.shape)) for v in m.trainable_variables) for m in (model, plain))
    assert trained == of_plain


def test_a_network_with_instance_norm_is_saved_exported_and_reloaded(tmp_path):
    inputs, images = keras.Input((8, 8, 3)), np.random.RandomState(0).rand(2, 8, 8, 3).astype(np.float32)
    x = torch_layers.instance_batch_norm(keras.layers.Conv2D(4, 3)(inputs))
    model = heads.classifier(inputs, heads.pooled(keras.layers.ReLU()(x)), 4, "small")
    export.export(model, str(tmp_path / "exported"), {})
    model.save(str(tmp_path / "model.keras"))
    logits = model(images)["logits"]
    np.testing.assert_allclose(loading.load_classifier(str(tmp_path / "exported"))(images), logits, atol=1e-5)
    np.testing.assert_allclose(keras.models.load_model(str(tmp_path / "model.keras"))(images)["logits"], logits, atol=1e-5)
