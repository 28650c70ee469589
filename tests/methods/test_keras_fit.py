"""Training of a user's own Keras model by `fit` on images and labels."""

import json
import zipfile

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.conftest import sweep, tiny_network
from tests.methods.common import DISTINCT, OPTIONS
from tests.methods.users_models import (
    MODELS,
    ON_IMAGES_AND_LABELS,
    SOURCE,
    X,
    Y,
    assert_equal,
    assert_equal_histories,
    batches,
    cheap_views,
    darkened,
    fit_of,
    fitted,
    functional,
    quick_options,
    sequential,
    subclassed,
    weights,
)
from tf_robust import methods, models
from tf_robust.data.pipeline import view_functions
from tf_robust.training import loop


@pytest.mark.parametrize("name, activation", [("functional", "softmax"), ("sequential", None), ("subclassed", "softmax")])
def test_cross_entropy_equals_keras_own_training(name, activation):
    """Keras trains without a graph: with one it compiles the complete step by XLA, which takes seconds. Ours with one for one model."""
    plain, ours = MODELS[name](activation), MODELS[name](activation)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=activation is None)
    plain.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"], run_eagerly=True)
    expected = plain.fit(batches(), verbose=0, validation_data=(X, Y)).history
    method = methods.CrossEntropy(ours)
    options = {"metrics": ["accuracy"], "run_eagerly": name != "functional"}
    history = fitted(method, optimizer=keras.optimizers.SGD(0.1), compile_options=options, validation_data=(X, Y))
    assert_equal(ours, plain, atol=1e-5)
    assert method.classifier is ours
    assert_equal_histories(history, expected, rtol=1e-4)
    np.testing.assert_allclose(method.evaluate(X, Y, verbose=0), plain.evaluate(X, Y, verbose=0), rtol=1e-4)
    np.testing.assert_allclose(method.predict(X, verbose=0), plain.predict(X, verbose=0), atol=1e-5)


@pytest.mark.parametrize("name", sweep([name for name in ON_IMAGES_AND_LABELS if name in DISTINCT], quick=("fcl", "noisymix")))
def test_users_models_train_by_fit_as_by_our_loop(name, float64):
    """Most without a graph; masks of PuzzleMix amplify the rounding, which differs between graphs and single operations."""
    options = quick_options(name)
    views = cheap_views(name, **options)
    by_fit, by_loop = (methods.METHODS[name](functional(), views=views, **options) for _ in range(2))
    assert [view if isinstance(view, str) else view.__name__ for view in by_fit.views] == list(by_loop.default_views)
    history = fitted(by_fit, optimizer=keras.optimizers.SGD(0.1), eager=name not in ("fcl", "puzzlemix"))
    by_loop.compile(keras.optimizers.SGD(0.1))
    loop.fit(by_loop, SOURCE, epochs=1, batch_size=12, validation=SOURCE, views=view_functions(views))
    assert_equal(by_fit.classifier, by_loop.classifier, atol=1e-6)
    assert any(np.abs(a - b).max() > 0 for a, b in zip(weights(by_fit.classifier), weights(functional())))
    assert np.isfinite(history["loss"]).all() and {"loss", "accuracy"} <= set(history)


def test_a_model_that_scales_inside_trains_alike_on_levels():
    levels = batches().map(lambda x, y: (tf.cast(tf.round(x * 255), tf.uint8), y))
    views = cheap_views("noisymix")
    inside, outside = (
        methods.NoisyMix(functional(scale=scale), stages=(0, "first"), input_range=(0, 255 if scale else 1), views=views)
        for scale in (True, False)
    )
    fitted(inside, levels, eager=True)
    fitted(outside, eager=True)
    assert_equal(inside.classifier, outside.classifier, atol=1e-4)
    np.testing.assert_allclose(inside.predict(X * 255, verbose=0), outside.predict(X, verbose=0), atol=1e-4)


def test_labels_as_keras_takes_them():
    def trained(y):
        method = methods.CrossEntropy(sequential())
        method.compile("sgd", metrics=["accuracy"], run_eagerly=True)
        accuracy = method.fit(X, y, batch_size=16, shuffle=False, verbose=0).history["accuracy"]
        return method.classifier, accuracy

    expected, accuracy = trained(Y)
    for labels in (Y.astype(np.int32), Y[:, None], np.eye(3, dtype=np.float32)[Y]):
        classifier, found = trained(labels)
        assert_equal(classifier, expected)
        assert found == pytest.approx(accuracy) and 0 <= found[0] <= 1


def test_stages_name_the_layers_for_mixing():
    """With the noise of stage 'first' alone, the images themselves are never changed."""
    method = methods.NoisyMix(functional(), stages=("first",), mixing=False, noise="paper", jsd_weight=0.0)
    images = []
    piece, method._pieces[1] = method._pieces[1], lambda x, training: images.append(x) or piece(x, training=training)
    logits = method.encode_mixed([X[:6]], tf.range(6), tf.constant(1.0), tf.constant(0, tf.int64), False)
    np.testing.assert_allclose(images[0], 2 * X[:6] - 1, atol=1e-6)  # on the scale of this package's networks
    assert np.abs(logits - method.classifier(X[:6])).max() > 1e-3
    with pytest.raises(ValueError, match="Expected a layer of .*first, .*Received: 'third'"):
        methods.NoisyMix(functional(), stages=("third",))


@pytest.mark.parametrize("kind", ["functional", "sequential"])
def test_a_nested_model_is_a_layer(kind):
    """A backbone within a model, as in transfer learning, is a stage and an embedding."""
    start, images = keras.Input([16, 16, 1]), keras.Input([16, 16, 1])
    features = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3)(images))
    backbone, pooling = keras.Model(images, features, name="backbone"), keras.layers.GlobalAveragePooling2D()
    if kind == "sequential":
        model = keras.Sequential([start, keras.layers.Rescaling(2.0), backbone, pooling, keras.layers.Dense(3)])
    else:
        model = keras.Model(start, keras.layers.Dense(3)(pooling(backbone(keras.layers.Rescaling(2.0)(start)))))
    for options in ({"stages": ["backbone"]}, {"embedding": "backbone"}):
        wrapped, outputs = models.wrap(model, **options), X[:4]
        for piece in wrapped.pieces:
            outputs = piece(outputs)
        np.testing.assert_allclose(outputs["logits"], model(X[:4]), atol=1e-5)
        assert outputs["embedding"].shape == (4, 4)


def modules(config):
    """Returns the modules of all classes that a file of Keras names."""
    if isinstance(config, dict):
        return {config.get("module"), *modules(list(config.values()))}
    return set().union(*map(modules, config)) if isinstance(config, list) else set()


def test_the_saved_classifier_loads_without_this_package_or_an_optimizer(tmp_path):
    method = methods.NoisyMix(functional("softmax"), views=cheap_views("noisymix"))
    fitted(method, batches(1), eager=True)
    method.save(tmp_path / "robust.keras")
    with zipfile.ZipFile(tmp_path / "robust.keras") as file:
        named = modules(json.loads(file.read("config.json"))) - {None}
    assert "keras.layers" in named and all(module.split(".")[0] in ("keras", "builtins") for module in named), named
    loaded = keras.models.load_model(tmp_path / "robust.keras")
    assert not loaded.compiled
    np.testing.assert_allclose(loaded(X[:3]), method.predict(X[:3], verbose=0), atol=1e-5)


class _Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


def test_a_backup_resumes_to_the_same_weights(tmp_path):
    def method():
        method = methods.Gaussian(functional(), views=[darkened("clean")], start_step=3)  # draws in each step, and changes at the third
        method.compile(keras.optimizers.Adam(0.01), run_eagerly=True)
        return method

    straight, stopped, resumed = method(), method(), method()
    straight.fit(batches(2), epochs=3, verbose=0)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(batches(2), epochs=3, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(str(tmp_path)), _Stop()])
    resumed.fit(batches(2), epochs=3, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(str(tmp_path))])
    assert_equal(resumed.classifier, straight.classifier)


def test_steps_of_one_execution_end_with_the_weights_of_single_ones():
    single, several = methods.FCL(functional(), k=20), methods.FCL(functional(), k=20)
    expected = fitted(single, eager=True)
    history = fitted(several, compile_options={"steps_per_execution": 2})
    assert_equal(single.classifier, several.classifier, atol=1e-4)
    assert_equal_histories(history, expected)


@pytest.mark.parametrize("name", sweep(("gaussian", "fcl", "simclr", "moco"), quick=("gaussian",)))
def test_compiled_gradients_take_a_smaller_last_batch(name):
    options = {"views": cheap_views(name, **OPTIONS.get(name, {})), **OPTIONS.get(name, {})}
    compiled, other = (methods.METHODS[name](functional(), **options) for _ in range(2))
    x, y = X[:24], Y[:24]
    compiled.compile(keras.optimizers.SGD(0.01), jit_compile=True)
    other.compile(keras.optimizers.SGD(0.01), run_eagerly=True)
    for method in (compiled, other):
        method.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(16), verbose=0)
    assert not compiled.jit_compile and compiled.compiled_gradients is not None  # Keras does not compile the step, with its checks
    assert_equal(compiled.classifier, other.classifier, atol=1e-4 if name == "fcl" else 1e-3)


def test_gradient_accumulation_draws_anew_in_every_step():
    seeds = set()
    method = methods.CrossEntropy(functional(), views=[lambda images, seed: seeds.add(tuple(seed.numpy())) or images])
    fitted(method, optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), eager=True)
    assert len(seeds) == 4


def test_metrics_of_two_replicas_are_those_of_all_images(two_replicas):
    with two_replicas.scope():
        method = methods.Gaussian(sequential())
        method.compile(keras.optimizers.SGD(0.0), metrics=["accuracy", keras.metrics.AUC(name="auc", multi_label=False)])
    labels = keras.utils.to_categorical(Y[:37], 3)
    history = method.fit(X[:37], labels, batch_size=16, verbose=0, validation_data=(X[:37], labels)).history
    logits = method.classifier(X[:37]).numpy()
    assert history["val_accuracy"] == pytest.approx([np.mean(logits.argmax(axis=1) == Y[:37])], abs=1e-6)
    assert history["val_loss"] == pytest.approx([-scipy.special.log_softmax(logits, axis=1)[range(37), Y[:37]].mean()], rel=1e-4)
    auc = keras.metrics.AUC()
    auc.update_state(labels, logits)
    assert history["val_auc"] == pytest.approx([float(auc.result())], abs=5e-3)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: methods.CrossEntropy(keras.Sequential([keras.layers.Dense(3)])), "not built"),
        (lambda: methods.CrossEntropy(sequential("sigmoid")), "sigmoid"),
        (lambda: methods.NoisyMix(subclassed(), stages=("convolution",)), "graph of layers"),
        (lambda: methods.MoCo(subclassed(), queue=48), "copies its layers.*Subclassed"),
        (lambda: methods.InstDis(functional()), "examples="),
        (lambda: fit_of(methods.InstDis(functional(), examples=48)), "position .* InstDis"),
        (lambda: fit_of(methods.LinearProbe(functional(), solver="lbfgs")), "Try: solver='sgd'"),
        (lambda: fit_of(methods.NoisyMix(functional(), views=("clean",))), "at least 2 views"),
        (lambda: fit_of(methods.CrossEntropy(functional()), SOURCE.images), r"Try: divide them by 255, or input_range=\(0, 255\)"),
        (lambda: fit_of(methods.CrossEntropy(functional()), X, np.zeros([48, 5])), r"probabilities \[N, 3\]"),
        (lambda: fit_of(methods.CrossEntropy(functional()), X, None), r"\(x, y\)"),
        (lambda: methods.CrossEntropy(functional()).compile("sgd", "sparse_categorical_crossentropy"), "Expected no loss"),
        (lambda: methods.CrossEntropy(functional(), input_range=(1, 0)), "low < high"),
        (lambda: methods.CrossEntropy(functional(), input_range=255), "input_range"),
        (lambda: methods.CrossEntropy(functional(), views="augmiks"), "augmix"),
        (lambda: methods.NoisyMix(functional(), stages="none"), "'none'"),
        (lambda: fit_of(methods.CrossEntropy(functional()), X * 255), r"Expected images in \[0, 1\]"),
        (lambda: fit_of(methods.CrossEntropy(functional()), [X * 255]), r"Expected images in \[0, 1\]"),  # as Keras takes one array
        (lambda: methods.CrossEntropy(functional(), embedding="none"), "Expected a layer of"),
        (lambda: methods.CrossEntropy(tiny_network(), input_range=(0, 255)), "logits and embedding"),
    ],
)
def test_what_a_method_cannot_use_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_batch_that_the_groups_of_batch_norm_do_not_divide_stops_the_training():
    uneven = tf.data.Dataset.from_tensor_slices((X[:41], Y[:41])).batch(16)
    with pytest.raises(tf.errors.InvalidArgumentError, match="batch that 2 moco_batch_norm_groups divide .* drop_remainder=True"):
        fit_of(methods.MoCo(functional(), queue=64, batch_norm_groups=2, views=cheap_views("moco", queue=64)), uneven, None)


@pytest.mark.parametrize("name", ["cross_entropy", "adversarial"])
def test_divergence_stops_fit_with_a_message(name):
    method = methods.METHODS[name](sequential(), **({"steps": 2} if name == "adversarial" else {}))
    method.compile(keras.optimizers.SGD(1e30))
    with pytest.raises(loop.TrainingDiverged, match=r"Not finite at step [1-9]\d*: .*weights are those before the step. Try: a lower"):
        method.fit(X, Y, batch_size=12, epochs=3, verbose=0)
    assert all(np.isfinite(v).all() for v in weights(method.classifier))


def test_gray_images_need_no_axis_of_channels():
    images, labels = np.random.RandomState(0).rand(12, 6, 6).astype(np.float32), np.arange(12) % 3
    losses = []
    for x in (images, images[..., None]):
        keras.utils.set_random_seed(0)
        method = methods.CrossEntropy(keras.Sequential([keras.Input([6, 6, 1]), keras.layers.Flatten(), keras.layers.Dense(3)]))
        losses.append(fitted(method, tf.data.Dataset.from_tensor_slices((x, labels)).batch(6))["loss"])
    assert losses[0] == losses[1]


def test_layers_that_assign_trainable_weights_are_refused():
    method = methods.CrossEntropy(
        keras.Sequential([keras.Input([16, 16, 1]), keras.layers.Flatten(), keras.layers.SpectralNormalization(keras.layers.Dense(3))])
    )
    with pytest.raises(ValueError, match="Expected layers that leave their trainable weights to the optimizer. Received: .*kernel"):
        fitted(method)
