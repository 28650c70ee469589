"""NoisyMix and its parts against NumPy; CutMix's boxes against a loop."""

import keras
import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

from tf_robust import data, methods, models
from tf_robust.methods import cutmix, mixing

N, CLASSES = 6, 3


@pytest.fixture
def batch():
    random = np.random.RandomState(0)
    views = tuple(tf.constant(random.rand(N, 16, 16, 1), tf.float32) for _ in range(3))
    return data.Batch(views, tf.constant(np.arange(N) % CLASSES, tf.int64), tf.fill([N], tf.constant(4, tf.int64)))


def at_step(batch, step):
    """Returns the first view alone, as the batch of a step."""
    return data.Batch(batch.views[:1], batch.labels, tf.fill([N], tf.constant(step, tf.int64)))


def build(network, **options):
    return methods.METHODS["noisymix"](network(batch_norm=False), **options)


def drawn(method, step):
    """Returns the mixing coefficient and the partners of a step."""
    return (
        float(mixing.beta(method.shared_seed(step, 0), method.alpha, method.alpha)),
        mixing.partners(method.random_seed(step, 0), N).numpy(),
    )


def test_terms_of_mixed_inputs_equal_the_papers(network, batch):
    method = build(network, stages=(0,), noise="none", jsd_weight=12.0)
    lam, partner = drawn(method, 4)
    assert 0 < lam < 1 and sorted(partner) == list(range(N)) and (partner != np.arange(N)).any()
    mixed = [lam * view + (1 - lam) * view.numpy()[partner] for view in batch.views]
    probabilities = scipy.special.softmax([method.classifier(images)["logits"].numpy() for images in mixed], axis=2)
    labels, log = batch.labels.numpy(), np.log(probabilities[0])
    expected = -(lam * log[np.arange(N), labels] + (1 - lam) * log[np.arange(N), labels[partner]])
    terms, logits = method.loss_terms(batch, training=True)
    np.testing.assert_allclose(terms["cross_entropy"], expected, rtol=1e-4)
    np.testing.assert_allclose(scipy.special.softmax(logits.numpy(), axis=1), probabilities[0], rtol=1e-4)
    divergence = scipy.stats.entropy(probabilities.mean(axis=0), axis=1) - scipy.stats.entropy(probabilities, axis=2).mean(axis=0)
    np.testing.assert_allclose(terms["stability"], 12 * divergence, rtol=1e-3, atol=1e-6)


def small(**options):
    keras.utils.set_random_seed(0)
    return methods.NoisyMix(models.build("mlp", (1, 2, 1), 2), **options)


def logits_of_equal_views(method, step):
    """Returns logits [2, N, C] of two equal views, and the expected ones for mixing at stage 0 and at stage 1."""
    images, partner, lam = tf.constant(np.random.RandomState(0).rand(N, 1, 2, 1), tf.float32), tf.constant([1, 2, 3, 4, 5, 0]), 0.3
    logits = method.encode_mixed([images] * 2, partner, tf.constant(lam), tf.constant(step, tf.int64), True)
    pieces, expected = models.stages(method.classifier), []
    for stage in (0, 1):
        x = images
        for number, piece in enumerate(pieces):
            x = piece(x)
            if number == stage:
                x = lam * x + (1 - lam) * tf.gather(x, partner)
        expected.append(x["logits"].numpy())
    return tf.reshape(logits, [2, N, 2]).numpy(), np.stack(expected)


@pytest.mark.parametrize("own_stages, drawn", [(False, {(0, 0), (1, 1)}), (True, {(0, 0), (0, 1), (1, 0), (1, 1)})])
def test_each_step_or_view_draws_its_stage_with_the_same_lam_and_partners(own_stages, drawn):
    method, found = small(noise="none", own_stages=own_stages), set()
    for step in range(12):
        logits, expected = logits_of_equal_views(method, step)
        distances = np.abs(logits[:, None] - expected[None]).max(axis=(2, 3))  # [view, stage]
        np.testing.assert_allclose(distances.min(axis=1), 0.0, atol=1e-5)
        found.add(tuple(distances.argmin(axis=1).tolist()))
    assert found == drawn


@pytest.mark.parametrize("noise", ["paper", "official"])
def test_with_own_stages_each_view_draws_its_own_noise(noise):
    method = small(noise=noise, mixing=False, stages=(0,), own_stages=True)
    for step in range(3):
        logits, _ = logits_of_equal_views(method, step)
        assert np.abs(logits[0] - logits[1]).max() > 1e-3


def noised_levels(method, views, steps):
    """Returns constant views with noise in each of the steps: a list of [V, N, ...]."""
    x = tf.concat([tf.zeros_like(views[0]) + level for level in range(1, len(views) + 1)], axis=0)
    method.mixing = False

    @tf.function(autograph=False)
    def noised(step):
        return method._mix_and_noise(x, len(views), tf.range(N), tf.constant(1.0), step, method._official_noise(len(views), step))

    return [np.split(noised(tf.constant(step, tf.int64)).numpy(), len(views)) for step in steps]


def test_paper_noise_is_one_draw_for_all_views(network, batch):
    method = build(network, noise="paper", additive_noise=0.4, multiplicative_noise=0.2)
    ((one, two, three),) = noised_levels(method, batch.views, [3])
    # level * factor + noise: differences between the levels are the factor
    np.testing.assert_allclose(two - one, three - two, atol=1e-5)
    factor = two - one
    assert np.abs(factor - 1).max() <= 0.2 + 1e-5 and np.abs(factor - 1).std() == pytest.approx(0.2 / 12**0.5, rel=0.1)
    assert scipy.stats.kstest((one - factor).ravel() / 0.4, "norm").pvalue > 1e-3


def test_official_noise_differs_between_views_in_level_and_is_sparse(network, batch):
    method = build(network, noise="official", additive_noise=0.5, multiplicative_noise=1e-6)
    zeros, stds = [], []
    for views in noised_levels(method, batch.views, range(40)):
        noise = [view - level for level, view in enumerate(views, start=1)]
        zeros.append([np.mean(np.abs(n) < 1e-4) for n in noise])
        stds.append([n[np.abs(n) >= 1e-4].std() for n in noise])
    np.testing.assert_allclose(np.mean(zeros, axis=0), 0.65, atol=0.01)
    stds = np.array(stds) / 0.5 / [1, 2, 3]
    assert scipy.stats.kstest(stds.ravel(), "beta", (2, 5)).pvalue > 1e-3
    assert np.corrcoef(stds[:, 0], stds[:, 1])[0, 1] < 0.5


def test_one_image_is_mixed_with_itself(network, batch):
    alone = data.Batch((batch.views[0][:1],), batch.labels[:1], batch.step[:1])
    for name, options in (("noisymix", {"noise": "none", "jsd_weight": 0.0}), ("cutmix", {})):
        method = methods.METHODS[name](network(batch_norm=False), **options)
        terms, logits = method.loss_terms(alone, training=True)
        np.testing.assert_allclose(logits, method.classifier(alone.views[0])["logits"], rtol=1e-4, atol=1e-5)
        assert terms["cross_entropy"].shape == [1]


def test_replicas_share_lam_but_not_partners(network, two_replicas):
    method = build(network)

    def draws():
        step = tf.constant(5, tf.int64)
        return mixing.beta(method.shared_seed(step, 0), 1.0, 1.0), mixing.partners(method.random_seed(step, 0), 50)

    lam, partner = two_replicas.run(tf.function(draws))
    lams, orders = (two_replicas.experimental_local_results(x) for x in (lam, partner))
    assert lams[0] == lams[1] and (orders[0].numpy() != orders[1].numpy()).any()


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_lam_is_beta_distributed(alpha):
    draw = tf.function(lambda seed: mixing.beta(tf.stack([seed, 1]), alpha, alpha), autograph=False)
    lams = [float(draw(seed)) for seed in tf.range(300, dtype=tf.int64)]
    assert scipy.stats.kstest(lams, "beta", (alpha, alpha)).pvalue > 1e-3


def test_labels_that_are_neither_indices_nor_probabilities_raise(network, batch):
    wrong = data.Batch(batch.views, tf.cast(batch.labels, tf.float32), batch.step)
    with pytest.raises(ValueError, match="class indices, int"):
        build(network).loss_terms(wrong, training=True)


@pytest.mark.parametrize(
    "size, center, lam",
    [((16, 16), (0.5, 0.5), 0.7), ((16, 12), (0.0, 0.99), 0.2), ((9, 16), (0.3, 0.1), 0.0), ((16, 16), (0.4, 0.9), 1.0)],
)
def test_box_is_clipped_at_the_border(size, center, lam):
    mask, kept = cutmix.box(size, tf.constant(center), tf.constant(lam))
    expected = np.zeros(size, bool)
    sides = [int(length * np.sqrt(1 - lam)) for length in size]
    for row in range(size[0]):
        for column in range(size[1]):
            starts = [int(length * c) - side // 2 for length, c, side in zip(size, center, sides)]
            expected[row, column] = all(s <= p < s + side for p, s, side in zip((row, column), starts, sides))
    np.testing.assert_array_equal(mask[0, :, :, 0], expected)
    assert float(kept) == pytest.approx(1 - expected.mean())


def test_cutmix_pastes_the_partners_box_and_mixes_labels_by_its_area(network, batch):
    method = methods.METHODS["cutmix"](network(batch_norm=False))
    inputs = []
    method.encode = lambda images, training: inputs.append(images) or {"logits": tf.one_hot(batch.labels, CLASSES) * 9.0}
    terms, logits = method.loss_terms(at_step(batch, 4), training=True)
    sample_image, partner = batch.views[0].numpy(), drawn(method, 4)[1]
    changed = (inputs[0].numpy() != sample_image)[np.arange(N) != partner].any(axis=0)
    assert 0 < changed.mean() < 1
    np.testing.assert_array_equal(inputs[0], np.where(changed, sample_image[partner], sample_image))
    labels, log, kept = batch.labels.numpy(), scipy.special.log_softmax(logits.numpy(), axis=1), 1 - changed.mean()
    expected = -(kept * log[np.arange(N), labels] + (1 - kept) * log[np.arange(N), labels[partner]])
    np.testing.assert_allclose(terms["cross_entropy"], expected, rtol=1e-4)


def test_cutmix_mixes_with_the_given_probability(network, batch):
    method = methods.METHODS["cutmix"](network(batch_norm=False), probability=0.5)
    plain = method.classifier(batch.views[0])["logits"].numpy()
    unmixed = [np.allclose(method.loss_terms(at_step(batch, step), training=True)[1], plain, atol=1e-5) for step in range(40)]
    assert 8 <= sum(unmixed) <= 32
