"""AugMax: its adversarial mixing weights, the loss, and the two batch norms."""

import keras
import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

from tf_robust import data, losses
from tf_robust.methods.augmax import AugMax, initial_weights, mixture
from tf_robust.training import loop

CHAINS = 3
SEED = tf.constant([5, 6], tf.int64)


def build(network, **options):
    method = AugMax(network, **options)
    method.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    method.optimizer.build(method.trainable_variables)
    return method


def shifted(images, seed):
    """Stands in for a chain: dims each image, flips it, adds noise, each by its own draw."""
    draws = tf.random.stateless_uniform([tf.shape(images)[0], 1, 1, 3], seed)
    noise = tf.random.stateless_uniform(tf.shape(images), seed)
    flipped = tf.where(draws[..., :1] < 0.5, images[:, ::-1], images)
    return flipped * draws[..., 1:2] * (1.0 - 0.3 * draws[..., 2:]) + 0.3 * draws[..., 2:] * noise


def batches(source, count, batch_size=12):
    views = [data.augment.clean, *[shifted] * (CHAINS + 1)]
    return list(data.training_batches(source, batch_size, seed=0, views=views).take(count))


TRAINED_WEIGHTS = []


@pytest.fixture
def trained(network, source):
    """Returns a method whose classifier is trained on the tiny set, and a batch."""
    method = build(network(), jsd_weight=1.0)
    if not TRAINED_WEIGHTS:
        loop.fit(method, source(), epochs=6, batch_size=12, views=[data.augment.clean, *[shifted] * (CHAINS + 1)])
        TRAINED_WEIGHTS.extend(network.get_weights() for network in (method.classifier, method.auxiliary))
    method.classifier.set_weights(TRAINED_WEIGHTS[0])
    method.auxiliary.set_weights(TRAINED_WEIGHTS[1])
    return method, batches(source(), 1)[0]


def loss_of(method, batch, scores, fraction):
    """Returns the cross-entropy [N] of mixtures made by NumPy, with the moving averages of the mixtures' batch norm."""
    clean, *chains, _ = (view.numpy().astype(np.float64) for view in batch.views)
    weights = scipy.special.softmax(np.asarray(scores, np.float64), axis=1)
    mixed = np.einsum("nk,knhwc->nhwc", weights, np.stack(chains))
    fraction = np.asarray(fraction, np.float64)[:, None, None, None]
    logits = method.auxiliary(tf.constant((1 - fraction) * clean + fraction * mixed, tf.float32), training=False)["logits"]
    return losses.cross_entropy(batch.labels, logits).numpy()


def test_mixture_is_the_weighted_mean():
    random = np.random.RandomState(0)
    sample_images, scores, fraction = random.rand(4, 5, 3, 2, 3), random.randn(5, 3), random.rand(5)
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = [
        (1 - m) * p[0] + m * sum(w[k] * p[1 + k] for k in range(3)) for p, w, m in zip(sample_images.swapaxes(0, 1), weights, fraction)
    ]
    sample_images, scores, fraction = (tf.constant(x, tf.float32) for x in (sample_images, scores, fraction))
    np.testing.assert_allclose(mixture(sample_images[0], list(sample_images[1:]), scores, fraction), expected, atol=1e-6)


def test_initial_weights_are_uniform():
    scores, fraction = (x.numpy() for x in initial_weights(SEED, 4000, CHAINS))
    assert scores.shape == (4000, CHAINS) and fraction.shape == (4000,)
    for column in (*scores.T, fraction):
        assert scipy.stats.kstest(column, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(np.c_[scores, fraction].T) - np.eye(CHAINS + 1)).max() < 0.06


def test_gradients_equal_finite_differences(trained):
    method, batch = trained
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
def test_the_loss_rises_and_weights_stay_in_range(trained, friendly):
    method, batch = trained
    method.friendly, method.step_size, clean, chains = friendly, 0.05, batch.views[0], batch.views[1:-1]
    start = initial_weights(SEED, 12, CHAINS)
    before, means = loss_of(method, batch, *start).mean(), []
    for method.steps in (1, 3, 10):
        scores, fraction = method.ascend(clean, chains, batch.labels, SEED)
        means.append(loss_of(method, batch, scores, fraction).mean())
        weights = tf.nn.softmax(scores).numpy()
        assert (weights >= 0).all() and (0 <= fraction.numpy()).all() and (fraction.numpy() <= 1).all()
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-6)
    assert before < means[0] < means[1] < means[2]


def test_steps_have_the_given_size(trained):
    method, batch = trained
    method.steps, method.friendly = 1, False
    scores, fraction = method.ascend(batch.views[0], batch.views[1:-1], batch.labels, SEED)
    start = initial_weights(SEED, 12, CHAINS)
    score_gradient, fraction_gradient, _ = method.mixture_gradients(batch.views[0], batch.views[1:-1], batch.labels, *start)
    np.testing.assert_allclose(scores - start[0], 0.1 * np.sign(score_gradient), atol=1e-6)
    np.testing.assert_allclose(fraction, np.clip(start[1] + 0.1 * np.sign(fraction_gradient), 0, 1), atol=1e-6)


def test_friendly_ascent_stops_once_an_image_is_misclassified(trained):
    method, batch = trained
    clean, chains = batch.views[0], batch.views[1:-1]
    wrong = (batch.labels + 1) % 3
    labels = tf.where(tf.range(12) % 2 == 0, wrong, batch.labels)  # every other image is misclassified from the start
    start = initial_weights(SEED, 12, CHAINS)

    def misclassified(scores, fraction):
        logits = method.auxiliary(mixture(clean, chains, scores, fraction), training=False)["logits"]
        return np.argmax(logits, axis=1) != labels.numpy()

    expected, frozen = [x.numpy() for x in start], np.zeros(12, bool)
    for _ in range(6):
        frozen |= misclassified(*map(tf.constant, expected))
        gradients = method.mixture_gradients(clean, chains, labels, *map(tf.constant, expected))[:2]
        expected[0] = np.where(frozen[:, None], expected[0], expected[0] + np.float32(0.1) * np.sign(gradients[0]))
        expected[1] = np.where(frozen, expected[1], np.clip(expected[1] + np.float32(0.1) * np.sign(gradients[1]), 0, 1))
    method.steps = 6
    for result, value, initial in zip(method.ascend(clean, chains, labels, SEED), expected, start):
        np.testing.assert_allclose(result, value, atol=1e-6)
        assert (result.numpy() == initial.numpy()).any() and (result.numpy() != initial.numpy()).any()


@pytest.mark.parametrize("dual", [True, False])
def test_terms_equal_the_papers(trained, dual):
    method, batch = trained
    for variable in method.auxiliary.trainable_variables[2:4]:
        variable.assign(variable + 0.3)  # scale and offset of its batch norm
    if not dual:
        method.auxiliary = None
    clean, *chains, augmix = batch.views
    hard = mixture(clean, chains, *method.ascend(clean, chains, batch.labels, method.random_seed(batch.step[0], 0)))
    terms, logits = method.loss_terms(batch, training=True)
    all_logits = [
        network(view, training=True)["logits"]
        for network, view in ((method.classifier, clean), (method.auxiliary or method.classifier, hard), (method.classifier, augmix))
    ]
    np.testing.assert_allclose(logits, all_logits[0], atol=1e-6)
    p = scipy.special.softmax(np.asarray(all_logits, np.float64), axis=-1)
    np.testing.assert_allclose(terms["cross_entropy"], -np.log(p[0][np.arange(12), batch.labels]), rtol=1e-4, atol=1e-6)
    entropy = -(p * np.log(p)).sum(-1)
    mean = p.mean(0)
    np.testing.assert_allclose(terms["stability"], -(mean * np.log(mean)).sum(-1) - entropy.mean(0), atol=1e-5)


@pytest.mark.parametrize("dual", [True, False])
def test_only_clean_and_random_mixtures_update_the_averages(network, source, dual):
    batch = batches(source(), 1)[0]
    method, other = build(network(), dual_batch_norm=dual), build(network())
    method.train_step(batch)
    other.encode(batch.views[-1], True)
    other.encode(batch.views[0], True)
    for a, b in zip(method.classifier.non_trainable_variables, other.classifier.non_trainable_variables):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_mixtures_update_the_averages_of_their_own_batch_norm(network, source):
    batch = batches(source(), 1)[0]
    method, other = build(network()), build(network())
    hard = mixture(
        batch.views[0],
        batch.views[1:-1],
        *method.ascend(batch.views[0], batch.views[1:-1], batch.labels, method.random_seed(batch.step[0], 0)),
    )
    method.train_step(batch)
    other.encode(hard, True)
    for a, b, c in zip(
        method.auxiliary.non_trainable_variables, other.classifier.non_trainable_variables, method.classifier.non_trainable_variables
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)
        assert np.abs(np.subtract(a, c)).max() > 1e-4


def test_only_scale_and_offset_are_trained_separately(network, source):
    method = build(network(), dual_batch_norm=True)
    for batch in batches(source(), 2):
        method.train_step(batch)
    pairs = list(zip(method.classifier.trainable_variables, method.auxiliary.trainable_variables))
    separate = [a.name for a, b in pairs if a is not b]
    assert separate == ["gamma", "beta"] and len(pairs) == 8
    assert all((a.numpy() != b.numpy()).any() for a, b in pairs if a is not b)
    assert len(method.trainable_variables) == 10 and len(build(network(), dual_batch_norm=False).trainable_variables) == 8


def test_no_gradient_flows_through_the_mixing_weights(network, source, monkeypatch):
    """The gradients of the network's weights equal those with constant mixing weights."""
    batch = batches(source(), 1)[0]
    method = build(network())
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
        method = build(network())
    loop.fit(method, source(), epochs=1, batch_size=12, views=[data.augment.clean, *[shifted] * (CHAINS + 1)])
    (mean, _), (own, _) = (net.non_trainable_variables[-2:] for net in (method.classifier, method.auxiliary))
    assert np.isfinite(mean.numpy()).all() and np.isfinite(own.numpy()).all() and np.abs(mean.numpy() - own.numpy()).max() > 1e-4
