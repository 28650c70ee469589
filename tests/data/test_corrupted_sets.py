import dataclasses
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.image_classification import cifar10_corrupted

from tests.prepared.sets import expected
from tf_robust import corruptions, data, prepared
from tf_robust.data import corrupted_sets
from tf_robust.data.corrupted_sets import available, card_of, open_corrupted

SIZE, SHAPE, CLASSES = 9, (32, 32, 3), 10


def clean(size=SIZE, order=None):
    """Picture i has the value i all over; labels in no order, of few classes."""
    order = np.arange(size) if order is None else order
    images = np.zeros((size, *SHAPE), np.uint8) + np.arange(size)[order][:, None, None, None].astype(np.uint8)
    labels = np.random.RandomState(0).randint(0, CLASSES, size)[order]
    return data.ArraySource.of("clean", "test", images, labels, [f"class {i}" for i in range(CLASSES)])


def corrupted(source, severity):
    """What severity s stands for here: picture i has the value 20 * s + i."""
    return source.images + np.uint8(20 * severity)


def read(source, batch_size=4):
    images, labels = (np.concatenate(parts) for parts in zip(*source.ordered(batch_size).as_numpy_iterator()))
    assert images.dtype == np.uint8 and labels.dtype == np.int64
    return images, labels


def assert_is(there, images, labels):
    found = read(there)
    np.testing.assert_array_equal(found[0], images)
    np.testing.assert_array_equal(found[1], labels)
    assert len(there) == len(images) and there.image_shape == images.shape[1:]


@pytest.fixture
def arrays(tmp_path):
    """A folder like CIFAR-10-C."""
    source = clean()
    for name in ("fog", "glass_blur"):
        np.save(tmp_path / f"{name}.npy", np.concatenate([corrupted(source, severity) for severity in range(1, 6)]))
    np.save(tmp_path / "labels.npy", np.tile(source.labels, 5))
    return tmp_path


def store(root, name, config, source, severity, split="test", version="1.0.0", more=None, encoding="png"):
    """As TFDS keeps a set: root/name/config/version."""
    features = tfds.features.FeaturesDict({
        "image": tfds.features.Image(shape=source.image_shape, encoding_format=encoding),
        "label": tfds.features.ClassLabel(names=source.class_names), **(more or {})})
    folder = os.path.join(root, name, config, version)
    os.makedirs(folder)
    with tf.io.TFRecordWriter(os.path.join(folder, f"{name}-{split}.tfrecord-00000-of-00001")) as writer:
        for image, label in zip(corrupted(source, severity), source.labels):
            writer.write(features.serialize_example(
                {"image": image, "label": label, **{key: "text" for key in more or ()}}))
    tfds.folder_dataset.write_metadata(data_dir=folder, features=features, check_data=False, split_infos=[
        tfds.core.SplitInfo(name=split, shard_lengths=[len(source)], num_bytes=1)])


@pytest.fixture
def records(tmp_path):
    """A data_dir of TFDS with two of cifar10_corrupted's sets, in TFDS's own order and by its names."""
    order = np.random.RandomState(1).permutation(SIZE)
    for config, severity in (("frosted_glass_blur_3", 3), ("elastic_5", 5)):
        store(str(tmp_path), "cifar10_corrupted", config, clean(order=order), severity)
    return tmp_path


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """Two layouts of one set that --mode=corrupt wrote, of pictures with some content."""
    random = np.random.RandomState(2)
    source = data.ArraySource.of("ours", "test", random.randint(0, 256, (SIZE, 8, 6, 3)).astype(np.uint8),
                                 clean().labels, clean().class_names)
    root = tmp_path_factory.mktemp("ours")
    for layout, protocol in (("npy", "cifar_c"), ("tfds", "cifar_c"), ("tfds", "imagenet_c")):
        options = prepared.Writing(layout=layout, corruptions=("impulse_noise",), block=4)
        recipe = prepared.Recipe(seed=7, protocol=protocol)
        prepared.write(lambda: source, str(root / f"{layout}_{protocol}"), options, recipe)
    return root, source


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_a_severity_of_an_array(arrays, severity):
    source = clean()
    there = open_corrupted(str(arrays), source, "glass_blur", severity)
    assert_is(there, corrupted(source, severity), source.labels)
    assert there.class_names == source.class_names


def test_an_array_without_its_clean_pictures(arrays):
    there = open_corrupted(str(arrays), None, "fog", 2)
    assert_is(there, corrupted(clean(), 2), clean().labels)


def test_an_array_is_batched_as_evaluation_wants_it(arrays):
    batches = list(data.evaluation_batches(open_corrupted(str(arrays), clean(), "fog", 1), 4))
    assert [images.shape[0] for images, _ in batches] == [4, 4, 1] and batches[0][0].dtype == tf.float32
    np.testing.assert_allclose(batches[2][0], np.full((1, *SHAPE), (20 + 8) / 255), rtol=1e-6)


def test_an_array_is_read_twice_the_same(arrays):
    dataset = open_corrupted(str(arrays), clean(), "fog", 1).ordered(4)
    first, second = ([images.numpy().tolist() for images, _ in dataset] for _ in range(2))
    assert first == second


def test_what_there_is(arrays, records, ours):
    assert available(str(arrays)) == [*(("fog", s) for s in range(1, 6)), *(("glass_blur", s) for s in range(1, 6))]
    assert available("cifar10_corrupted", str(records)) == [("elastic_transform", 5), ("glass_blur", 3)]
    assert available(str(records / "cifar10_corrupted")) == [("elastic_transform", 5), ("glass_blur", 3)]
    assert available("imagenet2012_corrupted", str(records)) == []
    for layout in ("npy", "tfds"):
        assert available(str(ours[0] / f"{layout}_cifar_c")) == [("impulse_noise", s) for s in range(1, 6)]


def test_what_is_missing_is_named_with_what_there_is(arrays, records):
    with pytest.raises(FileNotFoundError, match="Expected 'snow' at severity 2 in .* Found: fog 1-5, glass_blur 1-5"):
        open_corrupted(str(arrays), clean(), "snow", 2)
    message = "Expected cifar10_corrupted/frosted_glass_blur_2 in .*Found: elastic_transform 5, glass_blur 3.*--down"
    with pytest.raises(FileNotFoundError, match=message):
        open_corrupted("cifar10_corrupted", clean(), "glass_blur", 2, data_dir=str(records))
    with pytest.raises(FileNotFoundError, match="Expected a folder of a corrupted set. Not found: /nowhere"):
        open_corrupted("/nowhere", clean(), "fog", 1)
    with pytest.raises(ValueError, match="'cifar_corrupted'. Did you mean 'cifar10_corrupted'"):
        open_corrupted("cifar_corrupted", clean(), "fog", 1)
    with pytest.raises(ValueError, match="Expected severity in 1..5. Received: 0"):
        open_corrupted(str(arrays), clean(), "fog", 0)


def test_a_folder_of_other_things_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="Expected NAME.npy files .* Found: nothing"):
        available(str(tmp_path))
    (tmp_path / "holiday.txt").write_text("sun")
    with pytest.raises(FileNotFoundError, match="Found: holiday.txt"):
        open_corrupted(str(tmp_path), clean(), "fog", 1)


def test_a_half_written_array_is_found_by_its_size(arrays):
    path = arrays / "fog.npy"
    whole = path.read_bytes()
    for cut in (len(whole) - 1, len(whole) // 2, 200):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=rf"Expected {len(whole):,} bytes in .*fog.npy .*Received {cut:,}"):
            open_corrupted(str(arrays), clean(), "fog", 1)
    for content in (whole[:50], b"", b"\x00" * 500):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="Expected a .npy file. Received .*fog.npy"):
            open_corrupted(str(arrays), clean(), "fog", 1)
    path.write_bytes(whole + b"x")
    with pytest.raises(ValueError, match="bytes in .*fog.npy"):
        open_corrupted(str(arrays), clean(), "fog", 1)


@pytest.mark.parametrize("array", [
    np.zeros((10, *SHAPE), np.float32), np.zeros((11, *SHAPE), np.uint8), np.zeros((10, 32, 32), np.uint8),
    np.zeros((0, *SHAPE), np.uint8), np.zeros((10, 3, 32, 32), np.uint8), np.zeros((10, *SHAPE), np.int64)])
def test_an_array_of_another_kind_is_refused(arrays, array):
    np.save(arrays / "fog.npy", array)
    with pytest.raises(ValueError, match=r"Expected uint8 pictures \[5 \* N, H, W, 1 or 3\] in .*fog.npy. Received: "):
        open_corrupted(str(arrays), clean(), "fog", 1)


def test_pickled_objects_are_never_loaded(arrays):
    np.save(arrays / "fog.npy", np.array([{"a": 1}] * 5), allow_pickle=True)
    with pytest.raises(ValueError, match="Expected rows of numbers. Received .*fog.npy"):
        open_corrupted(str(arrays), clean(), "fog", 1)


def test_labels_that_do_not_fit_are_refused(arrays):
    path, labels = arrays / "labels.npy", np.tile(clean().labels, 5)
    for wrong in (labels[:-1], labels.astype(np.float32), labels[:SIZE]):
        np.save(path, wrong)
        with pytest.raises(ValueError, match="Expected 45 integer labels in .*labels.npy.* Received: "):
            open_corrupted(str(arrays), clean(), "fog", 1)
    np.save(path, np.where(np.arange(45) == 3, -1, labels))
    with pytest.raises(ValueError, match="Received -1 at index 3"):
        open_corrupted(str(arrays), clean(), "fog", 1)
    np.save(path, np.where(np.arange(45) == 3, 10, labels))
    with pytest.raises(ValueError, match="Expected at most the 10 classes of clean in .*Received: 11"):
        open_corrupted(str(arrays), clean(), "fog", 1)
    np.save(path, np.roll(labels, 1) * 0)
    with pytest.raises(ValueError, match="Expected the labels of clean .test. in .* at index"):
        open_corrupted(str(arrays), clean(), "fog", 1)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="Not found: .*labels.npy"):
        open_corrupted(str(arrays), clean(), "fog", 1)


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64])
def test_labels_of_any_integer_type(arrays, kind):
    np.save(arrays / "labels.npy", np.tile(clean().labels, 5).astype(kind)[:, None])
    assert_is(open_corrupted(str(arrays), clean(), "fog", 1), corrupted(clean(), 1), clean().labels)


def test_other_pictures_are_refused(arrays):
    with pytest.raises(ValueError, match=r"Expected 8 pictures, of clean \(test\), in .*. Received: 9"):
        open_corrupted(str(arrays), clean(8), "fog", 1)
    small = data.ArraySource.of("small", "test", clean().images[:, :28], clean().labels, clean().class_names)
    with pytest.raises(ValueError, match=r"Expected pictures \(28, 32, 3\) in .* of small. Received: \(32, 32, 3\)"):
        open_corrupted(str(arrays), small, "fog", 1)


def test_a_subset_shows_the_same_pictures(arrays):
    subset = clean().subset(np.array([1, 4, 8]))
    assert_is(open_corrupted(str(arrays), subset, "fog", 2), corrupted(subset, 2), subset.labels)
    larger = clean(20).subset(np.array([1, 15]))
    with pytest.raises(ValueError, match="Expected at least 16 pictures"):
        open_corrupted(str(arrays), larger, "fog", 2)


def test_a_subset_of_a_subset_of_files(arrays):
    there = open_corrupted(str(arrays), clean(), "fog", 2).subset(np.array([2, 5, 7])).subset(np.array([0, 2]))
    assert_is(there, corrupted(clean(), 2)[[2, 7]], clean().labels[[2, 7]])


def test_the_class_mask_is_the_clean_pictures(arrays):
    masked = dataclasses.replace(clean(), class_mask=(1, 2))
    assert open_corrupted(str(arrays), masked, "fog", 1).class_mask == (1, 2)


def test_fingerprints_tell_sets_apart(arrays):
    found = [open_corrupted(str(arrays), clean(), "fog", severity) for severity in (1, 2, 1)]
    prints = [source.fingerprint() for source in (*found, found[0].subset(np.arange(3)))]
    assert prints[0] == prints[2] and len(set(prints)) == 3


@pytest.mark.parametrize("name, severity", [("glass_blur", 3), ("elastic_transform", 5)])
@pytest.mark.parametrize("by_name", [True, False])
def test_sets_of_tfds_have_their_own_names_and_order(records, name, severity, by_name):
    where = "cifar10_corrupted" if by_name else str(records / "cifar10_corrupted")
    order = np.random.RandomState(1).permutation(SIZE)
    there = open_corrupted(where, clean(), name, severity, data_dir=str(records))
    assert_is(there, corrupted(clean(order=order), severity), clean(order=order).labels)


def test_a_subset_of_a_set_in_another_order_is_drawn_anew(records):
    subset = clean().subset(np.array([1, 4, 8]))
    there = open_corrupted("cifar10_corrupted", subset, "glass_blur", 3, data_dir=str(records))
    images, labels = read(there)
    numbers = images[:, 0, 0, 0] - 60
    assert len(there) == 3 and len(set(numbers)) == 3 and labels.tolist() == clean().labels[numbers].tolist()
    assert there.labels.tolist() == labels.tolist()


def test_a_set_of_other_labels_in_another_order_is_refused(records):
    other = clean()
    other.labels[:] = (other.labels + 1) % CLASSES
    with pytest.raises(ValueError, match="Expected the labels of clean"):
        open_corrupted("cifar10_corrupted", other, "glass_blur", 3, data_dir=str(records))


def test_imagenets_set_is_found_by_the_benchmarks_names(tmp_path):
    random = np.random.RandomState(0)
    names = tfds.builder("imagenet2012_corrupted/fog_1", data_dir=str(tmp_path)).info.features["label"].names
    images = random.randint(0, 200, (2, 224, 224, 3)).astype(np.uint8)
    source = data.ArraySource.of("imagenet", "test", images, [7, 999], names)
    for name in ("glass_blur", "elastic_transform"):
        store(str(tmp_path), "imagenet2012_corrupted", f"{name}_1", source, 1, "validation", "3.1.0",
              {"file_name": tfds.features.Text()}, "jpeg")
    assert available("imagenet2012_corrupted", str(tmp_path)) == [("elastic_transform", 1), ("glass_blur", 1)]
    there = open_corrupted("imagenet2012_corrupted", source, "glass_blur", 1, data_dir=str(tmp_path))
    images, labels = read(there)
    assert labels.tolist() == [7, 999] and there.num_classes == 1000
    assert np.abs(images.astype(int) - corrupted(source, 1)).mean() < 40  # JPEG of noise


def test_the_names_of_every_set_of_tfds_are_known():
    theirs = {config.name for config in cifar10_corrupted.Cifar10Corrupted.BUILDER_CONFIGS}
    translated = {f"{corrupted_sets._TFDS_NAMES.get(name, name)}_{severity}"
                  for name in corruptions.CORRUPTIONS for severity in range(1, 6)}
    assert translated <= theirs
    builder = tfds.builder_cls("imagenet2012_corrupted")
    assert {f"{name}_{severity}" for name in corruptions.CORRUPTIONS for severity in range(1, 6)} <= set(
        builder.builder_configs)


@pytest.mark.parametrize("layout", ["npy", "tfds"])
def test_our_own_sets(ours, layout):
    root, source = ours
    there = open_corrupted(str(root / f"{layout}_cifar_c"), source, "impulse_noise", 4)
    assert_is(there, expected(source, "impulse_noise", 4, seed=7), source.labels)
    assert card_of(str(root / f"{layout}_cifar_c"))["seed"] == 7


def test_our_own_jpeg_files_are_exactly_the_protocol(ours):
    root, source = ours
    there = open_corrupted(str(root / "tfds_imagenet_c"), source, "impulse_noise", 4)
    assert_is(there, expected(source, "impulse_noise", 4, "imagenet_c", seed=7), source.labels)


@pytest.mark.parametrize("layout", ["npy", "tfds"])
def test_subsets_of_our_own_sets(ours, layout):
    root, source = ours
    subset = source.subset(np.array([0, 3, 8]))
    there = open_corrupted(str(root / f"{layout}_cifar_c"), subset, "impulse_noise", 1)
    assert_is(there, expected(source, "impulse_noise", 1, seed=7)[[0, 3, 8]], source.labels[[0, 3, 8]])


def test_our_own_set_of_other_pictures_is_refused_even_in_another_order(ours):
    root, source = ours
    other = data.ArraySource.of("other", "test", source.images, source.labels[::-1], source.class_names)
    for layout in ("npy", "tfds"):
        with pytest.raises(ValueError, match="Expected the labels of other .*at index"):
            open_corrupted(str(root / f"{layout}_cifar_c"), other, "impulse_noise", 1)


def test_our_own_records_that_were_cut_are_refused(ours, tmp_path):
    root, source = tmp_path, ours[1]
    shutil.copytree(ours[0] / "tfds_cifar_c", root / "tfds_cifar_c")
    folder = root / "tfds_cifar_c" / "impulse_noise_2" / "1.0.0"
    path = folder / "impulse_noise_2-test.tfrecord-00001-of-00003"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="bytes of TFRecord files in .*impulse_noise_2.* not written or copied"):
        open_corrupted(str(root / "tfds_cifar_c"), source, "impulse_noise", 2)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="Expected 3 files in .* Not found: .*00001-of-00003"):
        open_corrupted(str(root / "tfds_cifar_c"), source, "impulse_noise", 2)
    assert len(open_corrupted(str(root / "tfds_cifar_c"), source, "impulse_noise", 3)) == SIZE


def test_a_set_written_of_a_subset_is_read_with_that_subset(tmp_path):
    subset = clean().subset(np.array([2, 6, 8]))
    options = prepared.Writing(corruptions=("impulse_noise",))
    prepared.write(lambda: subset, str(tmp_path / "set"), options, prepared.Recipe())
    there = open_corrupted(str(tmp_path / "set"), subset, "impulse_noise", 1)
    assert len(there) == 3 and read(there)[1].tolist() == subset.labels.tolist()


def test_others_made_nothing_of_ours(arrays):
    assert card_of(str(arrays)) == {}
