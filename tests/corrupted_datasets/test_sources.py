"""Arrays like CIFAR-10-C's: severities, labels and subsets; incomplete files and those of other images are rejected."""

import dataclasses

import numpy as np
import pytest

from tests.corrupted_datasets import corrupted_images as corrupted_images
from tests.corrupted_datasets.corrupted_images import SHAPE, SIZE, assert_is, clean, corrupted
from tf_robust import data
from tf_robust.corrupted_datasets.reader import open_corrupted

arrays = corrupted_images.arrays  # the fixture


def test_severities_of_an_array_with_and_without_its_clean_images(arrays):
    source = clean()
    for severity in (1, 3, 5):
        result = open_corrupted(str(arrays), source, "glass_blur", severity)
        assert_is(result, corrupted(source, severity), source.labels)
        assert result.class_names == source.class_names
    assert_is(open_corrupted(str(arrays), None, "fog", 2), corrupted(source, 2), source.labels)


def test_reading_an_array_twice_gives_the_same(arrays):
    dataset = open_corrupted(str(arrays), clean(), "fog", 1).ordered(4)
    first, second = ([images.numpy().tolist() for images, _ in dataset] for _ in range(2))
    assert first == second


def test_an_incomplete_array_is_detected_by_its_size(arrays):
    path = arrays / "fog.npy"
    complete = path.read_bytes()
    for cut in (len(complete) - 1, len(complete) // 2, 200):
        path.write_bytes(complete[:cut])
        with pytest.raises(ValueError, match=rf"{len(complete):,} bytes in .*fog.npy .*Received: {cut:,}"):
            open_corrupted(str(arrays), clean(), "fog", 1)
    for content in (complete[:50], b"", b"\x00" * 500, complete + b"x"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="Expected .*fog.npy"):
            open_corrupted(str(arrays), clean(), "fog", 1)


@pytest.mark.parametrize(
    "old, new", [(b"}", b"("), (b"'shape'", b"b'hape'"), (b"'shape': (", b"'shape': 1("), (b"|u1", b"|uu"), (b"\x01\x00v", b"\x09\x09v")]
)
def test_an_array_with_a_damaged_header_is_named(arrays, old, new):
    for path in (arrays / "fog.npy", arrays / "labels.npy"):
        complete = path.read_bytes()
        path.write_bytes(complete.replace(b"<i8", b"|u1", 1).replace(old, new, 1))
        with pytest.raises(ValueError, match=f"{path}, damaged"):
            open_corrupted(str(arrays), clean(), "fog", 1)
        path.write_bytes(complete)


@pytest.mark.parametrize(
    "shape, message",
    [("(-45,-32,32,3,)", "rows of numbers"), ("(2**32,2**32,3,4)", "a .npy file"), ("(4294967296,4294967296,3,3)", "bytes in")],
)
def test_an_array_of_an_impossible_shape_is_rejected(arrays, shape, message):
    header = f"{{'descr':'|u1','fortran_order':False,'shape':{shape},}}".ljust(117).encode() + b"\n"
    (arrays / "fog.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + header + (b"" if "4294" in shape else bytes(45 * 32 * 32 * 3)))
    with pytest.raises(ValueError, match=f"Expected .*{message}.*fog.npy"):
        open_corrupted(str(arrays), clean(), "fog", 1)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((10, *SHAPE), np.float32),
        np.zeros((11, *SHAPE), np.uint8),
        np.zeros((10, 32, 32), np.uint8),
        np.zeros((0, *SHAPE), np.uint8),
        np.zeros((10, 3, 32, 32), np.uint8),
        np.zeros((10, *SHAPE), np.int64),
    ],
)
def test_an_array_of_another_kind_is_rejected(arrays, array):
    np.save(arrays / "fog.npy", array)
    with pytest.raises(ValueError, match=r"Expected uint8 images \[5 \* N, H, W, 1 or 3\] in .*fog.npy. Received: "):
        open_corrupted(str(arrays), clean(), "fog", 1)


def test_pickled_objects_are_never_loaded(arrays):
    np.save(arrays / "fog.npy", np.array([{"a": 1}] * 5), allow_pickle=True)
    with pytest.raises(ValueError, match="rows of numbers.*fog.npy"):
        open_corrupted(str(arrays), clean(), "fog", 1)


def test_labels_that_do_not_match_are_rejected(arrays):
    path, labels = arrays / "labels.npy", np.tile(clean().labels, 5)
    for wrong, message in (
        (labels[:-1], "45 integer labels"),
        (labels.astype(np.float32), "45 integer labels"),
        (labels[:SIZE], "45 integer labels"),
        (np.where(np.arange(45) == 3, -1, labels), "Received: -1 at index 3"),
        (np.where(np.arange(45) == 3, 10, labels), "10 classes of clean"),
        (labels * 0, "labels of clean"),
    ):
        np.save(path, wrong)
        with pytest.raises(ValueError, match=message):
            open_corrupted(str(arrays), clean(), "fog", 1)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="labels.npy"):
        open_corrupted(str(arrays), clean(), "fog", 1)


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64])
def test_labels_of_any_integer_type(arrays, kind):
    np.save(arrays / "labels.npy", np.tile(clean().labels, 5).astype(kind)[:, None])
    assert_is(open_corrupted(str(arrays), clean(), "fog", 1), corrupted(clean(), 1), clean().labels)


def test_other_images_are_rejected(arrays):
    with pytest.raises(ValueError, match="8 images.* Received: 9"):
        open_corrupted(str(arrays), clean(8), "fog", 1)
    small = data.ArraySource.of("small", "test", clean().images[:, :28], clean().labels, clean().class_names)
    with pytest.raises(ValueError, match=r"\(28, 32, 3\) in .* as in small"):
        open_corrupted(str(arrays), small, "fog", 1)


def test_a_subset_has_the_same_images(arrays):
    subset = clean().subset(np.array([1, 4, 8]))
    assert_is(open_corrupted(str(arrays), subset, "fog", 2), corrupted(subset, 2), subset.labels)
    larger = clean(20).subset(np.array([1, 15]))
    with pytest.raises(ValueError, match="at least 16 images"):
        open_corrupted(str(arrays), larger, "fog", 2)
    result = open_corrupted(str(arrays), clean(), "fog", 2).subset(np.array([2, 5, 7])).subset(np.array([0, 2]))
    assert_is(result, corrupted(clean(), 2)[[2, 7]], clean().labels[[2, 7]])


def test_the_class_mask_is_that_of_the_clean_images(arrays):
    masked = dataclasses.replace(clean(), class_mask=(1, 2))
    assert open_corrupted(str(arrays), masked, "fog", 1).class_mask == (1, 2)


def test_fingerprints_differ_by_set(arrays):
    sources = [open_corrupted(str(arrays), clean(), "fog", severity) for severity in (1, 2, 1)]
    fingerprints = [source.fingerprint() for source in (*sources, sources[0].subset(np.arange(3)))]
    assert fingerprints[0] == fingerprints[2] and len(set(fingerprints)) == 3
