"""Two sources in one order: each image once per epoch, with the classes of the first."""

import dataclasses

import numpy as np
import pytest

from tests.data.image_files import save
from tf_robust import data
from tf_robust.data.source import collect
from tf_robust.data.subsets import JoinedSource


def numbered(count, value, name, classes):
    """`count` images with the values value, value + 1, ..."""
    images = np.zeros((count, 4, 4, 3), np.uint8) + np.arange(value, value + count, dtype=np.uint8)[:, None, None, None]
    return data.ArraySource.of(name, "train", images, np.arange(count) % len(classes), classes)


@pytest.fixture
def joined():
    return JoinedSource.of(numbered(7, 0, "day", ["cat", "dog", "owl"]), numbered(6, 100, "night", ["owl", "cat"]), (2, 0))


def expected_label(value):
    return value % 3 if value < 100 else (2, 0)[(value - 100) % 2]


def test_the_second_source_follows_the_first_with_its_classes(joined):
    assert len(joined) == 13 and joined.class_names == ("cat", "dog", "owl")
    images, labels = collect(joined.ordered(5))
    values = images[:, 0, 0, 0].tolist()
    assert values == [*range(7), *range(100, 106)] and labels.tolist() == [expected_label(value) for value in values]
    assert np.array_equal(joined.read_labels(), labels)


def test_an_epoch_has_every_image_once_in_an_order_of_its_own(joined):
    def epoch(number, skip=0, batch=13):
        return [tuple(part.numpy() for part in one) for one in joined.epoch(3, number, batch, skip)]

    ((images, labels, positions),) = epoch(0)
    values = images[:, 0, 0, 0].tolist()
    assert sorted(values) == [*range(7), *range(100, 106)]
    assert labels.tolist() == [expected_label(value) for value in values]
    assert positions.tolist() == [value if value < 100 else value - 93 for value in values]
    assert np.array_equal(epoch(0)[0][0], images) and not np.array_equal(epoch(1)[0][0], images)
    assert 0 < sum(value >= 100 for value in values[:7])  # mixed, not one after the other
    batches = epoch(0, batch=4)
    assert [len(one[0]) for one in batches] == [4, 4, 4]
    assert np.array_equal(epoch(0, skip=2, batch=4)[0][0], batches[2][0])


def test_files_and_arrays_are_joined_and_train(joined, tmp_path):
    for number in range(4):
        save(np.full((4, 4, 3), 200 + number, np.uint8), tmp_path / "cat" / f"{number}.png")
    files = data.open_source(f"folder:{tmp_path}", "all")
    both = JoinedSource.of(files, numbered(6, 0, "day", ["cat"]), (0,))
    batch = next(iter(data.training_batches(both, 10, seed=0)))
    assert sorted(np.round(255 * batch.views[0][:, 0, 0, 0].numpy()).astype(int)) == [*range(6), *range(200, 204)]


def test_windows_are_cropped_from_files_of_many_sizes(tmp_path):
    for folder, sides in (("day", (8, 10, 12)), ("night", (9, 11, 16))):
        for side in sides:
            save(np.full((side, side, 3), 10 * side, np.uint8), tmp_path / folder / "cat" / f"{side}.png")
    sources = [data.open_source(f"folder:{tmp_path / folder}", "all", default_size=(4, 4)) for folder in ("day", "night")]
    both = JoinedSource.of(*sources, (0,))
    assert both.cuts_windows and both.image_shape == (4, 4, 3)
    ((images, _, _),) = both.epoch(0, 0, 6, windows=(0.2, 0.5))
    assert images.shape == (6, 2, 4, 4, 3)
    assert sorted(images[:, 0, 0, 0, 0].numpy()) == sorted(images[:, 1, 2, 2, 0].numpy()) == [80, 90, 100, 110, 120, 160]


def test_the_mask_of_the_first_takes_in_the_classes_of_the_second(joined):
    masked = dataclasses.replace(joined.first, class_mask=(0, 1))
    assert JoinedSource.of(masked, joined.second, (2, 0)).class_mask == (0, 1, 2)
