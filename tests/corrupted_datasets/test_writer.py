import functools
import os
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.corrupted_datasets.sets import NAMES, clean, expected, quick, write
from tf_robust import corrupted_datasets
from tf_robust.utils.files import read_json


def test_arrays_hold_five_severities_in_order(source, folder):
    assert write(source, folder) == []
    arrays = ["gaussian_noise.npy", "impulse_noise.npy", "labels.npy"]
    assert sorted(os.listdir(folder)) == ["card.json", *arrays, "sheet.png"]
    for name in NAMES:
        array = np.load(os.path.join(folder, f"{name}.npy"))
        assert array.dtype == np.uint8 and array.shape == (5 * 11, 9, 7, 3)
        for severity in range(1, 6):
            np.testing.assert_array_equal(array[(severity - 1) * 11 : severity * 11], expected(source, name, severity))
    labels = np.load(os.path.join(folder, "labels.npy"))
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(labels, list(source.labels) * 5)


@pytest.mark.parametrize("protocol, kind", [("cifar_c", "png"), ("imagenet_c", "jpeg")])
def test_records_hold_the_same_images_in_the_same_order(source, folder, protocol, kind):
    assert write(source, folder, "tfds", NAMES[:1], protocol) == []
    for severity in (1, 5):
        builder = tfds.builder_from_directory(os.path.join(folder, f"gaussian_noise_{severity}", "1.0.0"))
        split = builder.info.splits["test"]
        assert split.shard_lengths == [4, 4, 3] and builder.info.features["image"].encoding_format == kind
        assert builder.info.features["label"].names == list(source.class_names)
        records = tf.data.TFRecordDataset([str(path) for path in split.filepaths])
        examples = [tf.train.Example.FromString(record).features.feature for record in records.as_numpy_iterator()]
        assert [example["label"].int64_list.value[0] for example in examples] == source.labels.tolist()
        exact = functools.partial(tf.io.decode_jpeg, dct_method="INTEGER_ACCURATE")
        decode = exact if kind == "jpeg" else tf.io.decode_png
        sample_images = [decode(example["image"].bytes_list.value[0]) for example in examples]
        np.testing.assert_array_equal(sample_images, expected(source, "gaussian_noise", severity, protocol))


def test_tfds_reads_records_of_one_channel_by_name(folder):
    gray = clean(shape=(8, 8, 1))
    write(gray, folder, "tfds", NAMES[:1])
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    dataset = tfds.load("gaussian_noise_2", data_dir=folder, split="test", batch_size=-1, read_config=in_order)
    np.testing.assert_array_equal(dataset["image"], expected(gray, "gaussian_noise", 2))
    np.testing.assert_array_equal(dataset["label"], gray.labels)


def test_arrays_of_the_imagenet_protocol_are_compressed_as_jpeg(source, folder):
    write(source, folder, names=NAMES[:1], protocol="imagenet_c")
    array = np.load(os.path.join(folder, "gaussian_noise.npy"))
    np.testing.assert_array_equal(array[22:33], expected(source, "gaussian_noise", 3, "imagenet_c"))
    assert (array[22:33] != expected(source, "gaussian_noise", 3)).any()


def test_the_float_protocol_is_rejected(source, folder):
    with pytest.raises(ValueError, match="'float'"):
        write(source, folder, protocol="float")


def test_the_card_describes_the_set(source, folder, monkeypatch):
    quick(monkeypatch)
    write(source, folder)
    card = read_json(os.path.join(folder, "card.json"))
    assert card["data"] == {
        "name": "clean",
        "split": "test",
        "num_images": 11,
        "fingerprint": source.fingerprint(),
        "image_shape": [9, 7, 3],
    }
    assert card["corruptions"] == list(NAMES) and card["seed"] == 5 and card["protocol"] == "cifar_c"
    assert card["constants"].startswith("cifar") and card["frost"] and card["versions"]["tensorflow"] == tf.__version__


def test_a_subset_is_corrupted_as_in_the_full_set(source, folder):
    write(source.subset(np.array([1, 4, 8])), folder, names=NAMES[:1])
    array = np.load(os.path.join(folder, "gaussian_noise.npy"))
    np.testing.assert_array_equal(array[3:6], expected(source, "gaussian_noise", 2)[[1, 4, 8]])


def test_an_empty_source_is_rejected(source, folder):
    with pytest.raises(ValueError, match="images to corrupt in clean"):
        write(source.subset(np.zeros(0, int)), folder)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"corruptions": ("gausian_noise",)}, "'gausian_noise'. Did you mean 'gaussian_noise'"),
        ({"dataset_format": "zip"}, "dataset_format: 'zip'"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"shard": "0/3"}, "shard"),
        ({"engine": "spark"}, "engine: 'spark'"),
        ({"engine": "beam", "shard": "1/2"}, "shard=1/1"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        corrupted_datasets.WriterConfig(**options)


def test_missing_beam_is_named(source, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "tf_robust.corrupted_datasets.beam", raising=False)
    with pytest.raises(ValueError, match=r"pip install 'tf_robust\[beam\]'"):
        write(source, folder, engine="beam")
