"""Outcomes of a model on validation images under a target, against loops over the images."""

import numpy as np
import pytest
import tensorflow as tf

from tf_robust import attacks, corruptions, metrics
from tf_robust.hardening import target
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.target import LabeledImages, ValidationSet, pairs_of, predict_logits, versions


def images_of(count, side=8, channels=3):
    return np.random.RandomState(count).rand(count, side, side, channels).astype(np.float32)


def linear(classes=4, side=8, channels=3):
    """A linear model: images -> logits."""
    weights = np.random.RandomState(0).randn(side * side * channels, classes).astype(np.float32)
    return lambda images: tf.reshape(images, [-1, side * side * channels]) @ weights


def test_every_pair_stands_for_as_many_images():
    images, pairs = images_of(30), pairs_of("blur_corruptions")
    assert len(pairs) == 20
    arrays = versions(images, pairs, 2)
    order = np.random.default_rng(target.SEED).permutation(20)
    used = []
    for i in range(30):
        for turn in range(2):
            name, severity = pairs[order[(2 * i + turn) % 20]]
            used.append((name, severity))
            expected = corruptions.corrupt(images[i], name, severity, target.SEED, i).numpy()
            np.testing.assert_allclose(arrays[turn][i] / 255, expected, atol=0.5 / 255 + 1e-6)  # rounded to 8 bits
    assert {*used} == {*pairs} and {used.count(pair) for pair in pairs} == {3}


def test_outcome_is_the_fraction_of_versions_classified_correctly():
    images, predict = images_of(12), linear()
    labels = np.argmax(predict(images), axis=1)
    labels[:3] = (labels[:3] + 1) % 4
    outcome = ValidationSet(images, labels, pairs_of("noise_corruptions")).evaluate(predict)
    assert outcome.clean.tolist() == [False] * 3 + [True] * 9
    arrays = [one.astype(np.float32) / 255 for one in versions(images, pairs_of("noise_corruptions"), 3)]
    expected = [np.mean([np.argmax(predict(one[i : i + 1])[0]) == labels[i] for one in arrays]) for i in range(12)]
    assert outcome.target.tolist() == pytest.approx(expected)


def test_attacked_images_are_those_of_the_attack():
    images, predict = images_of(12), linear()
    labels = np.argmax(predict(images), axis=1)
    attack = attacks.ProjectedGradientDescent(norm="linf", radius=0.05, steps=3)
    outcome = ValidationSet(images, labels, (), attack=attack).evaluate(predict)
    expected = np.argmax(predict(attack(predict, images, labels)), axis=1) == labels
    assert outcome.target.tolist() == expected.tolist() and not expected.all()


def test_images_of_a_shift_are_others_than_the_clean_ones():
    images, shifted, predict = images_of(12), images_of(7), linear()
    labels, shifted_labels = np.argmax(predict(images), axis=1), np.arange(7) % 4
    outcome = ValidationSet(images, labels, (), shift=LabeledImages(shifted, shifted_labels)).evaluate(predict)
    assert outcome.clean.all() and len(outcome.clean) == 12
    expected = [float(np.argmax(predict(shifted[i : i + 1])[0]) == shifted_labels[i]) for i in range(7)]
    assert outcome.target.tolist() == expected


def test_only_columns_of_the_mask_compete():
    images, predict = images_of(12), linear()
    logits = predict(images).numpy()
    labels, shifted_labels = np.array([0, 2])[np.argmax(logits[:, [0, 2]], axis=1)], 1 + np.argmax(logits[:, 1:3], axis=1)
    assert not np.array_equal(np.argmax(logits, axis=1), labels)
    shift = LabeledImages(images, shifted_labels, (1, 2))
    outcome = ValidationSet(images, labels, (), class_mask=(0, 2), shift=shift).evaluate(predict)
    assert outcome.clean.all() and outcome.target.all()


@pytest.mark.parametrize("limits", ({"BATCH": 5}, {"BATCH_PIXELS": 5 * 64 + 1}))
def test_all_batches_have_one_shape(monkeypatch, limits):
    for name, value in limits.items():
        monkeypatch.setattr(target, name, value)
    shapes, predict = set(), linear()

    def recorded(images):
        shapes.add(tuple(images.shape))
        return predict(images)

    images = images_of(12)
    np.testing.assert_allclose(predict_logits(recorded, images), predict(images), rtol=1e-5)
    assert shapes == {(5, 8, 8, 3)}


def test_pairs_of_a_target_have_the_weights_of_its_parts():
    weights = HardenConfig(target="noise,blur_corruptions:2,fog:0.5,zoom_blur").weights
    severities = {name: number for number, name in enumerate((*target.NOISE_SETS, *metrics.GROUPS["blur"], "fog"), 1)}
    pairs = target.weighted_pairs(weights, severities)
    shares = {name: pairs.count((name, severities[name])) / len(pairs) for name in severities}
    assert shares == pytest.approx({name: (1.5 if name == "zoom_blur" else 0.5) / 4.5 for name in severities})
    alone = target.weighted_pairs(HardenConfig(target="corruptions").weights, dict.fromkeys(metrics.BENCHMARK, 3))
    assert alone == [(name, 3) for name in metrics.BENCHMARK]


@pytest.mark.parametrize("accuracies, expected", (((0.9, 0.8, 0.6, 0.3, 0.1), 3), ((1, 1, 1, 1, 0.9), 5), ((0.3, 0.3, 0.3, 0.3, 0.3), 5)))
def test_a_corruption_has_the_severity_halfway_between_clean_accuracy_and_chance(accuracies, expected, monkeypatch):
    """Of four classes: halfway from 1 to .25 is .625; of severities as near the last one. The value of an image tells both numbers."""
    monkeypatch.setattr(target, "_changed", lambda images, name, severity, indices, _: severity + indices[:, None] / 100)

    def predict(images):
        severity, number = np.divmod(np.round(np.asarray(images)[:, 0] * 100), 100)
        correct = number % 10 < 10 * np.array((1.0, *accuracies))[severity.astype(int)] - 1e-9
        return np.eye(4)[np.where(correct, 0, 1)]

    images = LabeledImages((np.arange(40, dtype=np.float32) / 100)[:, None], np.zeros(40, int))
    monkeypatch.setattr(target, "predict_logits", lambda predict, images: predict(images))
    assert target.halfway_severities(predict, images, ["fog", "snow"], 20) == {"fog": expected, "snow": expected}


def test_noise_sets_replace_as_many_times_their_locations():
    images, probabilities = np.full((50, 16, 16, 1), 0.5, np.float32), np.full((16, 16), 0.1)
    for severity in (1, 3):
        for name, rate in (("uniform_noise", 0.15), ("nonuniform_noise", 0.1)):
            changed = versions(images, [(name, severity)], 1, probabilities)[0]
            assert np.mean(np.abs(changed.astype(int) - 127.5) > 0.6) == pytest.approx(severity * rate, abs=0.015)


def test_images_of_8_bits_are_kept_as_such_and_classified_alike():
    levels, predict = np.random.RandomState(0).randint(0, 256, (12, 8, 8, 3)).astype(np.uint8), linear()
    kept = target.compact(levels.astype(np.float32) / 255)
    assert kept.dtype == np.uint8 and (kept == levels).all()
    np.testing.assert_array_equal(predict_logits(predict, kept), predict_logits(predict, levels.astype(np.float32) / 255))
    finer = images_of(12)
    assert target.compact(finer) is finer
