"""Layers: equal to the functions they call, new at every call or a function of the step, and saved with a model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import sweep
from tf_robust import corruptions, layers
from tf_robust.data.augment import patch_gaussian
from tf_robust.data.augmix import augmix

IMAGES = np.random.RandomState(0).rand(6, 16, 16, 3).astype(np.float32)
LAYERS = {
    "augmix": lambda **options: layers.AugMix(severity=4.0, width=1, depth=1, **options),
    "patch_gaussian": lambda **options: layers.PatchGaussian(size=8, sigma=0.5, **options),
    "corruption": lambda **options: layers.RandomCorruption(["gaussian_noise", "pixelate", "contrast"], severities=(2, 5), **options),
}


def test_they_call_the_functions_of_the_package():
    seed = tf.constant([3, 7], tf.int64)
    np.testing.assert_array_equal(layers.AugMix(seed=3, severity=5.0)(IMAGES, step=7), augmix(IMAGES, seed, severity=5.0))
    np.testing.assert_array_equal(layers.PatchGaussian(seed=3, size=9)(IMAGES, step=7), patch_gaussian(IMAGES, seed, size=9))
    expected = corruptions.CORRUPTIONS["shot_noise"](IMAGES, 4, seed=seed)
    np.testing.assert_array_equal(layers.RandomCorruption(["shot_noise"], severities=[4], seed=3)(IMAGES, step=7), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_every_call_draws_anew_and_equal_seeds_alike(name):
    first, second = ([layer(IMAGES).numpy() for _ in range(5)] for layer in (LAYERS[name](seed=1), LAYERS[name](seed=1)))
    np.testing.assert_array_equal(first, second)
    assert len({images.tobytes() for images in first}) == 5 - (name == "corruption")  # which draws one of six
    assert not np.array_equal(first[0], LAYERS[name](seed=2)(IMAGES))


def test_every_epoch_of_a_dataset_draws_anew():
    """The same positions, with parallel calls."""
    layer = layers.PatchGaussian(size=8, sigma=0.5)
    augmented = tf.data.Dataset.from_tensor_slices(IMAGES).map(layer, num_parallel_calls=2)
    epochs = [image.tobytes() for _ in range(3) for image in augmented.as_numpy_iterator()]
    assert len(set(epochs)) == len(epochs) == 18


def test_layers_of_a_model_draw_anew_in_every_step_and_on_every_replica(two_replicas):
    with two_replicas.scope():
        layer = layers.PatchGaussian(size=8, sigma=0.5)
    step = tf.function(lambda images: layer(images, training=True))
    results = [part.numpy() for _ in range(2) for part in two_replicas.run(step, (IMAGES,)).values]
    assert len({images.tobytes() for images in results}) == 4


@pytest.mark.parametrize("name", sweep(LAYERS, quick=("patch_gaussian", "corruption")))  # AugMix's graph takes long to build
def test_map_with_parallel_calls_is_reproducible_and_equal_to_a_call(name):
    layer = LAYERS[name](seed=1)
    data = tf.data.Dataset.from_tensor_slices(IMAGES).batch(2)
    numbered = data.enumerate().map(lambda step, images: layer(images, step=step), num_parallel_calls=2)
    for step, batch in enumerate(numbered):
        np.testing.assert_allclose(batch, layer(IMAGES[2 * step : 2 * step + 2], step=step), atol=1e-6)
    (single,) = tf.data.Dataset.from_tensors(IMAGES[0]).map(layer)
    assert single.shape == IMAGES[0].shape


def test_other_ranges_of_pixels():
    levels = np.round(IMAGES * 255).astype(np.uint8)
    scaled = layers.AugMix(seed=1, input_range=(0, 255))(levels, step=1).numpy() / 255
    np.testing.assert_allclose(scaled, layers.AugMix(seed=1)(levels.astype(np.float32) / 255, step=1), atol=1e-5)
    with pytest.raises(ValueError, match="input_range"):
        layers.AugMix()(levels)


def test_values_outside_the_range_are_refused():
    """By the base class, at a call and in a dataset."""
    wrong = np.stack([IMAGES * 255, IMAGES * 2 - 1])  # as Keras' `image_dataset_from_directory` reads them; and another usual scale
    layer = LAYERS["patch_gaussian"]()
    in_a_dataset = iter(tf.data.Dataset.from_tensor_slices(wrong).map(layer))
    for images in wrong:
        with pytest.raises(tf.errors.InvalidArgumentError, match="input_range"):
            layer(images)
        with pytest.raises(tf.errors.InvalidArgumentError, match="input_range"):
            next(in_a_dataset)
    layer(IMAGES * 1.005)  # rounding, as of a resized image


@pytest.mark.parametrize("name", LAYERS)
def test_inside_a_model_they_augment_in_training_only_and_are_saved(name, tmp_path):
    layer = LAYERS[name](seed=1, input_range=(-1, 2))
    model = keras.Sequential([keras.Input(IMAGES.shape[1:]), layer])
    assert not np.array_equal(model(IMAGES, training=True), IMAGES)
    np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), IMAGES)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    fresh = LAYERS[name](seed=1, input_range=(-1, 2))
    np.testing.assert_array_equal(loaded(IMAGES, training=True), fresh(IMAGES))
    assert loaded.layers[0].get_config() == layer.get_config() and loaded.layers[0].options == layer.options


def test_bad_arguments():
    with pytest.raises(ValueError, match="gausian_noise"):
        layers.RandomCorruption(["gausian_noise"])
    with pytest.raises(ValueError, match="severities"):
        layers.RandomCorruption(["fog"], severities=[6])
    with pytest.raises(ValueError, match="input_range"):
        layers.AugMix(input_range=(1, 0))
