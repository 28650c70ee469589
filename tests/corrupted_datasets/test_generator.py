import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.corrupted_datasets import sets
from tf_robust import data
from tf_robust.corrupted_datasets import job
from tf_robust.data import tfds_sets


@pytest.fixture(scope="module")
def clean():
    return sets.clean(count=23, shape=(8, 8, 3))


@pytest.fixture
def files(clean, tmp_path):
    """Returns the clean images as files in class folders."""
    for i, (image, label) in enumerate(zip(clean.images, clean.labels)):
        path = tmp_path / "test" / str(label) / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(image).numpy())
        (tmp_path / "train" / str(label)).mkdir(parents=True, exist_ok=True)
    return data.open_source(f"folder:{tmp_path}", "test", image_size=8)


@pytest.fixture
def stream(clean, tmp_path, monkeypatch):
    """Returns the clean images as a stream of four TFDS files of unequal length."""
    monkeypatch.setattr(tfds_sets, "IN_MEMORY_BYTES", 0)
    features = tfds.features.FeaturesDict({"image": tfds.features.Image(shape=(8, 8, 3)), "label": tfds.features.ClassLabel(num_classes=4)})
    folder, ends = tmp_path / "streamed" / "1.0.0", (0, 5, 6, 16, 23)
    folder.mkdir(parents=True)
    for file, (first, last) in enumerate(zip(ends, ends[1:])):
        with tf.io.TFRecordWriter(str(folder / f"streamed-test.tfrecord-{file:05d}-of-00004")) as writer:
            for image, label in zip(clean.images[first:last], clean.labels[first:last]):
                writer.write(features.serialize_example({"image": image, "label": label}))
    tfds.folder_dataset.write_metadata(
        data_dir=str(folder),
        features=features,
        check_data=False,
        split_infos=[tfds.core.SplitInfo(name="test", shard_lengths=list(np.diff(ends)), num_bytes=1)],
    )
    return data.open_source("streamed", "test", str(tmp_path))


@pytest.mark.parametrize("first, last", [(0, 23), (0, 1), (4, 7), (5, 6), (6, 16), (15, 17), (20, 23), (22, 23)])
def test_read_range_of_a_stream(clean, stream, first, last):
    assert not stream.random_access
    images, labels = stream.read_range(first, last)
    np.testing.assert_array_equal(images, clean.images[first:last])
    np.testing.assert_array_equal(labels, clean.labels[first:last])


@pytest.mark.parametrize("first, damaged", [(5, 1), (6, 2), (15, 2), (16, 3)])
def test_read_range_of_a_stream_does_not_open_earlier_files(clean, stream, first, damaged):
    for path in stream.files[:damaged]:
        with open(path, "wb") as file:
            file.write(b"damaged")
    np.testing.assert_array_equal(stream.read_range(first, 23)[0], clean.images[first:])


@pytest.mark.parametrize("first, last", [(0, 23), (7, 12), (22, 23)])
def test_read_range_of_files(files, first, last):
    full = [np.concatenate(parts) for parts in zip(*files.ordered(5).as_numpy_iterator())]
    for part, expected in zip(files.read_range(first, last), full):
        np.testing.assert_array_equal(part, expected[first:last])


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
    from tf_robust import corruptions

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
