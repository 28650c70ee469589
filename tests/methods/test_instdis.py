"""InstDis and PIRL: the softmax over the memory against NumPy, updates of the memory, and jigsaws."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.conftest import tiny_network, tiny_source
from tests.methods.common import build, mirrored, two_views, unit
from tf_robust import metrics, models
from tf_robust.methods.instdis import split_tiles

SHAPE = (9, 9, 1)
POSITIONS = np.array([3, 0, 7, 4])


def batch_of(views=1):
    batch = two_views(4, SHAPE)
    return batch._replace(views=batch.views[:views], positions=tf.constant(POSITIONS, tf.int64))


def instdis(name="instdis", **options):
    return build(name, tiny_network(SHAPE, batch_norm=False), **{"examples": 9, "projection_width": 5, **options})


def projections(method, images):
    return unit(method.head(method.classifier(images)["embedding"]).numpy().astype(np.float64))


def expected_loss(vectors, memory, candidates, temperature=0.07):
    values = []
    for vector, position in zip(vectors, POSITIONS):
        rows = [position, *(row for row in candidates if row != position)]
        similarities = memory[rows].astype(np.float64) @ vector / temperature
        values.append(scipy.special.logsumexp(similarities) - similarities[0])
    return np.array(values)


def test_loss_over_the_complete_memory_equals_numpy():
    method, batch = instdis(), batch_of()
    expected = expected_loss(projections(method, batch.views[0]), method.memory.numpy(), range(9))
    terms, logits = method.loss_terms(batch, training=True)
    np.testing.assert_allclose(terms["contrastive"], expected, rtol=1e-4)
    np.testing.assert_allclose(logits, method.classifier(batch.views[0])["logits"], atol=1e-6)


def test_drawn_negatives_are_other_rows_of_the_memory():
    method, batch = instdis(negatives=6), batch_of()
    with method.distribute_strategy.scope():
        drawn = tf.random.stateless_uniform([6], method.shared_seed(0, 0), 0, 9, tf.int64).numpy()
    assert set(drawn) & set(POSITIONS)
    expected = expected_loss(projections(method, batch.views[0]), method.memory.numpy(), drawn)
    terms, _ = method.loss_terms(batch, training=True)
    np.testing.assert_allclose(terms["contrastive"], expected, rtol=1e-4)


def test_only_memories_of_the_batch_move_towards_its_projections():
    method, batch = instdis(momentum=0.3), batch_of()
    expected = method.memory.numpy()
    expected[POSITIONS] = unit(0.3 * expected[POSITIONS] + 0.7 * projections(method, batch.views[0]))
    method.train_step(batch)
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


def test_pirl_weighs_image_and_jigsaw():
    method, batch = instdis("pirl", weight=0.25), batch_of(views=2)
    jigsaw = method.jigsaw(batch.views[1], tf.constant(0, tf.int64)).numpy().astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(jigsaw, axis=1), 1.0, rtol=1e-5)
    of_image, of_jigsaw = (
        expected_loss(vectors, method.memory.numpy(), range(9)) for vectors in (projections(method, batch.views[0]), jigsaw)
    )
    terms, _ = method.loss_terms(batch, training=True)
    np.testing.assert_allclose(terms["contrastive"], 0.25 * of_jigsaw + 0.75 * of_image, rtol=1e-3)
    method.train_step(batch)


def test_a_single_view_is_monitored_with_the_image():
    method, source = instdis(), tiny_source(24, SHAPE)
    images = source.images / np.float32(255)
    first, second = (method.classifier(view)["embedding"] for view in (images, images[:, :, ::-1]))
    monitored = method.monitors(source, source, [mirrored])
    assert monitored["alignment"] == pytest.approx(metrics.alignment(first, second), rel=1e-4)
