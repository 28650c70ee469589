"""The corner-digit set of the FCL paper (section 4.1), from any pool of digits 0-9.

A scaled-down random digit is put into a random corner, by the maximum of the two images. Digits 0-4 with a corner
digit become classes 10-14; digits 5-9 keep their class and always carry a corner digit. So in training a corner digit
is uninformative about the class 100 times out of 101. Everything is drawn once, from NumPy's frozen legacy generator: the
set is the same for every seed of a run.

Where the paper is silent: a corner digit is the canvas without its 4-pixel margin (which holds 3 % of MNIST's ink),
reduced to `CORNER_SIZE` pixels by area averaging, flush with the corner.
"""

import functools
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tf_robust.data import tfds_sets
from tf_robust.data.kinds import SPLITS, ReadOptions
from tf_robust.data.source import Arrays, ArraySource

CANVAS = 28
MARGIN = 4
CORNER_SIZE = 10
_SEED = 2021
# {split: number of images of each common and of each rare class}
_QUOTAS = {
    "synthetic_digits": {"train": (1000, 10), "validation": (50, 50), "test": (100, 100)},
    "synthetic_mnist": {"train": (5000, 50), "validation": (1000, 1000), "test": (1000, 1000)},
}


def open_digits(name: str, split: str, options: ReadOptions) -> ArraySource:
    """Opens a split of `digits` or `synthetic_digits`, made of scikit-learn's digits, or of `synthetic_mnist`, made of MNIST."""
    if name == "synthetic_mnist":
        tfds_sets.builder_of("mnist", options.data_dir, options.download)
    images, labels = digit_pools()[split] if name == "digits" else _synthetic(name, split, options.data_dir)
    return ArraySource.of(name, split, images, labels, map(str, range(10 if name == "digits" else 15)))


@functools.lru_cache(maxsize=6)
def _synthetic(name, split, data_dir):
    quota, salt = _QUOTAS[name][split], SPLITS.index(split)
    if name == "synthetic_digits":
        return build(*digit_pools()[split], *quota, salt=salt, shift=2)
    mnist = tfds_sets.open_tfds("mnist", "test" if split == "test" else "train", ReadOptions(data_dir))
    pool = mnist.images, mnist.labels
    return build(*(pool if split == "test" else divide(*pool, {"train": 5, "validation": 1})[split]), *quota, salt=salt)


def divide(images: np.ndarray, labels: np.ndarray, proportions: Mapping[str, int]) -> dict[str, Arrays]:
    """Divides the examples of each class into disjoint parts {name: (images, labels)}, such as {"train": 5, "validation": 1}."""
    random = np.random.RandomState(_SEED)
    indices: dict[str, list[np.ndarray]] = {name: [] for name in proportions}
    bounds = np.cumsum([0, *proportions.values()]) / sum(proportions.values())
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        edges = np.round(bounds * len(members)).astype(int)
        for name, start, stop in zip(indices, edges[:-1], edges[1:]):
            indices[name].append(members[start:stop])
    parts = {name: np.sort(np.concatenate(members)) for name, members in indices.items()}
    return {name: (images[members], labels[members]) for name, members in parts.items()}


@functools.lru_cache(maxsize=1)
def digit_pools() -> dict[str, Arrays]:
    """Returns scikit-learn's 1,797 real digits on a 28x28 canvas, divided per class into about 1,300 / 200 / 300.

    The 8x8 images (values 0..16) are upscaled to 20x20 by bicubic interpolation, sharpened to strokes about as thin as
    MNIST's (2 x - 0.75 on the [0, 1] scale, clipped) and centered. Parts: {"train": (uint8 [N, 28, 28, 1], int64 [N]), ...}.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    large = tf.image.resize(digits.images[..., None] / 16.0, [20, 20], method="bicubic")
    canvas = tf.image.pad_to_bounding_box(tf.clip_by_value(2.0 * large - 0.75, 0.0, 1.0), MARGIN, MARGIN, CANVAS, CANVAS)
    images = tf.cast(tf.round(255.0 * canvas), tf.uint8).numpy()
    return divide(images, digits.target.astype(np.int64), {"train": 13, "validation": 2, "test": 3})


def build(images: np.ndarray, labels: np.ndarray, common: int, rare: int, *, salt: int, shift: int = 0) -> Arrays:
    """Builds one split of the corner-digit set from its own pool of digits, uint8 [N, 28, 28, 1] and int64 [N] in 0..9.

    Args:
        images, labels: the pool.
        common: number of images of each class 0-9; where the pool of a class is smaller, its center digits repeat, each with
            a newly drawn corner digit.
        rare: number of images of each class 10-14.
        salt: makes the draws of one split independent of another's.
        shift: move each center digit at random by at most this many pixels, at most `MARGIN`.

    Returns:
        (uint8 [10 * common + 5 * rare, 28, 28, 1], int64 labels in 0..14), shuffled once
    """
    random = np.random.RandomState([_SEED, salt])
    center_parts, class_parts = [], []
    for label in range(15):
        pool = np.flatnonzero(labels == label % 10)
        quota = rare if label >= 10 else common
        rounds = [random.permutation(pool) for _ in range(-(-quota // len(pool)))]
        center_parts.append(np.concatenate(rounds)[:quota] if rounds else pool[:0])
        class_parts.append(np.full(quota, label, np.int64))
    centers, classes = np.concatenate(center_parts), np.concatenate(class_parts)
    order = random.permutation(len(centers))
    composed, classes = images[centers[order]], classes[order]
    if shift:
        starts = MARGIN - random.randint(-shift, shift + 1, size=(len(composed), 2))
        padded = np.pad(composed, [(0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)])
        composed = np.stack([image[top : top + CANVAS, left : left + CANVAS] for image, (top, left) in zip(padded, starts)])
    inner = tf.constant(images[:, MARGIN:-MARGIN, MARGIN:-MARGIN])
    reduced = tf.cast(tf.round(tf.image.resize(inner, [CORNER_SIZE, CORNER_SIZE], method="area")), tf.uint8).numpy()
    small = reduced[random.randint(len(images), size=len(composed))]
    corners = random.randint(2, size=(len(composed), 2)) * (CANVAS - CORNER_SIZE)
    for i in np.flatnonzero(classes >= 5):  # every image of 5-9 and 10-14 carries a corner digit
        top, left = corners[i]
        window = composed[i, top : top + CORNER_SIZE, left : left + CORNER_SIZE]
        np.maximum(window, small[i], out=window)
    return composed, classes
