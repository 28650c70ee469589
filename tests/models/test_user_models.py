"""Wrapping the models of users."""

import keras
import numpy as np
import pytest
import scipy.special

from tf_robust import models

layers = keras.layers
IMAGES = np.random.default_rng(0).random((6, 4, 4, 1), np.float32)


def test_the_last_layer_of_a_nested_model_tells_the_output_and_the_embedding():
    keras.utils.set_random_seed(0)
    inner = [layers.Flatten(), layers.Dense(7, "relu"), layers.Dense(5, "relu"), layers.Dense(3, "softmax")]
    model = keras.Sequential([keras.Input((4, 4, 1)), keras.Sequential([keras.Input((4, 4, 1)), *inner])])
    wrapped = models.wrap(model)
    outputs = wrapped.network(IMAGES)
    assert not wrapped.from_logits
    np.testing.assert_allclose(scipy.special.softmax(outputs["logits"], axis=1), model(IMAGES), atol=1e-6)
    features = keras.Model(inner[0].input, inner[2].output)
    np.testing.assert_allclose(outputs["embedding"], features(IMAGES), atol=1e-6)


@pytest.mark.parametrize("units, operation", [(3, keras.ops.softmax), (3, keras.activations.softmax), (1, keras.ops.sigmoid)])
def test_activations_that_are_operations_give_probabilities(units, operation):
    images = keras.Input([4, 4, 1])
    model = keras.Model(images, operation(layers.Dense(units)(layers.Flatten()(images))))
    wrapped = models.wrap(model)
    assert not wrapped.from_logits
    np.testing.assert_allclose(scipy.special.softmax(wrapped.network(IMAGES)["logits"], axis=1)[:, -1], model(IMAGES)[:, -1], atol=1e-6)


def _averaged(scores):
    return layers.Average()([layers.Softmax()(scores), layers.Softmax()(scores / 2)])


@pytest.mark.parametrize(
    "units, end",
    [
        (3, _averaged),
        (3, lambda scores: layers.Reshape([3])(layers.Softmax()(scores))),
        (3, lambda scores: layers.Dropout(0.5)(layers.Softmax()(scores))),
        (3, lambda scores: keras.ops.softmax(scores) * 0.7 + 0.1),
        (1, lambda scores: keras.ops.clip(keras.ops.sigmoid(scores), 0.01, 0.99)),
    ],
)
def test_probabilities_by_other_operations_are_not_taken_as_logits(units, end):
    images = keras.Input([4, 4, 1])
    model = keras.Model(images, end(layers.Dense(units)(layers.Flatten()(images))))
    with pytest.raises(ValueError, match="from_logits=True or False"):
        models.wrap(model)
    logits = models.wrap(model, from_logits=False).network(IMAGES)["logits"]
    np.testing.assert_allclose(scipy.special.softmax(logits, axis=1)[:, -1], model(IMAGES)[:, -1], atol=1e-5)


def test_logits_by_other_operations_are_logits():
    keras.utils.set_random_seed(0)
    images = keras.Input([4, 4, 1])
    features = layers.Flatten()(images)
    assert models.wrap(keras.Model(images, layers.Average()([layers.Dense(3)(features), layers.Dense(3)(features)]))).from_logits


@pytest.mark.parametrize("outputs", [lambda scores: {"logits": scores}, lambda scores: (scores, scores)])
def test_subclassed_models_with_other_outputs_than_a_tensor_are_refused(outputs):
    class Other(keras.Model):
        def __init__(self):
            super().__init__()
            self.classes, self.flatten = layers.Dense(3), layers.Flatten()

        def call(self, images):
            return outputs(self.classes(self.flatten(images)))

    model = Other()
    model(IMAGES)
    with pytest.raises(ValueError, match="other.*(dict|tuple)"):
        models.wrap(model)


class OtherOrder(keras.Model):
    """Its layers are made in another order than they are called in."""

    def __init__(self, end):
        super().__init__()
        self.classes, self.hidden = layers.Dense(3, "softmax" if end == "softmax" else None), layers.Dense(7, "relu")
        self.dropout, self.flatten, self.end = layers.Dropout(0.5), layers.Flatten(), end

    def call(self, images, training=False):
        scores = self.classes(self.dropout(self.hidden(self.flatten(images)), training=training))
        if self.end == "operation":
            return keras.ops.softmax(scores)
        return scores / 2 if self.end == "scaled" else scores


@pytest.mark.parametrize("end", ["linear", "softmax", "operation", "scaled"])
def test_layers_of_subclassed_models_are_those_called_last(end):
    keras.utils.set_random_seed(0)
    model = OtherOrder(end)
    model(IMAGES)
    if end == "scaled":  # logits, but not those of the layer
        with pytest.raises(ValueError, match="from_logits=True or False"):
            models.wrap(model)
    wrapped = models.wrap(model, from_logits=True if end == "scaled" else None)
    outputs, probabilities = wrapped.network(IMAGES), model(IMAGES).numpy()
    probabilities = probabilities if end in ("softmax", "operation") else scipy.special.softmax(probabilities, axis=1)
    np.testing.assert_allclose(scipy.special.softmax(outputs["logits"], axis=1), probabilities, atol=1e-6)
    np.testing.assert_allclose(outputs["embedding"], model.hidden(IMAGES.reshape(6, 16)), atol=1e-6)
    assert (wrapped.logits_layer is None) == (end == "scaled")
    if wrapped.logits_layer is not None:
        assert wrapped.logits_layer.kernel is model.classes.kernel


def test_stage_0_is_the_image_from_minus_1_to_1_whatever_the_preprocessing():
    inputs = keras.Input([4, 4, 1])
    embedding = layers.Flatten()(layers.Rescaling(255.0, name="own")(inputs))
    own = keras.Model(inputs, {"logits": layers.Dense(3)(embedding), "embedding": embedding})
    backbone = keras.Sequential([keras.Input([4, 4, 1]), layers.Conv2D(2, 3)])
    for network in (own, models.from_backbone(backbone, 3, mean=0.0, std=1 / 255)):
        first, *rest = models.stages(network)
        found = first(IMAGES)
        np.testing.assert_allclose(found, 2 * IMAGES - 1, atol=1e-6)
        for piece in rest:
            found = piece(found)
        np.testing.assert_allclose(found["logits"], network(IMAGES)["logits"], rtol=1e-3, atol=1e-3)
