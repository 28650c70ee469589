"""MoCo: its loss against NumPy, the queue's order, the key encoder's moving average, and gradients."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import tiny_network, tiny_source
from tests.methods.common import build, last_logs, mirrored, two_views, unit
from tests.methods.users_models import cheap_views
from tf_robust import data
from tf_robust.data.augment import clean
from tf_robust.methods import mixing
from tf_robust.training import loop

SHAPE = (8, 8, 1)


def moco(batch_norm=True, **options):
    return build("moco", tiny_network(SHAPE, batch_norm=batch_norm), **{"queue": 10, "projection_width": 5, **options})


def test_loss_equals_the_papers():
    method, batch = moco(batch_norm=False, temperature=0.3), two_views(4, SHAPE)
    query, key = (unit(method.query_encoder(view)[1].numpy()) for view in batch.views)
    queue = method.memory.numpy()
    np.testing.assert_allclose(np.linalg.norm(queue, axis=1), 1.0, rtol=1e-5)
    expected = [np.log(np.exp(q @ k / 0.3) + np.exp(queue @ q / 0.3).sum()) - q @ k / 0.3 for q, k in zip(query, key)]
    terms, logits = method.loss_terms(batch, training=True)
    np.testing.assert_allclose(terms["contrastive"], expected, rtol=1e-4)
    np.testing.assert_allclose(logits, method.classifier(batch.views[0])["logits"], atol=1e-6)


def test_queue_holds_the_newest_keys_and_wraps_around():
    method, rows = moco(batch_norm=False, momentum=0.0), np.zeros([10, 5])
    for step in range(7):
        batch = two_views(4, SHAPE, step)
        keys = unit(method.query_encoder(batch.views[1])[1].numpy())  # with momentum 0 the key encoder is the query's
        method.train_step(batch)
        rows[np.arange(4 * step, 4 * step + 4) % 10] = keys
    np.testing.assert_allclose(method.memory.numpy(), rows, atol=1e-5)


def test_batches_of_different_sizes_replace_the_oldest_keys():
    """Against a queue of the last keys, whose rows are written in turn."""
    method = moco(batch_norm=False, queue=5, momentum=0.0)
    rows, turn, remember = list(method.memory.numpy()), itertools.cycle(range(5)), []
    encode = method.encode_grouped
    method.encode_grouped = lambda *arguments: remember.append(encode(*arguments)) or remember[-1]
    for step, count in enumerate((4, 2, 5, 1, 3, 4)):
        method.loss_terms(two_views(count, SHAPE, step), training=True)
        for key in unit(remember[-1][1].numpy()):
            rows[next(turn)] = key
        np.testing.assert_allclose(method.memory.numpy(), rows, atol=1e-6)
    assert method.position == 19 % 5


def test_fit_of_keras_replaces_the_oldest_keys_after_a_smaller_last_batch():
    method = build("moco", tiny_network(), queue=32, projection_width=5, views=cheap_views("moco", queue=32))
    images, memory, replaced = np.random.default_rng(0).random((20, 16, 16, 1), np.float32), method.memory.numpy(), []

    class Replaced(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            nonlocal memory
            memory, before = method.memory.numpy(), memory
            replaced.append(np.flatnonzero((memory != before).any(axis=1)).tolist())

    method.fit(images, np.arange(20) % 3, batch_size=8, epochs=2, verbose=0, callbacks=[Replaced()])
    rows = np.arange(40) % 32
    assert replaced == [sorted(rows[first:end].tolist()) for first, end in ((0, 8), (8, 16), (16, 20), (20, 28), (28, 36), (36, 40))]


@pytest.mark.parametrize("train", ["arrays", "dataset", "batches", "loop"])
def test_batches_that_it_cannot_train_on_are_refused_before_the_first_step(train):
    method, source = build("moco", tiny_network(), queue=7), tiny_source(24)
    images, views = source.images.astype(np.float32) / 255, (clean, mirrored)
    with pytest.raises(ValueError, match="moco_queue .* 8.* 7"):
        if train == "arrays":
            method.fit(images, source.labels, batch_size=8)
        elif train == "dataset":
            method.fit(tf.data.Dataset.from_tensor_slices((images, source.labels)).batch(8))
        elif train == "batches":
            method.fit(data.training_batches(source, 8, seed=0, views=views), steps_per_epoch=3)
        else:
            loop.fit(method, source, epochs=1, batch_size=8, views=views)
    assert not int(method.optimizer.iterations)


def test_a_smaller_last_batch_must_be_divisible_into_groups_too():
    method = build("moco", tiny_network(), batch_norm_groups=4)
    with pytest.raises(ValueError, match="moco_batch_norm_groups .* 6"):
        method.fit(np.zeros((22, 16, 16, 1), np.float32), np.zeros(22, np.int64), batch_size=8)


@pytest.mark.slow
def test_two_devices_with_unequal_parts_of_a_batch_fill_one_queue(two_replicas):
    """The keys of devices with 2 and 1 images, in their order."""
    with two_replicas.scope():
        method = moco(batch_norm=False, queue=5)

    @tf.function
    def enqueue(keys):
        two_replicas.run(method.enqueue, (keys,))

    expected, turn = method.memory.numpy(), itertools.cycle(range(5))
    for step in range(3):
        keys = np.random.default_rng(step).random((3, 5), np.float32)
        parts = [tf.constant(keys[:2]), tf.constant(keys[2:])]
        enqueue(two_replicas.experimental_distribute_values_from_function(lambda context: parts[context.replica_id_in_sync_group]))
        for key in keys:
            expected[next(turn)] = key
        np.testing.assert_array_equal(method.memory.numpy(), expected)
    assert method.position == 9 % 5


def test_the_key_encoder_is_the_exact_average_of_the_querys_past():
    method = moco(momentum=0.9)
    average = [v.numpy().astype(np.float64) for v in method.query_encoder.trainable_variables]
    for a, v in zip(average, method.key_encoder.trainable_variables):
        np.testing.assert_array_equal(a, v.numpy())  # it begins as a copy
    for step in range(5):
        average = [0.9 * a + 0.1 * v.numpy() for a, v in zip(average, method.query_encoder.trainable_variables)]
        method.train_step(two_views(4, SHAPE, step))
        for a, v in zip(average, method.key_encoder.trainable_variables):
            np.testing.assert_allclose(v.numpy(), a, atol=1e-6)
    query, key = (np.concatenate([v.numpy().ravel() for v in e.trainable_variables]) for e in (method.query_encoder, method.key_encoder))
    assert np.abs(key - query).max() > 1e-4
    for own, of_query in zip(method.key_encoder.non_trainable_variables, method.query_encoder.non_trainable_variables):
        assert (own.numpy() != of_query.numpy()).any()  # batch norm's averages are of the second views


def test_nothing_is_trained_but_query_encoder_and_monitor():
    method = moco()
    followers = {id(v) for v in method.key_encoder.variables} | {id(method.memory)}
    assert not followers & {id(v) for v in method.trainable_variables}
    assert followers <= {id(v) for v in method.non_trainable_variables}
    with tf.GradientTape() as tape:
        tape.watch([v.value for v in method.key_encoder.trainable_variables])
        terms, _ = method.loss_terms(two_views(4, SHAPE), training=True)
        loss = tf.reduce_mean(terms["contrastive"])
    assert all(g is None for g in tape.gradient(loss, [v.value for v in method.key_encoder.trainable_variables]))


def test_groups_have_statistics_of_their_own_and_keys_are_shuffled():
    method, batch = moco(batch_norm_groups=2), two_views(6, SHAPE)
    with keras.StatelessScope():
        _, found = method.encode_grouped(method.query_encoder, batch.views[0], True)
        halves = [method.query_encoder(part, training=True)[1] for part in tf.split(batch.views[0], 2)]
        np.testing.assert_allclose(found, tf.concat(halves, axis=0), atol=1e-5)
        seed = tf.constant([3, 1], tf.int64)
        _, shuffled = method.encode_grouped(method.query_encoder, batch.views[0], True, seed)
        order = mixing.partners(seed, 6).numpy()
        assert (order != np.arange(6)).any()
        for part in np.split(order, 2):
            alone = method.query_encoder(tf.gather(batch.views[0], part), training=True)[1]
            np.testing.assert_allclose(tf.gather(shuffled, part), alone, atol=1e-5)


def test_it_learns_what_tells_images_apart():
    method = build("moco", tiny_network(), queue=24, momentum=0.9)
    method.optimizer.learning_rate = 0.03
    logs = last_logs(method, tiny_source(240), steps=60, last=20, name="moco")
    assert logs["accuracy"] > 0.9 and logs["contrastive"] < 0.6 * np.log(25), logs
