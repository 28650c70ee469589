"""NoisyMix with equal views: with own_stages each draws its stage and noise, but all lam partners and lam."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_robust import methods, models

STEPS = range(12)


@functools.cache
def noisymix(**options):
    keras.utils.set_random_seed(0)
    return methods.NoisyMix(models.build("mlp", (1, 2, 1), 2), **options)


def views_of(step, noise="none", mixing=True, views=2, **options):
    """Returns logits [views, N, C] of equal views, and the expected ones for mixing at stage 0 and at stage 1."""
    method = noisymix(noise=noise, mixing=mixing, **options)
    images = tf.constant(np.random.RandomState(0).rand(6, 1, 2, 1), tf.float32)
    partner, lam = tf.constant([1, 2, 3, 4, 5, 0]), tf.constant(0.3)
    logits = method.encode_mixed([images] * views, partner, lam, tf.constant(step, tf.int64), True)
    pieces, expected = models.stages(method.classifier), []
    for stage in (0, 1):
        x = images
        for number, piece in enumerate(pieces):
            x = piece(x)
            if number == stage:
                x = lam * x + (1 - lam) * tf.gather(x, partner)
        expected.append(x["logits"].numpy())
    return tf.reshape(logits, [views, 6, 2]).numpy(), np.stack(expected)


def test_each_view_is_mixed_at_its_own_stage_with_the_same_lam_and_partners():
    drawn = []
    for step in STEPS:
        logits, expected = views_of(step, own_stages=True)
        distances = np.abs(logits[:, None] - expected[None]).max(axis=(2, 3))  # [view, stage]
        np.testing.assert_allclose(distances.min(axis=1), 0.0, atol=1e-5)
        drawn.append(tuple(distances.argmin(axis=1)))
    assert set(drawn) == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_otherwise_equal_views_stay_equal():
    for step in STEPS[:4]:
        logits, _ = views_of(step)
        np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)


@pytest.mark.parametrize("noise", ["paper", "official"])
def test_each_view_draws_its_own_noise(noise):
    for step in STEPS[:3]:
        logits, _ = views_of(step, noise=noise, mixing=False, stages=(0,), own_stages=True)
        assert np.abs(logits[0] - logits[1]).max() > 1e-3
