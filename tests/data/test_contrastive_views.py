"""Views of contrastive methods against Pillow and colorsys, and the distributions of their draws."""

import colorsys
import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from PIL import Image

from tf_robust.data import augment
from tf_robust.ops import color, filters, image_ops

SEED = tf.constant([3, 4], tf.int64)
FLAT = 600


def flat(colors):
    """Returns images [N, 8, 8, C] of one color each, which windows and blur do not change."""
    colors = np.asarray(colors, np.float32)
    return np.zeros([len(colors), 8, 8, colors.shape[1]], np.float32) + colors[:, None, None]


def test_resized_windows_equal_pillow():
    random = np.random.RandomState(0)
    images = random.rand(6, 13, 9, 2).astype(np.float32)
    sides = np.array([[13, 9], [1, 1], [4, 9], [13, 2], [7, 5], [12, 8]])
    corners = np.array([[0, 0], [12, 8], [5, 0], [0, 7], [3, 4], [1, 1]])
    result = filters.resized_windows(images, tf.constant(corners, tf.float32), tf.constant(sides, tf.float32)).numpy()
    for image, (top, left), (height, width), window_result in zip(images, corners, sides, result):
        for channel in range(2):
            window = Image.fromarray(image[top : top + height, left : left + width, channel], "F")
            np.testing.assert_allclose(window_result[..., channel], np.asarray(window.resize((9, 13), Image.BILINEAR)), atol=1e-6)


@pytest.mark.parametrize("min_crop_area", [0.08, 0.5])
def test_areas_and_aspects_of_windows(min_crop_area):
    corners, sides = (x.numpy() for x in image_ops.random_windows(4000, tf.constant([200.0, 200.0]), SEED, min_crop_area))
    assert (corners >= 0).all() and (corners + sides <= 200).all() and (sides % 1 == 0).all() and (corners % 1 == 0).all()
    fractions, aspects = sides.prod(axis=1) / 200**2, sides[:, 1] / sides[:, 0]
    assert min_crop_area - 0.01 <= fractions.min() < min_crop_area + 0.02 and fractions.max() > 0.95
    assert 0.73 < aspects.min() < 0.77 and 1.3 < aspects.max() < 1.36
    small = fractions < 0.5625  # every aspect fits, and none is drawn again
    if small.any():
        assert scipy.stats.kstest(fractions[small], "uniform", args=(min_crop_area, 0.5625 - min_crop_area)).pvalue > 0.01
        assert scipy.stats.kstest(np.log(aspects[small]), "uniform", args=(np.log(0.75), 2 * np.log(4 / 3))).pvalue > 0.01
    margin = 200 - sides[:, 0]
    assert scipy.stats.kstest(corners[margin > 50, 0] / margin[margin > 50], "uniform").pvalue > 0.01


def jitter_by_definition(image, order, amounts):
    """Jitters one image [H, W, 3] by colorsys, pixel by pixel."""
    image = image.astype(np.float64)
    for step in order:
        gray = image @ [0.299, 0.587, 0.114]
        if step == 3:
            shifted = [
                colorsys.hsv_to_rgb((h + amounts[3]) % 1, s, v)
                for h, s, v in (colorsys.rgb_to_hsv(*pixel) for pixel in image.reshape(-1, 3))
            ]
            image = np.reshape(shifted, image.shape)
        else:
            base = (0.0, gray.mean(), gray[..., None])[step]
            image = base + amounts[step] * (image - base)
        image = image.clip(0, 1)
    return image


def test_jitter_in_each_images_own_order():
    random, orders = np.random.RandomState(0), np.array(list(itertools.permutations(range(4))))
    images = random.rand(len(orders), 5, 6, 3).astype(np.float32)
    amounts = np.concatenate([random.uniform(0.2, 1.8, (len(orders), 3)), random.uniform(-0.5, 0.5, (len(orders), 1))], axis=1)
    results = color.jitter(tf.constant(images), tf.constant(orders, tf.int32), tf.constant(amounts, tf.float32))
    for image, order, image_amounts, result in zip(images, orders, amounts, results.numpy()):
        np.testing.assert_allclose(result, jitter_by_definition(image, order, image_amounts), atol=2e-5)


def test_one_channel_has_brightness_and_contrast_only():
    images = np.random.RandomState(0).rand(3, 5, 6, 1).astype(np.float32)
    order, amounts = tf.constant([[2, 3, 0, 1]] * 3), tf.constant([[0.5, 1.5, 0.0, 0.3]] * 3)
    bright = images * 0.5
    expected = (bright.mean((1, 2, 3), keepdims=True) + 1.5 * (bright - bright.mean((1, 2, 3), keepdims=True))).clip(0, 1)
    np.testing.assert_allclose(color.jitter(tf.constant(images), order, amounts), expected, atol=1e-6)


@pytest.mark.parametrize(
    "family, fraction, strength",
    [(augment.simclr, 0.8, 0.8), (augment.moco_v1, 1.0, 0.4), (augment.moco_v2, 0.8, 0.4)],
)
def test_distribution_of_brightness(family, fraction, strength):
    sample_images = flat(np.full([FLAT, 1], 0.5))  # nothing else changes these
    values = family(tf.constant(sample_images), SEED).numpy()
    assert np.ptp(values, axis=(1, 2, 3)).max() < 1e-5
    factors = values[:, 0, 0, 0] / 0.5
    changed = factors[np.abs(factors - 1) > 1e-4]
    assert scipy.stats.binomtest(len(changed), FLAT, min(fraction, 0.999)).pvalue > 0.01
    assert scipy.stats.kstest(changed, "uniform", args=(1 - strength, 2 * strength)).pvalue > 0.01


@pytest.mark.parametrize("family, hue", [(augment.simclr, 0.2), (augment.moco_v1, 0.4), (augment.moco_v2, 0.1)])
def test_distributions_of_gray_and_hue(family, hue):
    result = family(tf.constant(flat(np.tile([0.6, 0.45, 0.45], [FLAT, 1]))), SEED).numpy()[:, 0, 0]
    gray = np.ptp(result, axis=1) < 1e-6
    assert scipy.stats.binomtest(int(gray.sum()), FLAT, 0.2).pvalue > 0.01
    hues = np.array([colorsys.rgb_to_hsv(*pixel)[0] for pixel in result[~gray]])
    hues = (hues + 0.5) % 1 - 0.5
    assert 0.9 * hue < np.abs(hues).max() <= hue + 1e-3 and abs(hues.mean()) < 0.2 * hue


def test_half_is_mirrored_and_half_is_blurred(monkeypatch):
    steps = np.zeros([FLAT, 8, 8, 1], np.float32)
    steps[:, :, 4:] = 1.0
    monkeypatch.setattr(
        image_ops, "random_windows", lambda count, shape, seed, min_crop_area: (tf.zeros([count, 2]), tf.zeros([count, 2]) + shape)
    )  # the full image
    views = augment.simclr(tf.constant(steps), SEED, strength=0.0).numpy()[:, 0, :, 0]
    assert scipy.stats.binomtest(int((views[:, 0] > views[:, -1]).sum()), FLAT, 0.5).pvalue > 0.01
    blurred = np.abs(views - np.round(views)).max(axis=1) > 1e-3  # a sigma below 0.25 pixels is invisible
    assert scipy.stats.binomtest(int(blurred.sum()), FLAT, 0.5 * (1 - 0.15 / 1.9)).pvalue > 0.01
    sharp = augment.simclr(tf.constant(steps), SEED, strength=0.0, blur=False).numpy()
    assert set(np.unique(sharp)) == {0.0, 1.0}


@pytest.mark.parametrize("other", ["moco_v2", "moco_v1"])
def test_urrl_draws_each_images_family(other, monkeypatch):
    monkeypatch.setattr(augment, f"_{other}_colors", lambda images, *_: tf.zeros_like(images))
    sample_images = tf.constant(np.random.RandomState(0).uniform(0.3, 1.0, (FLAT, 8, 8, 3)), tf.float32)
    for probability in (0.0, 0.3, 1.0):
        views = augment.urrl(sample_images, SEED, probability=probability, other=other).numpy()
        robust = int((views.max(axis=(1, 2, 3)) > 0).sum())
        assert scipy.stats.binomtest(robust, FLAT, probability).pvalue > 0.01


def test_augmix_with_moco_mixes_mocos_colors(monkeypatch):
    """If MoCo's colors give white and AugMix's operations do nothing, only the mixing coefficient remains."""
    monkeypatch.setattr(augment, "_moco_v2_colors", lambda images, seed, blur: tf.ones_like(images))
    monkeypatch.setattr(augment, "augmix_chain", lambda images, seed, severity: images)
    values = augment.window_augmix_moco(tf.constant(flat(np.zeros([FLAT, 3]))), SEED).numpy()
    assert np.ptp(values, axis=(1, 2, 3)).max() < 1e-6
    assert scipy.stats.kstest(values[:, 0, 0, 0], "uniform").pvalue > 0.01  # Beta(1, 1)


def test_arguments_out_of_range_are_rejected():
    sample_images = tf.constant(flat([[0.5]]))
    for family, options in (
        (augment.simclr, {"strength": -1.0}),
        (augment.simclr, {"strength": 3.0}),
        (augment.moco_v1, {"min_crop_area": 0.0}),
        (augment.urrl, {"probability": 1.5}),
        (augment.urrl, {"other": "augmix"}),
    ):
        with pytest.raises(ValueError, match=f"Expected {next(iter(options))} in"):
            family(sample_images, SEED, **options)
