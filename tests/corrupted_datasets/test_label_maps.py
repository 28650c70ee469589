"""A corrupted copy of a folder is read for models with any order of the classes."""

import dataclasses

import numpy as np
import pytest

from tests.corrupted_datasets import sets
from tests.data.image_files import save
from tf_robust import data
from tf_robust.corrupted_datasets.reader import open_corrupted

COLUMNS = {"cat": 5, "dog": 0, "owl": 3}


@pytest.fixture
def photos(tmp_path):
    for name, count in {"cat": 5, "dog": 4, "owl": 3}.items():
        for number in range(count):
            values = np.random.RandomState(number).randint(0, 256, (8, 8, 3)).astype(np.uint8)
            save(values, tmp_path / "photos" / name / f"{number}.png")
    return data.open_source(f"folder:{tmp_path / 'photos'}", "all")


def images_of(source):
    return data.source.collect(source.ordered(4))


def test_labels_become_the_columns_of_the_model(photos, tmp_path, monkeypatch):
    sets.quick(monkeypatch)
    sets.write(photos, str(tmp_path / "set"), names=("fog",))
    mapped = data.relabel(photos, COLUMNS)
    plain, corrupted = (images_of(open_corrupted(str(tmp_path / "set"), source, "fog", 2)) for source in (photos, mapped))
    np.testing.assert_array_equal(corrupted[0], plain[0])
    np.testing.assert_array_equal(corrupted[1], np.take([5, 0, 3], plain[1]))
    few = dataclasses.replace(mapped, class_mask=(0, 3, 5)).subset(np.array([0, 6, 11]))
    opened = open_corrupted(str(tmp_path / "set"), few, "fog", 2)
    np.testing.assert_array_equal(images_of(opened)[0], plain[0][[0, 6, 11]])
    assert opened.labels.tolist() == [5, 0, 3] and opened.class_mask == (0, 3, 5)


def test_a_copy_of_a_part_of_the_images_is_recognized(photos, tmp_path, monkeypatch):
    sets.quick(monkeypatch)
    part = photos.subset(np.array([1, 5, 10]))
    sets.write(part, str(tmp_path / "set"), names=("fog",))
    opened = open_corrupted(str(tmp_path / "set"), data.relabel(part, COLUMNS), "fog", 1)
    assert opened.labels.tolist() == [5, 0, 3]
    with pytest.raises(ValueError, match="at least 12 images.* Received: 3"):
        open_corrupted(str(tmp_path / "set"), data.relabel(photos.subset(np.array([0, 11])), COLUMNS), "fog", 1)
