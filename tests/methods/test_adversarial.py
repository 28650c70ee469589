"""Adversarial training and TRADES: the attacked images, the terms, and the gain in robust accuracy."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from tests.methods.common import batches, build
from tf_robust import attacks, losses


def training_images(method, batch):
    """Returns the images that the method trains on, and its loss terms."""
    inputs, encode = [], method.encode

    def record(images, training, update_statistics=True):
        inputs.append((images, training))
        return encode(images, training, update_statistics)

    method.encode = record
    terms, _ = method.loss_terms(batch, training=True)
    return [images for images, training in inputs if training], terms


def assert_in_ball(attacked, images, norm, radius):
    """Also that more than half of the radius is used."""
    sizes = np.linalg.norm((attacked - images).numpy().reshape(12, -1), np.inf if norm == "linf" else 2, axis=1)
    assert 0.5 * radius < sizes.min() and sizes.max() <= radius * 1.0001


@pytest.mark.parametrize("norm,radius", [("linf", 0.02), ("l2", 0.3)])
def test_it_trains_on_images_of_the_ball_with_a_higher_loss(norm, radius, network, source):
    method, batch = build("adversarial", network(), norm=norm, radius=radius), next(batches(source(), 1))
    (attacked,), terms = training_images(method, batch)
    assert_in_ball(attacked, batch.views[0], norm, radius)
    assert attacked.numpy().min() >= 0 and attacked.numpy().max() <= 1

    def loss(images):
        return losses.cross_entropy(batch.labels, method.classifier(images)["logits"]).numpy()

    assert (loss(attacked) > loss(batch.views[0])).all()
    logits = method.classifier(attacked, training=True)["logits"]
    np.testing.assert_allclose(terms["cross_entropy"], losses.cross_entropy(batch.labels, logits), rtol=1e-4)


def divergence(logits, other):
    """KL(softmax(logits) || softmax(other)) by SciPy."""
    p, q = (scipy.special.softmax(np.asarray(x, np.float64), axis=1) for x in (logits, other))
    return scipy.special.rel_entr(p, q).sum(axis=1)


def test_the_divergence_against_scipy():
    logits, other = np.random.default_rng(0).normal(size=(2, 7, 5)) * 3
    np.testing.assert_allclose(losses.kl_divergence(logits, other), divergence(logits, other), rtol=1e-6)
    np.testing.assert_allclose(losses.kl_divergence(logits, logits), 0, atol=1e-12)


@pytest.mark.parametrize("norm,radius", [("linf", 0.02), ("l2", 0.3)])
def test_its_terms_are_those_of_the_paper(norm, radius, network, source):
    method, batch = build("trades", network(), norm=norm, radius=radius, beta=2.5), next(batches(source(), 1))
    (images, attacked), terms = training_images(method, batch)
    np.testing.assert_array_equal(images, batch.views[0])
    assert_in_ball(attacked, images, norm, radius)
    clean, other = (method.classifier(x, training=True)["logits"] for x in (images, attacked))
    np.testing.assert_allclose(terms["divergence"], 2.5 * divergence(clean, other), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(terms["cross_entropy"], losses.cross_entropy(batch.labels, clean), rtol=1e-4)


def test_its_attack_increases_the_divergence_and_does_not_see_the_labels(network, source):
    method, batch = build("trades", network(), radius=0.05), next(batches(source(), 1))
    (images, attacked), _ = training_images(method, batch)

    noise = 0.05 * tf.sign(tf.random.stateless_normal(images.shape, [0, 1]))
    views = images, attacked, tf.clip_by_value(images + noise, 0, 1)
    logits, by_attack, by_noise = (method.classifier(view)["logits"] for view in views)
    assert (divergence(logits, by_attack) > divergence(logits, by_noise)).all()
    method = build("trades", network(), radius=0.05)  # with the moving averages of before
    (_, other), _ = training_images(method, batch._replace(labels=(batch.labels + 1) % 2))
    np.testing.assert_array_equal(attacked, other)


@pytest.mark.slow
def test_they_make_a_classifier_more_robust(network, source):
    attack, accuracies = attacks.ProjectedGradientDescent(radius=0.25, steps=20), []
    first = next(batches(source(), 1))
    for name, options in (("cross_entropy", {}), ("adversarial", {"radius": 0.25}), ("trades", {"radius": 0.25})):
        method = build(name, network(), **options)
        step = tf.function(method.train_step)
        for batch in batches(source(), 60):
            step(batch)
        attacked = attack(method.classifier, first.views[0], first.labels)
        accuracies.append(np.mean(np.argmax(method.classifier(attacked)["logits"], axis=1) == first.labels))
    assert min(accuracies[1:]) > accuracies[0] + 0.2, accuracies
