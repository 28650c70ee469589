"""`CrossEntropy(model).fit` gives the weights and the history of `model.fit` under every option of Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import sweep
from tests.methods.common import DISTINCT, dtype_policy
from tests.methods.users_models import (
    ON_IMAGES_AND_LABELS,
    X,
    Y,
    assert_equal,
    assert_equal_histories,
    batches,
    cheap_views,
    fitted,
    functional,
    quick_options,
)
from tf_robust import methods

callbacks, optimizers = keras.callbacks, keras.optimizers
SOFT = np.random.RandomState(0).dirichlet([1.0, 1.0, 1.0], 48).astype(np.float32)
WEIGHTS = np.linspace(0, 2, 48).astype(np.float32)
EAGERLY = {"run_eagerly": True}
GRAPH = pytest.param({}, marks=pytest.mark.slow)


def both(build=functional, *, optimizer=None, compile_options=EAGERLY, x=X, y=Y, atol=1e-5, **options):
    """Trains a model by Keras and an equal one by CrossEntropy; compares weights and histories and returns the two models.

    Keras trains without a graph: with one it compiles the complete step by XLA, which takes seconds and gives the same numbers.
    CrossEntropy has a graph where `compile_options` say so.
    """
    soft = np.ndim(y) == 2
    optimizer = optimizer or (lambda: optimizers.SGD(0.1))
    loss = keras.losses.CategoricalCrossentropy if soft else keras.losses.SparseCategoricalCrossentropy
    plain, method = build(), methods.CrossEntropy(build())
    plain.compile(optimizer(), loss(from_logits=True), metrics=["accuracy"], run_eagerly=True)
    method.compile(optimizer(), metrics=["accuracy"], **compile_options)
    histories = []
    for model in (plain, method):
        calls = {"callbacks": [callback() for callback in options.get("callbacks", ())]}
        fit = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
        histories.append(model.fit(x, y, **{**fit, **options, **calls}).history)
    assert_equal(method.classifier, plain, atol=atol)
    assert_equal_histories(histories[1], histories[0])
    return plain, method


@pytest.mark.parametrize("compile_options", [EAGERLY, GRAPH])
def test_options_of_optimizers(compile_options):
    both(optimizer=lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2, clipvalue=0.01), compile_options=compile_options)
    ema = {"use_ema": True, "ema_momentum": 0.5}
    both(optimizer=lambda: optimizers.SGD(0.1, **ema, global_clipnorm=0.01, weight_decay=0.1, loss_scale_factor=1024.0))


@pytest.mark.parametrize(
    "options",
    [
        {"class_weight": {0: 3.0, 1: 0.5, 2: 1.0}, "validation_split": 0.25},
        {"sample_weight": WEIGHTS, "epochs": 4, "initial_epoch": 2},
        {"validation_data": (X, Y, WEIGHTS)},
        {"steps_per_epoch": 2, "validation_data": (X, Y), "validation_steps": 1},
        {"x": tf.data.Dataset.from_tensor_slices((X, Y, WEIGHTS)).batch(16), "y": None, "batch_size": None},
    ],
)
@pytest.mark.parametrize("compile_options", [EAGERLY, GRAPH])
def test_options_of_fit(options, compile_options):
    both(lambda: functional(regularizer="l2"), compile_options=compile_options, **options)


def test_the_start_of_a_term_is_counted_in_steps_of_the_epoch():
    for images in (X, [X]):
        method = methods.Gaussian(functional(), start_epoch=1)
        method.compile("sgd", run_eagerly=True)
        method.fit(images, Y, batch_size=16, verbose=0)
        assert method.start == 3


@pytest.mark.parametrize("outputs", [lambda scores: {"scores": scores}, lambda scores: {"logits": scores}, lambda scores: [scores]])
def test_one_output_may_be_in_a_dictionary_or_a_list(outputs):
    plain = functional()
    method = methods.CrossEntropy(keras.Model(plain.input, outputs(plain.output)))
    method.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    history = method.fit(X, Y, validation_data=(X, Y), verbose=0).history
    assert history["val_accuracy"][0] == pytest.approx(np.mean(plain(X).numpy().argmax(axis=1) == Y))


@pytest.mark.parametrize("labels", [SOFT.astype(np.float64), np.eye(3, dtype=np.int64)[Y]])
@pytest.mark.parametrize("compile_options", [EAGERLY, GRAPH])
def test_labels_of_probabilities(labels, compile_options):
    both(y=labels, compile_options=compile_options, sample_weight=WEIGHTS, validation_data=(X, labels))


def with_one_output(activation):
    model = functional()
    return keras.Model(model.inputs, keras.layers.Dense(1, activation=activation)(model.layers[-2].output))


@pytest.mark.parametrize("activation, labels", [("sigmoid", Y % 2), (None, SOFT[:, :1])])
def test_models_with_one_output(activation, labels):
    """Weights, loss, metrics and their validation are those of Keras' binary cross-entropy."""
    histories, models = [], []
    for method in (lambda model: model, methods.CrossEntropy):
        trained = method(with_one_output(activation))
        loss = keras.losses.BinaryCrossentropy(from_logits=activation is None)
        metrics = [keras.metrics.BinaryAccuracy(threshold=0.3, name="accuracy"), keras.metrics.MeanSquaredError(name="mse")]
        of_keras = {} if hasattr(trained, "classifier") else {"loss": loss}
        trained.compile(optimizers.SGD(0.1), metrics=metrics, **of_keras, run_eagerly=bool(of_keras) or labels.dtype.kind == "f")
        weighted = {"sample_weight": WEIGHTS, "validation_data": (X[:20], labels[:20], WEIGHTS[:20])}
        histories.append(trained.fit(X, labels, 16, 2, shuffle=False, verbose=0, **weighted).history)
        models.append(getattr(trained, "classifier", trained))
        histories[-1].update(evaluated=trained.evaluate(X, labels, verbose=0, batch_size=20))
    assert_equal(*models, atol=1e-5)
    assert_equal_histories(histories[1], histories[0])


def test_labels_that_are_neither_integers_nor_probabilities_stop_the_training():
    for labels, message in (
        (Y + 0.5, "Expected integers as class indices"),
        (np.tile(np.float32([1.5, -0.5, 0.0]), [48, 1]), "probabilities that sum to 1"),  # of another sum: test_keras_fit
    ):
        method = methods.CrossEntropy(functional())
        method.compile("sgd", run_eagerly=True)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            method.fit(X, labels, verbose=0)


def test_a_second_fit_counts_the_steps_of_the_first(caplog):
    method = methods.Gaussian(functional(), start_step=4)
    method.compile(optimizers.SGD(0.1), run_eagerly=True)
    method.fit(X, Y, 16, 1, verbose=0)
    assert "never switched on" in caplog.text
    caplog.clear()
    method.fit(X, Y, 16, 1, verbose=0)
    assert "never switched on" not in caplog.text


@pytest.mark.parametrize(
    "name, callback",
    {
        "early stopping": lambda: callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=1, restore_best_weights=True),
        "schedule": lambda: callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        "swap": lambda: callbacks.SwapEMAWeights(swap_on_epoch=True),
    }.items(),
)
def test_callbacks(name, callback):
    ema = {"use_ema": True, "ema_momentum": 0.5} if name == "swap" else {}
    compile_options = {} if name == "schedule" else EAGERLY  # a graph takes the new learning rate
    sgd = lambda: optimizers.SGD(0.1, **ema)
    _, method = both(optimizer=sgd, compile_options=compile_options, epochs=3, callbacks=[callback], validation_data=(X, Y))
    assert len(method.history.epoch) == (2 if name == "early stopping" else 3)


def test_model_checkpoint_keeps_an_epoch(tmp_path):
    """The first of two: the loss falls, and the highest one is asked for."""
    paths = iter(("plain", "method"))
    checkpoint = lambda: callbacks.ModelCheckpoint(str(tmp_path / f"{next(paths)}.keras"), monitor="loss", mode="max", save_best_only=True)
    _, method = both(callbacks=[checkpoint], epochs=2)
    plain, kept = (keras.models.load_model(tmp_path / f"{name}.keras") for name in ("plain", "method"))
    assert_equal(kept, plain, atol=1e-5)
    assert np.abs(kept.get_weights()[0] - method.classifier.get_weights()[0]).max() > 1e-3


def test_saved_weights_hold_the_state_of_the_training(tmp_path):
    def made():
        method = methods.Gaussian(functional(), start_step=2)
        method.compile(keras.optimizers.SGD(0.1, momentum=0.9), run_eagerly=True)
        return method

    straight, stopped, resumed = made(), made(), made()
    straight.fit(batches(2), epochs=2, verbose=0)
    checkpoint = callbacks.ModelCheckpoint(str(tmp_path / "a.weights.h5"), save_weights_only=True)
    stopped.fit(batches(2), epochs=1, verbose=0, callbacks=[checkpoint])
    resumed.load_weights(tmp_path / "a.weights.h5")
    resumed.fit(batches(2), epochs=1, verbose=0)
    assert_equal(resumed.classifier, straight.classifier, atol=1e-6)


def test_export_is_that_of_the_classifier(tmp_path):
    method = methods.CrossEntropy(functional())
    method.export(str(tmp_path / "exported"), verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(exported.serve(X[:5]), method.classifier(X[:5]), atol=1e-5)


def float16_model():
    with dtype_policy("mixed_float16"):
        model = functional()
        outputs = keras.layers.Dense(3, dtype="float32")(model.layers[-2].output)  # as Keras advises
        return keras.Model(model.inputs, outputs)


@pytest.mark.parametrize("scale, skipped", [(2.0**15, 0), (1e30, 6)])
def test_mixed_float16_scales_the_loss_and_skips_steps_that_overflow(scale, skipped):
    # gradients are rounded to float16 after batch normalization, whose kernel adds up in another order than Keras
    scaled = lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=scale)
    plain, method = both(float16_model, optimizer=scaled, atol=2e-4, compile_options={} if skipped else EAGERLY)
    for model in (plain, method):
        assert int(model.optimizer.iterations) == 6 - skipped
        assert float(model.optimizer.dynamic_scale) == pytest.approx(scale / 2**skipped)


def test_weight_decay_of_a_method_is_scaled_with_the_loss():
    trained = []
    for options in ({}, {"loss_scale_factor": 1024.0}):
        method = methods.CrossEntropy(functional(), weight_decay=0.1)
        fitted(method, optimizer=optimizers.SGD(0.1, **options), eager=True)
        trained.append(method.classifier)
    assert_equal(*trained, atol=1e-5)


@pytest.mark.parametrize("name", sweep([name for name in ON_IMAGES_AND_LABELS if name in DISTINCT], quick=("noisymix", "fcl")))
def test_every_method_trains_in_mixed_float16(name):
    """In bfloat16: test_methods."""
    options = quick_options(name)
    views = cheap_views(name, **options)
    with dtype_policy("mixed_float16"):
        method = methods.METHODS[name](functional(), views=views, **options)
        start = method.classifier.get_weights()
        assert np.isfinite(fitted(method, batches(2), eager=name != "fcl")["loss"][0])
    assert method.classifier.compute_dtype == "float16"
    assert any(np.abs(a - b).max() > 0 for a, b in zip(start, method.classifier.get_weights()))


@pytest.mark.parametrize("name", sweep([name for name in ON_IMAGES_AND_LABELS if name in DISTINCT], quick=("noisymix",)))
def test_one_hot_labels_train_as_class_indices(name):
    one_hot = batches().map(lambda x, y: (x, tf.one_hot(y, 3)))
    options = quick_options(name)
    views = cheap_views(name, **options)
    first, second = (methods.METHODS[name](functional(), views=views, **options) for _ in range(2))
    fitted(first, eager=True)
    fitted(second, one_hot, eager=True)
    assert_equal(first.classifier, second.classifier, atol=1e-4)
