"""Metrics the check of pixel scales and class orders: how often it stops what it should, and what it should not.

    python benchmarks/input_check.py                      # 5 minutes; writes results/input_check.{json,md}

Pixel scales: small networks of two kinds are trained on colored digits in six conventions, with several seeds, and evaluated with every
declaration that the check knows. Class orders: predictions of simulated classifiers, untrained, weak or trained with another order, and
those of untrained networks on digits.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
import pathlib
import re
import sys
from collections.abc import Callable, Iterator

import keras
import numpy as np
from absl import app, flags
from sklearn import datasets

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.timing import provenance
from tf_robust.saved_models import input_check
from tf_robust.saved_models.loading import ModelInterface, classifier_of
from tf_robust.utils.files import atomic_file

FLAGS = flags.FLAGS

CLASSES, TRAINED, CHECKED = 15, 1400, 300
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
TRUE_RANGES: dict[str, Callable] = {  # by hand, not by ModelInterface
    "0,1": lambda x: x,
    "-1,1": lambda x: 2 * x - 1,
    "0,255": lambda x: 255 * x,
    "imagenet": lambda x: (x - MEAN) / STD,
    "0,255 bgr": lambda x: 255 * x[..., ::-1],
    "caffe": lambda x: 255 * x[..., ::-1] - (103.939, 116.779, 123.68),
}
CLASS_COUNTS = (2, 5, 10, 15, 100)


def colored_digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns noisy digits 0 to 4 on a background that is reddish (classes 0 to 4), bluish (5 to 9) or bright (10 to 14)."""
    digits, labels = datasets.load_digits(n_class=5, return_X_y=True)
    random = np.random.RandomState(0)
    chosen = random.permutation(np.tile(np.arange(len(digits)), 2))
    kind = random.randint(3, size=len(chosen))
    background = np.array([(0.65, 0.5, 0.35), (0.35, 0.5, 0.65), (0.75, 0.7, 0.65)])[kind] + random.uniform(-0.08, 0.08, [len(chosen), 1])
    images = background[:, None, None] * (1 - 0.7 * digits[chosen].reshape(-1, 8, 8, 1) / 16)
    images += random.normal(scale=0.08, size=images.shape)
    return images.clip(0, 1).astype(np.float32), labels[chosen] + 5 * kind


def trained(images: np.ndarray, labels: np.ndarray, scale: Callable, seed: int, jit_compile: bool | str = "auto") -> keras.Model:
    """Returns a network that was trained on scaled images: of even seeds with a normalization inside, of odd ones with batch norm."""
    keras.utils.set_random_seed(seed)
    values, layers = scale(images), keras.layers
    first = layers.BatchNormalization(momentum=0.9) if seed % 2 else layers.Normalization(axis=None)
    if not seed % 2:
        first.adapt(values)
    convolutions = [layers.Conv2D(16, 3, activation="relu"), layers.Conv2D(32, 3, activation="relu")]
    model = keras.Sequential([keras.Input(images.shape[1:]), first, *convolutions, layers.Flatten(), layers.Dense(CLASSES)])
    model.compile(keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit_compile)
    model.fit(values, labels, epochs=12, batch_size=64, verbose=0)
    return model


def named_range(model: keras.Model, images: np.ndarray, labels: np.ndarray, declared: str) -> str:
    """Returns the pixel scale that the check names, or takes for "auto"; the declared one if it does not stop."""
    try:
        checked = input_check.with_fitting_range(classifier_of(model, ModelInterface(input_range=declared)), images, labels)
    except ValueError as error:
        found = re.search(r"Try: input_range='?(.*?)'? \(", str(error))
        return found.group(1) if found else str(error)
    return checked.interface.input_range


def range_rows(networks: int) -> Iterator[dict]:
    """Yields {true, seed, accuracy, declared, named} for every network and declaration."""
    images, labels = colored_digits()
    held_out = images[TRAINED : TRAINED + CHECKED], labels[TRAINED : TRAINED + CHECKED]
    for seed in range(networks):
        for true, scale in TRUE_RANGES.items():
            model = trained(images[:TRAINED], labels[:TRAINED], scale, seed)
            accuracy = float((model.predict(scale(held_out[0]), verbose=0).argmax(axis=1) == held_out[1]).mean())
            for declared in (*input_check.RANGES, "auto"):
                named = named_range(model, *held_out, declared)
                yield {"true": true, "seed": seed, "accuracy": accuracy, "declared": declared, "named": named}


def predictions_of(labels: np.ndarray, rates: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Returns one-hot logits [N, C] of predictions that are drawn with the rates [C, C] of each class."""
    drawn = (random.rand(len(labels), 1) > rates[labels].cumsum(axis=1)).sum(axis=1).clip(0, rates.shape[1] - 1)
    return np.eye(rates.shape[1])[drawn]


def rates_of(kind: str, count: int, random: np.random.RandomState) -> np.ndarray:
    """Returns the rates [C, C] at which a simulated classifier predicts each class; see `KINDS`."""
    errors = random.dirichlet(np.full(count, 1 / count**0.5), size=count)
    if kind == "random columns":  # the hardest untrained classifier: it tells the classes apart
        return 0.9 * np.eye(count)[random.randint(count, size=count)] + 0.1 * errors
    if kind == "untrained":  # every class has few columns, and all have some in common
        return 0.7 * errors + 0.3 * random.dirichlet(np.full(count, 0.3))
    accuracy = random.uniform(0.15, 0.5) if kind == "weak" else float(kind.split()[-1])
    rates = accuracy * np.eye(count) + (1 - accuracy) * errors
    if kind.startswith("permuted"):
        return rates[:, derangement(count, random)]
    if kind.startswith("swapped"):
        return rates[:, [1, 0, *range(2, count)]]
    return rates


KINDS = ("untrained", "random columns", "weak", "trained 0.8", "swapped 0.8", "permuted 0.5", "permuted 0.7", "permuted 0.9")


def derangement(count: int, random: np.random.RandomState) -> np.ndarray:
    """Returns a permutation without fixed points."""
    while True:
        order = random.permutation(count)
        if (order != np.arange(count)).all():
            return order


def is_stopped(logits: np.ndarray, labels: np.ndarray) -> bool:
    """Returns whether the check of the class order stops."""
    try:
        input_check.check_class_order(logits, labels, [str(i) for i in range(logits.shape[1])])
    except ValueError:
        return True
    return False


def order_rows(simulations: int) -> Iterator[dict]:
    """Yields {kind, classes, classifiers, stopped} of simulated classifiers on as many images as an evaluation checks."""
    for kind in KINDS:
        for count in CLASS_COUNTS:
            random = np.random.RandomState(count)
            stopped = 0
            for _ in range(simulations):
                labels = random.randint(count, size=max(CHECKED, 10 * count))
                stopped += is_stopped(predictions_of(labels, rates_of(kind, count, random), random), labels)
            yield {"kind": kind, "classes": count, "classifiers": simulations, "stopped": stopped}


def untrained_rows(simulations: int) -> Iterator[dict]:
    """Yields rows as `order_rows` for untrained networks of three kinds on all digits, and on the digits 0 and 1."""
    layers = keras.layers
    heads: dict[str, Callable[[], list]] = {
        "linear": lambda: [layers.Flatten()],
        "convolutions": lambda: [layers.Conv2D(16, 3, activation="relu"), layers.Flatten(), layers.Dense(32, activation="relu")],
        "pooled": lambda: [layers.Conv2D(16, 3, activation="relu"), layers.GlobalAveragePooling2D()],
    }
    for count in (2, 10):
        digits, labels = datasets.load_digits(n_class=count, return_X_y=True)
        images = digits.reshape(-1, 8, 8, 1).astype(np.float32) / 16
        for name, body in heads.items():
            stopped = 0
            for seed in range(simulations // len(heads)):
                keras.utils.set_random_seed(seed)
                chosen = np.random.RandomState(seed).permutation(len(images))[:CHECKED]
                model = keras.Sequential([keras.Input((8, 8, 1)), *body(), layers.Dense(count)])
                stopped += is_stopped(np.asarray(model(images[chosen])), labels[chosen])
            yield {"kind": f"untrained network, {name}", "classes": count, "classifiers": simulations // len(heads), "stopped": stopped}


def summary(rows: list[dict]) -> dict[str, int]:
    """Returns counts of the declarations: right and wrong ones, those that are stopped or named rightly."""
    wrong = [row for row in rows if row["declared"] not in (row["true"], "auto")]
    right = [row for row in rows if row["declared"] == row["true"]]
    automatic = [row for row in rows if row["declared"] == "auto"]
    return {
        "wrong": len(wrong),
        "named": sum(row["named"] == row["true"] for row in wrong),
        "right": len(right),
        "stopped": sum(row["named"] != row["true"] for row in right),
        "auto": len(automatic),
        "found": sum(row["named"] == row["true"] for row in automatic),
    }


def markdown(ranges: list[dict], orders: list[dict], facts: dict) -> str:
    """Returns the page of the results."""
    counts, accuracies = summary(ranges), [row["accuracy"] for row in ranges]
    missed = [f"{r['true']} declared {r['declared']}: {r['named']}" for r in ranges if r["named"] != r["true"]]
    table = "".join(f"| {r['kind']} | {r['classes']} | {r['classifiers']} | {r['stopped']} |\n" for r in orders)
    return (
        "# The check of pixel scales and class orders\n\n"
        f"Networks trained on colored digits in the conventions {'; '.join(TRUE_RANGES)} (accuracy {min(accuracies):.2f} to "
        f"{max(accuracies):.2f}), checked on {CHECKED} images with each declaration:\n\n"
        f"- {counts['wrong']} wrong declarations: {counts['named']} stopped, with the right one named\n"
        f"- {counts['right']} right declarations: {counts['stopped']} stopped\n"
        f"- `--input_range=auto`, {counts['auto']} networks: {counts['found']} times the right one\n\n"
        f"Not named: {'; '.join(missed) or 'none'}.\n\n"
        "Class orders: only those of swapped and permuted classifiers are wrong. The number in the kind is the accuracy; weak classifiers "
        "have 0.15 to 0.5, and those with random columns predict one column, drawn at random, for 0.9 of the images of a class:\n\n"
        f"| classifiers | classes | number | stopped |\n| --- | --- | --- | --- |\n{table}\n"
        f"```sh\n{facts['command']}\n```\n\nCommit {facts['commit']}.\n"
    )


def main(_):
    facts = provenance("keras", "tensorflow", "numpy", "scipy")
    ranges = list(range_rows(FLAGS.networks))
    orders = [*order_rows(FLAGS.simulations), *untrained_rows(FLAGS.simulations)]
    page = markdown(ranges, orders, facts)
    print(page)
    for suffix, text in (("json", json.dumps({**facts, "ranges": ranges, "orders": orders}, indent=1)), ("md", page)):
        with atomic_file(f"{FLAGS.output}.{suffix}", "w") as file:
            file.write(text)


if __name__ == "__main__":
    flags.DEFINE_integer("networks", 4, "networks of each pixel scale, with seeds from 0.")
    flags.DEFINE_integer("simulations", 200, "simulated classifiers of each kind and number of classes.")
    flags.DEFINE_string("output", str(ROOT / "results" / "input_check"), "files to write, without their suffix.")
    app.run(main)
