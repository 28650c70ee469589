"""Adversarial Puzzle Mix: its noise against NumPy, to which images it is added, and how often."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods.common import batches
from tf_robust.methods import puzzlemix

SEED = tf.constant([3, 4], tf.int64)


def build(network, **options):
    method = puzzlemix.PuzzleMix(network, **options)
    method.compile(optimizer=keras.optimizers.SGD(0.1))
    method.optimizer.build(network.trainable_variables)
    return method


def batch_of(source, step=0):
    return [*batches(source, step + 1)][step]


def test_noise_is_one_signed_step_from_a_start_inside_ball_and_pixel_range():
    random, radius = np.random.RandomState(0), 0.1
    images = random.choice([0.0, 0.03, 0.5, 1.0], size=(4, 8, 8, 3)).astype(np.float32)
    start = puzzlemix.random_start(tf.constant(images), radius, SEED).numpy()
    assert np.abs(start).max() <= radius and (images + start).min() >= 0.0 and (images + start).max() <= 1.0
    inside = start[images == 0.5]
    assert np.abs(inside).mean() == pytest.approx(radius / 2, rel=0.15) and abs(inside.mean()) < 0.02
    assert (start[images == 0.0] >= 0).all() and (start[images == 1.0] <= 0).all()
    gradient = random.choice([-2.0, 0.0, 0.1], size=images.shape).astype(np.float32)
    expected = 0.4 * np.clip(start + (radius + 2 / 255) * np.sign(gradient), -radius, radius)
    np.testing.assert_allclose(puzzlemix.one_step(start, gradient, radius, 0.4), expected, atol=1e-7)


def test_noise_of_a_method_follows_the_gradient_at_the_noisy_images(network, source):
    method, batch = build(network(), adversarial_probability=1.0, adversarial_radius=0.05), batch_of(source())
    images, labels, step = batch.views[0], batch.labels, batch.step[0]
    saliency, noise = method.saliency_and_noise(images, labels, step)
    start = puzzlemix.random_start(images, 0.05, method.random_seed(step, 1))
    gradient = method.gradient(images + start, labels).numpy()
    fraction = float(tf.random.stateless_uniform([], method.shared_seed(step, 3)))
    np.testing.assert_allclose(saliency, np.sqrt((gradient**2).mean(axis=-1)), rtol=1e-4, atol=1e-7)
    expected = fraction * np.clip(start + (0.05 + 2 / 255) * np.sign(gradient), -0.05, 0.05)
    assert np.mean(np.abs(noise[0] - expected) > 1e-6) < 0.01  # a sign may differ where the gradient is next to 0
    np.testing.assert_array_equal(noise[0], noise[1])


def test_images_and_partners_get_noise_independently_with_the_given_probability(network, source):
    method, batch = build(network(), adversarial_probability=0.3), batch_of(source())
    compute = tf.function(lambda step: method.saliency_and_noise(batch.views[0], batch.labels, step), autograph=False)
    draws, plain = [], method.saliency(batch.views[0], batch.labels).numpy()
    for step in tf.range(150, dtype=tf.int64):
        saliency, noise = compute(step)
        sides = [bool((side != 0).any()) for side in noise.numpy()]
        assert any(sides) == (np.abs(saliency - plain).max() > 1e-6)
        draws.append(sides)
    rates = np.mean(draws, axis=0)
    assert (0.15 < rates).all() and (rates < 0.45).all()
    assert {tuple(sides) for sides in draws} == {(a, b) for a in (False, True) for b in (False, True)}


def test_noise_is_mixed_under_the_mask_of_the_images_without_it():
    network = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten()])
    method, random = puzzlemix.PuzzleMix(network, transport=False, block_counts=(4,)), np.random.RandomState(0)
    images, noise = random.rand(6, 16, 16, 3).astype(np.float32), random.uniform(-0.3, 0.3, (2, 6, 16, 16, 3)).astype(np.float32)
    saliency, partner = random.gamma(0.3, size=(6, 16, 16)).astype(np.float32), random.permutation(6)
    mixed, kept = method.mix(tf.constant(images), saliency, partner, 0.4, 4, noise)
    mask = method.mask(tf.constant(images), puzzlemix.block_fractions(saliency, 4, 4), partner, 0.4).numpy()
    pixels = np.kron(mask, np.ones([1, 4, 4]))[..., None]
    expected = pixels * np.clip(images + noise[0], 0, 1) + (1 - pixels) * np.clip(images[partner] + noise[1][partner], 0, 1)
    np.testing.assert_allclose(mixed, expected, atol=1e-6)
    np.testing.assert_allclose(kept, mask.mean(axis=(1, 2)), rtol=1e-6)


def test_a_step_with_noise_is_finite_and_differs_from_one_without(network, source):
    def trained(probability):
        method = build(network(), adversarial_probability=probability)
        logs = method.train_step(batch_of(source()))
        assert np.isfinite(float(logs["total"]))
        return np.concatenate([v.numpy().ravel() for v in method.classifier.variables])

    np.testing.assert_array_equal(trained(1.0), trained(1.0))
    assert (trained(0.0) != trained(1.0)).any()
