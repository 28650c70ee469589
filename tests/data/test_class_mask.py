import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.data.tfds_files import write
from tf_robust import data
from tf_robust.configs import DataConfig
from tf_robust.data import tfds_sets
from tf_robust.data.class_mask import classes_of, implied_label_set, masked, protocol_mask, read_label_map, relabel
from tf_robust.data.sources import map_labels


def test_imagenet_r_counts_its_200_classes():
    mask = protocol_mask("imagenet_r")
    assert len(mask) == len(set(mask)) == 200 and mask == tuple(sorted(mask)) and mask[0] == 1 and mask[-1] == 988
    assert protocol_mask("imagenet_r:0.2.0") == protocol_mask("imagenet_r/1") == mask


@pytest.mark.parametrize("name", ["imagenet_a", "imagenet_r"])
def test_columns_are_positions_of_the_wnids(name):
    import tensorflow_datasets as tfds

    names = tfds.builder(name, data_dir="/nowhere").info.features["label"].names
    classes = classes_of(name)
    assert sorted(names) == list(names) == classes_of("imagenet")["wnids"] and len(names) == 1000
    assert [names[column] for column in classes["columns"]] == classes["wnids"] and "eval.py" in classes["source"]


def test_imagenet_a_counts_its_200_classes():
    mask = protocol_mask("imagenet_a")
    assert len(mask) == len(set(mask)) == 200 and mask == tuple(sorted(mask)) and (mask[0], mask[-1]) == (6, 988)
    assert protocol_mask("imagenet_a:0.1.0") == mask


def test_other_sets_count_all_columns():
    assert protocol_mask("cifar10") is None and protocol_mask("imagenet2012") is None
    assert protocol_mask("folder:/data/imagenet_r") is None


def test_the_mask_of_a_source_depends_on_its_name(source):
    r, a, other = (dataclasses.replace(source(count=400, classes=200), name=name) for name in ("imagenet_r", "imagenet_a", "digits"))
    assert masked(r).class_mask == protocol_mask("imagenet_r") and masked(a).class_mask == protocol_mask("imagenet_a")
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


@pytest.mark.parametrize("text", ['{"n01": 3, "n02 b": 0}', "n01 3\r\nn02 b\t0\r\n"])
def test_a_label_map_may_have_a_byte_order_mark(tmp_path, text):
    path = tmp_path / "map"
    path.write_bytes(text.encode("utf-8-sig"))
    assert read_label_map(str(path)) == {"n01": 3, "n02 b": 0}
    path.write_bytes(text.encode("utf-16"))
    with pytest.raises(ValueError, match=f"Expected a label map.* Received: {path}: .*utf-8"):
        read_label_map(str(path))


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
    mapped = relabel(folders, {"dog": 2, "cat": 7, "emu": 4}, outputs=10)
    assert mapped.class_mask is None and mapped.label_columns == (7, 2) and mapped.num_classes == 10
    assert mapped.class_names[2] == "dog" and mapped.class_names[7] == "cat" and mapped.class_names[0] == "0"
    images, labels = next(mapped.ordered(5).as_numpy_iterator())
    assert images[:, 0, 0, 0].tolist() == [10, 10, 20] and labels.tolist() == [7, 7, 2]
    assert mapped.subset(np.array([2])).labels == (2,) and relabel(folders, {"dog": 2, "cat": 7}).num_classes == 8


def test_labels_of_arrays_become_the_columns_of_a_model():
    levels = np.array([0, 100, 200], np.uint8)
    source = data.from_arrays(np.zeros((3, 8, 8, 3), np.uint8) + levels[:, None, None, None], ["dog", "cat", "dog"])
    mapped = relabel(source, {"dog": 2, "cat": 7})
    for part in (mapped, mapped.subset(np.arange(3))):
        images, labels = next(part.ordered(3).as_numpy_iterator())
        assert labels.tolist() == [2, 7, 2] and images[:, 0, 0, 0].tolist() == levels.tolist()


def test_a_folder_without_an_entry_is_rejected(folders):
    with pytest.raises(ValueError, match=r"name every class folder of folder:.* Missing: cat \(1\)"):
        relabel(folders, {"dog": 2})


def test_a_column_that_the_model_does_not_have_is_rejected(folders):
    with pytest.raises(ValueError, match=r"Expected columns in 0..6 for a model of 7 outputs. Received: 7 for 'cat'"):
        relabel(folders, {"dog": 2, "cat": 7}, outputs=7)


def mapped_by(source, num_classes=0, **options):
    return map_labels(DataConfig(**options), source, num_classes)


def of_names(source, names, **changes):
    labels = np.arange(len(source)) % len(names)
    return dataclasses.replace(source, class_names=tuple(names), labels=labels, **changes)


@pytest.mark.parametrize("suffix", ["map", "csv"])
def test_all_outputs_compete_unless_a_mask_is_asked_for(folders, tmp_path, suffix):
    """Mapped class folders and a table of columns are one data set, whatever describes it."""
    (tmp_path / "map").write_text("cat 7\ndog 2\nemu 4\n")
    (tmp_path / "csv").write_text("path,label\n" + "".join(f"{path},{(7, 7, 2)[i]}\n" for i, path in enumerate(folders.paths)))
    table = data.open_source(f"csv:{tmp_path}/csv", "all", image_size=8, num_classes=10)
    source, options = (folders, {"label_map": f"{tmp_path}/map"}) if suffix == "map" else (table, {})
    plain, present = (mapped_by(source, 10, classes=classes, **options) for classes in ("all", "present"))
    assert plain.num_classes == present.num_classes == 10 and sorted(plain.labels) == [2, 7, 7]
    assert plain.class_mask is None and present.class_mask == (2, 7)
    few = mapped_by(source.subset(np.array([2])), 10, classes="present", **options)
    assert few.class_mask == (2, 7)  # of the complete set: the classes that compete do not depend on the number of images
    with pytest.raises(ValueError, match="Expected columns in 0..6 for a model of 7 outputs"):
        mapped_by(folders, 7, label_map=f"{tmp_path}/map")


def test_classes_named_by_wordnet_ids_are_those_of_imagenet(source):
    wnids = classes_of("imagenet")["wnids"]
    some, complete = of_names(source(), [wnids[5], wnids[700], wnids[999]]), of_names(source(1000), wnids)
    mapped = mapped_by(some, 1000)
    assert mapped.label_set == "imagenet" and mapped.label_columns == (5, 700, 999) and mapped.class_mask is None
    assert mapped.class_names == tuple(wnids) and mapped.labels.tolist() == np.take([5, 700, 999], some.labels).tolist()
    assert mapped_by(mapped, 1000) is mapped  # as the images of the final evaluation of hardening
    assert mapped_by(some, 1000, classes="present").class_mask == (5, 700, 999)
    assert mapped_by(some, label_set="imagenet").label_columns == (5, 700, 999)  # of a function, whose outputs are not known
    own = mapped_by(some, 3)  # a model of these three classes
    assert own.label_set == "" and own.labels is some.labels
    assert mapped_by(complete).label_set == "imagenet" and mapped_by(complete).labels is complete.labels
    for names in ([*wnids[:2], "n00000000"], [*wnids[:2], "cat"], ["0", "1", "2"]):
        assert implied_label_set(of_names(source(), names), 1000) == ""


def test_a_label_set_of_200_classes_masks_the_others_even_of_a_part(folders):
    known = classes_of("imagenet_r")
    part = mapped_by(dataclasses.replace(folders, class_names=tuple(known["wnids"][:2])), label_set="imagenet_r")
    assert part.class_mask == tuple(known["columns"]) and part.label_columns == tuple(known["columns"][:2])
