"""NoisyMix and the methods that are parts of it, against NumPy; CutMix's boxes against a loop."""

import numpy as np
import pytest
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


def at_step(batch, step, views=3):
    return data.Batch(batch.views[:views], batch.labels, tf.fill([N], tf.constant(step, tf.int64)))


def build(network, **options):
    return methods.METHODS["noisymix"](network(batch_norm=False), **options)


def softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def entropy(p):
    return -(p * np.log(p)).sum(axis=1)


def drawn(method, step):
    """The share and the partners of a step."""
    return (float(mixing.beta(method.shared_seed(step, 0), method.alpha, method.alpha)),
            mixing.partners(method.random_seed(step, 0), N).numpy())


def test_terms_of_mixed_inputs_are_the_papers(network, batch):
    method = build(network, stages=(0,), noise="none", jsd_weight=12.0)
    share, partner = drawn(method, 4)
    assert 0 < share < 1 and sorted(partner) == list(range(N)) and (partner != np.arange(N)).any()
    probabilities = [softmax(method.classifier(share * v + (1 - share) * v.numpy()[partner])["logits"].numpy())
                     for v in batch.views]
    labels = batch.labels.numpy()
    log = np.log(probabilities[0])
    expected = -(share * log[np.arange(N), labels] + (1 - share) * log[np.arange(N), labels[partner]])
    terms, logits = method.loss_terms(batch, training=True)
    np.testing.assert_allclose(terms["cross_entropy"], expected, rtol=1e-4)
    np.testing.assert_allclose(softmax(logits.numpy()), probabilities[0], rtol=1e-4)
    divergence = entropy(sum(probabilities) / 3) - sum(map(entropy, probabilities)) / 3
    np.testing.assert_allclose(terms["stability"], 12 * divergence, rtol=1e-3, atol=1e-6)


def test_mixing_at_stage_1_mixes_what_the_stage_gives(network, batch):
    method = build(network, stages=(1,), noise="none", jsd_weight=0.0)
    share, partner = drawn(method, 4)
    first, second, last = models.stages(method.classifier)
    features = second(first(batch.views[0])).numpy()
    expected = last(share * features + (1 - share) * features[partner])["logits"]
    _, logits = method.loss_terms(at_step(batch, 4, views=1), training=True)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_every_stage_is_drawn_and_one_at_a_time(network, batch):
    method = build(network, noise="none", jsd_weight=0.0)
    pieces = models.stages(method.classifier)
    assert method.stages == (0, 1)
    seen = []
    for step in range(12):
        share, partner = drawn(method, step)
        sample_image = batch.views[0].numpy()
        at_0 = method.classifier(share * sample_image + (1 - share) * sample_image[partner])["logits"].numpy()
        features = pieces[1](pieces[0](sample_image)).numpy()
        at_1 = pieces[2](share * features + (1 - share) * features[partner])["logits"].numpy()
        logits = method.loss_terms(at_step(batch, step, views=1), training=True)[1].numpy()
        seen.append([np.allclose(logits, expected, rtol=1e-4, atol=1e-5) for expected in (at_0, at_1)])
    assert {(True, False), (False, True)} == set(map(tuple, seen))


def treated(method, views, step):
    """What comes out of stage 0 after noise alone: [V, N, ...]."""
    x = tf.concat([tf.zeros_like(views[0]) + level for level in range(1, len(views) + 1)], axis=0)
    method.mixing = False
    out = method._treated(x, len(views), tf.range(N), tf.constant(1.0), tf.constant(step, tf.int64))
    return np.split(out.numpy(), len(views))


def test_paper_noise_is_one_draw_for_all_views(network, batch):
    method = build(network, noise="paper", additive_noise=0.4, multiplicative_noise=0.2)
    one, two, three = treated(method, batch.views, 3)
    # level * factor + added: the differences between the levels are the factor alone
    np.testing.assert_allclose(two - one, three - two, atol=1e-5)
    factor = two - one
    assert np.abs(factor - 1).max() <= 0.2 + 1e-5 and np.abs(factor - 1).std() == pytest.approx(0.2 / 12**0.5, rel=0.1)
    assert scipy.stats.kstest((one - factor).ravel() / 0.4, "norm").pvalue > 1e-3


def test_official_noise_differs_between_views_in_level_and_spares_values(network, batch):
    method = build(network, noise="official", additive_noise=0.5, multiplicative_noise=1e-6)
    spared, deviations = [], []
    for step in range(40):
        noise = [view - level for level, view in enumerate(treated(method, batch.views, step), start=1)]
        spared.append([np.mean(np.abs(n) < 1e-4) for n in noise])
        deviations.append([n[np.abs(n) >= 1e-4].std() for n in noise])
    np.testing.assert_allclose(np.mean(spared, axis=0), 0.65, atol=0.01)
    deviations = np.array(deviations) / 0.5 / [1, 2, 3]
    assert scipy.stats.kstest(deviations.ravel(), "beta", (2, 5)).pvalue > 1e-3
    assert np.corrcoef(deviations[:, 0], deviations[:, 1])[0, 1] < 0.5


def test_one_image_is_mixed_with_itself(network, batch):
    alone = data.Batch((batch.views[0][:1],), batch.labels[:1], batch.step[:1])
    for name, options in (("noisymix", {"noise": "none", "jsd_weight": 0.0}), ("cutmix", {})):
        method = methods.METHODS[name](network(batch_norm=False), **options)
        terms, logits = method.loss_terms(alone, training=True)
        np.testing.assert_allclose(logits, method.classifier(alone.views[0])["logits"], rtol=1e-4, atol=1e-5)
        assert terms["cross_entropy"].shape == [1]


def test_share_and_stage_are_the_same_on_all_replicas_and_partners_are_not(network, two_replicas):
    method = build(network)

    def draws():
        step = tf.constant(5, tf.int64)
        return mixing.beta(method.shared_seed(step, 0), 1.0, 1.0), mixing.partners(method.random_seed(step, 0), 50)
    share, partner = two_replicas.run(tf.function(draws))
    shares, orders = (two_replicas.experimental_local_results(x) for x in (share, partner))
    assert shares[0] == shares[1] and (orders[0].numpy() != orders[1].numpy()).any()


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_shares_are_of_the_beta_distribution(alpha):
    shares = [float(mixing.beta(tf.constant([seed, 1], tf.int64), alpha, alpha)) for seed in range(300)]
    assert scipy.stats.kstest(shares, "beta", (alpha, alpha)).pvalue > 1e-3


def test_views_that_do_not_fit_are_refused(network):
    build(network).check_views(("clean", "augmix", "augmix"))
    build(network, jsd_weight=0.0).check_views(("augmix",))
    with pytest.raises(ValueError, match="at least 2 views, say clean,augmix,augmix"):
        build(network).check_views(("clean",))
    with pytest.raises(ValueError, match="Expected one view"):
        build(network, jsd_weight=0.0).check_views(("clean", "augmix"))


def test_labels_that_are_not_indices_are_refused(network, batch):
    wrong = data.Batch(batch.views, tf.one_hot(batch.labels, CLASSES), batch.step)
    with pytest.raises(ValueError, match="class indices, int"):
        build(network).loss_terms(wrong, training=True)


@pytest.mark.parametrize("size, centre, share", [((16, 16), (0.5, 0.5), 0.7), ((16, 12), (0.0, 0.99), 0.2),
                                                 ((9, 16), (0.3, 0.1), 0.0), ((16, 16), (0.4, 0.9), 1.0)])
def test_a_box_covers_what_is_not_kept_and_is_cut_off_at_the_border(size, centre, share):
    mask, kept = cutmix.box(size, tf.constant(centre), tf.constant(share))
    expected = np.zeros(size, bool)
    sides = [int(length * np.sqrt(1 - share)) for length in size]
    for row in range(size[0]):
        for column in range(size[1]):
            starts = [int(length * c) - side // 2 for length, c, side in zip(size, centre, sides)]
            expected[row, column] = all(s <= p < s + side for p, s, side in zip((row, column), starts, sides))
    np.testing.assert_array_equal(mask[0, :, :, 0], expected)
    assert float(kept) == pytest.approx(1 - expected.mean())


def test_cutmix_pastes_the_partners_box_and_mixes_labels_by_its_area(network, batch):
    method = methods.METHODS["cutmix"](network(batch_norm=False))
    seen = []
    method.encode = lambda images, training: seen.append(images) or {"logits": tf.one_hot(batch.labels, CLASSES) * 9.0}
    terms, logits = method.loss_terms(at_step(batch, 4, views=1), training=True)
    sample_image, partner = batch.views[0].numpy(), drawn(method, 4)[1]
    changed = (seen[0].numpy() != sample_image)[np.arange(N) != partner].any(axis=0)
    assert 0 < changed.mean() < 1
    np.testing.assert_array_equal(seen[0], np.where(changed, sample_image[partner], sample_image))
    labels, log, kept = batch.labels.numpy(), np.log(softmax(logits.numpy())), 1 - changed.mean()
    expected = -(kept * log[np.arange(N), labels] + (1 - kept) * log[np.arange(N), labels[partner]])
    np.testing.assert_allclose(terms["cross_entropy"], expected, rtol=1e-4)


def test_cutmix_leaves_some_steps_alone_if_so_told(network, batch):
    method = methods.METHODS["cutmix"](network(batch_norm=False), probability=0.5)
    plain = method.classifier(batch.views[0])["logits"].numpy()
    alone = [np.allclose(method.loss_terms(at_step(batch, step, 1), training=True)[1], plain, atol=1e-5) for step in range(40)]
    assert 8 <= sum(alone) <= 32
