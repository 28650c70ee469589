"""The proximal log-barrier attack: smallest distances of linear models, where they are known; failures; arguments."""

import numpy as np
import pytest
import tensorflow as tf

from tf_robust.attacks import norms
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.proximal_log_barrier import ProximalLogBarrier

SHAPE, VALUES, N = (5, 5, 2), 50, 5
RANDOM = np.random.RandomState(0)
WEIGHTS = RANDOM.normal(size=VALUES).astype(np.float32)
IMAGES = RANDOM.uniform(0.4, 0.6, size=(N, *SHAPE)).astype(np.float32)
SHORT = {"outer_steps": 10, "barrier_decay": 0.6}


def two_classes(fraction):
    """Returns a linear model whose right class is 0, and how much w . x must rise for class 1, a fraction of what the cube allows."""
    heights = IMAGES.reshape(N, VALUES).astype(np.float64) @ WEIGHTS
    boundary = heights.mean() + fraction * 0.4 * np.abs(WEIGHTS).sum()

    def logits(images):
        score = tf.reshape(images, [-1, VALUES]) @ WEIGHTS[:, None] - np.float32(boundary)
        return tf.concat([tf.zeros_like(score), 7.0 * score], axis=1)

    return logits, boundary - heights


def sizes(norm, attacked, images=IMAGES):
    return norms.NORMS[norm].size(tf.constant(attacked) - images).numpy()


def greedy_count(image, distance):
    """Returns the fewest values that reach the boundary, taking those with the largest gain first."""
    room = np.where(WEIGHTS > 0, 1 - image.ravel(), image.ravel())
    gains = np.sort(np.abs(WEIGHTS) * room)[::-1]
    return np.searchsorted(np.cumsum(gains), distance) + 1


DUAL = {"l1": np.inf, "l2": 2, "linf": 1}


@pytest.mark.parametrize("norm", DUAL)
def test_smallest_distance_of_a_linear_model(norm):
    # so near that even l1, which moves a single value, does not reach the faces
    model, distances = two_classes(0.02 if norm == "l1" else 0.3)
    expected = distances / np.linalg.norm(WEIGHTS, DUAL[norm])
    attacked = ProximalLogBarrier(norm=norm)(model, IMAGES, np.zeros(N, int))
    assert (model(attacked).numpy().argmax(axis=1) == 1).all()
    ratio = sizes(norm, attacked) / expected
    assert (ratio > 1 - 1e-4).all() and (ratio < 1.02).all(), ratio


def test_smallest_number_of_changed_values_of_a_linear_model():
    model, distances = two_classes(0.6)
    expected = [greedy_count(image, distance) for image, distance in zip(IMAGES, distances)]
    attacked = ProximalLogBarrier(norm="l0", **SHORT)(model, IMAGES, np.zeros(N, int))
    assert (model(attacked).numpy().argmax(axis=1) == 1).all()
    np.testing.assert_array_equal(sizes("l0", attacked), expected)


def test_another_start_leads_to_the_same_distance():
    model, distances = two_classes(0.2)
    white = np.where(WEIGHTS > 0, 0.9, 0.1).astype(np.float32).reshape(1, *SHAPE)
    attack = ProximalLogBarrier(initial="neighbour", candidates=white, **SHORT)
    attacked = attack(model, IMAGES, np.zeros(N, int))
    np.testing.assert_allclose(sizes("l2", attacked), distances / np.linalg.norm(WEIGHTS), rtol=0.02)


def test_the_closest_point_is_kept_when_the_steps_lead_away():
    model, distances = two_classes(0.3)
    smallest = (distances / np.abs(WEIGHTS).sum()).astype(np.float32)
    best = IMAGES + 1.001 * smallest[:, None, None, None] * np.sign(WEIGHTS).reshape(SHAPE)
    attack = ProximalLogBarrier(norm="linf", barrier_weight=3.0, barrier_decay=1.0, outer_steps=1, inner_steps=5)
    attacked = attack.minimize(model, tf.constant(IMAGES), tf.constant(best), Criterion(tf.zeros(N, tf.int64)))
    assert (sizes("linf", attacked) <= 1.0015 * smallest).all()


def three_classes(images):
    return tf.reshape(images - 0.5, [-1, VALUES]) @ THREE + [0.8, 0.0, 0.0]


THREE = RANDOM.normal(size=(VALUES, 3)).astype(np.float32)


def distance_to(target):
    """Returns the l2 distance to where `target` has the largest logit, by Dykstra's projections on its half-spaces."""
    results, others = [], [k for k in range(3) if k != target]
    for image in IMAGES.reshape(N, -1).astype(np.float64):
        point, corrections = image.copy(), dict.fromkeys(others, 0.0)
        for _ in range(300):
            for other in others:
                normal = (THREE[:, target] - THREE[:, other]).astype(np.float64)
                corrected = point + corrections[other]
                offset = 0.8 * ((target == 0) - float(other == 0))
                lack = -((corrected - 0.5) @ normal + offset)
                point = corrected + max(lack, 0.0) / (normal @ normal) * normal
                corrections[other] = corrected - point
        results.append(np.linalg.norm(point - image))
    return np.array(results)


def test_untargeted_and_targeted_distances_with_three_classes():
    labels = three_classes(IMAGES).numpy().argmax(axis=1)
    assert (labels == 0).all()
    to = {target: distance_to(target) for target in (1, 2)}
    attack = ProximalLogBarrier(**SHORT)
    for target, expected in to.items():
        attacked = attack(three_classes, IMAGES, labels, targets=np.full(N, target))
        assert (three_classes(attacked).numpy().argmax(axis=1) == target).all()
        np.testing.assert_allclose(sizes("l2", attacked), expected, rtol=0.02)
    attacked = attack(three_classes, IMAGES, labels)
    assert (three_classes(attacked).numpy().argmax(axis=1) != 0).all()
    np.testing.assert_allclose(sizes("l2", attacked), np.minimum(to[1], to[2]), rtol=0.02)


def test_one_start_keeps_to_the_strongest_rival_and_more_find_a_nearer_one():
    def model(images):  # class 2 has the larger logit and the farther boundary
        first, second, third = tf.unstack(three_classes(images), axis=1)
        return tf.stack([0.0 * first, second - first, 0.1 * (third - first)], axis=1)

    logits = model(IMAGES).numpy().astype(np.float64) / [1, 1, 0.1]
    near, far = (-logits[:, k] / np.linalg.norm(THREE[:, k] - THREE[:, 0]) for k in (1, 2))
    assert (near < 0.9 * far).all()
    for starts, expected, rival in ((1, far, 2), (2, near, 1)):
        attacked = ProximalLogBarrier(starts=starts, **SHORT)(model, IMAGES, np.zeros(N, int))
        np.testing.assert_array_equal(model(attacked).numpy().argmax(axis=1), rival)
        np.testing.assert_allclose(sizes("l2", attacked), expected, rtol=0.02)


def test_misclassified_images_are_returned_unchanged():
    model, _ = two_classes(0.1)
    attack = ProximalLogBarrier(norm="l0", outer_steps=2, inner_steps=3, skip_misclassified=False)
    labels = np.array([1, 0, 1, 0, 1])
    attacked = attack(model, IMAGES, labels).numpy()
    np.testing.assert_array_equal(attacked[::2], IMAGES[::2])
    np.testing.assert_array_equal(model(attacked).numpy().argmax(axis=1), 1 - labels)


def test_images_are_returned_where_no_start_exists():
    def model(images):
        mean = tf.reduce_mean(images, axis=[1, 2, 3])
        return tf.stack([tf.ones_like(mean), 1e-3 * mean], axis=1)

    attacked = ProximalLogBarrier(outer_steps=2, inner_steps=2)(model, IMAGES, np.zeros(N, int))
    np.testing.assert_array_equal(attacked, IMAGES)


def test_a_model_with_zero_gradients():
    def steps(images):  # class 1 from a mean of 0.7 on; no gradient but a zero
        mean = tf.reduce_mean(images, axis=[1, 2, 3])
        score = tf.where(mean > 0.7, 1.0, -1.0) + 0.0 * mean
        return tf.stack([0.0 * score, score], axis=1)

    white = np.ones((1, *SHAPE), np.float32)
    attack = ProximalLogBarrier(norm="linf", initial="neighbour", candidates=white, outer_steps=2, inner_steps=5)
    attacked = attack(steps, IMAGES, np.zeros(N, int)).numpy()
    assert (steps(attacked).numpy().argmax(axis=1) == 1).all() and attacked.min() >= 0 and attacked.max() <= 1


@pytest.mark.slow
def test_more_steps_come_nearer_and_the_logits_scale_does_not_matter(network, source):
    model = network()
    images = source(3).images.astype(np.float32) / np.float32(255)
    labels = model(images)["logits"].numpy().argmax(axis=1)
    short = ProximalLogBarrier(outer_steps=1, inner_steps=2)(model, images, labels)
    options = {"outer_steps": 4, "inner_steps": 8, "barrier_decay": 0.4}
    longer = ProximalLogBarrier(**options)(model, images, labels)
    scaled = ProximalLogBarrier(**options)(lambda x: 1000.0 * model(x)["logits"], images, labels)
    assert (sizes("l2", longer, images) < 0.999 * sizes("l2", short, images)).all()
    assert (model(longer)["logits"].numpy().argmax(axis=1) != labels).all()
    np.testing.assert_allclose(sizes("l2", scaled, images), sizes("l2", longer, images), rtol=0.01)


def test_candidates_have_the_images_shape():
    with pytest.raises(ValueError, match="candidates"):
        ProximalLogBarrier(candidates=np.zeros((2, 3, 3, 1), np.float32))(two_classes(0.1)[0], IMAGES, np.zeros(N, int))
