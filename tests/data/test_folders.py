import dataclasses
import functools
import io
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tf_robust import data
from tf_robust.data.augment import VIEWS, crop_flip, patch_gaussian

SIZES = [(40, 40), (31, 57), (64, 33), (24, 90)]  # width, height
SIDE = 16


def sample_image(number, channels=3):
    """A smooth RGB image, another size and color for every number."""
    width, height = SIZES[number % len(SIZES)]
    random = np.random.RandomState(number)
    coarse = Image.fromarray(random.randint(256, size=(6, 6, channels), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def write(root, counts, first=0):
    """{class name: how many images} as PNG files in a folder a class."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for _ in range(count):
            sample_image(first).save(root / name / f"{first:03}.png")
            first += 1


@pytest.fixture
def divided(tmp_path):
    write(tmp_path / "train", {"dog": 8, "cat": 12}, 0)
    write(tmp_path / "test", {"dog": 3, "cat": 2}, 50)
    return tmp_path


@pytest.fixture
def undivided(tmp_path):
    write(tmp_path, {"dog": 20, "cat": 40})
    return tmp_path


def open_folder(root, split, **options):
    return data.open_source(f"folder:{root}", split, image_size=SIDE, **options)


def examples(dataset):
    """[(pixels, label)] of all batches."""
    return [(image.tobytes(), label) for image, label, *_ in dataset.unbatch().as_numpy_iterator()]


def test_classes_are_the_sorted_subfolders(divided):
    for split, counts in (("train", [12, 8]), ("test", [2, 3])):
        source = open_folder(divided, split)
        assert source.class_names == ("cat", "dog") and source.image_shape == (SIDE, SIDE, 3)
        images, labels = next(source.ordered(100).as_numpy_iterator())
        assert images.dtype == np.uint8 and labels.dtype == np.int64 and images.shape == (sum(counts), SIDE, SIDE, 3)
        np.testing.assert_array_equal(np.bincount(labels), counts)


def test_a_class_missing_in_the_test_set_keeps_the_labels_of_training(divided):
    write(divided / "train", {"bee": 2}, 90)
    assert open_folder(divided, "test").class_names == ("bee", "cat", "dog")
    assert set(open_folder(divided, "test").labels) == {1, 2}


def test_evaluation_takes_the_centre_as_pillow_does(divided):
    images, _ = next(open_folder(divided, "train").ordered(100).as_numpy_iterator())
    for found, number in zip(images, [*range(8, 20), *range(8)]):  # cats, then dogs
        original = sample_image(number)
        factor = SIDE * 256 / 224 / min(original.size)
        width, height = (round(side * factor) for side in original.size)
        left, top = (width - SIDE) // 2, (height - SIDE) // 2
        resized = original.resize((width, height), Image.Resampling.BILINEAR)
        expected = np.asarray(resized, int)[top:top + SIDE, left:left + SIDE]
        np.testing.assert_allclose(found.astype(int), expected, atol=2)


def test_an_epoch_is_a_function_of_seed_and_epoch(divided):
    source = open_folder(divided, "train")
    first = examples(source.epoch(0, 0, 5))
    assert examples(source.epoch(0, 0, 5)) == first
    assert sorted(label for _, label in first) == sorted(source.labels)
    for seed, epoch in ((1, 0), (0, 1)):  # no image is cropped as it was
        assert not set(first) & set(examples(source.epoch(seed, epoch, 5)))


def test_skipping_batches_drops_the_first(divided):
    source = open_folder(divided, "train")
    assert examples(source.epoch(3, 1, 6, 2)) == examples(source.epoch(3, 1, 6))[12:]


def test_augmented_batches_go_on_where_the_epoch_was_left(divided):
    def batches(skip=0):
        found = data.training_batches(open_folder(divided, "train"), 6, seed=5, step=3 + skip,
                                      augmentations=(crop_flip, patch_gaussian)).take(3 - skip)
        return [(batch.views[0].tobytes(), batch.labels.tolist(), batch.step.tolist())
                for batch in found.as_numpy_iterator()]
    whole = batches()
    assert len(set(pixels for pixels, _, _ in whole)) == 3
    for skip in (1, 2):
        assert batches(skip) == whole[skip:]


def test_a_share_of_training_becomes_validation(divided):
    train, validation = (open_folder(divided, split, validation_fraction=0.25) for split in ("train", "validation"))
    assert len(train) == 15 and sorted(validation.labels) == [0, 0, 0, 1, 1]
    whole = open_folder(divided, "train")
    assert sorted(train.paths + validation.paths) == sorted(whole.paths)


def test_a_validation_folder_is_used_as_it_is(divided):
    write(divided / "validation", {"cat": 1, "dog": 1}, 70)
    assert data.has_validation(f"folder:{divided}")
    assert len(open_folder(divided, "validation", validation_fraction=0.5)) == 2
    assert len(open_folder(divided, "train", validation_fraction=0.5)) == 20


def test_validation_without_a_share_is_refused(divided):
    assert not data.has_validation(f"folder:{divided}")
    with pytest.raises(ValueError, match="has no validation split. Expected validation_fraction > 0"):
        open_folder(divided, "validation")


@pytest.mark.parametrize("options, held", [({}, 6), ({"validation_fraction": 0.2}, 12)])
def test_a_folder_without_splits_is_divided_in_three(undivided, options, held):
    parts = {split: open_folder(undivided, split, **options) for split in ("train", "validation", "test")}
    paths = sum((part.paths for part in parts.values()), ())
    assert len(paths) == len(set(paths)) == 60
    assert [len(part) for part in parts.values()] == [60 - 2 * held, held, held]
    np.testing.assert_array_equal(np.bincount(parts["test"].labels), [held * 2 / 3, held / 3])


def test_a_folder_without_splits_has_validation(undivided):
    assert data.has_validation(f"folder:{undivided}")


def test_a_share_that_leaves_nothing_to_train_on_is_refused(undivided):
    with pytest.raises(ValueError, match="validation_fraction"):
        open_folder(undivided, "train", validation_fraction=0.5)


def test_subsets_and_too_many_examples(undivided):
    assert sorted(open_folder(undivided, "train", examples=12).labels) == [0] * 8 + [1] * 4
    with pytest.raises(ValueError, match="at most 48 examples.* Received: 49"):
        open_folder(undivided, "train", examples=49)


def test_missing_folders_are_named(tmp_path, divided):
    with pytest.raises(FileNotFoundError, match="Not found: .*/nowhere"):
        data.open_source(f"folder:{tmp_path}/nowhere", "train")


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_empty_class_folder_is_named(divided, split):
    for file in (divided / split / "dog").iterdir():
        file.unlink()
    (divided / split / "dog" / "notes.txt").write_text("no image")
    with pytest.raises(FileNotFoundError, match=rf"every class folder of {divided}/{split}. Received none in: dog \(1 of 2\). Add images"):
        open_folder(divided, split)
    shutil.rmtree(divided / split / "dog")  # as advised
    assert set(open_folder(divided, split).labels) == {0}


def test_a_class_folder_as_the_root_is_refused_with_advice(undivided):
    with pytest.raises(FileNotFoundError, match=rf"image files, but no subfolders. Try: --data=folder:{undivided}, if cat is a class"):
        open_folder(undivided / "cat", "train")
    with pytest.raises(FileNotFoundError, match="Expected subfolders .* Received: none"):
        (undivided / "nothing").mkdir()
        open_folder(undivided / "nothing", "train")


def test_a_folder_around_the_class_folders_is_refused_with_advice(divided):
    write(divided / "around" / "inner", {"dog": 2, "cat": 2})
    with pytest.raises(FileNotFoundError, match=f"Try: --data=folder:{divided}/around/inner, if its subfolders are the classes"):
        open_folder(divided / "around", "train")


def cut_jpeg():
    file = io.BytesIO()
    sample_image(0).save(file, "JPEG")
    return file.getvalue()[:len(file.getvalue()) // 2]


@pytest.mark.parametrize("name, content", [
    ("empty.png", b""), ("text.png", b"no image\n" * 50), ("cut.jpg", cut_jpeg())])
def test_a_file_that_cannot_be_decoded_is_named(divided, name, content):
    path = divided / "train" / "cat" / name
    path.write_bytes(content)
    source = open_folder(divided, "train")
    for batches in (source.ordered(4), source.epoch(0, 1, 7), source.epoch(0, 3, 7, 1)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"decoded. Received: {path} .* Replace or delete it"):
            list(batches)


@pytest.mark.parametrize("places", [[0], [7], [19], [18, 19], [3, 12]])
def test_what_precedes_the_broken_file_is_given_and_the_first_one_is_named(divided, places):
    source = open_folder(divided, "train")
    paths = list(source.paths)
    for place in places:
        paths[place] = str(divided / f"gone_{place}.png")
    given = []
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"gone_{places[0]}.png"):
        for image, _ in dataclasses.replace(source, paths=tuple(paths)).ordered(1):
            given.append(image.numpy().tobytes())
    assert given == [image.numpy().tobytes() for image, _ in source.ordered(1)][:places[0]]


def test_the_number_of_batches_is_known(divided):
    source = open_folder(divided, "train")
    assert len(source.ordered(6)) == 4 and len(source.epoch(0, 0, 6)) == 3 and len(source.epoch(0, 0, 6, 2)) == 1


def test_an_epochs_images_know_their_place(divided):
    source = open_folder(divided, "train")
    labels, positions = zip(*[(label, position) for _, label, position in source.epoch(3, 1, 5).unbatch().as_numpy_iterator()])
    assert sorted(positions) == list(range(20)) and [source.labels[p] for p in positions] == list(labels)


@pytest.mark.parametrize("views", [("simclr", "simclr"), ("simclr", "clean")])
def test_views_that_cut_windows_cut_them_from_the_whole_image(views, tmp_path):
    rows, columns = np.mgrid[:120, :200]
    (tmp_path / "train" / "a").mkdir(parents=True)
    for number in range(12):
        places = np.stack([columns, rows, 0 * rows + number], axis=2).astype(np.uint8)
        Image.fromarray(places).save(tmp_path / "train" / "a" / f"{number}.png")
    if views[1] == "clean":  # of many sizes, of which training takes random windows
        Image.fromarray(places[1:]).save(tmp_path / "train" / "a" / "0.png")
    uncoloured = functools.partial(VIEWS["simclr"], strength=0.0, blur=False, min_crop_area=0.5)
    batches = data.training_batches(open_folder(tmp_path, "train"), 12, seed=1, views=[
        uncoloured if name == "simclr" else VIEWS[name] for name in views]).take(6)
    areas = []
    for batch in batches.as_numpy_iterator():
        for both in zip(*batch.views):
            slopes = [np.abs(np.diff(view[10:12, 4:-4, 0], axis=1).mean() * np.diff(view[4:-4, 10:12, 1], axis=0).mean()) for view in both]
            if all(np.ptp(view, axis=2).max() > 0.1 for view in both):  # neither is gray
                areas.append(np.array(slopes) * 255**2 * SIDE**2 / (120 * 200))
    own = np.array(areas)[:, :views.count("simclr")]
    if views[1] == "simclr":
        assert len(own) > 30 and 0.47 < own.min() < 0.6 and 0.9 < own.max() < 1.03 and np.mean(np.abs(own[:, 0] - own[:, 1]) > 0.02) > 0.8
    else:  # one window for both, of which the first cuts another
        assert own.min() < 0.3
