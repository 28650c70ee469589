"""Sheets of images that are made of a model."""

import numpy as np
import pytest
import tensorflow as tf

from tf_robust import evaluation, report
from tf_robust.experiments import figures


@pytest.fixture
def drawn(monkeypatch):
    """The lines that would have been drawn."""
    found = []
    monkeypatch.setattr(report, "captioned_images", lambda path, lines: found.append(lines) or path)
    return found


def brightest_third(images):
    """Right on the tiny images, until their contrast is too low for class 0."""
    thirds = [tf.reduce_mean(images[:, 5 * i : 5 * i + 5], axis=[1, 2, 3]) for i in range(3)]
    return tf.stack([thirds[0] - 0.2, *thirds[1:]], axis=1)


def test_worst_images_are_misclassified_at_the_most_severities(source, drawn):
    test = source(60, split="test")
    eval_config = evaluation.EvalConfig(evaluations=("clean", "corruptions"), corruption_constants="cifar")
    sets = [one for one in evaluation.evaluation_sets(test, None, eval_config) if one.name == "clean" or "/contrast/" in one.name]
    records = evaluation.records(brightest_third, sets, log=lambda _: None)
    assert figures.draw_worst("folder", brightest_third, test, sets, records) == "folder/worst.png"
    ((name, sample_images, captions),) = drawn[0]
    batches = {one.name: next(iter(one.open())) for one in sets}
    said = {name: np.argmax(brightest_third(images), axis=1) for name, (images, _) in batches.items()}
    labels = batches["clean"][1].numpy()
    counts = sum((said[f"corruptions/contrast/{s}"] != labels).astype(int) for s in range(1, 6))
    possible = [i for i in range(60) if said["clean"][i] == labels[i] != said["corruptions/contrast/3"][i]]
    expected = sorted(possible, key=lambda i: (-counts[i], i))[:12]
    assert name == "contrast" and expected
    np.testing.assert_array_equal(sample_images, batches["corruptions/contrast/3"][0].numpy()[expected])
    assert captions == [f"{labels[i]} as {said['corruptions/contrast/3'][i]}" for i in expected]


def test_maps_have_utility_and_sensitivity(source, drawn):
    weights = np.random.RandomState(0).normal(size=(256, 3)).astype(np.float32)

    def linear(images):
        return tf.reshape(images, [-1, 256]) @ weights

    figures.draw_maps("folder", linear, source(60, split="test"))
    _, (_, utilities, _), (_, sensitivities, _) = drawn[0]
    assert utilities.shape == sensitivities.shape == (12, 16, 16, 1)
    size = np.sqrt((weights**2).sum(axis=1)).reshape(16, 16)
    assert np.corrcoef(sensitivities[0].ravel(), size.ravel())[0, 1] > 0.9  # an estimate
    assert figures.draw_maps("folder", lambda images: tf.stop_gradient(linear(images)), source(60, split="test")) is None
