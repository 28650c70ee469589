"""Starting points: misclassified, close, and independent of the batch; on linear models whose boundary is known."""

import functools

import numpy as np
import pytest
import scipy.ndimage
import tensorflow as tf

from tests.attacks.oracles import Linear, sizes
from tf_robust.attacks import initial
from tf_robust.attacks.criterion import Criterion
from tf_robust.ops.draws import Draws

SHAPE = (6, 6, 1)
N = 8
RANDOM = np.random.RandomState(0)
IMAGES = RANDOM.uniform(0.3, 0.7, size=(N, *SHAPE)).astype(np.float32)
EMPTY = tf.zeros([0, *SHAPE])
LINEAR = Linear(classes=3, shape=SHAPE)
LINEAR.weights = RANDOM.normal(size=(36, 3)).astype(np.float32)  # no image is at a boundary
LINEAR.offset = -0.5 * LINEAR.weights.sum(axis=0)
LABELS = LINEAR(IMAGES).numpy().argmax(axis=1)


@functools.cache
def graph_of(kind, model, targeted):
    """Returns `initial.start`, traced once for all images, seeds and candidates."""
    batch, integers = tf.TensorSpec([None, *SHAPE], tf.float32), tf.TensorSpec([None], tf.int64)

    @tf.function(autograph=False, input_signature=[batch, integers, tf.TensorSpec([2], tf.int64), integers, batch])
    def graph(images, classes, seed, indices, candidates):
        return initial.start(kind, model, images, Criterion(classes, targeted), seed, indices, candidates)

    return graph


def start_points(kind, images=IMAGES, classes=LABELS, targeted=False, seed=0, indices=None, candidates=EMPTY, model=LINEAR):
    indices = np.arange(len(images)) if indices is None else indices
    integers = (tf.constant(values, tf.int64) for values in (classes, [seed, 0], indices))
    points, success = graph_of(kind, model, targeted)(tf.constant(images), *integers, candidates)
    return points.numpy(), success.numpy()


def classes_of(points, model=LINEAR):
    return model(tf.constant(points)).numpy().argmax(axis=1)


STARTS = [("gaussian", False, 0.5), ("uniform", False, 0.5), ("gradient", False, 0.5), ("gaussian", True, 0.25), ("gradient", True, 1.0)]


@pytest.mark.parametrize("kind, targeted, minimum", STARTS)
def test_starts_meet_the_goal_inside_the_cube_and_near_the_boundary(kind, targeted, minimum):
    classes = (LABELS + 1) % 3 if targeted else LABELS
    points, success = start_points(kind, classes=classes, targeted=targeted)
    assert success.mean() >= minimum and points.min() >= 0 and points.max() <= 1  # some noise leads to no other class
    np.testing.assert_array_equal((classes_of(points) == classes) == targeted, success)
    assert ((classes_of(IMAGES + 0.99 * (points - IMAGES)) == classes) != targeted).all()  # the line was bisected
    np.testing.assert_array_equal(points[~success], IMAGES[~success])


def test_gradient_ascent_on_a_linear_model_ends_near_the_smallest_distance():
    smallest = LINEAR.distances(IMAGES, LABELS, 2)
    points, success = start_points("gradient")
    distances = sizes(points - IMAGES, "l2")
    assert success.all() and (distances >= smallest * 0.999).all() and np.median(distances / smallest) < 2.0
    far, success = start_points("gaussian")
    assert np.median((distances / sizes(far - IMAGES, "l2"))[success]) < 0.7


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_growing_noise_stops_at_the_first_misclassified_scale(kind):
    points, success = initial.grow(
        initial.GROWING[kind], LINEAR, tf.constant(IMAGES), Criterion(tf.constant(LABELS)), [0, 0], tf.range(N, dtype=tf.int64)
    )
    draws = Draws([0, 0], tf.range(N, dtype=tf.int64), "initial")
    noise = (draws.normal(SHAPE) if kind == "gaussian" else draws.uniform(SHAPE, -1.0, 1.0)).numpy()
    scales = np.float32(0.01 * 1.01 ** np.arange(0, 931, 10))[:, None, None, None]
    for i in range(N):
        noised = np.clip(IMAGES[i] + scales * noise[i], 0, 1)
        misclassified = classes_of(noised) != LABELS[i]
        if misclassified.any():
            np.testing.assert_allclose(points[i], noised[misclassified.argmax()], atol=1e-4)
        else:
            np.testing.assert_array_equal(points[i], IMAGES[i])
        assert success[i].numpy() == misclassified[:-1].any()
    assert 0 < success.numpy().mean() < 1


def test_blur_equals_scipy():
    scale = np.full(N, 0.3, np.float32)
    expected = [scipy.ndimage.gaussian_filter(i, (0.3 * 6, 0.3 * 6, 0), mode="nearest", truncate=2.0) for i in IMAGES]
    np.testing.assert_allclose(initial.blur(tf.constant(IMAGES), scale, None), expected, atol=1e-5)


def test_blur_grows_until_details_are_gone():
    board = np.indices(SHAPE)[:2].sum(axis=0) % 2 * 0.8 + 0.1

    def detail(images):  # class 1: strong differences of neighbours
        strength = tf.reduce_mean(tf.abs(images[:, 1:] - images[:, :-1]), axis=[1, 2, 3])
        return tf.stack([0.2 - strength, strength - 0.2], axis=1)

    points, success = start_points("blur", board[None].astype(np.float32), np.array([1]), model=detail)
    assert success.all() and classes_of(points, detail)[0] == 0
    assert np.abs(np.diff(points[0], axis=0)).mean() == pytest.approx(0.2, abs=2e-3)  # bisected to the boundary


def test_neighbours_are_the_nearest_candidates_that_meet_the_goal():
    candidates = RANDOM.uniform(size=(30, *SHAPE)).astype(np.float32)
    classes = classes_of(candidates)
    distances = ((IMAGES[:, None] - candidates) ** 2).sum(axis=(2, 3, 4))
    for wanted, targeted in ((LABELS, False), ((LABELS + 1) % 3, True)):
        allowed = (classes == wanted[:, None]) == targeted
        nearest = np.where(allowed, distances, np.inf).argmin(axis=1)
        points, success = initial.nearest_candidates(
            LINEAR, tf.constant(IMAGES), Criterion(tf.constant(wanted), targeted), tf.constant(candidates)
        )
        np.testing.assert_array_equal(points, candidates[nearest])
        assert success.numpy().all()


def always_first(images):
    return tf.tile([[1.0, 0.0]], [tf.shape(images)[0], 1]) + 0.0 * tf.reduce_sum(images)


@pytest.mark.parametrize("kind", initial.INITIAL)
def test_without_a_start_the_image_is_returned(kind):
    points, success = start_points(kind, classes=np.zeros(N, np.int64), model=always_first, candidates=tf.constant(IMAGES))
    assert not success.any()
    np.testing.assert_array_equal(points, IMAGES)


def test_candidates_are_used_where_noise_fails():
    def bright(images):  # only an almost white image is of class 1, which noise does not make
        return tf.stack([tf.fill([tf.shape(images)[0]], 0.9), tf.reduce_mean(images, axis=[1, 2, 3])], axis=1)

    zeros, white = np.zeros(N, np.int64), tf.ones([1, *SHAPE])
    assert not start_points("gaussian", classes=zeros, model=bright)[1].any()
    points, success = start_points("gaussian", classes=zeros, model=bright, candidates=white)
    assert success.all()
    np.testing.assert_allclose(points.mean(axis=(1, 2, 3)), 0.9, atol=1e-3)  # on the line to white, at the boundary


@pytest.mark.parametrize("kind", ["gaussian", "uniform", "gradient"])
def test_a_start_depends_only_on_seed_and_index(kind):
    all_points, _ = start_points(kind)
    for part in ([5, 2, 7], [3]):
        alone, _ = start_points(kind, IMAGES[part], LABELS[part], indices=np.array(part))
        np.testing.assert_allclose(alone, all_points[part], atol=1e-6)
    assert np.abs(start_points(kind, seed=1)[0] - all_points).max() > 1e-3
    assert np.abs(start_points(kind, indices=np.arange(N) + 50)[0] - all_points).max() > 1e-3


def test_bisect_line_finds_the_boundary():
    points = np.random.RandomState(1).permutation(IMAGES) * 1.4
    misclassified = classes_of(points) != LABELS
    images, points, labels = IMAGES[misclassified], points[misclassified], LABELS[misclassified]
    assert len(images) > 2
    results = initial.bisect_line(LINEAR, tf.constant(images), tf.constant(points), Criterion(tf.constant(labels))).numpy()
    assert (classes_of(results) != labels).all()
    fractions = np.linspace(0, 1, 5001)
    for image, point, label, result in zip(images, points, labels, results):
        line = image + fractions[:, None, None, None].astype(np.float32) * (point - image)
        first = fractions[np.argmax(classes_of(line) != label)]
        fraction = np.linalg.norm(result - image) / np.linalg.norm(point - image)
        assert first - 1e-3 <= fraction <= first + 2**-10 + 1e-3
