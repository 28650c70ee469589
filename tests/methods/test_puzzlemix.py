"""PuzzleMix: saliency against finite differences, the loss to both labels, steps, and argument checks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods.common import batches
from tf_robust.methods import mixing, puzzlemix


def build(network, **options):
    method = puzzlemix.PuzzleMix(network, **options)
    method.compile(optimizer=keras.optimizers.SGD(0.1))
    method.optimizer.build(network.trainable_variables)
    return method


def batch_of(source, step=0, count=12):
    return [*batches(source, step + 1, count)][step]


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
    batch, method = batch_of(source()), build(network())
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
    batch, method = batch_of(source()), build(network(batch_norm=False), block_counts=(4,))
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
    method, drawn = build(network(), block_counts=(2, 4, 8)), []
    for step in range(60):
        index = tf.random.stateless_uniform([], method.shared_seed(step, 1), 0, 3, tf.int32)
        drawn.append(method.block_counts[int(index)])
    assert {count: drawn.count(count) > 8 for count in (2, 4, 8)} == {2: True, 4: True, 8: True}
    batch = batch_of(source())
    method.mix = lambda images, saliency, partner, lam, count, noise: (
        tf.fill(tf.shape(images), count / 16.0),
        tf.ones_like(images[:, 0, 0, 0]),
    )
    for step in range(4):
        _, logits = method.loss_terms(batch._replace(step=tf.fill([12], step)), training=False)
        flat = method.encode(tf.fill(batch.views[0].shape, drawn[step] / 16.0), False)["logits"]
        np.testing.assert_allclose(logits, flat, atol=1e-6)


def test_steps_are_a_function_of_seed_and_step(network, source):
    def trained(seed, step=0):
        method = build(network(), seed=seed)
        logs = [method.train_step(batch_of(source(), epoch)) for epoch in (step, step + 1)][-1]
        assert np.isfinite(float(logs["total"])) and float(logs["total"]) == pytest.approx(float(logs["cross_entropy"]))
        return np.concatenate([v.numpy().ravel() for v in method.classifier.variables])

    first = trained(0)
    np.testing.assert_array_equal(first, trained(0))
    assert (first != trained(1)).any() and (first != trained(0, 1)).any()


def test_a_single_image_is_mixed_with_itself(network, source):
    logs = build(network()).train_step(batch_of(source(), count=1))
    assert np.isfinite(float(logs["total"]))


def test_graph_and_eager_steps_are_equal(network, source):
    batch, trained = batch_of(source()), []
    for function in (lambda step: step, tf.function):
        method = build(network())
        function(tf.autograph.experimental.do_not_convert(method.train_step))(batch)
        trained.append(np.concatenate([v.numpy().ravel() for v in method.classifier.variables]))
    np.testing.assert_allclose(*trained, atol=1e-5)


def test_block_counts_that_do_not_divide_are_dropped():
    assert puzzlemix.fitting_block_counts((2, 4, 8, 16), (28, 28)) == (2, 4)
    assert puzzlemix.fitting_block_counts((2, 4, 8, 16), (16, 24)) == (2, 4, 8)
