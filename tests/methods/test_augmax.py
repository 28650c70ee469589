"""AugMax: its adversarial mixing weights, the loss, and the two batch norms."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

from tests.methods.common import build
from tf_robust import data, losses
from tf_robust.methods.augmax import initial_weights, mixture
from tf_robust.training import loop

CHAINS = 3
SEED = tf.constant([5, 6], tf.int64)


def shifted(images, seed):
    """Stands in for a chain: dims each image, flips it, adds noise, each by its own draw."""
    draws = tf.random.stateless_uniform([tf.shape(images)[0], 1, 1, 3], seed)
    noise = tf.random.stateless_uniform(tf.shape(images), seed)
    flipped = tf.where(draws[..., :1] < 0.5, images[:, ::-1], images)
    return flipped * draws[..., 1:2] * (1.0 - 0.3 * draws[..., 2:]) + 0.3 * draws[..., 2:] * noise


VIEWS = (data.augment.clean, *[shifted] * (CHAINS + 1))


@pytest.fixture
def batch(source):
    return next(iter(data.training_batches(source(), 12, seed=0, views=VIEWS)))


TRAINED_WEIGHTS = []


@pytest.fixture
def method(network, source):
    """Returns a method whose classifier is trained on the tiny set."""
    method = build("augmax", network(), jsd_weight=1.0)
    networks = method.classifier, method.auxiliary
    if not TRAINED_WEIGHTS:
        loop.fit(method, source(), epochs=6, batch_size=12, views=VIEWS)
        TRAINED_WEIGHTS.extend(one.get_weights() for one in networks)
    for one, weights in zip(networks, TRAINED_WEIGHTS):
        one.set_weights(weights)
    return method


def mixture_by_numpy(clean, chains, scores, fraction):
    clean, scores, fraction = (np.asarray(value, np.float64) for value in (clean, scores, fraction))
    mixed = np.einsum("nk,knhwc->nhwc", scipy.special.softmax(scores, axis=1), np.stack(chains))
    fraction = fraction[:, None, None, None]
    return (1 - fraction) * clean + fraction * mixed


def loss_of(method, batch, scores, fraction):
    """Returns the cross-entropy [N] of mixtures made by NumPy, with the moving averages of the mixtures' batch norm."""
    clean, *chains, _ = batch.views
    logits = method.auxiliary(tf.constant(mixture_by_numpy(clean, chains, scores, fraction), tf.float32), training=False)["logits"]
    return losses.cross_entropy(batch.labels, logits).numpy()


def hard_mixture(method, batch):
    """Returns the mixture that a step of training takes."""
    clean, *chains, _ = batch.views
    return mixture(clean, chains, *method.ascend(clean, chains, batch.labels, method.random_seed(batch.step[0], 0)))


def test_mixture_is_the_weighted_mean():
    random = np.random.RandomState(0)
    (clean, *chains), scores, fraction = (x.astype(np.float32) for x in (random.rand(4, 5, 3, 2, 3), random.randn(5, 3), random.rand(5)))
    expected = mixture_by_numpy(clean, chains, scores, fraction)
    np.testing.assert_allclose(mixture(clean, chains, scores, fraction), expected, atol=1e-6)


def test_initial_weights_are_uniform():
    scores, fraction = (x.numpy() for x in initial_weights(SEED, 4000, CHAINS))
    assert scores.shape == (4000, CHAINS) and fraction.shape == (4000,)
    for column in (*scores.T, fraction):
        assert scipy.stats.kstest(column, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(np.c_[scores, fraction].T) - np.eye(CHAINS + 1)).max() < 0.06


def test_gradients_equal_finite_differences(method, batch):
    clean, *chains, _ = batch.views
    scores, fraction = initial_weights(SEED, 12, CHAINS)
    fraction = 0.1 + 0.8 * fraction
    score_gradient, fraction_gradient, logits = method.mixture_gradients(clean, chains, batch.labels, scores, fraction)
    np.testing.assert_allclose(losses.cross_entropy(batch.labels, logits), loss_of(method, batch, scores, fraction), rtol=1e-3, atol=1e-5)
    step = 0.02

    def slope(score_direction, fraction_direction):
        up, down = (
            loss_of(method, batch, scores + sign * step * score_direction, fraction + sign * step * fraction_direction) for sign in (1, -1)
        )
        return (up - down) / (2 * step)

    scale = np.abs(score_gradient).max()
    for i in range(CHAINS):
        np.testing.assert_allclose(score_gradient[:, i], slope(np.eye(CHAINS)[i], 0.0), atol=0.01 * scale, rtol=0.02)
    np.testing.assert_allclose(fraction_gradient, slope(0.0, 1.0), atol=0.01 * np.abs(fraction_gradient).max(), rtol=0.02)
    assert scale > 1e-3 and np.abs(fraction_gradient).max() > 1e-3


@pytest.mark.parametrize("friendly", [True, False])
def test_the_loss_rises(method, batch, friendly):
    method.friendly, method.step_size, clean, chains = friendly, 0.05, batch.views[0], batch.views[1:-1]
    means = [loss_of(method, batch, *initial_weights(SEED, 12, CHAINS)).mean()]
    for method.steps in (1, 3, 10):
        means.append(loss_of(method, batch, *method.ascend(clean, chains, batch.labels, SEED)).mean())
    assert (np.diff(means) > 0).all()


@pytest.mark.parametrize("friendly", [True, False])
def test_ascent_takes_signed_steps_and_a_friendly_one_stops_once_an_image_is_misclassified(method, batch, friendly):
    clean, chains = batch.views[0], batch.views[1:-1]
    wrong = (batch.labels + 1) % 3
    labels = tf.where(tf.range(12) % 2 == 0, wrong, batch.labels)  # every other image is misclassified from the start
    start = initial_weights(SEED, 12, CHAINS)

    def misclassified(scores, fraction):
        logits = method.auxiliary(mixture(clean, chains, scores, fraction), training=False)["logits"]
        return np.argmax(logits, axis=1) != labels.numpy()

    expected, frozen = [x.numpy() for x in start], np.zeros(12, bool)
    for _ in range(6):
        frozen |= friendly & misclassified(*map(tf.constant, expected))
        gradients = method.mixture_gradients(clean, chains, labels, *map(tf.constant, expected))[:2]
        expected[0] = np.where(frozen[:, None], expected[0], expected[0] + np.float32(0.1) * np.sign(gradients[0]))
        expected[1] = np.where(frozen, expected[1], np.clip(expected[1] + np.float32(0.1) * np.sign(gradients[1]), 0, 1))
    method.steps, method.friendly = 6, friendly
    for result, value, initial in zip(method.ascend(clean, chains, labels, SEED), expected, start):
        np.testing.assert_allclose(result, value, atol=1e-6)
        assert not friendly or (result.numpy() == initial.numpy()).any() and (result.numpy() != initial.numpy()).any()


@pytest.mark.parametrize("dual", [True, False])
def test_terms_equal_the_papers(method, batch, dual):
    for variable in method.auxiliary.trainable_variables[2:4]:
        variable.assign(variable + 0.3)  # scale and offset of its batch norm
    if not dual:
        method.auxiliary = None
    encoders = method.classifier, method.auxiliary or method.classifier, method.classifier
    views = batch.views[0], hard_mixture(method, batch), batch.views[-1]
    terms, logits = method.loss_terms(batch, training=True)
    all_logits = [encoder(view, training=True)["logits"] for encoder, view in zip(encoders, views)]
    np.testing.assert_allclose(logits, all_logits[0], atol=1e-6)
    p = scipy.special.softmax(np.asarray(all_logits, np.float64), axis=-1)
    np.testing.assert_allclose(terms["cross_entropy"], -np.log(p[0][np.arange(12), batch.labels]), rtol=1e-4, atol=1e-6)
    divergence = scipy.stats.entropy(p.mean(axis=0), axis=1) - scipy.stats.entropy(p, axis=2).mean(axis=0)
    np.testing.assert_allclose(terms["stability"], divergence, atol=1e-5)


@pytest.mark.parametrize("dual", [True, False])
def test_only_clean_and_random_mixtures_update_the_averages(network, batch, dual):
    method, other = build("augmax", network(), dual_batch_norm=dual), build("augmax", network())
    method.train_step(batch)
    other.encode(batch.views[-1], True)
    other.encode(batch.views[0], True)
    for a, b in zip(method.classifier.non_trainable_variables, other.classifier.non_trainable_variables):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_mixtures_update_the_averages_of_their_own_batch_norm(network, batch):
    method, other = build("augmax", network()), build("augmax", network())
    hard = hard_mixture(method, batch)
    method.train_step(batch)
    other.encode(hard, True)
    for a, b, c in zip(
        method.auxiliary.non_trainable_variables, other.classifier.non_trainable_variables, method.classifier.non_trainable_variables
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)
        assert np.abs(np.subtract(a, c)).max() > 1e-4


def test_only_scale_and_offset_are_trained_separately(network, batch):
    method = build("augmax", network())
    method.train_step(batch)
    pairs = list(zip(method.classifier.trainable_variables, method.auxiliary.trainable_variables))
    separate = [a.name for a, b in pairs if a is not b]
    assert separate == ["gamma", "beta"] and len(pairs) == 8
    assert all((a.numpy() != b.numpy()).any() for a, b in pairs if a is not b)
    single = build("augmax", network(), dual_batch_norm=False)
    assert len(method.trainable_variables) == 10 and len(single.trainable_variables) == 8


def test_no_gradient_flows_through_the_mixing_weights(network, batch, monkeypatch):
    """The gradients of the network's weights equal those with constant mixing weights."""
    method = build("augmax", network())
    gradients, *_ = method.gradients(batch, batch.step[0])
    mixing_weights = method.ascend(batch.views[0], batch.views[1:-1], batch.labels, method.random_seed(batch.step[0], 0))
    fixed = [tf.constant(x.numpy()) for x in mixing_weights]
    monkeypatch.setattr(method, "ascend", lambda *_: fixed)
    for a, b in zip(gradients, method.gradients(batch, batch.step[0])[0]):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
def test_two_replicas_keep_the_branches_separate(network, source, two_replicas):
    """Each replica's mixtures update the averages of the second branch only, not of the exported one."""
    with two_replicas.scope():
        method = build("augmax", network())
    loop.fit(method, source(), epochs=1, batch_size=12, views=VIEWS)
    (mean, _), (own, _) = (net.non_trainable_variables[-2:] for net in (method.classifier, method.auxiliary))
    assert np.isfinite(mean.numpy()).all() and np.isfinite(own.numpy()).all() and np.abs(mean.numpy() - own.numpy()).max() > 1e-4
