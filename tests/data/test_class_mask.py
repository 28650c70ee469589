import dataclasses

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.data.image_files import save
from tf_robust import data
from tf_robust.configs import DataConfig
from tf_robust.data.class_mask import classes_of, implied_label_set, masked, protocol_mask, read_label_map, relabel
from tf_robust.data.sources import map_labels


@pytest.mark.parametrize("name, first", [("imagenet_a", 6), ("imagenet_r", 1)])
def test_parts_of_imagenet_count_their_200_classes(name, first):
    mask = protocol_mask(name)
    assert len(set(mask)) == 200 and mask == tuple(sorted(mask)) and (mask[0], mask[-1]) == (first, 988)
    assert protocol_mask(f"{name}:0.2.0") == protocol_mask(f"{name}/1") == mask
    names = tfds.builder(name, data_dir="/nowhere").info.features["label"].names
    classes = classes_of(name)
    assert sorted(names) == list(names) == classes_of("imagenet")["wnids"] and len(names) == 1000
    assert [names[column] for column in classes["columns"]] == classes["wnids"] and "eval.py" in classes["source"]


def test_the_mask_of_a_source_depends_on_its_name(source):
    for name in ("imagenet_r", "imagenet_a"):
        assert masked(dataclasses.replace(source(count=400, classes=200), name=name)).class_mask == protocol_mask(name)
    for name in ("cifar10", "imagenet2012", "folder:/data/imagenet_r"):
        assert masked(dataclasses.replace(source(), name=name)).class_mask is None


@pytest.mark.parametrize("text", ['{"n01": 3, "n02 b": 0}', "n01 3\nn02 b\t0\n", "# from here\n\n n01   3 \r\nn02 b 0"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_label_map_is_json_or_lines_with_or_without_a_byte_order_mark(tmp_path, text, encoding):
    path = tmp_path / "map"
    path.write_bytes(text.encode(encoding))
    assert read_label_map(str(path)) == {"n01": 3, "n02 b": 0}


@pytest.mark.parametrize(
    "text, message",
    [
        (b"n01 3\nn02", "line 2 is 'n02'"),
        (b"n01 -3", "line 1"),
        (b"n01 x", "line 1"),
        (b"n01 1.5", "line 1"),
        (b'{"n01": -1}', "'n01' has the column -1"),
        (b'{"n01": "3"}', "column '3'"),
        (b'{"n01": true}', "column True"),
        (b'{"a": {"b": 1, "c": 2}}', "'a' has the column"),
        (b'{"n01": 3', "map"),
        ("n01 3".encode("utf-16"), "utf-8"),
        (b"", "without entries"),
        (b"{}", "without entries"),
        (b'{"n01": 3, "n01": 4}', "duplicates n01"),
        (b"a 1\na 2", "duplicates a"),
        (b"a 1\nb 1", "duplicates 1"),
    ],
)
def test_a_malformed_label_map_is_rejected(tmp_path, text, message):
    (tmp_path / "map").write_bytes(text)
    with pytest.raises(ValueError, match=message):
        read_label_map(str(tmp_path / "map"))


@pytest.fixture
def folders(tmp_path):
    """Opens class folders `cat` (two images of 10) and `dog` (one of 20)."""
    for name, value in (("cat/1", 10), ("cat/2", 10), ("dog/1", 20)):
        for split in ("train", "test"):
            save(np.full((8, 8, 3), value, np.uint8), tmp_path / split / f"{name}.png")
    return data.open_source(f"folder:{tmp_path}", "test", image_size=8)


def test_labels_become_the_columns_of_a_model(folders):
    mapped = relabel(folders, {"dog": 2, "cat": 7, "emu": 4}, outputs=10)
    assert mapped.class_mask is None and mapped.label_columns == (7, 2) and mapped.num_classes == 10
    assert mapped.class_names[2] == "dog" and mapped.class_names[7] == "cat" and mapped.class_names[0] == "0"
    images, labels = next(mapped.ordered(5).as_numpy_iterator())
    assert images[:, 0, 0, 0].tolist() == [10, 10, 20] and labels.tolist() == [7, 7, 2]
    assert mapped.subset(np.array([2])).labels == (2,) and relabel(folders, {"dog": 2, "cat": 7}).num_classes == 8
    with pytest.raises(ValueError, match=r"Missing: cat \(1\)"):
        relabel(folders, {"dog": 2})


def test_labels_of_arrays_become_the_columns_of_a_model():
    levels = np.array([0, 100, 200], np.uint8)
    source = data.from_arrays(np.zeros((3, 8, 8, 3), np.uint8) + levels[:, None, None, None], ["dog", "cat", "dog"])
    mapped = relabel(source, {"dog": 2, "cat": 7})
    for part in (mapped, mapped.subset(np.arange(3))):
        images, labels = next(part.ordered(3).as_numpy_iterator())
        assert labels.tolist() == [2, 7, 2] and images[:, 0, 0, 0].tolist() == levels.tolist()


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
    with pytest.raises(ValueError, match="columns in 0..6 .* Received: 7 for 'cat'"):
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
