import dataclasses
import functools
import io
import json
import os
import struct

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import tf_robust as tfr
from tests.data.image_files import SIDE, SIZES, examples, sample_image, save, write
from tf_robust import data
from tf_robust.configs import DataConfig
from tf_robust.data import folders, sources
from tf_robust.data.augment import VIEWS, crop_flip, patch_gaussian
from tf_robust.ops import image_ops
from tf_robust.utils.progress import NOTED


@pytest.fixture
def with_splits(tmp_path):
    write(tmp_path / "train", {"dog": 8, "cat": 12}, 0)
    write(tmp_path / "test", {"dog": 3, "cat": 2}, 50)
    return tmp_path


@pytest.fixture
def without_splits(tmp_path):
    write(tmp_path, {"dog": 20, "cat": 40})
    return tmp_path


def open_folder(root, split, **options):
    return data.open_source(f"folder:{root}", split, image_size=SIDE, **options)


def test_classes_are_the_sorted_subfolders(with_splits):
    for split, counts in (("train", [12, 8]), ("test", [2, 3])):
        source = open_folder(with_splits, split)
        assert source.class_names == ("cat", "dog") and source.image_shape == (SIDE, SIDE, 3)
        assert source.random_access and source.sorted_by_class and not source.in_memory and len(source.paths) == sum(counts)
        assert source.read_labels().tolist() == [0] * counts[0] + [1] * counts[1]
    images, labels = next(source.ordered(100).as_numpy_iterator())
    assert images.dtype == np.uint8 and labels.dtype == np.int64 and images.shape == (5, SIDE, SIDE, 3)
    np.testing.assert_array_equal(labels, source.read_labels())


def test_a_class_missing_in_the_test_set_keeps_the_labels_of_training(with_splits):
    write(with_splits / "train", {"bee": 2}, 90)
    assert open_folder(with_splits, "test").class_names == ("bee", "cat", "dog")
    assert set(open_folder(with_splits, "test").labels) == {1, 2}


def test_evaluation_crops_the_center_as_pillow(with_splits):
    images, _ = next(open_folder(with_splits, "train").ordered(100).as_numpy_iterator())
    for image, number in zip(images, [*range(8, 20), *range(8)]):  # cats, then dogs
        original = sample_image(number)
        factor = SIDE * 256 / 224 / min(original.size)
        width, height = (round(side * factor) for side in original.size)
        left, top = (width - SIDE) // 2, (height - SIDE) // 2
        resized = original.resize((width, height), Image.Resampling.BILINEAR)
        expected = np.asarray(resized, int)[top : top + SIDE, left : left + SIDE]
        np.testing.assert_allclose(image.astype(int), expected, atol=2)


def test_an_epoch_is_a_function_of_seed_and_epoch_and_skipping_drops_its_first_batches(with_splits):
    source = open_folder(with_splits, "train")
    first = source.epoch(0, 0, 6)
    assert len(source.ordered(6)) == 4 and len(first) == 3
    assert examples(source.epoch(0, 0, 6, 2)) == examples(first)[12:]
    for seed, epoch in ((1, 0), (0, 1)):  # every image is cropped anew
        assert not set(examples(first)) & set(examples(source.epoch(seed, epoch, 6)))
    _, labels, positions = zip(*first.unbatch().as_numpy_iterator())
    assert len(set(positions)) == 18 and [source.labels[p] for p in positions] == list(labels)


@pytest.mark.slow
def test_augmented_batches_resume_within_an_epoch(with_splits):
    def batches(skip=0):
        dataset = data.training_batches(
            open_folder(with_splits, "train"), 6, seed=5, step=3 + skip, augmentations=(crop_flip, patch_gaussian)
        ).take(3 - skip)
        return [(batch.views[0].tobytes(), batch.labels.tolist(), batch.step.tolist()) for batch in dataset.as_numpy_iterator()]

    expected = batches()
    assert len({pixels for pixels, _, _ in expected}) == 3
    for skip in (1, 2):
        assert batches(skip) == expected[skip:]


def test_a_fraction_of_training_becomes_validation(with_splits):
    train, validation = (open_folder(with_splits, split, validation_fraction=0.25) for split in ("train", "validation"))
    assert len(train) == 15 and sorted(validation.labels) == [0, 0, 0, 1, 1]
    full = open_folder(with_splits, "train")
    assert sorted(train.paths + validation.paths) == sorted(full.paths)


@pytest.mark.parametrize("name", ["validation", "val"])
def test_a_validation_folder_precedes_the_fraction(name, with_splits):
    assert not data.has_validation(f"folder:{with_splits}")
    with pytest.raises(ValueError, match="validation_fraction > 0"):
        open_folder(with_splits, "validation")
    write(with_splits / name, {"cat": 1, "dog": 1}, 70)
    assert data.has_validation(f"folder:{with_splits}")
    assert len(open_folder(with_splits, "validation", validation_fraction=0.5)) == 2
    assert len(open_folder(with_splits, "train", validation_fraction=0.5)) == 20


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_empty_class_folder_stays_a_class(with_splits, split):
    for file in (with_splits / split / "cat").iterdir():
        file.unlink()
    (with_splits / split / "cat" / "notes.txt").write_text("no image")
    source = open_folder(with_splits, split)
    assert source.class_names == ("cat", "dog") and set(source.labels) == {1}
    (with_splits / split / "cat" / "new.webp").write_bytes(b"")  # images that would be lost
    with pytest.raises(FileNotFoundError, match=rf"{with_splits}/{split}. Received: none in cat \(1\). Try: convert"):
        open_folder(with_splits, split)


def test_folders_above_and_below_the_root_of_the_class_folders_are_rejected_with_advice(tmp_path):
    write(tmp_path / "around" / "inner", {"dog": 2, "cat": 2})
    (tmp_path / "nothing").mkdir()
    classes = f"Try: data=folder:{tmp_path}/around/inner, "
    for folder, advice in (("around", classes), ("around/inner/cat", f"{classes}if cat is a class"), ("nothing", "Add images")):
        with pytest.raises(FileNotFoundError, match=advice):
            open_folder(tmp_path / folder, "train")


def truncated_jpeg():
    file = io.BytesIO()
    sample_image(0).save(file, "JPEG")
    return file.getvalue()[: len(file.getvalue()) // 2]


@pytest.mark.parametrize("name, content", [("empty.png", b""), ("text.png", b"no image\n" * 50), ("cut.jpg", truncated_jpeg())])
def test_a_file_that_cannot_be_decoded_is_named(with_splits, name, content):
    path = with_splits / "train" / "cat" / name
    path.write_bytes(content)
    source = open_folder(with_splits, "train")
    for batches in (source.ordered(4), source.epoch(0, 3, 7, 1)) if name == "text.png" else (source.ordered(4),):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"decoded. Received: {path} .* replace or delete it"):
            list(batches)


def test_files_before_the_first_broken_one_are_read(with_splits):
    source = open_folder(with_splits, "train")
    expected = [image.numpy().tobytes() for image, _ in source.ordered(1)]
    for missing in ([19], [3, 12]):
        paths, images = list(source.paths), []
        for position in missing:
            paths[position] = str(with_splits / f"gone_{position}.png")
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"gone_{missing[0]}.png"):
            for image, _ in dataclasses.replace(source, paths=tuple(paths)).ordered(1):
                images.append(image.numpy().tobytes())
        assert images == expected[: missing[0]]


@pytest.mark.parametrize("views", [("simclr", "simclr"), ("simclr", "clean")])
def test_views_crop_their_windows_from_the_full_image(views, tmp_path):
    rows, columns = np.mgrid[:120, :200]
    for number in range(12):
        pixels = np.stack([columns, rows, 0 * rows + number], axis=2).astype(np.uint8)
        save(pixels, tmp_path / "train" / "a" / f"{number}.png")
    if views[1] == "clean":  # many sizes, of which training crops random windows
        save(pixels[1:], tmp_path / "train" / "a" / "0.png")
    uncolored = functools.partial(VIEWS["simclr"], strength=0.0, blur=False, min_crop_area=0.5)
    batches = data.training_batches(
        open_folder(tmp_path, "train"), 12, seed=1, views=[uncolored if name == "simclr" else VIEWS[name] for name in views]
    ).take(6)
    areas = []
    for batch in batches.as_numpy_iterator():
        for both in zip(*batch.views):
            slopes = [np.abs(np.diff(view[10:12, 4:-4, 0], axis=1).mean() * np.diff(view[4:-4, 10:12, 1], axis=0).mean()) for view in both]
            if all(np.ptp(view, axis=2).max() > 0.1 for view in both):  # neither is grayscale
                areas.append(np.array(slopes) * 255**2 * SIDE**2 / (120 * 200))
    fractions = np.array(areas)[:, : views.count("simclr")]
    if views[1] == "simclr":
        assert len(fractions) > 30 and 0.47 < fractions.min() < 0.6 and 0.9 < fractions.max() < 1.03
        assert np.mean(np.abs(fractions[:, 0] - fractions[:, 1]) > 0.02) > 0.8
    else:  # one window for both, which the first view crops again
        assert fractions.min() < 0.3


def test_images_of_other_formats_are_named_and_small_ones_noted(without_splits, capsys):
    (without_splits / "cat" / "new.webp").write_bytes(b"")
    (without_splits / "dog" / "scan.TIFF").write_bytes(b"")
    (without_splits / "dog" / "notes.txt").write_text("")
    count = len(data.open_source(f"folder:{without_splits}", "all"))
    (without_splits / "dog" / "more").mkdir()
    for path in ("dog/more/below.png", "beside.png", "dog/._1.png"):
        Image.new("RGB", (8, 8)).save(without_splits / path)
    source = data.open_source(f"folder:{without_splits}", "all")
    assert len(source) == count  # hidden files, as macOS writes them, are no images
    unread = ["beside.png", "new.webp", "scan.TIFF", "below.png"]
    assert [os.path.basename(path) for path in folders.unread_images(source.paths)] == unread
    height, width = (int(np.median([size[axis] for size in SIZES])) for axis in (1, 0))  # as many of each
    assert folders.median_size(source.paths) == (height, width)
    NOTED.clear()
    sources.open_split(DataConfig(data=source.name), "all", 0, seed=0, model_size=())
    printed = capsys.readouterr().out
    assert f"enlarged by a factor of about {224 / min(height, width):.1f} (median size {height}x{width})" in printed
    assert "4 images of folder:" in printed and "are not read, such as " in printed and "beside.png" in printed


def test_the_fingerprint_changes_with_the_contents_of_files_of_one_size(tmp_path):
    fingerprints = set()
    for level in (0, 1):
        save(np.full((8, 8, 3), level, np.uint8), tmp_path / "photos" / "cat" / "a.bmp")
        fingerprints.add(open_folder(tmp_path / "photos", "all").fingerprint())
    assert len(fingerprints) == 2


def test_names_in_composed_and_decomposed_letters_are_one_class(tmp_path):
    composed, decomposed = "caf\u00e9", "cafe\u0301"  # as Linux and macOS write them
    write(tmp_path / "train", {decomposed: 2, "zoo": 2})
    write(tmp_path / "test", {composed: 2, "zoo": 1}, 4)
    train, test = (open_folder(tmp_path, split) for split in ("train", "test"))
    assert train.class_names == test.class_names == (composed, "zoo") and test.labels == (0, 0, 1)
    assert len(list(test.ordered(1))) == 3  # the files are found
    (tmp_path / "map.txt").write_text(f"{decomposed} 1\nzoo 0\n", "utf-8")
    assert data.relabel(test, data.read_label_map(str(tmp_path / "map.txt"))).labels == (1, 1, 0)
    table = "path,label\n" + "".join(
        f"{os.path.relpath(path, tmp_path)},{name}\n" for path, name in zip(test.paths, (composed, decomposed, "zoo"))
    )
    (tmp_path / "table.csv").write_text(table.replace(f"test/{composed}", f"test/{decomposed}"), "utf-8")
    source = data.open_source(f"csv:{tmp_path}/table.csv", "all", image_size=SIDE)
    assert source.class_names == (composed, "zoo") and source.labels == test.labels and source.paths == test.paths
    (tmp_path / "test" / decomposed).mkdir()
    with pytest.raises(ValueError, match=f"two named '{composed}'"):
        open_folder(tmp_path, "test")


@pytest.mark.skipif(os.name != "posix", reason="names of files are bytes")
def test_names_that_are_not_utf8_are_read(without_splits, tmp_path):
    before = examples(open_folder(without_splits, "all").ordered(8))
    for old, new in ((b"cat/000.png", b"cat/\xe9.png"), (b"dog", b"dog\xff")):
        folder = os.fsencode(without_splits)
        if os.path.exists(os.path.join(folder, old)):
            os.rename(os.path.join(folder, old), os.path.join(folder, new))
    source = open_folder(without_splits, "all")
    assert source.class_names == ("cat", "dog\\xff") and len(source.fingerprint()) == 16
    assert sorted(examples(source.ordered(8))) == sorted(before)
    json.dumps(source.class_names).encode()
    (without_splits / "cat" / os.fsdecode(b"broken\xe9.png")).write_bytes(b"")
    with pytest.raises(tf.errors.InvalidArgumentError, match="broken.*replace or delete it"):
        examples(open_folder(without_splits, "all").ordered(8))


def test_bmp_files_with_a_palette_are_read_as_by_pillow(tmp_path):
    for mode, colors in (("1", 2), ("P", 2), ("P", 13), ("P", 200), ("L", 256)):
        for width in (1, 7, 8, 33):
            random = np.random.RandomState(width)
            image = Image.fromarray(random.randint(0, 256, (5, width, 3)).astype(np.uint8))
            image = image.quantize(colors) if mode == "P" else image.convert(mode)
            image.save(tmp_path / "image.bmp")
            decoded = image_ops.decode(tf.io.read_file(str(tmp_path / "image.bmp")), 3)
            np.testing.assert_array_equal(decoded, np.asarray(Image.open(tmp_path / "image.bmp").convert("RGB")), f"{mode} {width}")


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("top_down", [False, True])
def test_bmp_files_of_every_depth_are_read(bits, top_down):
    """Written by hand, by the specification of the BITMAPINFOHEADER: rows of 4-byte multiples, the last one first."""
    width, height = 11, 3
    numbers = np.random.RandomState(bits).randint(0, 2**bits, (height, width))
    colors = np.random.RandomState(0).randint(0, 256, (2**bits, 4)).astype(np.uint8)
    rows = ["".join(f"{number:0{bits}b}" for number in row) for row in numbers]
    packed = [int(row.ljust(-(-width * bits // 32) * 32, "0"), 2).to_bytes(-(-width * bits // 32) * 4, "big") for row in rows]
    pixels = b"".join(packed if top_down else packed[::-1])
    start = 14 + 40 + colors.size
    header = b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start)
    header += struct.pack("<IiiHHIIiiII", 40, width, -height if top_down else height, 1, bits, 0, len(pixels), 0, 0, 2**bits, 0)
    decoded = image_ops.decode(tf.constant(header + colors.tobytes() + pixels), 3)
    np.testing.assert_array_equal(decoded, colors[numbers][..., 2::-1])
    compressed = bytearray(header + colors.tobytes() + pixels)
    compressed[30] = 1
    with pytest.raises(tf.errors.InvalidArgumentError):
        image_ops.decode(tf.constant(bytes(compressed[:-1])), 3)


def test_files_are_read_in_gray_for_a_model_of_gray_images(tmp_path, capsys):
    NOTED.clear()
    colors = np.random.RandomState(0).randint(0, 256, (40, 8, 8, 3)).astype(np.uint8)
    for folder in ("photos", "night"):
        for i, image in enumerate(colors):
            save(image, tmp_path / folder / "ab"[i % 2] / f"{i:02d}.png")
    gray = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in colors])[..., None]
    gray, labels = np.concatenate([gray[::2], gray[1::2]]), np.repeat([0, 1], 20)
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])
    settings = {"evaluations": "clean,noise", "check_inputs": False}
    files = tfr.evaluate(model, data=f"folder:{tmp_path}/photos", shifts=f"folder:{tmp_path}/night", **settings)
    arrays = tfr.evaluate(model, data=(gray, labels), **settings)
    assert {name: files.values[name] for name in arrays.values} == arrays.values
    assert files.values["shift/night"] == files.values["clean"]
    assert "are read in gray, which the model takes" in capsys.readouterr().out


def test_classes_without_images_are_noted(with_splits, capsys):
    NOTED.clear()
    for file in (with_splits / "test" / "cat").iterdir():
        file.unlink()
    sources.open_split(DataConfig(data=f"folder:{with_splits}"), "test", 0, seed=0, model_size=(SIDE, SIDE))
    assert "1 of the 2 classes of folder:" in (printed := capsys.readouterr().out) and "(test), such as 'cat'" in printed
