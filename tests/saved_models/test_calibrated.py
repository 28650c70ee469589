"""SavedModels with calibrated logits."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_robust.saved_models.export import export_calibrated
from tf_robust.saved_models.loading import ModelInterface, classifier_of, load_classifier

IMAGES = np.random.default_rng(0).random((5, 16, 16, 1), np.float32)


@pytest.mark.parametrize("scale, bias", [(0.5, 0.0), ([1.0, 2.0, 3.0], [0.5, 0.0, -1.0])])
def test_logits_are_scaled_and_embeddings_kept(tmp_path, network, source, scale, bias):
    model = network()
    export_calibrated(classifier_of(model), source(), str(tmp_path / "own"), scale=scale, bias=bias, card={"data": "tiny"})
    loaded = load_classifier(tmp_path / "own")
    expected = model(IMAGES)["logits"] * np.array(scale, np.float32) + np.array(bias, np.float32)
    np.testing.assert_allclose(loaded(IMAGES), expected, atol=1e-5)
    np.testing.assert_allclose(loaded.outputs(IMAGES)["probabilities"], tf.nn.softmax(expected), atol=1e-5)
    np.testing.assert_allclose(loaded.outputs(IMAGES)["embedding"], model(IMAGES)["embedding"], atol=1e-5)
    assert loaded.card["data"] == "tiny" and loaded.card["input"]["range"] == [0, 1] and loaded.card["output"] == "logits"
    encoded = tf.constant([tf.io.encode_png(tf.cast(np.round(255 * IMAGES[0]), tf.uint8)).numpy()])
    served = tf.saved_model.load(str(tmp_path / "own")).signatures["serving_bytes"](encoded=encoded)
    np.testing.assert_allclose(served["logits"], expected[:1], atol=0.05)  # 256 levels


def test_functions_are_graphs_only_if_they_are_of_tensorflow():
    class Module(tf.Module):
        def __call__(self, images):
            return images[:, 0, :3, 0]

    assert classifier_of(Module()).has_graph and classifier_of(tf.function(Module())).has_graph
    assert not classifier_of(lambda images: np.asarray(images)[:, 0, :3, 0]).has_graph


def test_a_model_of_another_scale_without_embedding_is_calibrated_twice_and_takes_what_it_took(tmp_path, source):
    model = keras.Sequential([keras.Input((16, 16, 1)), keras.layers.Flatten(), keras.layers.Dense(3, "softmax")])
    first = classifier_of(model, ModelInterface(input_range="-1,1", outputs="probabilities"))
    export_calibrated(first, source(), str(tmp_path / "first"), scale=0.5, bias=0.0, card={})
    loaded, values = load_classifier(tmp_path / "first"), 2 * IMAGES - 1
    served = loaded.loaded.signatures["serving_default"](images=tf.constant(values))["logits"]
    np.testing.assert_allclose(served, 0.5 * np.log(model(values)), atol=1e-4)
    assert loaded.card["input"]["range"] == [-1.0, 1.0]
    export_calibrated(loaded, source(), str(tmp_path / "second"), scale=0.5, bias=1.0, card={})
    np.testing.assert_allclose(load_classifier(tmp_path / "second")(IMAGES), 0.25 * np.log(model(values)) + 1, rtol=1e-4, atol=1e-4)
