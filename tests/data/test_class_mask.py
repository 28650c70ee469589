import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.data.test_tfds import write
from tf_robust import data
from tf_robust.data import tfds_sets
from tf_robust.data.class_mask import class_mask, classes_of, masked, read_label_map, relabelled


def test_imagenet_r_counts_its_200_classes():
    mask = class_mask("imagenet_r")
    assert len(mask) == len(set(mask)) == 200 and mask == tuple(sorted(mask)) and mask[0] == 1 and mask[-1] == 988
    assert class_mask("imagenet_r:0.2.0") == class_mask("imagenet_r/1") == mask


@pytest.mark.parametrize("name", ["imagenet_a", "imagenet_r"])
def test_columns_are_positions_of_the_wnids(name):
    import tensorflow_datasets as tfds

    names = tfds.builder(name, data_dir="/nowhere").info.features["label"].names
    classes = classes_of(name)
    assert sorted(names) == list(names) and len(names) == 1000
    assert [names[column] for column in classes["columns"]] == classes["wnids"] and "eval.py" in classes["source"]


def test_imagenet_a_counts_its_200_classes():
    mask = class_mask("imagenet_a")
    assert len(mask) == len(set(mask)) == 200 and mask == tuple(sorted(mask)) and (mask[0], mask[-1]) == (6, 988)
    assert class_mask("imagenet_a:0.1.0") == mask


def test_a_folder_of_exactly_their_classes_is_recognized():
    for name in ("imagenet_a", "imagenet_r"):
        wnids = classes_of(name)["wnids"]
        assert class_mask("folder:x", wnids) == class_mask(name)
        assert class_mask("folder:x", wnids[1:]) is None and class_mask("folder:x", [*wnids, "n00000000"]) is None


def test_other_sets_count_all_columns():
    assert class_mask("cifar10") is None and class_mask("imagenet2012") is None
    assert class_mask("folder:/data/imagenet_r") is None


def test_the_mask_of_a_source_depends_on_its_name(source):
    r, a, other = (dataclasses.replace(source(count=400, classes=200), name=name) for name in ("imagenet_r", "imagenet_a", "digits"))
    assert masked(r).class_mask == class_mask("imagenet_r") and masked(a).class_mask == class_mask("imagenet_a")
    assert masked(other) is other


def test_labels_of_a_stream_are_read_without_its_images(tmp_path, monkeypatch):
    write(str(tmp_path), "streamed", {"train": 4, "test": 7})
    in_memory = data.open_source("streamed", "test", str(tmp_path))
    monkeypatch.setattr(tfds_sets, "IN_MEMORY_BYTES", 0)
    stream = data.open_source("streamed", "test", str(tmp_path), image_size=8)
    assert stream.labels is None and in_memory.read_labels().dtype == np.int64
    assert sorted(stream.read_labels()) == sorted(in_memory.labels) == sorted(in_memory.read_labels())


@pytest.mark.parametrize("text", ['{"n01": 3, "n02 b": 0}', "n01 3\nn02 b\t0\n", "# from here\n\n n01   3 \r\nn02 b 0"])
def test_a_label_map_is_json_or_lines(tmp_path, text):
    path = tmp_path / "map"
    path.write_text(text)
    assert read_label_map(str(path)) == {"n01": 3, "n02 b": 0}


@pytest.mark.parametrize(
    "text, message",
    [
        ("n01 3\nn02", "line 2 is 'n02'"),
        ("n01 -3", "line 1 is 'n01 -3'"),
        ("n01 x", "line 1"),
        ("n01 1.5", "line 1"),
        ('{"n01": -1}', "'n01' has the column -1"),
        ('{"n01": "3"}', "column '3'"),
        ('{"n01": true}', "column True"),
        ('{"n01": 3', "Expected a label map"),
        ("", "without entries"),
        ("{}", "without entries"),
        ('{"n01": 3, "n01": 4}', "each name once in .* Received: duplicates n01"),
        ("a 1\na 2", "each name once"),
        ("a 1\nb 1", "each column once in .* Received: duplicates 1"),
        ('{"a": {"b": 1, "c": 2}}', "'a' has the column"),
    ],
)
def test_a_malformed_label_map_is_rejected(tmp_path, text, message):
    path = tmp_path / "map"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_label_map(str(path))


def test_a_missing_label_map(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_label_map(str(tmp_path / "map"))


@pytest.fixture
def folders(tmp_path):
    """Opens class folders `cat` (two images of 10) and `dog` (one of 20)."""
    for name, value in (("cat/1", 10), ("cat/2", 10), ("dog/1", 20)):
        for split in ("train", "test"):
            path = tmp_path / split / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tf.io.encode_png(np.full((8, 8, 3), value, np.uint8)).numpy())
    return data.open_source(f"folder:{tmp_path}", "test", image_size=8)


def test_labels_become_the_columns_of_a_model(folders):
    mapped = relabelled(folders, {"dog": 2, "cat": 7, "emu": 4}, outputs=10)
    assert mapped.class_mask == (2, 7) and mapped.num_classes == 10
    assert mapped.class_names[2] == "dog" and mapped.class_names[7] == "cat" and mapped.class_names[0] == "0"
    images, labels = next(mapped.ordered(5).as_numpy_iterator())
    assert images[:, 0, 0, 0].tolist() == [10, 10, 20] and labels.tolist() == [7, 7, 2]
    assert mapped.subset(np.array([2])).labels == (2,) and relabelled(folders, {"dog": 2, "cat": 7}).num_classes == 8


def test_labels_of_arrays_become_the_columns_of_a_model():
    source = data.from_arrays(np.zeros((3, 8, 8, 3), np.uint8) + np.arange(3, dtype=np.uint8)[:, None, None, None], ["dog", "cat", "dog"])
    mapped = relabelled(source, {"dog": 2, "cat": 7})
    for part in (mapped, mapped.subset(np.arange(3))):
        images, labels = next(part.ordered(3).as_numpy_iterator())
        assert labels.tolist() == [2, 7, 2] and images[:, 0, 0, 0].tolist() == [0, 1, 2]


def test_a_folder_without_an_entry_is_rejected(folders):
    with pytest.raises(ValueError, match=r"name every class folder of folder:.* Missing: cat \(1 of 2\)"):
        relabelled(folders, {"dog": 2})


def test_a_column_that_the_model_does_not_have_is_rejected(folders):
    with pytest.raises(ValueError, match=r"Expected columns in 0..6 for a model of 7 outputs. Received: 7 for 'cat'"):
        relabelled(folders, {"dog": 2, "cat": 7}, outputs=7)
