import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.corrupted_datasets import sets
from tests.data.image_files import save
from tests.data.tfds_files import write_files
from tf_robust import corruptions, data
from tf_robust.corrupted_datasets import job
from tf_robust.data import tfds_sets


@pytest.fixture(scope="module")
def clean():
    return sets.clean(count=23, shape=(8, 8, 3))


@pytest.fixture
def stream(clean, tmp_path, monkeypatch):
    """Returns the clean images as a stream of four TFDS files of unequal length."""
    monkeypatch.setattr(tfds_sets, "IN_MEMORY_BYTES", 0)
    features = tfds.features.FeaturesDict({"image": tfds.features.Image(shape=(8, 8, 3)), "label": tfds.features.ClassLabel(num_classes=4)})
    examples = ({"image": image, "label": label} for image, label in zip(clean.images, clean.labels))
    write_files(str(tmp_path / "streamed" / "1.0.0"), "streamed", "test", features, examples, [5, 1, 10, 7])
    return data.open_source("streamed", "test", str(tmp_path))


def test_read_range_of_a_stream(clean, stream):
    assert not stream.random_access
    for first, last in [(0, 23), (4, 7), (5, 6), (6, 16), (22, 23)]:
        images, labels = stream.read_range(first, last)
        np.testing.assert_array_equal(images, clean.images[first:last])
        np.testing.assert_array_equal(labels, clean.labels[first:last])


def test_read_range_of_a_stream_does_not_open_earlier_files(clean, stream):
    for first, damaged in [(5, 1), (6, 2), (15, 2), (16, 3)]:
        for path in stream.files[:damaged]:
            with open(path, "wb") as file:
                file.write(b"damaged")
        np.testing.assert_array_equal(stream.read_range(first, 23)[0], clean.images[first:])


def test_read_range_of_files(clean, tmp_path):
    for i, (image, label) in enumerate(zip(clean.images, clean.labels)):
        save(image, tmp_path / str(label) / f"{i:03d}.png")
    files, order = data.open_source(f"folder:{tmp_path}", "all"), np.argsort(clean.labels, kind="stable")
    for first, last in [(0, 23), (7, 12), (22, 23)]:
        images, labels = files.read_range(first, last)
        np.testing.assert_array_equal(images, clean.images[order[first:last]])
        np.testing.assert_array_equal(labels, clean.labels[order[first:last]])


def test_read_range_of_an_unknown_source(clean):
    class Other(data.source.Source):
        def ordered(self, batch_size):
            return clean.ordered(batch_size)

    other = Other("other", "test", clean.class_names, clean.image_shape, len(clean))
    for part, expected in zip(other.read_range(3, 9), (clean.images, clean.labels)):
        np.testing.assert_array_equal(part, expected[3:9])


def test_a_stream_is_corrupted_as_images_in_memory(clean, stream, tmp_path):
    generate = job.Generator(stream, job.CorruptionConfig(seed=5))
    images, labels = generate("gaussian_noise", 2, 4, 9)
    np.testing.assert_array_equal(images, sets.expected(clean, "gaussian_noise", 2)[4:9])
    np.testing.assert_array_equal(labels, clean.labels[4:9])


def test_chunks_do_not_depend_on_the_batch_size(clean, monkeypatch):
    monkeypatch.setattr(job, "_BATCH_VALUES", 2 * 8 * 8 * 3)
    images, _ = job.Generator(clean, job.CorruptionConfig(seed=5))("gaussian_noise", 2, 4, 9)
    np.testing.assert_array_equal(images, sets.expected(clean, "gaussian_noise", 2)[4:9])


def test_pixels_depend_on_constants_and_seed(clean):
    for config in (job.CorruptionConfig(seed=5, constants="imagenet"), job.CorruptionConfig(seed=6, constants="cifar")):
        images, _ = job.Generator(clean, config)("gaussian_noise", 2, 0, 23)
        expected = corruptions.corrupt(
            clean.images / np.float32(255), "gaussian_noise", 2, config.seed, constants=config.constants, protocol="cifar_c"
        )
        np.testing.assert_array_equal(images, np.round(255 * expected.numpy()))


def test_a_chunk_is_read_once_for_all_severities(clean, monkeypatch):
    reads = []
    monkeypatch.setattr(
        data.ArraySource,
        "read_range",
        lambda source, *chunk: reads.append(chunk) or (source.images[slice(*chunk)], source.labels[slice(*chunk)]),
    )
    sets.quick(monkeypatch)
    generate = job.Generator(clean, job.CorruptionConfig())
    for severity in (1, 2, 3):
        generate("gaussian_noise", severity, 0, 4)
    generate("gaussian_noise", 1, 4, 8)
    assert reads == [(0, 4), (4, 8)]
