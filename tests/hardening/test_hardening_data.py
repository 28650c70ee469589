"""Images of a hardening search: the parts are disjoint, complete, stratified, the same every time; a shift is matched and divided."""

import dataclasses
import os

import keras
import numpy as np
import pytest
from PIL import Image

from tf_robust import data, evaluation
from tf_robust.configs import DataConfig
from tf_robust.data.source import collect
from tf_robust.data.subsets import split_train_val_test
from tf_robust.evaluation import model_evaluation
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.data import MAX_VALIDATION_IMAGES, parts_of, validation_set
from tf_robust.hardening.final_evaluation import final_data
from tf_robust.saved_models import loading
from tf_robust.utils.progress import NOTED

CLASSES = ("cat", "dog", "owl")
CALIBRATED = evaluation.EvalConfig(evaluations=("clean",), calibrate="temperature", evaluation_split="all")


def coded(count, labels=None, classes=CLASSES, first=0, name="images"):
    """A source in which the first two pixels of an image are its number, so that images can be followed."""
    images = np.zeros((count, 4, 4, 3), np.uint8)
    numbers = np.arange(first, first + count)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = numbers // 256, numbers % 256
    labels = np.arange(count) % len(classes) if labels is None else labels
    return data.ArraySource.of(name, "all", images, labels, classes)


def numbers_of(source):
    images, _ = collect(source.ordered(64))
    return (images[:, 0, 0, 0].astype(int) * 256 + images[:, 0, 1, 0]).tolist()


def given(source=None, name="arrays", **changes):
    return EvaluationData(DataConfig(data=name, **changes), evaluation.EvalConfig(evaluations=("clean",)), images=source)


def constant(images):
    """A model that predicts the first class."""
    return np.eye(3, dtype=np.float32)[np.zeros(len(images), int)]


def write_folder(path, counts, value=0, size=4):
    """Image files of value, value + 1, ... in class folders. counts: {class: number}."""
    for name, count in counts.items():
        (path / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(np.full((size, size, 3), value + number, np.uint8)).save(path / name / f"{number}.png")
    return f"folder:{path}"


def splits(parts):
    return {name: getattr(parts, name) for name in ("train", "validation", "test")}


@pytest.mark.parametrize("asked, images, subset", ((0, 20, 0), (5, 5, 5), (100, 20, 0)))
def test_the_size_of_the_test_images_does_not_limit_a_shift(asked, images, subset):
    one = given(coded(20))
    parts = dataclasses.replace(parts_of(one), test=one.images)
    chosen = dataclasses.replace(one.eval_config, evaluations=("corruptions",), evaluation_split="all", subset=asked)
    final = final_data(parts, dataclasses.replace(one, eval_config=chosen), HardenConfig())
    assert final.eval_config.subset == subset and len(final.evaluation_source()) == images


def test_a_label_map_does_not_change_which_images_are_in_which_part(tmp_path):
    """Otherwise a hardened model would later be evaluated on images that it was trained on."""
    name = write_folder(tmp_path / "images", {"cat": 40, "dog": 60, "owl": 20})
    (tmp_path / "map.txt").write_text("cat 2\ndog 0\nowl 1\n")
    plain, mapped = (given(name=name, label_map=path) for path in ("", str(tmp_path / "map.txt")))
    for split, part in splits(parts_of(plain)).items():
        other = getattr(parts_of(mapped), split)
        assert other.paths == part.paths
        np.testing.assert_array_equal(other.read_labels(), np.take([2, 0, 1], part.read_labels()))
    tenth = dataclasses.replace(mapped, config=dataclasses.replace(mapped.config, validation_fraction=0.1)).source("test")
    assert set(tenth.paths) < set(parts_of(mapped).test.paths)
    config = dataclasses.replace(mapped.config, validation_fraction=0.15)
    calibrated = dataclasses.replace(mapped, config=config, eval_config=CALIBRATED)
    assert calibrated.validation_source().paths == parts_of(mapped).validation.paths
    assert set(calibrated.evaluation_source().paths).isdisjoint(calibrated.validation_source().paths)


def test_one_set_is_divided_70_15_15():
    source = coded(800, labels=np.repeat([0, 1, 2], [400, 280, 120]))  # sorted by class
    whole = parts_of(given(source))
    parts = splits(whole)
    numbers = {name: numbers_of(part) for name, part in parts.items()}
    assert whole.note  # that the model may have been trained on them
    assert sorted(sum(numbers.values(), [])) == list(range(800))  # disjoint, and together everything
    assert {name: len(part) for name, part in parts.items()} == {"train": 560, "validation": 120, "test": 120}
    for part in parts.values():
        fractions = np.bincount(part.read_labels()) / len(part)
        assert np.abs(fractions - [0.5, 0.35, 0.15]).max() < 0.02
    assert numbers == {name: numbers_of(part) for name, part in splits(parts_of(given(source))).items()}
    assert numbers["test"] != list(range(680, 800))
    assert set(numbers_of(split_train_val_test(source, "test", 0.1))) < set(numbers["test"])  # of `evaluate`: none that was trained on


def test_held_out_images_that_are_given_are_not_held_out_again():
    source, own = coded(100), coded(30, first=1000)
    only_validation, only_test = parts_of(given(source), own), parts_of(given(source), None, own)
    assert numbers_of(only_validation.validation) == numbers_of(only_test.test) == list(range(1000, 1030))
    for parts, held_out in ((only_validation, only_validation.test), (only_test, only_test.validation)):
        assert len(held_out) == 15 and sorted(numbers_of(parts.train) + numbers_of(held_out)) == list(range(100))
    both = parts_of(given(source), own, coded(20, first=2000))
    assert numbers_of(both.train) == list(range(100)) and numbers_of(both.test) == list(range(2000, 2020))


def test_splits_of_the_data_are_kept(tmp_path):
    for number, split in enumerate(("train", "validation", "test")):
        write_folder(tmp_path / split, {"cat": 6, "dog": 5}, value=50 * number)
    parts = parts_of(given(name=f"folder:{tmp_path}"))
    assert [len(part) for part in splits(parts).values()] == [11, 11, 11] and parts.note == ""
    assert [collect(part.ordered(11))[0].min() for part in splits(parts).values()] == [0, 50, 100]
    own = coded(9, labels=[0, 1] * 4 + [0], classes=("cat", "dog"))
    assert len(parts_of(given(name=f"folder:{tmp_path}"), None, own).test) == 9


def test_validation_images_are_held_out_of_train_only_if_there_are_none(tmp_path):
    for split in ("train", "test"):
        write_folder(tmp_path / split, {"cat": 20, "dog": 20})
    data_of_folder = given(name=f"folder:{tmp_path}")
    assert [len(part) for part in splits(parts_of(data_of_folder)).values()] == [34, 6, 40]
    own = coded(9, labels=[0, 1] * 4 + [0], classes=("cat", "dog"))
    assert [len(part) for part in splits(parts_of(data_of_folder, own)).values()] == [40, 9, 40]


def test_train_examples_limits_the_training_images_alone():
    parts = parts_of(given(coded(100), train_examples=21))
    assert [len(part) for part in splits(parts).values()] == [21, 15, 15]
    assert np.bincount(parts.train.read_labels()).tolist() == [7, 7, 7]


def test_a_class_with_too_few_images_is_named():
    labels = np.repeat([0, 1, 2], [20, 20, 1])
    with pytest.raises(ValueError, match=r"'owl' \([01]\)"):
        parts_of(given(coded(41, labels)))
    masked = dataclasses.replace(coded(40, labels[:40]), class_mask=(0, 1))  # the third class does not count
    assert len(parts_of(given(masked)).train) == 28


def test_images_given_for_validation_need_the_same_classes_and_channels():
    with pytest.raises(ValueError, match="validation images of the 3 classes .* Received: 2: cat, dog"):
        parts_of(given(coded(60)), coded(10, classes=("cat", "dog")))
    with pytest.raises(ValueError, match="test images of the 3 classes .* Received: 3: cat, cow, dog"):
        parts_of(given(coded(60)), None, coded(10, classes=("cat", "cow", "dog")))
    gray = data.ArraySource.of("gray", "all", np.zeros((9, 4, 4, 1), np.uint8), np.arange(9) % 3, CLASSES)
    with pytest.raises(ValueError, match="validation images with 3 channels. Received: 1"):
        parts_of(given(coded(60)), gray)
    small = data.ArraySource.of("small", "all", np.zeros((9, 2, 2, 3), np.uint8), np.arange(9) % 3, "012")
    assert parts_of(given(coded(60)), small).validation.image_shape == (4, 4, 3)  # numbered classes, resized


def test_many_validation_images_are_a_fair_sample_of_the_classes():
    source = coded(5000, labels=np.repeat([0, 1, 2], [3000, 1500, 500]))
    parts = parts_of(given(coded(30)), source, coded(10))
    chosen = validation_set(parts, HardenConfig(target="blur_corruptions"), given(source), constant)
    assert len(chosen.labels) == MAX_VALIDATION_IMAGES == 1000
    assert np.abs(np.bincount(chosen.labels) - [600, 300, 100]).max() <= 1


@pytest.fixture
def night(tmp_path):
    """Dark images of two of the three classes, in another order of sizes."""
    return write_folder(tmp_path / "night", {"dog": 14, "owl": 11}, value=60, size=8)


def test_the_images_of_a_shift_are_divided_in_half(night):
    config = HardenConfig(target=f"shift={night}")
    parts = parts_of(given(coded(60)), config=config)
    shift = parts.shift
    assert shift.validation.columns == (1, 2) and shift.validation.class_mask is None  # all classes of the model compete
    assert [np.bincount(one.read_labels()).tolist() for one in (shift.validation.source, shift.test)] == [[7, 6], [7, 5]]
    paths = [*shift.validation.source.paths, *shift.test.paths]
    assert len({*paths}) == 25
    assert f"{night}: 0 training, 13 validation and 12 test images" in parts.summary
    assert parts_of(given(coded(60)), config=config).shift.test.paths == shift.test.paths
    chosen = validation_set(parts, config, given(coded(60)), constant)
    assert len(chosen.labels) == 9 and len(chosen.shift.labels) == 13 and chosen.shift.images.shape == (13, 4, 4, 3)
    assert np.bincount(chosen.shift.labels, minlength=3).tolist() == [0, 7, 6]


def test_a_folder_may_be_named_without_its_prefix(night, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("night", "night/", "./night", str(tmp_path / "night")):
        parts = parts_of(given(coded(60)), config=HardenConfig(target=f"shift={name}"))
        assert parts.shift.data.startswith("folder:") and len(parts.shift.test) == 12
    with pytest.raises(FileNotFoundError, match="./nigt"):
        parts_of(given(coded(60)), config=HardenConfig(target="shift=./nigt"))


def test_with_adapt_a_third_of_the_shift_is_trained_on(night):
    parts = parts_of(given(coded(60)), config=HardenConfig(target=f"shift={night}", adapt=True))
    assert len(parts.train) == 42 + 9 and len(parts.shift.validation.source) == 8 and len(parts.shift.test) == 8
    images, labels = collect(parts.train.ordered(64))
    assert labels[42:].tolist() == sorted(labels[42:]) and {*labels[42:]} == {1, 2}
    assert not {*parts.train.second.paths} & {*parts.shift.validation.source.paths, *parts.shift.test.paths}
    assert parts.summary.startswith("42 training, 9 validation and 9 test images")
    assert "9 training, 8 validation and 8 test images" in parts.summary


def test_the_final_evaluation_measures_the_test_half_of_the_shift(night, tmp_path):
    one = given(coded(60))
    config = HardenConfig(target=f"shift={night}")
    parts = parts_of(one, config=config)
    model = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.set_weights([np.outer(np.ones(48), [0, 0, 100 / 48]), np.array([-10, 0, -26])])  # owl if brighter than .26, else dog
    classifier = loading.classifier_of(model, loading.ModelInterface(check_inputs=False))
    done = model_evaluation.evaluate_model(classifier, final_data(parts, one, config), str(tmp_path), row="start", saved_model="")
    values = {row["metric"]: row["value"] for row in done.content["rows"]}
    correct = []
    for path in parts.shift.test.paths:
        brightness = np.asarray(Image.open(path), float).mean() / 255
        correct.append(path.split(os.sep)[-2] == ("owl" if brightness > 0.26 else "dog"))
    assert values["shift/night"] == pytest.approx(np.mean(correct)) and 0 < sum(correct) < len(correct) == 12
    assert values["clean"] == pytest.approx(np.mean(parts.test.labels == 1))  # dark: always dog


def test_a_shift_that_is_evaluated_already_is_replaced_by_its_test_half(night):
    one = dataclasses.replace(given(coded(60)), eval_config=evaluation.EvalConfig(evaluations=("clean",), shifts=(night,)))
    config = HardenConfig(target=f"shift={night}")
    final = final_data(parts_of(one, config=config), one, config)
    assert final.eval_config.shifts == (night,) and len(final.shift_images[night]) == 12


def test_a_shift_with_other_classes_or_too_few_images_is_refused(tmp_path):
    def refused(counts, match, **changes):
        folder = write_folder(tmp_path / str(len(list(tmp_path.iterdir()))), counts)
        with pytest.raises(ValueError, match=match):
            parts_of(given(coded(60)), config=HardenConfig(target=f"shift={folder}", **changes))

    refused({"cat": 20, "cow": 20}, r"'cow' \(1\)")
    refused({"cat": 8, "dog": 8}, "Received: 16$")
    refused({"cat": 30, "dog": 1}, r"Received: 31, of 'dog' \(1\)")
    refused({"cat": 30, "dog": 2}, r"Received: 32, of 'dog' \(2\)", adapt=True)


def test_the_data_themselves_are_no_shift(night):
    with pytest.raises(ValueError, match="night, the data themselves"):
        parts_of(given(name=night), config=HardenConfig(target=f"shift={night}"))


def test_a_shift_that_cannot_be_split_is_refused(night, monkeypatch):
    monkeypatch.setattr(data.FileSource, "random_access", False)
    with pytest.raises(ValueError, match="night, which is read as a stream"):
        parts_of(given(coded(60)), config=HardenConfig(target=f"shift={night}"))


@pytest.mark.parametrize("classes, mask", [("all", None), ("present", (0, 2, 5))])
def test_all_classes_of_the_model_compete_in_a_search_unless_masked(tmp_path, classes, mask, capsys):
    NOTED.clear()
    name = write_folder(tmp_path / "images", {"cat": 20, "dog": 30, "owl": 20})
    (tmp_path / "map.txt").write_text("cat 5\ndog 0\nowl 2\n")
    described = dataclasses.replace(given(name=name, label_map=str(tmp_path / "map.txt"), classes=classes), num_classes=7)
    parts = parts_of(described)
    assert parts.train.num_classes == 7 and {one.class_mask for one in splits(parts).values()} == {mask}
    assert validation_set(parts, HardenConfig(target="blur_corruptions"), described, constant).class_mask == mask
    final = final_data(parts, described, HardenConfig(target="noise"))
    source = dataclasses.replace(final, eval_config=dataclasses.replace(final.eval_config, evaluation_split="all")).evaluation_source()
    assert source.class_mask == mask and source.paths == parts.test.paths
    np.testing.assert_array_equal(source.read_labels(), parts.test.read_labels())
    assert "4 of the 7 classes of the model have no training images" in capsys.readouterr().out


def test_an_empty_class_folder_is_a_class_of_a_search(tmp_path):
    name = write_folder(tmp_path / "images", {"cat": 20, "dog": 0, "owl": 20})
    parts = parts_of(given(name=name))
    assert parts.train.class_names == CLASSES and {*parts.train.labels} == {0, 2}


def test_labels_of_validation_images_in_memory_are_mapped_as_those_of_the_data(tmp_path):
    (tmp_path / "map.txt").write_text("cat 5\ndog 0\nowl 2\n")
    images, further = coded(60), coded(9, first=60)
    described = dataclasses.replace(given(images, label_map=str(tmp_path / "map.txt")), num_classes=7)
    parts = parts_of(described, further)
    np.testing.assert_array_equal(parts.validation.read_labels(), np.take([5, 0, 2], further.labels))
    calibrated = dataclasses.replace(described, validation_images=further, eval_config=CALIBRATED)
    np.testing.assert_array_equal(calibrated.validation_source().read_labels(), np.take([5, 0, 2], further.labels))
