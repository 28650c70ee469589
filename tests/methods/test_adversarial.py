"""Adversarial training: the attacked images, and the gain in robust accuracy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.methods.test_methods import batches, build
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


@pytest.mark.parametrize("norm,radius", [("linf", 0.02), ("l2", 0.3)])
def test_it_trains_on_images_of_the_ball_with_a_higher_loss(norm, radius, network, source):
    method, batch = build("adversarial", network(), norm=norm, radius=radius), next(batches(source(), 1))
    (attacked,), terms = training_images(method, batch)
    sizes = np.linalg.norm((attacked - batch.views[0]).numpy().reshape(12, -1), np.inf if norm == "linf" else 2, axis=1)
    assert sizes.max() <= radius * 1.0001 and sizes.min() > 0.5 * radius
    assert attacked.numpy().min() >= 0 and attacked.numpy().max() <= 1

    def loss(images):
        return losses.cross_entropy(batch.labels, method.classifier(images)["logits"]).numpy()

    assert (loss(attacked) > loss(batch.views[0])).all()
    logits = method.classifier(attacked, training=True)["logits"]
    np.testing.assert_allclose(terms["cross_entropy"], losses.cross_entropy(batch.labels, logits), rtol=1e-4)


@pytest.mark.slow
def test_it_makes_a_classifier_more_robust(network, source):
    attack, accuracies = attacks.ProjectedGradientDescent(radius=0.25, steps=20), []
    first = next(batches(source(), 1))
    for name, options in (("cross_entropy", {}), ("adversarial", {"radius": 0.25})):
        method = build(name, network(), **options)
        step = tf.function(method.train_step)
        for batch in batches(source(), 60):
            step(batch)
        attacked = attack(method.classifier, first.views[0], first.labels)
        accuracies.append(np.mean(np.argmax(method.classifier(attacked)["logits"], axis=1) == first.labels))
    assert accuracies[1] > accuracies[0] + 0.2, accuracies


def test_an_invalid_radius_raises(network):
    with pytest.raises(ValueError, match="radius"):
        build("adversarial", network(), radius=1.5)
    with pytest.raises(ValueError, match="radius"):
        build("adversarial", network(), norm="l2", radius=-0.5)
