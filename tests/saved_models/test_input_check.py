"""Wrong pixel scales and class orders of trained models are noticed, right ones and untrained models are not stopped."""

import re

import keras
import numpy as np
import pytest
from sklearn import datasets

from tf_robust.saved_models import input_check
from tf_robust.saved_models.loading import NAMED_RANGES, Classifier, ModelInterface, classifier_of

CLASSES, TRAINED = 15, 1400
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
TRUE_RANGES = {  # by hand, not by ModelInterface
    "0,1": lambda x: x,
    "-1,1": lambda x: 2 * x - 1,
    "0,255": lambda x: 255 * x,
    "imagenet": lambda x: (x - MEAN) / STD,
    "0,255 bgr": lambda x: 255 * x[..., ::-1],
    "caffe": lambda x: 255 * x[..., ::-1] - (103.939, 116.779, 123.68),
}


@pytest.fixture(scope="module")
def examples():
    """Noisy digits 0 to 4 on a background that is reddish (classes 0 to 4), bluish (5 to 9) or bright (10 to 14)."""
    digits, labels = datasets.load_digits(n_class=5, return_X_y=True)
    random = np.random.RandomState(0)
    chosen = random.permutation(np.tile(np.arange(len(digits)), 2))
    kind = random.randint(3, size=len(chosen))
    background = np.array([(0.65, 0.5, 0.35), (0.35, 0.5, 0.65), (0.75, 0.7, 0.65)])[kind] + random.uniform(-0.08, 0.08, [len(chosen), 1])
    images = background[:, None, None] * (1 - 0.7 * digits[chosen].reshape(-1, 8, 8, 1) / 16)
    images += random.normal(scale=0.08, size=images.shape)
    return images.clip(0, 1).astype(np.float32), labels[chosen] + 5 * kind


@pytest.fixture(scope="module")
def models(examples):
    """{range: network that was trained on it}."""
    images, labels = examples
    result = {}
    for seed, (name, scale) in enumerate(TRUE_RANGES.items()):
        keras.utils.set_random_seed(seed)
        values = scale(images[:TRAINED])
        layers = keras.layers
        normalization = layers.Normalization(axis=None)  # inside the model, as a Rescaling layer is
        normalization.adapt(values)
        network = [
            normalization,
            *(layers.Conv2D(16, 3, activation="relu"), layers.Conv2D(32, 3, activation="relu")),
            *(layers.Flatten(), layers.Dense(CLASSES)),
        ]
        model = keras.Sequential([keras.Input(images.shape[1:]), *network])
        model.compile(keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(values, labels[:TRAINED], epochs=12, batch_size=64, verbose=0)
        result[name] = model
    return result


def checked(model, examples, declared) -> Classifier:
    images, labels = (part[TRAINED : TRAINED + 300] for part in examples)
    return input_check.with_fitting_range(classifier_of(model, ModelInterface(input_range=declared)), images, labels)


def test_wrong_ranges_are_named_and_right_ones_are_not_stopped(models, examples):
    named = []
    for true, model in models.items():
        assert checked(model, examples, true).interface.input_range == true
        for declared in TRUE_RANGES.keys() - {true}:
            try:
                checked(model, examples, declared)
                named.append((true, declared, "not stopped"))
            except ValueError as error:
                named.append((true, declared, re.search("Try: '?--input_range=(.*?)'? \\(", str(error)).group(1)))
    wrong = [one for one in named if one[0] != one[2]]
    assert len(named) == 30 and len(wrong) <= 1, wrong


def test_auto_takes_the_best_range(models, examples):
    for true, model in models.items():
        assert checked(model, examples, "auto").interface.input_range == true


def test_untrained_models_are_not_stopped(examples):
    for seed in range(5):
        keras.utils.set_random_seed(seed)
        layers = [keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(CLASSES)]
        for declared in ("0,1", "0,255"):
            model = checked(keras.Sequential([keras.Input((8, 8, 3)), *layers]), examples, declared)
            assert model.interface.input_range == declared


def test_few_images_stop_nothing(models, examples):
    images, labels = (part[:8] for part in examples)
    input_check.with_fitting_range(classifier_of(models["0,255"]), images, labels)


@pytest.mark.parametrize("order", ["swapped", "reversed", "shuffled"])
def test_wrong_class_orders_are_named(models, examples, order):
    images, labels = (part[TRAINED : TRAINED + 300] for part in examples)
    columns = {
        "swapped": np.array([1, 0, 3, 2, *range(4, CLASSES)]),
        "reversed": np.arange(CLASSES)[::-1],
        "shuffled": np.random.RandomState(1).permutation(CLASSES),
    }[order]
    logits, names = models["0,1"](images).numpy(), [f"class{i}" for i in range(CLASSES)]
    input_check.check_class_order(logits, labels, names)
    with pytest.raises(ValueError, match="--label_map=FILE") as error:
        input_check.check_class_order(logits[:, np.argsort(columns)], labels, names)
    for name, column in zip(names, columns, strict=True):
        assert (f"{name} {column}" in str(error.value)) == (name != f"class{column}")


def test_orders_are_not_found_in_noise():
    random = np.random.RandomState(0)
    for count in (2, 10, 100):
        for _ in range(20):
            input_check.check_class_order(random.rand(300, count), random.randint(count, size=300), [str(i) for i in range(count)])


def test_every_named_range_is_tried():
    assert NAMED_RANGES.keys() - {"auto"} <= set(input_check.RANGES)
