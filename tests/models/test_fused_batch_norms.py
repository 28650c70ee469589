import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import sweep
from tf_robust import methods, models
from tf_robust.data import Batch
from tf_robust.models.batch_norms import fuse_batch_norms

IMAGES = np.random.RandomState(0).normal(0.5, 1.0, (8, 6, 5, 4)).astype(np.float32)
OPTIONS = {
    "default": {},
    "no scale": {"scale": False},
    "no offset": {"center": False},
    "momentum": {"momentum": 0.5, "epsilon": 0.1},
    "mixed precision": {"dtype": "mixed_bfloat16"},
}


def pair(**options):
    """Returns a fused model and Keras' own with the same weights."""
    keras.utils.set_random_seed(0)
    plain = keras.Sequential([keras.Input(IMAGES.shape[1:]), keras.layers.Conv2D(3, 2), keras.layers.BatchNormalization(**options)])
    fused = keras.models.clone_model(plain)
    fused.set_weights(plain.get_weights())
    fuse_batch_norms(fused)
    return fused, plain


def trained(model):
    with tf.GradientTape() as tape:
        outputs = model(IMAGES, training=True)
        loss = tf.reduce_mean(tf.cast(outputs, tf.float32) ** 3)
    return tf.cast(outputs, tf.float32), tape.gradient(loss, [v.value for v in model.trainable_variables])


@pytest.mark.parametrize("options", OPTIONS)
def test_equals_keras(options):
    fused, plain = pair(**OPTIONS[options])
    (outputs, gradients), (expected, expected_gradients) = trained(fused), trained(plain)
    tolerance = {"rtol": 0.03, "atol": 0.05} if options == "mixed precision" else {"rtol": 1e-3, "atol": 2e-5}
    np.testing.assert_allclose(outputs, expected, **tolerance)
    for one, other in zip(gradients, expected_gradients):
        np.testing.assert_allclose(one, other, **tolerance)
    for one, other in zip(fused.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(one, other, **tolerance)
    assert not np.array_equal(fused.layers[-1].moving_mean, np.zeros(3))
    np.testing.assert_allclose(fused(IMAGES), plain(IMAGES), **tolerance)


def test_frozen_layers_stay_in_inference_mode():
    fused, plain = pair()
    for model in (fused, plain):
        model.layers[-1].trainable = False
    np.testing.assert_allclose(trained(fused)[0], trained(plain)[0], atol=1e-6)
    np.testing.assert_array_equal(fused.layers[-1].moving_mean, np.zeros(3))


@pytest.mark.parametrize("options, inputs", [({"axis": 1}, IMAGES), ({"synchronized": True}, IMAGES), ({}, IMAGES[:, 0, 0])])
def test_layers_of_other_options_and_inputs_are_those_of_keras(options, inputs):
    layer, plain = (keras.layers.BatchNormalization(**options) for _ in range(2))
    model = keras.Sequential([keras.Input(inputs.shape[1:]), layer])
    fuse_batch_norms(model)
    np.testing.assert_array_equal(model(inputs, training=True), plain(inputs, training=True))


def test_files_and_copies_are_plain_keras(tmp_path):
    fused, _ = pair()
    fused.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[-1]) is keras.layers.BatchNormalization and "call" not in vars(loaded.layers[-1])
    np.testing.assert_allclose(loaded(IMAGES, training=True), fused(IMAGES, training=True), atol=2e-5)
    copied = copy.deepcopy(fused)
    trained(copied)
    np.testing.assert_allclose(fused.layers[-1].moving_mean, loaded.layers[-1].moving_mean, atol=1e-5)


@pytest.mark.parametrize("name", sweep(["cross_entropy", "fcl", "noisymix", "input_gradient", "moco"], ["input_gradient"]))
def test_training_steps_use_the_kernels(name):
    views, options = {"noisymix": 3, "moco": 2}.get(name, 1), {"stages": (1,)} if name == "noisymix" else {}  # one graph, not one of each
    method = methods.METHODS[name](models.build("resnet8", (16, 16, 3), 3), **options)
    method.compile(keras.optimizers.SGD(0.1))
    method.optimizer.build(method.trainable_variables)
    images = tuple(tf.random.uniform([4, 16, 16, 3]) for _ in range(views))
    batch = Batch(images, tf.constant([0, 1, 2, 0], tf.int64), tf.zeros([4], tf.int64))
    graph = tf.function(method.train_step, autograph=False).get_concrete_function(batch).graph
    kinds = [node.op for node in graph.as_graph_def().node] + [
        node.op for function in graph.as_graph_def().library.function for node in function.node_def
    ]
    assert kinds.count("FusedBatchNormGradV3") >= 9
