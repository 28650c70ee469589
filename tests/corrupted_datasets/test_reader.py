"""Available corrupted sets; those of TFDS, with its own names and order; and those of `tf-robust corrupt`."""

import dataclasses
import os
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.image_classification import cifar10_corrupted

from tests.corrupted_datasets import corrupted_images as corrupted_images
from tests.corrupted_datasets.corrupted_images import CLASSES, SIZE, assert_is, clean, corrupted, read
from tests.corrupted_datasets.sets import expected, write
from tests.data.tfds_files import write_files
from tf_robust import data, metrics
from tf_robust.corrupted_datasets import reader
from tf_robust.corrupted_datasets.reader import available, card_of, open_corrupted

arrays = corrupted_images.arrays  # the fixture


def store(root, name, config, source, severity, split="test", version="1.0.0", more=None, encoding="png"):
    """Writes a set in the layout of TFDS: root/name/config/version."""
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=source.image_shape, encoding_format=encoding),
            "label": tfds.features.ClassLabel(names=source.class_names),
            **(more or {}),
        }
    )
    texts = dict.fromkeys(more or (), "text")
    examples = ({"image": image, "label": label, **texts} for image, label in zip(corrupted(source, severity), source.labels))
    write_files(os.path.join(root, name, config, version), name, split, features, examples, [len(source)])


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Returns a data_dir of TFDS with two of cifar10_corrupted's sets, with TFDS's own order and names."""
    root, order = tmp_path_factory.mktemp("records"), np.random.RandomState(1).permutation(SIZE)
    for config, severity in (("frosted_glass_blur_3", 3), ("elastic_5", 5)):
        store(str(root), "cifar10_corrupted", config, clean(order=order), severity)
    return root


@pytest.fixture(scope="module")
def own_sets(tmp_path_factory):
    """Writes a set of random images with `tf-robust corrupt` in both layouts; returns (root, source)."""
    random = np.random.RandomState(2)
    source = data.ArraySource.of(
        "own_sets", "test", random.randint(0, 256, (SIZE, 8, 6, 3)).astype(np.uint8), clean().labels, clean().class_names
    )
    root = tmp_path_factory.mktemp("own_sets")
    for layout, protocol in (("npy", "cifar_c"), ("tfds", "cifar_c"), ("tfds", "imagenet_c")):
        write(source, str(root / f"{layout}_{protocol}"), layout, ("impulse_noise",), protocol, seed=7)
    return root, source


def test_available_corruptions(arrays, records, own_sets):
    assert available(str(arrays)) == [*(("fog", s) for s in range(1, 6)), *(("glass_blur", s) for s in range(1, 6))]
    assert available("cifar10_corrupted", str(records)) == [("elastic_transform", 5), ("glass_blur", 3)]
    assert available(str(records / "cifar10_corrupted")) == [("elastic_transform", 5), ("glass_blur", 3)]
    assert available("imagenet2012_corrupted", str(records)) == []
    for layout in ("npy", "tfds"):
        assert available(str(own_sets[0] / f"{layout}_cifar_c")) == [("impulse_noise", s) for s in range(1, 6)]


def test_missing_corruptions_are_named_with_the_available_ones(arrays, records):
    for name, severity in (("snow", 2), ("fog", 0)):
        with pytest.raises(FileNotFoundError, match=f"'{name}' at severity {severity} in .* Received: fog 1-5, glass_blur 1-5"):
            open_corrupted(str(arrays), clean(), name, severity)
    message = "Expected 'glass_blur' at severity 2 in .*: elastic_transform 5, glass_blur 3.*tfds build cifar10_corrupted/frosted_glass"
    with pytest.raises(FileNotFoundError, match=message):
        open_corrupted("cifar10_corrupted", clean(), "glass_blur", 2, data_dir=str(records))
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        open_corrupted("/nowhere", clean(), "fog", 1)
    with pytest.raises(ValueError, match="'cifar_corrupted'. Did you mean 'cifar10_corrupted'"):
        open_corrupted("cifar_corrupted", clean(), "fog", 1)


def test_a_folder_of_other_files_is_rejected(tmp_path):
    with pytest.raises(FileNotFoundError, match="Received: nothing"):
        available(str(tmp_path))
    (tmp_path / "holiday.txt").write_text("sun")
    with pytest.raises(FileNotFoundError, match="Received: holiday.txt"):
        open_corrupted(str(tmp_path), clean(), "fog", 1)


@pytest.mark.parametrize("name, severity", [("glass_blur", 3), ("elastic_transform", 5)])
@pytest.mark.parametrize("by_name", [True, False])
def test_sets_of_tfds_have_their_own_names_and_order(records, name, severity, by_name):
    where = "cifar10_corrupted" if by_name else str(records / "cifar10_corrupted")
    order = np.random.RandomState(1).permutation(SIZE)
    result = open_corrupted(where, clean(), name, severity, data_dir=str(records))
    assert_is(result, corrupted(clean(order=order), severity), clean(order=order).labels)


def test_a_subset_of_a_set_in_another_order_is_drawn_anew(records):
    subset = clean().subset(np.array([1, 4, 8]))
    result = open_corrupted("cifar10_corrupted", subset, "glass_blur", 3, data_dir=str(records))
    images, labels = read(result)
    numbers = images[:, 0, 0, 0] - 60
    assert len(set(numbers)) == 3 and labels.tolist() == result.labels.tolist() == clean().labels[numbers].tolist()


def test_a_subset_in_another_order_has_the_order_of_its_labels(records):
    kept = np.argsort(clean().labels, kind="stable")[::-1]
    result = open_corrupted("cifar10_corrupted", clean().subset(kept), "glass_blur", 3, data_dir=str(records))
    images, labels = read(result)
    assert labels.tolist() == result.labels.tolist() == sorted(clean().labels)[::-1]
    assert sorted(images[:, 0, 0, 0] - 60) == list(range(SIZE)) and (clean().labels[images[:, 0, 0, 0] - 60] == labels).all()


def test_a_set_of_other_labels_in_another_order_is_rejected(records):
    other = clean()
    other.labels[:] = (other.labels + 1) % CLASSES
    with pytest.raises(ValueError, match="Expected the labels of clean"):
        open_corrupted("cifar10_corrupted", other, "glass_blur", 3, data_dir=str(records))


def test_imagenets_set_is_opened_by_the_benchmarks_names(tmp_path):
    random = np.random.RandomState(0)
    names = tfds.builder("imagenet2012_corrupted/fog_1", data_dir=str(tmp_path)).info.features["label"].names
    images = random.randint(0, 200, (2, 224, 224, 3)).astype(np.uint8)
    source = data.ArraySource.of("imagenet", "test", images, [7, 999], names)
    further = {"split": "validation", "version": "3.1.0", "more": {"file_name": tfds.features.Text()}, "encoding": "jpeg"}
    for name in ("glass_blur", "elastic_transform"):
        store(str(tmp_path), "imagenet2012_corrupted", f"{name}_1", source, 1, **further)
    assert available("imagenet2012_corrupted", str(tmp_path)) == [("elastic_transform", 1), ("glass_blur", 1)]
    result = open_corrupted("imagenet2012_corrupted", source, "glass_blur", 1, data_dir=str(tmp_path))
    images, labels = read(result)
    assert labels.tolist() == [7, 999] and result.num_classes == 1000
    assert np.abs(images.astype(int) - corrupted(source, 1)).mean() < 40  # JPEG of noise


def test_all_names_exist_in_tfds():
    tfds_names = {config.name for config in cifar10_corrupted.Cifar10Corrupted.BUILDER_CONFIGS}
    names = metrics.BENCHMARK + metrics.EXTRA
    translated = {f"{reader._TFDS_NAMES.get(name, name)}_{severity}" for name in names for severity in range(1, 6)}
    assert translated <= tfds_names
    builder = tfds.builder_cls("imagenet2012_corrupted")
    assert {f"{name}_{severity}" for name in names for severity in range(1, 6)} <= set(builder.builder_configs)


@pytest.mark.parametrize("layout, protocol", [("npy", "cifar_c"), ("tfds", "cifar_c"), ("tfds", "imagenet_c")])
def test_written_sets_and_subsets_of_them(own_sets, layout, protocol):
    root, source = own_sets
    folder, images = str(root / f"{layout}_{protocol}"), expected(source, "impulse_noise", 4, protocol, seed=7)
    assert_is(open_corrupted(folder, source, "impulse_noise", 4), images, source.labels)
    subset = source.subset(np.array([0, 3, 8]))
    assert_is(open_corrupted(folder, subset, "impulse_noise", 4), images[[0, 3, 8]], subset.labels)
    assert card_of(folder)["seed"] == 7


def test_a_written_set_of_other_images_is_rejected_even_in_another_order(own_sets):
    root, source = own_sets
    other = data.ArraySource.of("other", "test", source.images, source.labels[::-1], source.class_names)
    for layout in ("npy", "tfds"):
        with pytest.raises(ValueError, match="labels of other .*at index"):
            open_corrupted(str(root / f"{layout}_cifar_c"), other, "impulse_noise", 1)


@pytest.mark.parametrize("layout", ["npy", "tfds"])
def test_a_written_set_of_other_images_with_the_same_labels_is_rejected(own_sets, layout):
    root, source = own_sets
    folder = str(root / f"{layout}_cifar_c")
    night = dataclasses.replace(source, images=source.images // 4)
    for other in (night, night.subset(np.array([5, 2]))):
        with pytest.raises(ValueError, match=r"images of own_sets \(test\)"):
            open_corrupted(folder, other, "impulse_noise", 1)
    subset_of_subset = source.subset(np.array([1, 5, 2])).subset(np.array([1, 2]))
    assert open_corrupted(folder, subset_of_subset, "impulse_noise", 1).positions.tolist() == [5, 2]


def test_truncated_records_are_rejected(own_sets, tmp_path):
    root = shutil.copytree(own_sets[0] / "tfds_cifar_c", tmp_path / "set")
    path = root / "impulse_noise_2" / "1.0.0" / "impulse_noise_2-test.tfrecord-00001-of-00003"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="impulse_noise_2.* an incomplete file"):
        open_corrupted(str(root), own_sets[1], "impulse_noise", 2)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="00001-of-00003"):
        open_corrupted(str(root), own_sets[1], "impulse_noise", 2)
    assert len(open_corrupted(str(root), own_sets[1], "impulse_noise", 3)) == SIZE


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("dataset_info.json", "{", ""),
        ("dataset_info.json", '"', "\xe9"),
        ("dataset_info.json", '"version"', '"versian"'),
        ("features.json", "{", "{,"),
        ("features.json", "\n", "\0"),
        ("card.json", "seed", "sead"),
        ("card.json", "fingerprint", "print"),
    ],
)
def test_written_records_with_damaged_metadata_are_named(own_sets, tmp_path, name, old, new):
    root = shutil.copytree(own_sets[0] / "tfds_cifar_c", tmp_path / "set")
    path = root / name if name == "card.json" else root / "impulse_noise_2" / "1.0.0" / name
    path.write_bytes(path.read_text().replace(old, new, 1).encode("latin-1"))
    with pytest.raises(ValueError, match=f"Expected (a valid .*{path.parent}|valid content in {path})"):
        open_corrupted(str(root), own_sets[1], "impulse_noise", 2)


@pytest.mark.parametrize("content", ["", '{"fileFormat": 3, "a'])
def test_a_set_of_tfds_with_damaged_metadata_is_named(records, tmp_path, content):
    root = shutil.copytree(records, tmp_path / "records")
    (path,) = (root / "cifar10_corrupted" / "elastic_5").glob("*/dataset_info.json")
    path.write_text(content)
    with pytest.raises(ValueError, match=f"dataset_info.json .*{root}"):
        open_corrupted("cifar10_corrupted", clean(), "elastic_transform", 5, data_dir=str(root))


def test_a_set_written_for_a_subset_is_read_with_that_subset(tmp_path):
    subset = clean().subset(np.array([2, 6, 8]))
    write(subset, str(tmp_path / "set"), names=("impulse_noise",))
    result = open_corrupted(str(tmp_path / "set"), subset, "impulse_noise", 1)
    assert len(result) == 3 and read(result)[1].tolist() == subset.labels.tolist()


def test_other_sets_have_no_card(arrays):
    assert card_of(str(arrays)) == {}
