import dataclasses
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.data.tfds_files import FIRST, write, write_files
from tf_robust import data
from tf_robust.data import tfds_sets
from tf_robust.data.augment import crop_flip, patch_gaussian
from tf_robust.data.source import Fit
from tf_robust.evaluation import confidence


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("tfds"))
    write(folder, "two_splits", {"train": 24, "test": 6})
    write(folder, "three_splits", {"train": 8, "validation": 4, "test": 6})
    write(folder, "imagenet2012_small", {"train": 8, "validation": 4, "test": 6})
    write(folder, "ramps", {"train": 24, "test": 4}, ramp=3)
    write(folder, "unlabelled", {"train": 4, "test": 4}, label="kind")
    return folder


@pytest.fixture
def stream(root, monkeypatch):
    """Returns a function (name, split) -> a source that is read as a stream."""
    monkeypatch.setattr(tfds_sets, "IN_MEMORY_BYTES", 0)
    return lambda name, split, **options: data.open_source(name, split, root, image_size=8, **options)


def examples(dataset):
    """Returns [(number of the image, label)]; every pixel of an image without ramp is its number."""
    images, labels, *_ = (np.concatenate(parts) for parts in zip(*dataset.as_numpy_iterator()))
    assert images.dtype == np.uint8 and labels.dtype == np.int64 and images.shape[1:] == (8, 8, 3)
    assert (images == images[:, :1, :1, :1]).all()
    return list(zip(images[:, 0, 0, 0].tolist(), labels.tolist()))


def expected(split, size):
    return [(FIRST[split] + i, i % 2) for i in range(size)]


def test_a_small_set_is_read_by_its_name_into_memory(root):
    for split, size in (("train", 24), ("test", 6)):
        source = data.open_source("two_splits", split, root)
        assert source.class_names == ("even", "odd") and len(source) == size and source.in_memory and source.random_access
        assert sorted(examples(source.ordered(5))) == expected(split, size)


def test_a_stream_holds_the_same_examples_in_the_same_order(root, stream):
    for split in ("train", "test"):
        in_memory = np.stack([image for image, _ in data.load("two_splits", split, root).as_numpy_iterator()])
        source = stream("two_splits", split)
        assert not source.random_access and not source.in_memory and source.class_names == ("even", "odd")
        values, labels = zip(*examples(source.ordered(5)))
        assert [*values] == in_memory[:, 0, 0, 0].tolist()
        assert source.labels is None and sorted(source.read_labels()) == sorted(labels)
    ramps = np.stack([image for image, _ in data.load("ramps", "train", root).as_numpy_iterator()])
    np.testing.assert_array_equal(np.concatenate([images for images, _ in stream("ramps", "train").ordered(5)]), ramps)


def test_a_streams_epoch_is_a_permutation_by_seed_and_epoch_alone(stream):
    source = stream("two_splits", "train")
    tf.random.set_seed(1)
    epoch = source.epoch(0, 0, 4)
    first = examples(epoch)
    assert sorted(first) == expected("train", 24) and examples(epoch) == first and examples(source.epoch(0, 0, 4, 2)) == first[8:]
    tf.random.set_seed(2)
    assert examples(stream("two_splits", "train").epoch(0, 0, 4)) == first
    assert examples(source.epoch(1, 0, 4)) != first and examples(source.epoch(0, 1, 4)) != first


@pytest.fixture
def three_files(stream, tmp_path, monkeypatch):
    """A stream of 24 images of many sizes in three files, shuffled seven at a time."""
    ramps = stream("ramps", "train")
    examples = ({"image": image, "label": label} for image, label in ramps.ordered(24).unbatch().as_numpy_iterator())
    write_files(str(tmp_path / "three" / "1.0.0"), "three", "train", ramps.builder.info.features, examples, [5, 10, 9])
    monkeypatch.setattr(tfds_sets, "WINDOW", 7)
    return dataclasses.replace(data.open_source("three", "train", str(tmp_path)), fit=Fit(8, 8, varying=True))


def test_a_truncated_file_is_named(three_files):
    cut = three_files.files[1]
    os.truncate(cut, os.path.getsize(cut) - 3)
    for batches in (three_files.ordered(4), three_files.epoch(0, 0, 4)):
        with pytest.raises(OSError, match=re.escape(cut)), three_files.reading():
            list(batches)


def test_a_damaged_file_of_a_set_in_memory_is_named(tmp_path):
    write(str(tmp_path), "damaged", {"train": 24, "test": 4})
    (path,) = tmp_path.glob("**/*train.tfrecord*")
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(OSError, match=re.escape(str(path))):
        data.open_source("damaged", "train", str(tmp_path))


@pytest.mark.slow
def test_augmented_batches_of_a_stream_resume_within_an_epoch(three_files):
    def batches(skip=0):
        dataset = data.training_batches(three_files, 4, seed=5, step=6 + skip, augmentations=(crop_flip, patch_gaussian)).take(6 - skip)
        return [(batch.views[0].tobytes(), batch.labels.tolist(), batch.step.tolist()) for batch in dataset.as_numpy_iterator()]

    expected = batches()
    assert len({pixels for pixels, _, _ in expected}) == 6
    for skip in (1, 4, 5):
        assert batches(skip) == expected[skip:]


def test_positions_of_a_streams_examples(three_files):
    three_files = dataclasses.replace(three_files, fit=None)  # unchanged images
    images = [image.tobytes() for image, _ in three_files.ordered(24).unbatch().as_numpy_iterator()]
    for image, _, position in three_files.epoch(3, 1, 4).unbatch().as_numpy_iterator():
        assert images[position] == image.tobytes()


def test_a_stream_of_images_of_many_sizes_crops_anew_in_every_epoch(stream):
    source = dataclasses.replace(stream("ramps", "train"), fit=Fit(8, 8, varying=True))

    def windows(seed, epoch):  # ramps without the number of the image
        images = np.concatenate([images for images, *_ in source.epoch(seed, epoch, 4)])
        return images - images[:, :1, :1].astype(int)

    first = windows(0, 0)
    for other in (windows(0, 1), windows(1, 0)):
        assert np.mean((first == other).all(axis=(1, 2, 3))) < 0.1


def test_a_fraction_of_training_becomes_validation(root):
    parts = [
        examples(data.open_source("two_splits", split, root, validation_fraction=0.25).ordered(50)) for split in ("train", "validation")
    ]
    assert sorted(sum(parts, [])) == expected("train", 24)
    assert [label for _, label in parts[1]].count(0) == 3 and len(parts[1]) == 6
    assert data.has_validation("two_splits", root, 0.25)


def test_a_validation_split_precedes_the_fraction(root):
    assert data.has_validation("three_splits", root)
    for fraction in (0.0, 0.5):
        source = data.open_source("three_splits", "validation", root, validation_fraction=fraction)
        assert sorted(examples(source.ordered(50))) == expected("validation", 4)
        assert len(data.open_source("three_splits", "train", root, validation_fraction=fraction)) == 8


def test_a_stream_has_neither_validation_nor_subsets(stream, root):
    assert not data.has_validation("two_splits", root, 0.25)
    with pytest.raises(ValueError, match="validation_fraction=0. Received: 0.25"):
        stream("two_splits", "train", validation_fraction=0.25)
    with pytest.raises(ValueError, match="read as a stream. Received: 5"):
        stream("two_splits", "train", examples=5)
    with pytest.raises(ValueError, match="two_splits, which is read as a stream"):
        stream("two_splits", "train").subset(np.arange(3))


def test_embeddings_of_a_stream_are_those_of_its_first_images(stream, monkeypatch):
    monkeypatch.setattr(confidence, "KNOWN", 3)
    whole = stream("two_splits", "train")
    known = confidence.known_images(whole)
    assert len(known) == 3 and examples(known.ordered(2)) == examples(whole.ordered(2))[:3]


def test_the_test_set_of_imagenet_is_its_validation_split(stream, root):
    assert sorted(examples(stream("imagenet2012_small", "test").ordered(50))) == expected("validation", 4)
    assert not data.has_validation("imagenet2012_small", root)
    with pytest.raises(ValueError, match="imagenet2012_small"):
        stream("imagenet2012_small", "validation")


def test_subsets_and_what_is_not_there(root):
    assert len(data.open_source("two_splits", "train", root, examples=5)) == 5
    assert not data.has_validation("two_splits", root)
    with pytest.raises(ValueError, match="two_splits has no validation split"):
        data.open_source("two_splits", "validation", root)
    with pytest.raises(ValueError, match="unlabelled has: image, kind"):
        data.open_source("unlabelled", "train", root)
