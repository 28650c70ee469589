"""Every method trains, logs its terms, restores and exports; FCL and the shared terms against their papers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import sweep
from tests.methods.common import DISTINCT, batches, build, dtype_policy, views, weights
from tf_robust import data, losses, methods
from tf_robust.data.augment import clean
from tf_robust.methods.further_views import AuxiliaryTermMethod
from tf_robust.training import distribution, loop

AUXILIARY = [name for name, method in methods.METHODS.items() if issubclass(method, AuxiliaryTermMethod)]


def in_float64(view):
    return lambda images, seed: tf.cast(view(images, seed), tf.float64)


def test_keras_fit_equals_our_loop(network, source, float64):
    by_keras, ours = build("cross_entropy", network()), build("cross_entropy", network())
    by_keras.run_eagerly = True
    by_keras.fit(data.training_batches(source(), 12, seed=0).take(4), verbose=0, shuffle=False)
    loop.fit(ours, source(), epochs=1, batch_size=12)
    for a, b in zip(weights(by_keras), weights(ours)):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", AUXILIARY)
def test_before_the_start_it_is_plain_cross_entropy(name, network, source):
    plain, late = build("cross_entropy", network()), build(name, network(), start_step=2, weight=1.0)
    for step, batch in enumerate(batches(source(), 3)):
        plain.train_step(batch)
        late.train_step(batch)
        same = all(np.array_equal(a, b) for a, b in zip(weights(plain), weights(late)))
        assert same == (step < 2)


@pytest.mark.parametrize("name", [*AUXILIARY, "sam", "asam"])
def test_batch_statistics_are_those_of_one_pass_of_the_clean_images(name, network, source):
    batch, options = next(batches(source(), 1)), {"weight": 1.0} if name in AUXILIARY else {}
    plain, method = build("cross_entropy", network()), build(name, network(), **options)
    plain.train_step(batch)
    method.train_step(batch)
    assert plain.classifier.non_trainable_variables
    for a, b in zip(plain.classifier.non_trainable_variables, method.classifier.non_trainable_variables):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_fcl_runs_on_two_replicas_after_a_late_start(source, network, two_replicas):
    with two_replicas.scope():
        method = build("fcl", network(), start_step=2, weight=0.1)
    loop.fit(method, source(), epochs=2, batch_size=12)
    assert float(method.get_metrics_result()["feature_contrastive"]) > 0
    distribution.synchronize_batch_norm(method)
    with pytest.raises(ValueError, match="Expected the term 'feature_contrastive' from the first step on, with synchronized"):
        loop.fit(method, source(), epochs=2, batch_size=12)


@pytest.mark.parametrize("name", sweep(DISTINCT, quick=("fcl", "moco")))
def test_mixed_precision_changes_a_step_a_little_and_differentiates_in_float32(name, network, source):
    results, options = [], {"beta": 0.1} if name == "trades" else {}  # where its attack leads depends on the rounding
    for policy in ("float32", "mixed_bfloat16"):
        with dtype_policy(policy):
            method = build(name, network(), **options)
        batch = next(batches(source(), 1, name=name))
        gradients, terms, logits, _ = method.gradients(batch, batch.step[0])
        assert {value.dtype for value in (*gradients, *terms.values(), logits)} == {tf.float32}
        results.append((np.concatenate([np.ravel(g) for g in gradients]), np.array(list(terms.values()))))
    (gradient, terms), (mixed_gradient, mixed_terms) = results
    loose = name in ("simclr", "moco", "trades")  # embeddings or predictions that differ little at the start, in bfloat16
    np.testing.assert_allclose(mixed_terms, terms, rtol=0.3 if name == "trades" else 0.05, atol=1e-4)
    assert (mixed_terms != terms).any()
    assert np.linalg.norm(mixed_gradient - gradient) < (0.4 if loose else 0.1) * np.linalg.norm(gradient)


@pytest.mark.parametrize("name", sweep(DISTINCT, quick=("fcl",)))
def test_steps_compiled_by_xla_are_equal(name, network, source, float64):
    """The network computes in float64: how two compilers round float32 depends on the CPU, and training amplifies the difference.

    The remaining difference is the rounding of noise and other random numbers, which are float32: a few units of 2^-23.
    """
    if not methods.METHODS[name].compiles:
        with pytest.raises(ValueError, match="Expected jit_compile=false for PuzzleMix"):
            build(name, network(), jit_compile=True)
        return
    trained, options = [], {"stages": (1,)} if name == "noisymix" else {}  # each stage takes ten seconds to compile
    step_views = [in_float64(clean)] if name == "input_gradient" else views(name)  # its penalty has the type of the images
    pipeline = data.training_batches(source(), 12, seed=0, views=step_views).take(3)
    for jit_compile in (False, True):
        method = build(name, network(), jit_compile, **options)
        if jit_compile:
            loop.steps_function(method)(iter(pipeline), tf.constant(3))
        else:
            for batch in pipeline:
                method.train_step(batch)
        trained.append([v.numpy() for v in method.variables])
    for plain, compiled in zip(*trained):
        np.testing.assert_allclose(compiled, plain, rtol=0, atol=8 * 2**-23)


@pytest.mark.slow
def test_xla_trains_on_two_replicas_but_cannot_gather(network, source, two_replicas, float64):
    trained = []
    for jit_compile in (False, True):
        with two_replicas.scope():
            method = build("cross_entropy", network(batch_norm=False), jit_compile)
        loop.fit(method, source(), epochs=1, batch_size=12, views=[in_float64(clean)])
        trained.append(weights(method))
    for plain, compiled in zip(*trained):
        np.testing.assert_allclose(compiled, plain, rtol=0, atol=1e-8)
    with two_replicas.scope():
        method = build("simclr", network(batch_norm=False), jit_compile=True)
    with pytest.raises(ValueError, match="Expected jit_compile=false for SimCLR on several devices"):
        loop.fit(method, source(), epochs=1, batch_size=12, views=views("simclr"))


def test_ramp_rises_linearly_from_the_start(network):
    method = build("fcl", network(), weight=0.5, start_epoch=2, start_step=3, warmup_steps=4)
    method.schedule(10, 100)
    assert [float(method.ramp(s)) for s in (0, 22, 23, 24, 26, 27, 90)] == [0, 0, 0.125, 0.25, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("by_keras, jit_compile", [(True, False), (False, True)])
def test_a_second_training_has_its_own_schedule(by_keras, jit_compile, network, source):
    """The term would start after two epochs of one each: it stays 0, though the first training's start, at step 2, is passed."""

    def fit(images):
        if by_keras:
            return method.fit(images.images / np.float32(255), images.labels, batch_size=12, shuffle=False, verbose=0)
        return loop.fit(method, images, epochs=1, batch_size=12)

    method = build("gaussian", network(batch_norm=False), jit_compile, weight=1.0, start_epoch=2)
    fit(source(12))
    compiled = method.compiled_gradients
    fit(source(48))
    assert method.start == 8 and float(method.trackers[method.term_names[-1]].result()) == 0.0
    assert (compiled is None) == (not jit_compile)
    later = method.compiled_gradients
    method.schedule(4, 4)
    assert method.compiled_gradients is later  # of an equal schedule


def test_epochs_of_a_dataset_of_batches_are_counted_as_such(network, source):
    """The term starts after the first of two epochs of three steps."""
    method = build("gaussian", network(), weight=1.0, start_epoch=1)
    batches_of_seed_0 = data.training_batches(source(), 12, seed=0)  # without end
    history = method.fit(batches_of_seed_0, steps_per_epoch=3, epochs=2, shuffle=False, verbose=0).history["noised_cross_entropy"]
    assert method.start == 3 and history[0] == 0.0 < history[1]
    with pytest.raises(ValueError, match="start_step .* Try: steps_per_epoch"):
        method.fit(batches_of_seed_0, epochs=2, verbose=0)


def test_a_ramp_that_cannot_finish_warns(network):
    ramp = {"start_epoch": 300.0, "warmup_steps": 14000}  # Table 2 of the FCL paper, read literally
    (warning,) = build("fcl", network(), **ramp).schedule(48, 450 * 48)
    assert "51%" in warning
    (warning,) = build("fcl", network(), start_step=30000).schedule(48, 450 * 48)
    assert "never switched on" in warning
    assert build("fcl", network(), start_step=14000).schedule(48, 450 * 48) == []


def test_sum_is_the_mean_with_weight_times_batch_size(network, source):
    batch = next(batches(source(), 1))
    trained = []
    for options in ({"reduction": "sum", "weight": 0.01}, {"reduction": "mean", "weight": 0.12}):
        method = build("contrastive_gaussian", network(), **options)
        method.train_step(batch)
        trained.append(weights(method))
    for a, b in zip(*trained):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_weight_decay_adds_weight_times_variable_to_the_gradient(network, source):
    batch = next(batches(source(), 1))
    decayed, plain = build("cross_entropy", network(), weight_decay=0.3), build("cross_entropy", network())
    start = [v.numpy() for v in plain.classifier.trainable_variables]
    with_decay, without = (m.gradients(batch, batch.step[0])[0] for m in (decayed, plain))
    for a, b, w in zip(with_decay, without, start):
        np.testing.assert_allclose(a - b, 0.3 * w, atol=1e-5)


def test_fcl_terms_equal_the_papers(network, source):
    """Utility from the clean training-mode pass; low-utility noise the positive, high-utility noise the negative."""
    batch = next(batches(source(), 1))
    method = build("fcl", network(), weight=2.0)
    arguments = {}

    def contrast(anchors, positives, negatives, negative_weights):
        arguments.update(anchors=anchors, positives=positives, negatives=negatives, weights=negative_weights)
        return losses.feature_contrastive(anchors, positives, negatives, method.temperature, negative_weights)

    method.contrast = contrast
    terms, _ = method.loss_terms(batch, training=True)
    images = batch.views[0]
    with tf.GradientTape() as tape:
        tape.watch(images)
        clean = method.encode(images, True, update_statistics=False)
        loss = losses.cross_entropy(batch.labels, clean["logits"])
    utility = np.abs(tape.gradient(loss, images).numpy()).reshape(12, -1)
    np.testing.assert_allclose(arguments["anchors"], clean["embedding"], atol=1e-6)
    low, high = methods.fcl.perturb(images, utility.reshape(images.shape), 20, 0.5, method.random_seed(batch.step[0], 1))
    for perturbed, expected in ((low, np.argsort(utility, kind="stable")[:, :20]), (high, np.argsort(-utility, kind="stable")[:, :20])):
        changed = (perturbed.numpy() != images.numpy()).reshape(12, -1)
        assert [set(np.flatnonzero(row)) for row in changed] == [set(row) for row in expected]
    np.testing.assert_allclose(arguments["positives"], method.classifier(low, training=False)["embedding"], atol=1e-6)
    np.testing.assert_allclose(arguments["negatives"], method.classifier(high, training=False)["embedding"], atol=1e-6)
    assert arguments["weights"].numpy().tolist() == [1.0] * 12
    expected = losses.feature_contrastive(*(arguments[n] for n in ("anchors", "positives", "negatives")), 0.1)
    np.testing.assert_allclose(terms["feature_contrastive"], 2.0 * expected, rtol=1e-5)


def test_fcl_drops_the_negative_of_an_image_without_utility(network, source):
    batch = next(batches(source(), 1))
    method, weights_seen = build("fcl", network(), minimum_utility=1e9), []
    method.contrast = lambda a, p, n, w: weights_seen.append(w) or losses.feature_contrastive(a, p, n, 0.1, w)
    method.loss_terms(batch, training=True)
    assert weights_seen[0].numpy().tolist() == [0.0] * 12


def test_fcl_options_change_the_result(network, source):
    batch = next(batches(source(), 1))

    def after(**options):
        method = build("fcl", network(), weight=1.0, **options)
        method.train_step(batch)
        return weights(method)

    base = after()
    for options in ({"form": "margin"}, {"selection": "random"}, {"clip": True}):
        assert any(not np.array_equal(a, b) for a, b in zip(base, after(**options))), options


def test_overlapping_perturbations_warn(network):
    with pytest.warns(UserWarning, match="overlap"):
        build("fcl", network(), k=200)
