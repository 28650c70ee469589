"""The table of kinds of data; a kind of a user is one entry."""

import numpy as np
import pytest

import tf_robust as tfr
from tf_robust import data
from tf_robust.cli import checks, flags, show
from tf_robust.data.kinds import DATA_KINDS, DataKind, path_of

IMAGES = np.random.RandomState(0).randint(0, 256, [60, 4, 4, 3]).astype(np.uint8)
LABELS = np.arange(60) % 3


@pytest.fixture
def mine(tmp_path, monkeypatch):
    def open_mine(name, split, options):
        return data.from_arrays(np.load(path_of(name)), LABELS, name, num_classes=options.num_classes)

    np.save(tmp_path / "images.mine", IMAGES)
    (tmp_path / "images.mine.npy").rename(tmp_path / "images.mine")
    monkeypatch.setitem(DATA_KINDS, "mine", DataKind("mine:FILE", "images of mine", open_mine, suffix=".mine"))
    return f"mine:{tmp_path}/images.mine"


def test_a_kind_of_a_user_is_read_and_divided_as_the_others(mine):
    np.testing.assert_array_equal(data.open_source(mine, "all").images, IMAGES)
    parts = [data.open_source(mine, split, validation_fraction=0.2) for split in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [36, 12, 12] and all((np.bincount(part.labels) == len(part) / 3).all() for part in parts)
    assert sorted(np.concatenate([part.positions for part in parts])) == list(range(60))
    assert data.open_source(mine, "all", image_size=8).image_shape == (8, 8, 3)
    with pytest.raises(ValueError, match="validation_fraction"):  # nothing would be left to train on
        data.open_source(mine, "train", validation_fraction=0.5)
    assert not data.has_splits(mine) and data.has_validation(mine) and data.held_out_fraction(mine, 0.0) == 0.1


def test_a_kind_of_a_user_is_known_to_the_api_help_and_checks(mine):
    result = tfr.evaluate(lambda x: np.eye(3)[[0] * len(x)], data=mine, evaluations="clean", check_inputs=False)
    assert result.values["clean"] == pytest.approx(1 / 3)
    assert "mine:FILE" in show.listing("data") and flags.data_of(path_of(mine)) == mine
    assert data.kinds.shift_name(mine) == "images"
    with pytest.raises(FileNotFoundError, match="images.mine"):
        checks.check_data({"data": mine.replace("images", "image"), "data_dir": ""})


@pytest.mark.parametrize("name", ["digits", "synthetic_digits"])
def test_embedded_sets_have_three_splits(name):
    assert data.has_splits(name) and data.has_validation(name) and data.has_training(name)


def test_names_choose_the_kind():
    for name, kind in (("folder:a", "folder"), ("csv:a", "csv"), ("npz:a", "npz"), ("hf:a/b", "hf"), ("digits", "digits")):
        assert data.kind_of(name) is DATA_KINDS[kind]
    for name in ("mnist", "mnist:3.0.1", "imagenet_v2/topimages:3.*.*", "folder", "digits:1.0.0"):
        assert data.kind_of(name) is DATA_KINDS["tfds"]
