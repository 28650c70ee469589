"""Wrong pixel scales and class orders of trained models are noticed, right ones and untrained models are not stopped."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import input_check as benchmark
from benchmarks.input_check import CLASSES, TRAINED
from tf_robust import data
from tf_robust.evaluation import model_evaluation
from tf_robust.saved_models import input_check
from tf_robust.saved_models.loading import NAMED_RANGES, Classifier, ModelInterface, classifier_of


@pytest.fixture(scope="module")
def examples():
    return benchmark.colored_digits()


without_xla = functools.partial(benchmark.trained, jit_compile=False)  # which takes longer to compile a step than the training takes


@pytest.fixture(scope="module")
def model(examples):
    """A network that was trained on images in Caffe's pixel scale."""
    return without_xla(*(part[:TRAINED] for part in examples), benchmark.TRUE_RANGES["caffe"], 2)


def checked(model, examples, declared) -> Classifier:
    images, labels = (part[TRAINED : TRAINED + 300] for part in examples)
    return input_check.with_fitting_range(classifier_of(model, ModelInterface(input_range=declared)), images, labels)


def test_wrong_ranges_are_named_and_auto_takes_the_right_one(model, examples):
    images, labels = (part[TRAINED : TRAINED + 300] for part in examples)
    for declared in (*input_check.RANGES, "auto"):
        assert benchmark.named_range(model, images, labels, declared) == "caffe"


@pytest.mark.slow
def test_of_20_wrong_ranges_19_are_named_and_of_the_right_ones_none_is_stopped(monkeypatch):
    monkeypatch.setattr(benchmark, "trained", without_xla)
    counts = benchmark.summary(rows := list(benchmark.range_rows(1)))  # of two networks: python -m benchmarks
    assert counts["wrong"] == 48 and counts["right"] == counts["auto"] == 6
    assert counts["named"] >= 0.95 * counts["wrong"], [row for row in rows if row["named"] != row["true"]]
    assert counts["stopped"] == 0 and counts["found"] == counts["auto"]


def test_untrained_models_are_not_stopped(examples):
    for seed in range(3):
        keras.utils.set_random_seed(seed)
        layers = [keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(CLASSES)]
        for declared in ("0,1", "0,255"):
            model = checked(keras.Sequential([keras.Input((8, 8, 3)), *layers]), examples, declared)
            assert model.interface.input_range == declared


def test_few_images_stop_nothing(model, examples):
    images, labels = (part[:8] for part in examples)
    input_check.with_fitting_range(classifier_of(model), images, labels)


def test_wrong_class_orders_are_named(model, examples):
    images, labels = (part[TRAINED : TRAINED + 300] for part in examples)
    logits, names = model(benchmark.TRUE_RANGES["caffe"](images)).numpy(), [f"class{i}" for i in range(CLASSES)]
    input_check.check_class_order(logits, labels, names)
    swapped, backwards = np.array([1, 0, 3, 2, *range(4, CLASSES)]), np.arange(CLASSES)[::-1]
    for columns in (swapped, backwards, np.random.RandomState(1).permutation(CLASSES)):
        with pytest.raises(ValueError, match="label_map=FILE") as error:
            input_check.check_class_order(logits[:, np.argsort(columns)], labels, names)
        for name, column in zip(names, columns, strict=True):
            assert (f"{name} {column}" in str(error.value)) == (name != f"class{column}")


def test_orders_are_not_found_in_noise():
    random = np.random.RandomState(0)
    for count in (2, 10, 100):
        for _ in range(20):
            input_check.check_class_order(random.rand(300, count), random.randint(count, size=300), [str(i) for i in range(count)])


@pytest.mark.parametrize("kind", ["untrained", "random columns", "weak", "trained 0.8"])
@pytest.mark.parametrize("count", [10, 100])
def test_right_and_random_orders_are_not_stopped(kind, count):
    random = np.random.RandomState(0)
    stopped = 0
    for _ in range(30):
        labels = random.randint(count, size=10 * count)
        stopped += benchmark.is_stopped(benchmark.predictions_of(labels, benchmark.rates_of(kind, count, random), random), labels)
    assert stopped <= (kind == "random columns" and count == 10)


def test_untrained_networks_are_not_stopped_by_the_order_of_their_classes():
    assert all(row["stopped"] == 0 for row in benchmark.untrained_rows(5))


@pytest.mark.parametrize("classes, columns", [(2, 2), (5, 5), (3, 6), (10, 10)])
def test_the_probability_of_different_columns_is_that_of_draws(classes, columns):
    drawn = np.sort(np.random.RandomState(0).randint(columns, size=(20_000, classes)), axis=1)
    different = 1 + (np.diff(drawn, axis=1) > 0).sum(axis=1)
    for least in range(1, classes + 1):
        assert input_check.probability_of_distinct(least, classes, columns) == pytest.approx(np.mean(different >= least), abs=0.015)


def test_every_named_range_is_tried():
    assert NAMED_RANGES.keys() - {"", "auto"} <= set(input_check.RANGES)


@pytest.mark.parametrize("wrong, further", [(5, 0), (20, 8 * 20)])
def test_other_scales_see_only_the_images_that_the_declared_one_classifies_wrongly(wrong, further):
    images, labels, seen = np.zeros((300, 4, 4, 3), np.float32), np.arange(300) % 5, []
    images[:, 0, 0, 0] = np.where(np.arange(300) < wrong, (labels + 1) % 5, labels) / 4

    def model(batch):
        seen.append(len(batch))
        classes = np.round(np.clip(np.asarray(batch)[:, 0, 0, 0], 0, 1) * 4).astype(int)
        return tf.constant(np.eye(5, dtype=np.float32)[classes])

    classify = classifier_of(model, ModelInterface(input_range="0,1"))
    seen.clear()
    assert input_check.with_fitting_range(classify, images, labels) is classify
    assert sum(seen) == 300 + further


@pytest.mark.parametrize("reversed_wrong, expected", [((60, 140), "0,255"), ((0, 20), "0,255 bgr")])
def test_channels_are_reversed_only_for_a_clear_difference(reversed_wrong, expected):
    """A model of 300 images in 0..255 that classifies 84 wrongly, and with reversed channels 80 others, or 20."""
    images, labels = np.full((300, 4, 4, 3), 0.5, np.float32), np.arange(300) % 5
    images[..., 0], images[..., 2] = 0.8, 0.2
    images[:, 0, 0, 1], images[:, 0, 1, 1] = labels / 5, np.arange(300) * 37 % 300 / 300

    def model(batch):
        batch = np.asarray(batch)
        if batch.max() <= 1:
            return np.eye(5, dtype=np.float32)[np.zeros(len(batch), int)]
        number, label = np.rint(batch[:, 0, 1, 1] / 255 * 300), np.rint(batch[:, 0, 0, 1] / 51).astype(int)
        first, last = (0, 84) if batch[0, 3, 3, 0] > batch[0, 3, 3, 2] else reversed_wrong
        return np.eye(5, dtype=np.float32)[np.where((number >= first) & (number < last), (label + 1) % 5, label)]

    classify = classifier_of(model, ModelInterface(input_range="auto"))
    assert input_check.with_fitting_range(classify, images, labels).interface.input_range == expected
    if expected == "0,255":
        with pytest.raises(ValueError, match="Try: input_range=0,255 "):
            input_check.with_fitting_range(classifier_of(model), images, labels)


def test_images_that_are_sorted_by_class_are_checked_as_well():
    """With the wrong pixel scale the model always predicts the class of the first 400 images."""
    images, labels = np.full((800, 4, 4, 3), 51, np.uint8), np.repeat([0, 1], 400)
    images[:, 0, 0, 1] = np.where((np.arange(800) % 5 == 0) ^ (labels == 1), 204, 102)  # four in five differ

    def model(batch):
        return np.eye(2, dtype=np.float32)[(np.asarray(batch)[:, 0, 0, 1] > 150).astype(int)]

    source = data.ArraySource.of("sorted", "all", images, labels, ("a", "b"))
    checked = model_evaluation.with_checked_inputs(classifier_of(model, ModelInterface(input_range="auto")), source)
    assert checked.interface.input_range == "0,255"
    with pytest.raises(ValueError, match="with which it classifies 50.0% of 300 images .* with 0,255 it is 80"):
        model_evaluation.with_checked_inputs(classifier_of(model, ModelInterface(input_range="0,1")), source)


@pytest.mark.parametrize("columns", [(1, 0, 3, 2, 4), (2, 3, 4, 0, 1)])
@pytest.mark.parametrize("declared", ["0,1", "0,255"])
def test_a_model_at_chance_is_described_with_the_scale_and_the_order_that_fit(columns, declared):
    """73 % with the right scale and order of five classes: too few classes to stop it."""
    images, labels = np.full((300, 4, 4, 3), 0.5, np.float32), np.arange(300) % 5
    images[:, 0, 0, 1] = np.where(np.arange(300) * 37 % 300 < 219, labels, (labels + 2) % 5) / 5

    def model(batch):
        batch = np.asarray(batch)
        known = np.take(columns, np.rint(batch[:, 0, 0, 1] / 51).astype(int))
        return np.eye(5, dtype=np.float32)[known if batch.max() > 1 else np.zeros(len(batch), int)]

    classify = classifier_of(model, ModelInterface(input_range=declared))
    names = [f"class{i}" for i in range(5)]
    note = input_check.note_on_chance(classify, input_check.in_batches(classify, images), images, labels, names)
    assert "always predicting the most frequent class would be right for 20.0%" in note and "it would be 7" in note
    assert all((f"class{i} {column}" in note) == (i != column) for i, column in enumerate(columns))
    assert ("input_range=0,255 and" in note) == (declared == "0,1")
    right = classifier_of(lambda x: np.asarray(model(x))[:, list(columns)], ModelInterface(input_range="0,255"))
    assert input_check.note_on_chance(right, input_check.in_batches(right, images), images, labels, names) == ""


@pytest.mark.parametrize("count, accuracy", [(12, 0.6), (120, 0.9), (1000, 0.7)])
@pytest.mark.parametrize("kind", ["folders", "numbers"])
def test_the_order_of_numbers_in_names_is_tried_and_named(count, accuracy, kind):
    """Class folders 0, 1, 10, 100, ... of a model trained on labels 0, 1, 2, ...; and the other way round."""
    numbers = [str(i) for i in range(count)]
    names, trained = (sorted(numbers), numbers) if kind == "folders" else (numbers, sorted(numbers))
    random = np.random.RandomState(0)
    labels = np.arange(1000) % count
    true = np.array([trained.index(names[label]) for label in labels])
    columns = np.where(random.rand(1000) < accuracy, true, random.randint(count, size=1000))
    logits = np.eye(count, dtype=np.float32)[columns]
    order = "the order of the numbers in their names: 0, 1, 2, 3, 4" if kind == "folders" else "alphabetical order: 0, 1, 10"
    with pytest.raises(ValueError, match=order):
        input_check.check_class_order(logits, labels, names)
    input_check.check_class_order(logits, true, trained)


@pytest.mark.parametrize("count", [120, 200])
def test_the_order_of_more_than_100_classes_is_checked(count):
    random = np.random.RandomState(0)
    labels = np.arange(1000) % count
    shuffled = random.permutation(count)
    right = np.where(random.rand(1000) < 0.8, labels, random.randint(count, size=1000))
    names = [f"class {i:03}" for i in range(count)]
    input_check.check_class_order(np.eye(count)[right], labels, names)
    with pytest.raises(ValueError, match=f"class 000 {shuffled[0]}, class 001 {shuffled[1]}, .*Try: label_map"):
        input_check.check_class_order(np.eye(count)[shuffled[right]], labels, names)
    input_check.check_class_order(np.eye(count)[random.randint(count, size=1000)], labels, names)


def test_classes_beyond_100_are_checked_before_an_evaluation():
    """A perfect model of 120 folders in lexicographic order."""
    names = sorted(map(str, range(120)))
    labels = np.arange(240) % 120
    images = np.full((240, 4, 4, 3), 128, np.uint8)
    images[:, 0, 0, 1] = np.array([int(name) for name in names])[labels]
    source = data.ArraySource.of("folder:numbers", "all", images, labels, names)

    def model(batch):
        return np.eye(120, dtype=np.float32)[np.rint(np.asarray(batch)[:, 0, 0, 1] * 255).astype(int) % 120]

    with pytest.raises(ValueError, match="1.7% of 240 images are classified correctly, and 100.0% in the order of the numbers"):
        model_evaluation.with_checked_inputs(classifier_of(model, ModelInterface(input_range="0,1")), source)


def test_confidence_alone_does_not_choose_a_larger_scale():
    """A network of ReLUs without biases predicts alike on every scale, and is more confident on 0..255."""
    images, labels = np.random.RandomState(0).rand(120, 4, 4, 1).astype(np.float32), np.arange(120) % 3
    images[np.arange(120), labels] += 1.0  # rows
    images /= images.max()
    for gain, large in ((30.0, False), (0.05, True)):
        model = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Lambda(lambda x, gain=gain: gain * keras.ops.sum(x, (2, 3))[:, :3])])
        classify = classifier_of(model, ModelInterface(input_range="auto", outputs="logits"), "relu.keras")
        assert (input_check.with_fitting_range(classify, images, labels).interface.input_range == "0,255") == large
