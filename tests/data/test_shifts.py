"""Shifted data sets: their classes become columns of a model for the original data."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.data.image_files import save
from tf_robust import data, evaluation
from tf_robust.configs import DataConfig
from tf_robust.data import sources
from tf_robust.data.class_mask import classes_of
from tf_robust.evaluation.evaluation_data import EvaluationData


def named(source, names, name="shifted", **changes):
    """A source whose class i is `names[i]`."""
    labels = np.arange(len(source)) % len(names)
    return dataclasses.replace(source, name=name, class_names=tuple(names), labels=labels, **changes)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("cifar10_1", "cifar10_1"),
        ("cifar10_corrupted/fog_5", "cifar10_corrupted/fog_5"),
        ("cifar10_1/v6:1.1.0", "cifar10_1/v6_1.1.0"),
        ("folder:photos/at night/", "at_night"),
        ("csv:tables/rain.v2.csv", "rain.v2"),
        ("npz:dark.npz", "dark"),
        ("hf:owner/name", "name"),
    ],
)
def test_shifts_are_named_after_their_data(text, expected):
    assert data.kinds.shift_name(text) == expected


def test_two_shifts_of_one_name_are_refused():
    for shifts, received in ((("folder:a/night", "csv:b/night.csv"), "'csv:b/night.csv' and folder:a/night"), (("",), "''")):
        with pytest.raises(ValueError, match=f"different names. Received: {received}"):
            EvaluationData(DataConfig(), evaluation.EvalConfig(shifts=shifts))


def test_classes_correspond_by_name(source):
    original = named(source(), ["cat", "dog", "owl"], "original")
    for names, columns in ((["cat", "dog", "owl"], (0, 1, 2)), (["owl", "cat", "dog"], (2, 0, 1)), (["dog", "owl"], (1, 2))):
        shift = sources.matched(named(source(), names), original, name="s")
        assert shift.columns == columns and shift.class_mask is None  # all classes of the original compete
    with pytest.raises(ValueError, match=r"cat, dog, owl \(3\). Received unknown: 'dogs', 'cow' \(2\). Did you mean 'dog'"):
        sources.matched(named(source(), ["dogs", "cow", "cat"]), original, name="s")


def test_numbers_as_names_of_folders_are_names(source):
    numbers = [str(number) for number in range(12)]  # as of a table; folders are sorted as texts: 0, 1, 10, 11, 2, ...
    table, folders = named(source(), numbers), named(source(), sorted(numbers))
    for one, other in ((table, folders), (folders, table)):
        columns = sources.matched(one, other, name="s").columns
        assert [other.class_names[column] for column in columns] == list(one.class_names)


def test_classes_correspond_by_number_where_one_has_no_names(source):
    numbers, names = named(source(), ["0", "1", "2"]), named(source(), ["owl", "cat", "dog"])
    for one, other in ((numbers, names), (names, numbers)):
        assert sources.matched(one, other, name="s").columns == (0, 1, 2)
    with pytest.raises(ValueError, match=r"Received unknown: '0', '1' \(2\)"):
        sources.matched(named(source(), ["0", "1"]), names, name="s")


def test_the_mask_of_the_original_holds_for_its_classes(source):
    original = dataclasses.replace(named(source(), ["cat", "dog", "owl"]), class_mask=(0, 2))
    assert sources.matched(named(source(), ["owl", "cat"]), original, name="s").class_mask == (0, 2)
    assert sources.matched(named(source(), ["owl", "dog"]), original, name="s").class_mask is None


def test_parts_of_imagenet_are_found_whatever_the_names_of_the_original(source):
    known = classes_of("imagenet_r")
    part = named(source(400), known["wnids"], "folder:renditions")
    others = named(source(), [f"n{number:08d}" for number in range(1000)])
    with pytest.raises(ValueError, match=r"Received unknown: .*\(200\)"):  # not ImageNet's classes
        sources.matched(part, others, name="s")
    words = dataclasses.replace(named(source(), [f"word {number}" for number in range(1000)]), label_set="imagenet")
    shift = sources.matched(part, words, name="s")
    assert shift.columns == tuple(known["columns"]) and shift.class_mask is None  # all classes compete
    assert sources.matched(part, words, name="s", present=True).class_mask == tuple(known["columns"])
    few = sources.matched(named(source(), known["wnids"][5:8]), words, name="s")
    assert few.columns == tuple(known["columns"][5:8])


def test_images_are_resized_and_chosen_as_those_of_other_data(source):
    original = source(48, shape=(8, 8, 1))
    shift = sources.matched(source(48, shape=(16, 16, 1)), original, name="s", subset=9)
    assert shift.source.image_shape == (8, 8, 1) and len(shift.source) == 9 and str(shift.source.fit) == shift.card()["image_fit"]
    assert len(sources.matched(source(48), source(48), name="s", subset=100).source) == 48  # a smaller set is complete
    with pytest.raises(ValueError, match="1 channels.* Received: tiny with 3"):
        sources.matched(source(shape=(16, 16, 3)), original, name="s")


def write_tfds(root, name, labels, split="test"):
    """Writes a TFDS set with the features, name and version of a registered one: image i has the value i."""
    registered = tfds.builder(name, data_dir=root)
    features = registered.info.features
    side = features["image"].shape[0] or 8
    images = (np.arange(len(labels))[:, None, None, None] + np.zeros((side, side, 3))).astype(np.uint8)
    texts = {field: [str(number) for number in range(len(labels))] for field in features if field not in ("image", "label")}
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name.partition("/")[0],
        config=registered.builder_config.name if registered.builder_config else None,
        version=str(registered.version),
        features=features,
        split_datasets={split: tf.data.Dataset.from_tensor_slices({"image": images, "label": np.asarray(labels), **texts})},
        data_dir=root,
    )


@pytest.fixture(scope="module")
def mock_data(tmp_path_factory):
    """A TFDS data_dir with a few gray images of ImageNet's and CIFAR-10's sets; image i has the value i."""
    root = str(tmp_path_factory.mktemp("tfds"))
    for name in ("imagenet_v2", "imagenet_sketch"):
        write_tfds(root, name, [0, 500, 999])
    write_tfds(root, "imagenet2012", [3, 6, 999], "validation")
    for name in ("imagenet_a", "imagenet_r"):
        write_tfds(root, name, classes_of(name)["columns"][:5])
    for name in ("cifar10", "cifar10_1", "cifar10_corrupted/fog_5"):
        write_tfds(root, name, [0, 9, 3])
    return root


def evaluated(mock_data, name, shifted, answers, classes):
    """The metrics of a model that classifies an image of the value i as `answers[i]`, and as 5 if that column is masked."""
    eval_config = evaluation.EvalConfig(evaluations=("clean",), shifts=shifted)
    config = DataConfig(data=name, data_dir=mock_data, image_size=0 if classes == 10 else 8)
    described = EvaluationData(config, eval_config)
    source = described.evaluation_source()

    def predict(images):
        first = tf.one_hot(tf.gather(answers, tf.cast(tf.round(images[:, 0, 0, 0] * 255), tf.int32)), classes)
        return first + tf.one_hot([5] * len(images), classes) / 2

    result = evaluation.evaluate(predict, source, None, eval_config, shifts=described.shifts(source), log=lambda line: None)
    return {str(metric): (metric.value, metric.count) for metric in result.metrics}


def test_imagenets_shifts_have_their_class_masks(mock_data):
    a, r = classes_of("imagenet_a")["columns"], classes_of("imagenet_r")["columns"]
    assert a[0] == 6 and r[0] == 1 and not {0, 5, 500, 999} & {*a, *r} and not {*a[3:5]} & {*r}
    names = ("imagenet_v2", "imagenet_sketch", "imagenet_a", "imagenet_r")
    metrics = evaluated(mock_data, "imagenet2012", names, [0, 500, 999, a[3], a[4]], 1000)
    # where both the answer and 5 are masked, the first class of the set is left: right for image 0 alone
    assert metrics == {
        "clean": (1 / 3, 3),
        "shift/imagenet_v2": (1.0, 3),
        "shift/imagenet_sketch": (1.0, 3),
        "shift/imagenet_a": (3 / 5, 5),
        "shift/imagenet_r": (1 / 5, 5),
    }


def test_shifts_of_cifar10(mock_data):
    metrics = evaluated(mock_data, "cifar10", ("cifar10_1", "cifar10_corrupted/fog_5"), [0, 9, 8], 10)
    assert metrics == dict.fromkeys(("clean", "shift/cifar10_1", "shift/cifar10_corrupted/fog_5"), (2 / 3, 3))
    with pytest.raises(ValueError, match="Expected in imagenet_a classes of cifar10"):
        evaluated(mock_data, "cifar10", ("imagenet_a",), [0, 9, 8], 10)


def test_a_folder_of_new_conditions_is_a_shift(tmp_path):
    for root, names in (("day", ("cat", "dog")), ("night", ("dog",))):
        for name in names:
            save(np.full((8, 8, 3), 40, np.uint8), tmp_path / root / name / "0.png")
    eval_config = evaluation.EvalConfig(evaluations=("clean",), evaluation_split="all", shifts=(f"folder:{tmp_path}/night",))
    described = EvaluationData(DataConfig(data=f"folder:{tmp_path}/day"), eval_config)
    source = described.evaluation_source()
    (shift,) = described.shifts(source)
    assert (shift.name, shift.columns, shift.class_mask) == ("night", (1,), None)
    (one,) = [one for one in evaluation.evaluation_sets(source, None, eval_config, shifts=[shift]) if one.name == "shift/night"]
    assert [labels.numpy().tolist() for _, labels in one.batches()] == [[1]]


def test_shifts_in_memory_have_no_splits():
    eval_config = evaluation.EvalConfig(evaluations=("clean",), shifts=("night",))
    images = data.from_arrays(np.zeros((4, 28, 28, 1), np.uint8), [0, 1, 2, 9], "night", num_classes=10)
    described = EvaluationData(DataConfig(data="digits"), eval_config, shift_images={"night": images})
    assert [len(shift.source) for shift in described.shifts(described.evaluation_source())] == [4]


def test_classes_without_images_in_a_shift_are_named(source):
    original = named(source(), ("cat", "dog", "owl"))
    shift = sources.matched(named(source(), ("owl", "cat")), original, name="night")
    assert sources.missing_classes(shift, original) == ["dog"]
    complete = sources.matched(named(source(), ("owl", "dog", "cat")), original, name="night")
    assert sources.missing_classes(complete, original) == []
    with_few = dataclasses.replace(original, labels=np.arange(len(source())) % 2 * 2)  # no dog there either
    assert sources.missing_classes(shift, with_few) == []
