"""The argument `batch_norm`: the statistics that normalize further views, against NumPy; and its effect on robustness."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import sweep
from tests.methods.common import batches, build, weights
from tf_robust import data, methods
from tf_robust.corruptions import noise_sets
from tf_robust.methods.further_views import FurtherViewsMethod
from tf_robust.models import heads
from tf_robust.training import loop
from tf_robust.utils.hyperparameters import parameters

EPSILON, MOMENTUM = 1e-3, 0.9
MEAN, VARIANCE = 0.2, 0.5  # the moving averages before the step
OTHER_OPTIONS = {
    "fcl": {"weight": 1.0},
    "contrastive_gaussian": {"weight": 1.0},
    "input_gradient": {"form": "finite_difference"},
}
FURTHER_VIEWS = {
    name: method
    for name, method in methods.METHODS.items()
    if issubclass(method, FurtherViewsMethod) and "batch_norm" in parameters(method)
}
QUICK = ("gaussian", "noisymix", "adversarial", "input_gradient")  # with code of their own for further views


@pytest.fixture
def normalization():
    """Returns a network of one batch norm layer: values [N, 1, 1, 1] -> {"logits": [N, 1], "embedding": [N, 1]}."""
    images = keras.Input((1, 1, 1))
    layer = keras.layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON)
    normalized = keras.layers.Flatten()(layer(images))
    layer.moving_mean.assign([MEAN])
    layer.moving_variance.assign([VARIANCE])
    return keras.Model(images, {"logits": normalized, "embedding": normalized})


def normalized(values, mean, variance):
    return (values - mean) / np.sqrt(variance + EPSILON)


@pytest.mark.parametrize("batch_norm", ["own", "joint", "inference", "updating"])
def test_statistics_and_moving_averages_of_each_choice(batch_norm, normalization):
    random = np.random.RandomState(0)
    clean, noised = random.rand(20).astype(np.float32), 3 * random.rand(20).astype(np.float32) + 1
    method = methods.METHODS["gaussian"](normalization, batch_norm=batch_norm)
    with keras.StatelessScope() as scope:  # as in a training step
        outputs = method.encode_views([tf.reshape(view, [20, 1, 1, 1]) for view in (clean, noised)], training=True)
    moving = both = np.concatenate([clean, noised])
    if batch_norm != "joint":
        moving = clean
    each = (clean, clean), (noised, noised)
    statistics = {"own": each, "joint": ((both, both),) * 2, "inference": ((clean, clean), None), "updating": each}[batch_norm]
    for view, output, of in zip((clean, noised), outputs, statistics, strict=True):
        expected = normalized(view, of[0].mean(), of[1].var()) if of else normalized(view, MEAN, VARIANCE)
        np.testing.assert_allclose(output["embedding"].numpy()[:, 0], expected, atol=1e-4)
    expected = MEAN, VARIANCE
    for view in [clean, noised] if batch_norm == "updating" else [moving]:
        expected = [MOMENTUM * average + (1 - MOMENTUM) * value for average, value in zip(expected, (view.mean(), view.var()))]
    moved = [float(scope.get_current_value(variable)[0]) for variable in normalization.non_trainable_variables]
    assert moved == pytest.approx(expected, rel=1e-4)


def test_in_inference_mode_scale_and_offset_are_trained_and_moving_averages_are_constants(normalization):
    method = methods.METHODS["gaussian"](normalization, batch_norm="inference")
    clean, noised = tf.random.stateless_uniform([2, 6, 1, 1, 1], [0, 1])
    with keras.StatelessScope(), tf.GradientTape() as tape:  # as in a training step
        tape.watch(clean)
        _, further = method.encode_views([clean, noised], training=True)
        total = tf.reduce_sum(further["embedding"])
    layer = normalization.layers[1]
    by_clean, by_scale, by_offset = tape.gradient(total, [clean, layer.gamma.value, layer.beta.value])
    assert by_clean is None  # the moving averages of the step would depend on the clean images
    np.testing.assert_allclose(by_scale, [normalized(noised.numpy(), MEAN, VARIANCE).sum()], rtol=1e-4)
    np.testing.assert_allclose(by_offset, [6.0])


@pytest.mark.parametrize("name", sweep(FURTHER_VIEWS, QUICK))
def test_each_choice_trains_and_own_and_inference_keep_the_averages_update(name, network, source):
    batch, plain = next(batches(source(), 1, name=name)), build("cross_entropy", network())
    plain.train_step(batch)
    for choice in FURTHER_VIEWS[name].batch_norm_choices:
        method = build(name, network(), batch_norm=choice, **OTHER_OPTIONS.get(name, {}))
        before = weights(method)
        method.train_step(batch)
        changes = [after - start for start, after in zip(before, weights(method))]
        assert all(np.isfinite(change).all() for change in changes) and any(change.any() for change in changes)
        if name not in ("noisymix", "adversarial", "trades"):  # the clean images alone update their averages
            averages = zip(plain.classifier.non_trainable_variables, method.classifier.non_trainable_variables)
            assert all(np.allclose(a, b, atol=1e-7) for a, b in averages) == (choice in ("own", "inference"))


@pytest.mark.parametrize("name", sweep(FURTHER_VIEWS, QUICK))
def test_the_choices_differ_with_batch_norm_and_only_then(name, network, source):
    batch = next(batches(source(), 1, name=name))
    for has_batch_norm in (True, False):
        results = []
        for choice in FURTHER_VIEWS[name].batch_norm_choices:
            if choice == "updating":  # which has the gradients of `own`
                continue
            method = build(name, network(batch_norm=has_batch_norm), batch_norm=choice, **OTHER_OPTIONS.get(name, {}))
            gradients, *_ = method.gradients(batch, batch.step[0])
            results.append(np.concatenate([np.ravel(gradient) for gradient in gradients]))
        for one, other in zip(results, results[1:]):
            assert np.allclose(one, other, rtol=1e-3, atol=1e-5 * np.abs(one).max()) != has_batch_norm, name


def test_auto_is_the_documented_default(network):
    assert {name: build(name, network()).batch_norm for name in FURTHER_VIEWS} == {
        name: method.auto_batch_norm for name, method in FURTHER_VIEWS.items()
    }


def lenet_with_batch_norm(seed):
    keras.utils.set_random_seed(seed)
    images, x = heads.normalized_input((28, 28, 1), 0.0, 1.0, 8, "lenet_with_batch_norm")
    for filters, padding in ((6, "same"), (16, "valid")):
        x = keras.layers.Conv2D(filters, 5, padding=padding, use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))
        x = keras.layers.MaxPooling2D(2)(x)
    x = keras.layers.Dense(120, use_bias=False)(keras.layers.Flatten()(x))
    x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))
    return heads.classifier(images, keras.layers.Dense(84, activation="relu")(x), 15, "lenet_with_batch_norm")


@pytest.mark.slow
def test_with_batch_norm_fcl_is_more_robust_to_uniform_noise_than_cross_entropy(seed=0):
    train, test = (data.open_source("synthetic_digits", split) for split in ("train", "test"))
    train = data.stratified_subset(train, 5000)
    images, labels = (np.concatenate(parts) for parts in zip(*data.evaluation_batches(test)))
    noised = noise_sets.uniform_noise(images, seed=0)

    def accuracy(name, **options):
        method = methods.METHODS[name](lenet_with_batch_norm(seed), seed=seed, **options)
        method.compile(optimizer=keras.optimizers.Adam(0.003))
        loop.fit(method, train, epochs=4, batch_size=128)
        return np.mean(np.argmax(method.classifier.predict(noised, verbose=0)["logits"], axis=1) == labels)

    options = {"k": 256, "sigma": 0.5, "temperature": 0.1, "weight": 0.01, "start_epoch": 1.0}
    cross_entropy, fcl = accuracy("cross_entropy"), accuracy("fcl", **options)
    assert fcl >= cross_entropy + 0.05
    assert fcl >= accuracy("fcl", batch_norm="own", **options) + 0.03
