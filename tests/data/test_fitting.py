"""Images of the requested size are unchanged; others are cropped, stretched or padded, as by Pillow."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from tests.data.image_files import sample_image, save, write
from tf_robust import data
from tf_robust.data.source import Fit

HEIGHT, WIDTH = 24, 30
BILINEAR = Image.Resampling.BILINEAR


def by_pillow(image, how):
    if how == "stretch":
        return image.resize((WIDTH, HEIGHT), BILINEAR)
    if how == "pad":
        return ImageOps.pad(image, (WIDTH, HEIGHT), BILINEAR)
    scale = max(WIDTH / image.width, HEIGHT / image.height)
    covering = image.resize((round(scale * image.width), round(scale * image.height)), BILINEAR)
    left, top = (covering.width - WIDTH) // 2, (covering.height - HEIGHT) // 2
    return covering.crop((left, top, left + WIDTH, top + HEIGHT))


@pytest.mark.parametrize("how", ["crop", "stretch", "pad"])
def test_fit_equals_pillow_and_does_not_change_images_of_the_size(how):
    for number in range(4):
        original = sample_image(number)
        result = Fit(HEIGHT, WIDTH, how).levels(tf.constant(np.asarray(original))).numpy().astype(int)
        expected = np.asarray(by_pillow(original, how), int)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, atol=2)
        if how == "pad":
            np.testing.assert_array_equal((result.max(axis=2) == 0).all(axis=0), (expected.max(axis=2) == 0).all(axis=0))
    image = np.random.RandomState(0).randint(256, size=(2, HEIGHT, WIDTH, 3)).astype(np.uint8)
    np.testing.assert_array_equal(Fit(HEIGHT, WIDTH, how).levels(tf.constant(image)), image)


def test_an_unknown_fit_is_rejected():
    with pytest.raises(ValueError, match="strech"):
        data.open_source("digits", "test", image_fit="strech")


@pytest.fixture(scope="module")
def equal(tmp_path_factory):
    """Writes noise of 20x18 pixels, which any resizing would change."""
    root, random = tmp_path_factory.mktemp("equal"), np.random.RandomState(0)
    for split, count in (("train", 6), ("test", 4)):
        for i in range(count):
            save(random.randint(256, size=(20, 18, 3)).astype(np.uint8), root / split / "cat" / f"{i}.png")
    return root


def files(root, split):
    return np.stack([np.asarray(Image.open(path)) for path in sorted((root / split / "cat").iterdir())])


def images(source):
    return np.concatenate([batch for batch, _ in source.ordered(3).as_numpy_iterator()])


def test_files_of_one_size_are_unchanged(equal):
    for split, options in (("train", {}), ("test", {"image_fit": "pad"}), ("test", {"default_size": (20, 18)})):
        source = data.open_source(f"folder:{equal}", split, **options)
        assert source.image_shape == (20, 18, 3) and source.fit is None and not source.varying_size
        np.testing.assert_array_equal(images(source), files(equal, split))
    expected = files(equal, "train")
    for image, _, position in data.open_source(f"folder:{equal}", "train").epoch(0, 0, 2).unbatch().as_numpy_iterator():
        np.testing.assert_array_equal(image, expected[position])  # in training, too


def test_files_of_one_size_are_fitted_alike_in_training_and_evaluation(equal):
    source = data.open_source(f"folder:{equal}", "train", default_size=(HEIGHT, WIDTH), image_fit="pad")
    expected = np.stack([by_pillow(Image.fromarray(image), "pad") for image in files(equal, "train")])
    evaluated = images(source)
    np.testing.assert_allclose(evaluated.astype(int), expected.astype(int), atol=2)
    for image, _, position in source.epoch(1, 0, 3).unbatch().as_numpy_iterator():
        np.testing.assert_array_equal(image, evaluated[position])


def test_image_size_precedes_default_size(equal):
    assert data.open_source(f"folder:{equal}", "test", image_size=16, default_size=(24, 24)).image_shape == (16, 16, 3)
    assert data.open_source("digits", "test", default_size=(24, 24)).image_shape == (28, 28, 1)  # neither files nor of varying size


def test_files_of_many_sizes_are_224_pixels_by_default(tmp_path):
    write(tmp_path / "train", {"cat": 4})
    source = data.open_source(f"folder:{tmp_path}", "train")
    assert source.image_shape == (224, 224, 3) and source.varying_size
    assert str(source.fit) == "resized to cover 256x256, center-cropped to 224x224"
    assert not data.open_source(f"folder:{tmp_path}", "train", image_fit="stretch").varying_size


def test_test_files_are_fitted_to_the_size_of_the_training_files(equal, tmp_path):
    (tmp_path / "train").symlink_to(equal / "train")
    save(np.full((40, 36, 3), 7, np.uint8), tmp_path / "test" / "cat" / "0.png")
    source = data.open_source(f"folder:{tmp_path}", "test")
    np.testing.assert_array_equal(images(source), np.full((1, 20, 18, 3), 7))
    assert str(source.fit) == "resized to cover 20x18, center-cropped"


def test_embedded_sets_are_resized_to_image_size():
    plain, large = (data.open_source("digits", "test", image_size=size, examples=20, image_fit="stretch") for size in (0, 40))
    assert large.image_shape == (40, 40, 1) and plain.fingerprint() != large.fingerprint()
    expected = [np.asarray(Image.fromarray(image[..., 0]).resize((40, 40), BILINEAR), int) for image in plain.images]
    np.testing.assert_allclose(images(large)[..., 0].astype(int), expected, atol=1)
    trained, _, positions = next(large.epoch(0, 0, 5).as_numpy_iterator())
    np.testing.assert_array_equal(trained, images(large)[positions])
