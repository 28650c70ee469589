"""InstDis and PIRL: the softmax over the memory against NumPy, updates of the memory, and jigsaws."""

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import tiny_network, tiny_source
from tests.methods.common import build
from tf_robust import data, metrics, models
from tf_robust.methods.instdis import split_tiles

SHAPE = (9, 9, 1)
POSITIONS = np.array([3, 0, 7, 4])


def batch_of(step=0, views=1):
    images = np.random.RandomState(step).uniform(0, 1, (views, 4, *SHAPE)).astype(np.float32)
    return data.Batch(
        tuple(map(tf.constant, images)),
        tf.constant([0, 1, 2, 0], tf.int64),
        tf.fill([4], tf.constant(step, tf.int64)),
        tf.constant(POSITIONS, tf.int64),
    )


def instdis(name="instdis", batch_norm=False, **options):
    return build(name, tiny_network(SHAPE, batch_norm=batch_norm), **{"examples": 9, "projection_width": 5, **options})


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def expected_loss(projections, memory, candidates, temperature=0.07):
    values = []
    for vector, position in zip(projections, POSITIONS):
        own, others = (
            np.exp(memory[position] @ vector / temperature),
            [np.exp(memory[j] @ vector / temperature) for j in candidates if j != position],
        )
        values.append(-np.log(own / (own + np.sum(others))))
    return values


def test_loss_over_the_complete_memory_equals_numpy():
    method, batch = instdis(), batch_of()
    memory = method.memory.numpy().astype(np.float64)
    projections = unit(method.head(method.classifier(batch.views[0])["embedding"]).numpy().astype(np.float64))
    terms, logits = method.loss_terms(batch, training=True)
    np.testing.assert_allclose(terms["contrastive"], expected_loss(projections, memory, range(9)), rtol=1e-4)
    np.testing.assert_allclose(logits, method.classifier(batch.views[0])["logits"], atol=1e-6)


def test_drawn_negatives_are_other_rows_of_the_memory():
    method, batch = instdis(negatives=6), batch_of()
    memory = method.memory.numpy().astype(np.float64)
    projections = unit(method.head(method.classifier(batch.views[0])["embedding"]).numpy().astype(np.float64))
    with method.distribute_strategy.scope():
        drawn = tf.random.stateless_uniform([6], method.shared_seed(0, 0), 0, 9, tf.int64).numpy()
    assert set(drawn) & set(POSITIONS)
    terms, _ = method.loss_terms(batch, training=True)
    np.testing.assert_allclose(terms["contrastive"], expected_loss(projections, memory, drawn), rtol=1e-4)


def test_only_memories_of_the_batch_move_towards_its_projections():
    method, batch = instdis(momentum=0.3), batch_of()
    memory = method.memory.numpy()
    projections = unit(method.head(method.classifier(batch.views[0])["embedding"]).numpy())
    method.train_step(batch)
    expected = memory.copy()
    expected[POSITIONS] = unit(0.3 * memory[POSITIONS] + 0.7 * projections)
    np.testing.assert_allclose(method.memory.numpy(), expected, atol=1e-5)


def test_a_jigsaw_has_nine_tiles_row_by_row():
    sample_images = np.arange(2 * 7 * 9).reshape(2, 7, 9, 1).astype(np.float32)
    tiles = split_tiles(tf.constant(sample_images), (2, 3)).numpy()
    assert tiles.shape == (2, 9, 2, 3, 1)
    np.testing.assert_array_equal(tiles[1, 5], sample_images[1, 2:4, 6:9])
    np.testing.assert_array_equal(tiles[0, 6], sample_images[0, 4:6, 0:3])


def test_tiles_pass_through_the_encoders_own_layers():
    network = models.build("resnet8", (24, 24, 3), 3)
    method = build("pirl", network, examples=9)
    tiles = np.random.RandomState(0).rand(2, 8, 8, 3).astype(np.float32)
    small = models.build("resnet8", (8, 8, 3), 3)
    small.set_weights(network.get_weights())
    np.testing.assert_allclose(method.tile_encoder(tiles, training=False), small(tiles)["embedding"], atol=1e-5)
    assert {id(v) for v in method.tile_encoder.variables} < {id(v) for v in network.variables}


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_pirl_weighs_image_and_jigsaw(weight):
    method, batch = instdis("pirl", weight=weight), batch_of(views=2)
    memory = method.memory.numpy().astype(np.float64)
    projections = unit(method.head(method.classifier(batch.views[0])["embedding"]).numpy().astype(np.float64))
    jigsaw = method.jigsaw(batch.views[1], tf.constant(0, tf.int64)).numpy().astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(jigsaw, axis=1), 1.0, rtol=1e-5)
    terms, _ = method.loss_terms(batch, training=True)
    expected = weight * np.array(expected_loss(jigsaw, memory, range(9))) + (1 - weight) * np.array(
        expected_loss(projections, memory, range(9))
    )
    np.testing.assert_allclose(terms["contrastive"], expected, rtol=1e-3)
    method.train_step(batch_of(step=1, views=2))


def test_a_single_view_is_monitored_with_the_image():
    method, source = instdis(), tiny_source(24, SHAPE)
    monitored = method.monitors(source, source, [lambda images, seed: images[:, :, ::-1]])
    embeddings, mirrored = (
        method.classifier(images / np.float32(255))["embedding"] for images in (source.images, source.images[:, :, ::-1])
    )
    assert monitored["alignment"] == pytest.approx(metrics.alignment(embeddings, mirrored), rel=1e-4)
