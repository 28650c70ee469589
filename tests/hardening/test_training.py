"""Fine-tuning, and averages of weights, against loops over steps and arrays."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_robust import data
from tf_robust.data.pipeline import training_batches
from tf_robust.hardening import training
from tf_robust.hardening.candidates import Candidate
from tf_robust.hardening.training import (
    CHUNK,
    MAX_BATCH_NORM_MOMENTUM,
    MOMENTUM,
    Trainers,
    average,
    batch_norms,
    fine_tuning,
    greedy_soup,
    interpolate,
    leaves,
    reestimate,
)
from tf_robust.hardening.trials import Trial, TrialStore
from tf_robust.training.loop import TrainingDiverged

BATCH = 16


@pytest.fixture(scope="module")
def source():
    random = np.random.default_rng(0)
    return data.from_arrays(random.random((64, 8, 8, 3), np.float32), random.integers(0, 3, 64))


def _model(momentum=0.9):
    keras.utils.set_random_seed(1)
    inner = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3, name="first"), keras.layers.BatchNormalization(name="norm", momentum=momentum)]
    )
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, activation="relu", name="second")(inner(inputs))
    return keras.Model(inputs, keras.layers.Dense(3, name="dense")(keras.layers.GlobalAveragePooling2D()(x)))


def _with_dropout():
    model = _model()
    return keras.Model(model.inputs, keras.layers.Dropout(0.5, seed=1)(model.outputs[0]))


def _trainers(source, model=None):
    options = {"input_range": (0.0, 1.0), "from_logits": True}
    return Trainers(model or _model(), source, batch_size=BATCH, seed=3, options=options)


@pytest.fixture(scope="module")
def trainers(source):
    return _trainers(source)


def test_dropout_of_a_training_is_that_of_the_first(source):
    trainers, candidate = _trainers(source, _with_dropout()), Candidate("plain", "cross_entropy", learning_rate=0.05)
    first, second = (trainers.train(candidate, 12).weights for _ in range(2))
    for one, other in zip(first, second):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_the_loss_scale_of_float16_is_not_reset_to_0(source):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        trainers, candidate = _trainers(source), Candidate("plain", "cross_entropy", learning_rate=0.05)
        first, second = (trainers.train(candidate, 3).weights for _ in range(2))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    before = _model().get_weights()
    assert all(np.isfinite(one).all() for one in first) and any((one != other).any() for one, other in zip(first, before))
    np.testing.assert_equal(second, first)


def test_a_candidate_whose_attack_meets_logits_that_are_not_finite_has_diverged(source):
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(3)])
    with pytest.raises(TrainingDiverged, match="Not finite at step"):
        _trainers(source, model).train(Candidate("one", "adversarial", {"steps": 2}, learning_rate=1e30), 20)


def test_plain_fine_tuning_is_sgd_with_a_cosine_in_chunks(source, trainers):
    trained = trainers.train(Candidate("plain", "cross_entropy", learning_rate=0.05), 25).weights
    model = _model()
    velocities = [np.zeros(v.shape) for v in model.trainable_variables]
    for step, batch in zip(range(25), training_batches(source, BATCH, seed=3)):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(batch.labels, model(batch.views[0], training=True), from_logits=True)
            loss = tf.reduce_mean(losses)
        rate = 0.05 * 0.5 * (1 + np.cos(np.pi * (step // CHUNK * CHUNK) / 25))
        for i, (variable, gradient) in enumerate(zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables))):
            velocities[i] = MOMENTUM * velocities[i] - rate * gradient.numpy()
            variable.assign_add(velocities[i].astype(np.float32))
    for ours, theirs in zip(trained, model.get_weights()):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize(
    "method, views",
    (("cross_entropy", ("patch_gaussian",)), ("noisymix", ("clean", "clean", "patch_gaussian")), ("similarity", ("clean",))),
)
def test_a_training_depends_on_candidate_and_steps_alone(trainers, method, views):
    settings = {"mixing": False, "noise": "none"} if method == "noisymix" else {}
    candidate = Candidate("one", method, settings, views)
    first = trainers.train(candidate, 12).weights
    trainers.train(Candidate("plain", "cross_entropy", learning_rate=0.5), 7)
    trainers.seconds_per_step(candidate)
    for again, once, start in zip(trainers.train(candidate, 12).weights, first, trainers.start):
        np.testing.assert_array_equal(again, once)
        assert not np.array_equal(once, start) or not start.size
    slower = trainers.train(Candidate("one", method, settings, views, learning_rate=0.001), 12).weights
    assert not np.array_equal(slower[0], first[0])


@pytest.mark.parametrize("rate, stable", ((0.01, True), (30.0, False), (1e30, False)))
def test_a_learning_rate_is_stable_if_the_loss_of_the_first_steps_does_not_explode(trainers, rate, stable):
    assert trainers.is_stable(Candidate("plain", "cross_entropy", learning_rate=rate)) == stable
    for one, other in zip(trainers.train(Candidate("plain", "cross_entropy", learning_rate=0.0), 1).weights, trainers.start):
        assert one.shape[-1:] == other.shape[-1:] and (one.ndim == 1 or np.array_equal(one, other))  # it begins with the initial model


def test_noise_of_random_strength_has_one_standard_deviation_per_image():
    images = tf.fill([400, 16, 16, 3], 0.5)
    noise = training._VIEWS["noise"](images, tf.constant([3, 4], tf.int32)).numpy() - 0.5
    within = noise.reshape(400, -1, 3).std(axis=(1, 2))  # clipped at 1.0 and 2.0 standard deviations or more
    assert (within < 0.5).all() and 0.18 < within.mean() < 0.25 and np.quantile(within, 0.1) == pytest.approx(0.05, abs=0.015)
    corners = noise[:, [0, 0, -1, -1], [0, -1, 0, -1]].std(axis=(1, 2))
    assert np.corrcoef(corners, within)[0, 1] > 0.9


def test_a_training_goes_on_with_weights_velocities_dropout_and_data_where_it_ended(source, tmp_path, monkeypatch):
    """With a constant learning rate 7 + 6 steps are 13 steps, also after the state went through a file, by trainers made anew."""
    monkeypatch.setattr("tf_robust.hardening.training.np.cos", lambda _: 1.0)
    candidate = Candidate("one", "noisymix", {"mixing": False, "noise": "none"}, ("clean", "clean", "patch_gaussian"))
    complete, state = (_trainers(source, _with_dropout()).train(candidate, steps) for steps in (13, 7))
    store, trial = TrialStore(str(tmp_path / "trials"), {}), Trial(candidate, 0, (7,), 1.0, ())
    store.write(trial, state, 1.0)
    again = _trainers(source, _with_dropout()).train(candidate, 6, store.state(trial))
    assert again.steps == 13 and len(again.others) == len(complete.others) > 4
    for one, other in zip([*again.weights, *again.others], [*complete.weights, *complete.others]):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    assert not np.array_equal(state.weights[0], complete.weights[0])


@pytest.mark.parametrize("layers, frozen", (("all", set()), ("first half", {"second", "dense"}), ("all but batch norm", {"norm"})))
def test_layers_that_are_not_trained_stay_as_they_are(trainers, layers, frozen):
    model = trainers.model
    model.set_weights(trainers.train(Candidate("plain", "cross_entropy", layers=layers), 12).weights)
    pairs = [(one, other) for one, other in zip(leaves(model), leaves(_model())) if one.weights]
    assert [one.name for one, _ in pairs] == ["first", "norm", "second", "dense"]
    for one, other in pairs:
        same = all(np.array_equal(a, b) for a, b in zip(one.get_weights(), other.get_weights()))
        assert same == (one.name in frozen) and one.trainable, one.name
    with fine_tuning(model, layers):
        assert {one.name for one, _ in pairs if not one.trainable} == frozen


@pytest.mark.parametrize("momentum", (0.8, 0.999))
def test_moving_averages_follow_with_a_momentum_of_at_most_095(source, momentum):
    model, used = _model(momentum), min(momentum, MAX_BATCH_NORM_MOMENTUM)
    norm, first = model.layers[1].get_layer("norm"), model.layers[1].get_layer("first")
    expected = norm.moving_mean.numpy()
    for batch in training_batches(source, BATCH, seed=3).take(12):
        expected = used * expected + (1 - used) * first(batch.views[0]).numpy().mean(axis=(0, 1, 2))
    model.set_weights(_trainers(source, model).train(Candidate("one", "cross_entropy", learning_rate=0.0), 12).weights)
    np.testing.assert_allclose(norm.moving_mean, expected, rtol=1e-4, atol=1e-6)
    assert norm.momentum == momentum


def test_reestimated_moving_averages_are_the_means_over_the_batches(source):
    model = _model()
    batches = [batch.views[0] for batch in training_batches(source, BATCH, seed=0).take(5)]
    before, norm, first = model.get_weights(), model.layers[1].get_layer("norm"), model.layers[1].get_layer("first")
    momentum = norm.momentum
    after = reestimate(model, model, before, batches)
    features = np.stack([first(images).numpy() for images in batches])
    np.testing.assert_allclose(norm.moving_mean, features.mean(axis=(1, 2, 3)).mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(norm.moving_variance, features.var(axis=(1, 2, 3)).mean(axis=0), rtol=1e-4, atol=1e-6)
    assert norm.momentum == momentum and batch_norms(model) == [norm]
    changed = [weight.path for weight, x, y in zip(model.weights, before, after) if not np.array_equal(x, y)]
    assert len(changed) == 2 and all("moving" in path for path in changed)


def _weights(seed):
    random = np.random.default_rng(seed)
    return [random.normal(size=(3, 2)).astype(np.float32), random.normal(size=4).astype(np.float32), np.array(seed, np.int64)]


@pytest.mark.parametrize("coefficient", (0.0, 0.3, 1.0))
def test_interpolation_is_linear_and_keeps_integers_of_the_start(coefficient):
    start, end = _weights(1), _weights(2)
    result = interpolate(start, end, coefficient)
    for value, first, second in zip(result[:2], start, end):
        np.testing.assert_allclose(value, first + coefficient * (second - first), rtol=1e-5, atol=1e-6)
        assert value.dtype == np.float32
    assert result[2] == 1 and result[2].dtype == np.int64


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_weights_of_any_precision_are_averaged(dtype):
    dtype = tf.as_dtype(dtype).as_numpy_dtype
    start, end = ([np.array(values, dtype)] for values in ([1.0, -2.0], [3.0, 4.0]))
    (half,), (mean,) = interpolate(start, end, 0.5), average([start, end, end, end])
    for found, expected in ((half, [2.0, 1.0]), (mean, [2.5, 2.5])):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.astype(np.float64), expected)
    members, (soup,) = greedy_soup([start, end], lambda weights: float(weights[0][1]), -2.0)
    assert members == [0, 1] and soup.tolist() == half.tolist()


def test_the_greedy_soup_adds_a_model_unless_the_score_falls():
    target = np.array([1.0, -0.5, 2.0])

    def score(weights):
        return -float(np.square(weights[0] - target).sum())

    for seed in range(20):
        random = np.random.default_rng(seed)
        models = sorted(([target + random.normal(size=3)] for _ in range(4)), key=score, reverse=True)
        members, soup = greedy_soup(models, score, score(models[0]))

        def mean(group):
            return np.mean([models[i][0] for i in group], axis=0)

        expected = [0]  # by brute force
        for i in range(1, 4):
            expected += [i] if score([mean([*expected, i])]) >= score([mean(expected)]) else []
        assert members == expected and score(soup) >= score(models[0])
        np.testing.assert_allclose(soup[0], mean(members))


def test_on_a_machine_that_becomes_slower_training_ends_in_time(trainers, monkeypatch):
    """A chunk of ten steps takes 4 s: of 100 steps 30 fit into 10 s, at learning rates that fall over this time."""
    now, rates, candidate = [0.0], [], Candidate("plain", "cross_entropy", learning_rate=0.1)
    monkeypatch.setattr(training.time, "monotonic", lambda: now[0])
    method, _, variables, first = trainers._graph(candidate)

    def run_steps(iterator, count):
        now[0] += 0.4 * int(count)
        rates.append(float(method.optimizer.learning_rate))

    monkeypatch.setattr(trainers, "_graph", lambda _: (method, run_steps, variables, first))
    assert trainers.train(candidate, 100, seconds=10.0).steps == 30
    assert rates == pytest.approx([0.05 * (1 + np.cos(np.pi * passed / 10.0)) for passed in (0, 4, 8)])
    assert trainers.seconds_per_step(candidate) == pytest.approx(0.4)
