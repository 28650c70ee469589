"""PuzzleMix: saliency against finite differences, the loss to both labels, steps, and the noise of Adversarial Puzzle Mix."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods.common import batches, build, weights
from tf_robust.methods import mixing, puzzlemix


def batch_of(source, count=12):
    return next(batches(source, 1, count))


def test_saliency_equals_finite_differences(network, source):
    """Against central differences, in inference mode: without the other images of the batch."""
    model, batch = network(shape=(16, 16, 2)), batch_of(source(shape=(16, 16, 2)))
    images, labels = batch.views[0].numpy(), batch.labels.numpy()
    saliency = puzzlemix.PuzzleMix(model).saliency(batch.views[0], batch.labels).numpy()
    for i, row, column in ((0, 3, 4), (5, 8, 11), (11, 1, 1)):
        slopes = []
        for channel in range(2):
            moved = np.repeat(images[i][None], 2, axis=0)
            moved[:, row, column, channel] += [0.01, -0.01]
            logits = model(moved, training=False)["logits"].numpy().astype(np.float64)
            loss = np.log(np.exp(logits).sum(axis=1)) - logits[:, labels[i]]
            slopes.append((loss[0] - loss[1]) / 0.02)
        assert saliency[i, row, column] == pytest.approx(np.sqrt(np.mean(np.square(slopes))), rel=0.01)


def test_saliency_leaves_batch_norm_alone(network, source):
    batch, method = batch_of(source()), build("puzzlemix", network())
    before = [v.numpy() for v in method.classifier.non_trainable_variables]
    method.saliency(batch.views[0], batch.labels)
    for old, new in zip(before, method.classifier.non_trainable_variables):
        np.testing.assert_array_equal(old, new)


def test_block_fractions_sum_to_one_and_are_equal_without_saliency():
    saliency = np.stack([np.zeros([4, 6]), np.arange(24).reshape(4, 6)]).astype(np.float32)
    fractions = puzzlemix.block_fractions(saliency, 2, 3).numpy()
    np.testing.assert_allclose(fractions[0], np.full([2, 3], 1 / 6))
    blocks = [[saliency[1, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].sum() for j in range(3)] for i in range(2)]
    np.testing.assert_allclose(fractions[1], np.array(blocks) / saliency[1].sum(), rtol=1e-5)


def test_loss_weighs_both_labels_by_the_mask(network, source):
    batch, method = batch_of(source()), build("puzzlemix", network(batch_norm=False), block_counts=(4,))
    terms, logits = method.loss_terms(batch, training=True)
    images, partner = batch.views[0], mixing.partners(method.random_seed(batch.step[0], 0), 12).numpy()
    lam = mixing.beta(method.shared_seed(batch.step[0], 0), 1.0, 1.0)
    mixed, kept = method.mix(images, method.saliency(images, batch.labels), partner, lam, 4)
    assert 0 < np.ptp(kept)
    np.testing.assert_allclose(logits, method.encode(mixed, True)["logits"], atol=1e-5)
    probabilities, labels, kept = tf.nn.softmax(logits).numpy(), batch.labels.numpy(), kept.numpy()
    expected = -kept * np.log(probabilities[range(12), labels]) - (1 - kept) * np.log(probabilities[range(12), labels[partner]])
    np.testing.assert_allclose(terms["cross_entropy"], expected, rtol=1e-5)
    binary = puzzlemix.PuzzleMix(method.classifier, loss="binary_cross_entropy")
    targets = kept[:, None] * np.eye(3)[labels] + (1 - kept)[:, None] * np.eye(3)[labels[partner]]
    expected = -(targets * np.log(probabilities) + (1 - targets) * np.log(1 - probabilities)).mean(axis=1)
    np.testing.assert_allclose(binary.mixed_loss(batch.labels, partner, kept, logits), expected, rtol=1e-4)


def test_block_counts_are_drawn_equally(network, source):
    """Each step mixes on the grid that its seed draws; over many steps each grid is drawn."""
    method, drawn = build("puzzlemix", network(), block_counts=(2, 4, 8)), []
    for step in range(60):
        index = tf.random.stateless_uniform([], method.shared_seed(step, 1), 0, 3, tf.int32)
        drawn.append(method.block_counts[int(index)])
    assert min(drawn.count(count) for count in (2, 4, 8)) > 8
    batch = batch_of(source())
    method.mix = lambda images, saliency, partner, lam, count, noise: (
        tf.fill(tf.shape(images), count / 16.0),
        tf.ones_like(images[:, 0, 0, 0]),
    )
    for step in range(4):
        _, logits = method.loss_terms(batch._replace(step=tf.fill([12], step)), training=False)
        flat = method.encode(tf.fill(batch.views[0].shape, drawn[step] / 16.0), False)["logits"]
        np.testing.assert_allclose(logits, flat, atol=1e-6)


def test_a_single_image_is_mixed_with_itself(network, source):
    logs = build("puzzlemix", network()).train_step(batch_of(source(), count=1))
    assert np.isfinite(float(logs["total"]))


def test_graph_and_eager_steps_are_equal(network, source):
    batch, trained = batch_of(source()), []
    for function in (lambda step: step, tf.function):
        method = build("puzzlemix", network())
        function(tf.autograph.experimental.do_not_convert(method.train_step))(batch)
        trained.append(np.concatenate([value.ravel() for value in weights(method)]))
    np.testing.assert_allclose(*trained, atol=1e-5)


def test_block_counts_that_do_not_divide_are_dropped():
    assert puzzlemix.fitting_block_counts((2, 4, 8, 16), (28, 28)) == (2, 4)
    assert puzzlemix.fitting_block_counts((2, 4, 8, 16), (16, 24)) == (2, 4, 8)


def test_noise_is_one_signed_step_from_a_start_inside_ball_and_pixel_range():
    random, radius = np.random.RandomState(0), 0.1
    images = random.choice([0.0, 0.03, 0.5, 1.0], size=(4, 8, 8, 3)).astype(np.float32)
    start = puzzlemix.random_start(tf.constant(images), radius, tf.constant([3, 4], tf.int64)).numpy()
    assert np.abs(start).max() <= radius and (images + start).min() >= 0.0 and (images + start).max() <= 1.0
    inside = start[images == 0.5]
    assert np.abs(inside).mean() == pytest.approx(radius / 2, rel=0.15) and abs(inside.mean()) < 0.02
    assert (start[images == 0.0] >= 0).all() and (start[images == 1.0] <= 0).all()
    gradient = random.choice([-2.0, 0.0, 0.1], size=images.shape).astype(np.float32)
    expected = 0.4 * np.clip(start + (radius + 2 / 255) * np.sign(gradient), -radius, radius)
    np.testing.assert_allclose(puzzlemix.one_step(start, gradient, radius, 0.4), expected, atol=1e-7)


def test_noise_of_a_method_follows_the_gradient_at_the_noisy_images(network, source):
    method, batch = puzzlemix.PuzzleMix(network(), adversarial_probability=1.0, adversarial_radius=0.05), batch_of(source())
    images, labels, step = batch.views[0], batch.labels, batch.step[0]
    saliency, noise = method.saliency_and_noise(images, labels, step)
    start = puzzlemix.random_start(images, 0.05, method.random_seed(step, 1))
    gradient = method.gradient(images + start, labels).numpy()
    fraction = float(tf.random.stateless_uniform([], method.shared_seed(step, 3)))
    np.testing.assert_allclose(saliency, np.sqrt((gradient**2).mean(axis=-1)), rtol=1e-4, atol=1e-7)
    expected = fraction * np.clip(start + (0.05 + 2 / 255) * np.sign(gradient), -0.05, 0.05)
    assert np.mean(np.abs(noise[0] - expected) > 1e-6) < 0.01  # a sign may differ where the gradient is next to 0
    np.testing.assert_array_equal(noise[0], noise[1])


def test_images_and_partners_get_noise_independently_with_the_given_probability(network, source):
    method, batch = puzzlemix.PuzzleMix(network(), adversarial_probability=0.3), batch_of(source())
    compute = tf.function(lambda step: method.saliency_and_noise(batch.views[0], batch.labels, step), autograph=False)
    draws, plain = [], method.saliency(batch.views[0], batch.labels).numpy()
    for step in tf.range(150, dtype=tf.int64):
        saliency, noise = compute(step)
        sides = [bool((side != 0).any()) for side in noise.numpy()]
        assert any(sides) == (np.abs(saliency - plain).max() > 1e-6)
        draws.append(sides)
    rates = np.mean(draws, axis=0)
    assert (0.15 < rates).all() and (rates < 0.45).all()
    assert {tuple(sides) for sides in draws} == {(a, b) for a in (False, True) for b in (False, True)}


def test_noise_is_mixed_under_the_mask_of_the_images_without_it():
    network = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten()])
    method, random = puzzlemix.PuzzleMix(network, transport=False, block_counts=(4,)), np.random.RandomState(0)
    images, noise = random.rand(6, 16, 16, 3).astype(np.float32), random.uniform(-0.3, 0.3, (2, 6, 16, 16, 3)).astype(np.float32)
    saliency, partner = random.gamma(0.3, size=(6, 16, 16)).astype(np.float32), random.permutation(6)
    mixed, kept = method.mix(tf.constant(images), saliency, partner, 0.4, 4, noise)
    mask = method.mask(tf.constant(images), puzzlemix.block_fractions(saliency, 4, 4), partner, 0.4).numpy()
    pixels = np.kron(mask, np.ones([1, 4, 4]))[..., None]
    expected = pixels * np.clip(images + noise[0], 0, 1) + (1 - pixels) * np.clip(images[partner] + noise[1][partner], 0, 1)
    np.testing.assert_allclose(mixed, expected, atol=1e-6)
    np.testing.assert_allclose(kept, mask.mean(axis=(1, 2)), rtol=1e-6)


def test_a_step_with_noise_is_finite_and_differs_from_one_without(network, source):
    def loss(probability):
        method = puzzlemix.PuzzleMix(network(), adversarial_probability=probability)
        return method.loss_terms(batch_of(source()), training=True)[0]["cross_entropy"].numpy()

    noised = loss(1.0)
    assert np.isfinite(noised).all() and (noised != loss(0.0)).any()
    np.testing.assert_array_equal(noised, loss(1.0))
