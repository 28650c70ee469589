"""The contract of every corruption: shape, range, and pixels that depend on (seed, index) alone."""

import io

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from tests.rounding import tolerance
from tf_robust import corruptions, metrics
from tf_robust.testing.samples import photographs

GRAY_OF_ITS_OWN = (  # own draws for each channel, or a different file format
    *("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "brownish_noise"),
    *("jpeg_compression", "elastic_transform", "glass_blur", "motion_blur"),
)
INDICES = np.array([7, 8, 9, 3])  # partly consecutive


@pytest.fixture(scope="module")
def sample_images():
    return photographs()


def test_names():
    assert tuple(corruptions.CORRUPTIONS)[:19] == metrics.BENCHMARK + metrics.EXTRA
    assert {*metrics.BAR["cifar"], *metrics.BAR["imagenet"]} <= corruptions.CORRUPTIONS.keys()


@pytest.mark.parametrize("name", corruptions.CORRUPTIONS)
def test_one_channel(name, sample_images):
    gray = sample_images[..., 1:2]
    result = corruptions.corrupt(gray, name, 3, seed=1).numpy()
    assert result.shape == gray.shape
    if name in GRAY_OF_ITS_OWN:  # a graph of the others' single channel is the one of color and a sum
        mapped = tf.data.Dataset.from_tensor_slices(gray).batch(4).map(lambda x: corruptions.corrupt(x, name, 3, seed=1)).unbatch()
        np.testing.assert_allclose(list(mapped), result, rtol=0, atol=tolerance(64, size=24) if "elastic" in name else tolerance(256))
        return
    three = corruptions.corrupt(np.repeat(gray, 3, axis=-1), name, 3, seed=1).numpy()
    expected = gray if name == "saturate" else three @ np.array([[0.299], [0.587], [0.114]], np.float32)
    np.testing.assert_allclose(result, expected, atol=2e-6)


def test_noise_sets_by_name(sample_images):
    probabilities = np.linspace(0.0, 1.0, sample_images[0, ..., 0].size).reshape(sample_images.shape[1:3])
    for name, options in (("uniform_noise", {}), ("nonuniform_noise", {"probabilities": probabilities})):
        result = corruptions.corrupt(sample_images, name, seed=1, indices=INDICES, **options)
        expected = getattr(corruptions, name)(sample_images, seed=1, indices=INDICES, **options)
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(result[3], corruptions.corrupt(sample_images[3], name, seed=1, indices=3, **options))
    for wrong in (None, probabilities[:-1]):
        with pytest.raises(ValueError, match="probabilities"):
            corruptions.corrupt(sample_images, "nonuniform_noise", probabilities=wrong)


def test_protocols_round_as_the_originals(sample_images):
    unrounded = corruptions.corrupt(sample_images, "gaussian_noise", 2).numpy()
    truncated = corruptions.corrupt(sample_images, "gaussian_noise", 2, protocol="cifar_c").numpy()
    np.testing.assert_allclose(truncated * 255, np.floor(unrounded * 255 + 1e-3), atol=1e-4)
    np.testing.assert_array_equal(corruptions.store(tf.constant(sample_images), "cifar_c"), sample_images)
    compressed = corruptions.corrupt(sample_images, "gaussian_noise", 2, protocol="imagenet_c").numpy()
    for sample_image, result in zip(truncated, compressed):
        file = io.BytesIO()
        PIL.Image.fromarray(np.round(sample_image * 255).astype(np.uint8)).save(file, "JPEG", quality=85)
        np.testing.assert_array_equal(np.round(result * 255), np.asarray(PIL.Image.open(file)))


@pytest.mark.parametrize(
    "shape, expected",
    [
        ((32, 32, 3), "cifar"),
        ((28, 28, 1), "cifar, made for 32x32, used for 28x28"),
        ((64, 64, 3), "tiny_imagenet"),
        ((96, 96, 3), "tiny_imagenet, made for 64x64, used for 96x96"),
        ((224, 224, 3), "imagenet"),
        ((40, 200, 3), "tiny_imagenet, made for 64x64, used for 40x200"),
    ],
)
def test_describe_names_the_constants_of_the_nearest_size(shape, expected):
    result = corruptions.describe(shape)
    assert result["constants"] == expected and ("one_channel" in result) == (shape[2] == 1)
    assert corruptions.describe(shape, "imagenet")["constants"].startswith("imagenet")


def test_constants_can_be_chosen(sample_images):
    own = corruptions.corrupt(sample_images, "contrast", 1, constants="imagenet")
    means = sample_images.mean(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(own, np.clip((sample_images - means) * 0.4 + means, 0, 1), atol=1e-6)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"name": "gausian_noise"}, "gausian_noise"),
        ({"severity": 0}, "severity"),
        ({"severity": 2.5}, "severity"),
        ({"constants": "cifar10"}, "cifar10"),
        ({"protocol": "png"}, "protocol"),
        ({"images": np.zeros([2, 8, 8, 3], np.uint8)}, "uint8"),
        ({"images": np.full([2, 8, 8, 3], 2.0, np.float32)}, r"\[0, 1\]"),
        ({"images": np.full([2, 8, 8, 3], np.nan, np.float32)}, "finite"),
        ({"images": np.zeros([2, 8, 8, 4], np.float32)}, "C = 1 or 3"),
        ({"images": np.zeros([8, 8], np.float32)}, "shape"),
        ({"name": "gaussian_noise", "indices": [7]}, "index"),
    ],
)
def test_invalid_arguments_are_rejected(change, message, sample_images):
    with pytest.raises(ValueError, match=message):
        corruptions.corrupt(**{"images": sample_images, "name": "fog", **change})


def test_unknown_sizes_in_a_graph_are_rejected(sample_images):
    dataset = tf.data.Dataset.from_generator(lambda: iter(sample_images), output_signature=tf.TensorSpec([None, None, 3]))
    with pytest.raises(ValueError, match="ensure_shape"):
        dataset.batch(2).map(lambda x: corruptions.corrupt(x, "fog"))


def test_a_severity_may_be_a_float(sample_images):
    np.testing.assert_array_equal(corruptions.corrupt(sample_images, "fog", 3.0), corruptions.corrupt(sample_images, "fog", 3))
