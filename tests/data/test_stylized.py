"""Stylized images are added to the training set, each to its class, and to no other set."""

import shutil

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.data.image_files import SIDE, examples, save, write
from tests.small_runs import run_of
from tf_robust import data
from tf_robust.data.folders import with_stylized
from tf_robust.data.source import Source
from tf_robust.training import loop


def stylize(folder, target, suffix=".png"):
    """Writes an inverted copy of every image in the class folders."""
    for path in folder.glob("*/*.png"):
        (target / path.parent.name).mkdir(parents=True, exist_ok=True)
        ImageOps.invert(Image.open(path)).save((target / path.parent.name / path.name).with_suffix(suffix))


@pytest.fixture
def folders(tmp_path):
    """Writes natural images in two splits, and stylized ones of the training set."""
    write(tmp_path / "natural/train", {"dog": 8, "cat": 12})
    write(tmp_path / "natural/test", {"dog": 3, "cat": 2}, 50)
    stylize(tmp_path / "natural/train", tmp_path / "stylized/train")
    return tmp_path / "natural", tmp_path / "stylized"


def open_folder(root, split="train", **options):
    return data.open_source(f"folder:{root}", split, image_size=SIDE, **options)


@pytest.mark.parametrize("suffix, below_train", [(".png", True), (".bmp", False)])
def test_every_image_of_a_folder_has_a_stylized_one(folders, suffix, below_train):
    root, directory = folders
    shutil.rmtree(directory)
    stylize(root / "train", directory / "train" if below_train else directory, suffix)
    natural = open_folder(root)
    both = with_stylized(natural, str(directory))
    assert len(both) == 40 and both.class_names == natural.class_names and both.image_shape == natural.image_shape
    assert both.paths[:20] == natural.paths and both.labels == natural.labels * 2
    images, labels = next(both.ordered(40).as_numpy_iterator())
    np.testing.assert_array_equal(labels[:20], labels[20:])
    assert np.abs(255 - images[:20].astype(int) - images[20:]).max() <= 1  # rounded both ways


def test_an_epoch_shuffles_both_kinds_together(folders):
    both = with_stylized(open_folder(folders[0]), str(folders[1]))
    images, labels, positions = zip(*both.epoch(1, 0, 8).unbatch().as_numpy_iterator())
    assert len({image.tobytes() for image in images}) == len(set(positions)) == 40 and np.bincount(labels).tolist() == [24, 16]
    assert 0 < sum(position >= 20 for position in positions[:20]) < 20


def test_a_subset_adds_its_own_stylized_images_only(folders):
    for options, count in (({"examples": 5}, 5), ({"validation_fraction": 0.25}, 15)):
        natural = open_folder(folders[0], **options)
        both = with_stylized(natural, str(folders[1]))
        names = [[path.rsplit("/", 2)[1:] for path in paths] for paths in (both.paths[:count], both.paths[count:])]
        assert len(both) == 2 * count and names[0] == names[1]
        assert all("/stylized/" in path for path in both.paths[count:])


def test_the_same_suffix_is_preferred(folders):
    root, directory = folders
    stylize(root / "train", directory / "train", ".bmp")
    for path in (root / "train").glob("*/*.png"):
        path.rename(path.with_suffix(".bmp"))
    both = with_stylized(open_folder(root), str(directory))
    assert all(path.endswith(".bmp") for path in both.paths) and len(set(both.paths)) == 40


def test_labels_that_are_a_models_columns_are_kept(folders):
    natural = data.relabel(open_folder(folders[0]), {"cat": 7, "dog": 2})
    both = with_stylized(natural, str(folders[1]))
    assert both.labels == natural.labels * 2 and set(both.labels) == {2, 7} and {*both.label_columns} == {2, 7}


@pytest.fixture
def arrays(source, tmp_path):
    """Returns data in memory, 16x16x1 with classes 0 to 2, and a folder of 2, 3 and 4 stylized images, some of another size."""
    random, directory = np.random.RandomState(0), tmp_path / "arrays"
    for label in range(3):
        for number in range(2 + label):
            pixels = 50 * label + random.randint(40, size=(16, 16) if number else (48, 48), dtype=np.uint8)
            save(pixels, directory / str(label) / f"any{number}.png")
    return source(30), directory


def test_arrays_have_labels_from_folders_and_sizes_from_the_data(arrays):
    natural, directory = arrays
    both = with_stylized(natural, str(directory))
    assert len(both) == 39 and both.images.shape == (39, 16, 16, 1) and both.images.dtype == np.uint8
    np.testing.assert_array_equal(both.images[:30], natural.images)
    assert both.labels[30:].tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2] and both.labels.dtype == natural.labels.dtype
    for row, label, number in ((31, 0, 1), (33, 1, 1), (38, 2, 3)):
        np.testing.assert_array_equal(both.images[row, ..., 0], np.asarray(Image.open(directory / str(label) / f"any{number}.png")))
    shrunk = Image.open(directory / "1/any0.png").resize((16, 16), Image.Resampling.BILINEAR)
    assert np.abs(both.images[32, ..., 0].astype(int) - np.asarray(shrunk).astype(int)).max() <= 1
    assert sorted(examples(both.epoch(0, 0, 13))) == sorted(examples(both.ordered(39)))
    assert both.fingerprint() != natural.fingerprint() and len(both.subset(np.arange(4))) == 4


def test_color_becomes_gray_for_gray_data(arrays):
    natural, directory = arrays
    Image.new("RGB", (16, 16), (200, 10, 10)).save(directory / "0/any1.png")
    red = with_stylized(natural, str(directory)).images[31]
    assert red.shape == (16, 16, 1) and abs(int(red[0, 0, 0]) - 67) <= 1  # Rec. 601


def test_missing_folders_and_images_are_named(folders, arrays):
    root, directory = folders
    natural = open_folder(root)
    (directory / "train/cat/008.png").unlink()
    with pytest.raises(FileNotFoundError, match="Missing: 1, the first .*cat/008.png"):
        with_stylized(natural, str(directory))
    shutil.rmtree(directory / "train/dog")
    with pytest.raises(FileNotFoundError, match=r"Missing: dog \(1\)"):
        with_stylized(natural, str(directory))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        with_stylized(natural, str(directory / "nowhere"))
    natural, directory = arrays
    shutil.rmtree(directory / "1")
    with pytest.raises(FileNotFoundError, match=r"Missing: 1 \(1\)"):
        with_stylized(natural, str(directory))
    (directory / "1").mkdir()
    with pytest.raises(FileNotFoundError, match=r"Missing: 1 \(1\)"):
        with_stylized(natural, str(directory))


def test_unknown_folders_and_files_are_named(folders, arrays):
    for natural, directory in ((open_folder(folders[0]), folders[1] / "train"), arrays):
        (directory / ".hidden").mkdir()
        (directory / "bird").mkdir()
        with pytest.raises(ValueError, match=r"Received also: bird \(1\)"):
            with_stylized(natural, str(directory))
        (directory / "bird").rmdir()
        with_stylized(natural, str(directory))
    natural, directory = arrays
    for content in (b"no image", b""):
        (directory / "2/any1.png").write_bytes(content)
        with pytest.raises(ValueError, match="2/any1.png"):
            with_stylized(natural, str(directory))


def test_streams_are_rejected(arrays):
    stream = Source("imagenet2012", "train", ("0", "1", "2"), (16, 16, 1), 30)
    with pytest.raises(ValueError, match="imagenet2012, which is read as a stream"):
        with_stylized(stream, str(arrays[1]))


def test_a_run_trains_on_both_kinds_and_evaluates_on_natural_images(tmp_path, monkeypatch):
    sources = {}

    def fit(method, source, *, validation, **_):
        sources.update(train=source, validation=validation)
        raise StopIteration

    monkeypatch.setattr(loop, "fit", fit)
    for label in range(10):
        save(np.full((8, 8), 20 * label, np.uint8), tmp_path / "stylized" / str(label) / "a.png")
    run = run_of("cross_entropy", stylized_dir=str(tmp_path / "stylized"))
    with pytest.raises(StopIteration):
        run.train(str(tmp_path / "run"))
    shape = run.data().source("train").image_shape
    assert len(sources["train"]) == 74 and sources["train"].image_shape == shape
    assert len(run.data().source("train")) == 64 and len(sources["validation"]) == len(run.data().source("validation"))
    assert sources["validation"].split == "validation"
