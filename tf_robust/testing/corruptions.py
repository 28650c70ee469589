"""The contract of a corruption."""

import keras
import numpy as np
import tensorflow as tf

from tf_robust.corruptions.corruption import Corruption
from tf_robust.testing.samples import expect, photographs, without_global_draws

_INDICES = np.array([7, 8, 9, 3])  # partly consecutive


def check_corruption(corruption: Corruption, *, increasing: bool = True, atol: float = 3.1e-5) -> None:
    """Checks the contract of a corruption on pieces of photographs of 24 x 20 pixels, in color and gray.

    The images keep their shape and type, stay in [0, 1] and change; the higher severity changes them more. The result of an image
    depends on (seed, index) alone: not on its batch, on graph or eager mode, or on global generators. A corruption that draws
    gives other images for another seed and another index.

    Args:
        corruption: the entry of `CORRUPTIONS`.
        increasing: whether severity 5 changes images more than severity 1, on average.
        atol: largest difference of two results of the same image; the default is the rounding of 256 float32 operations.

    Raises:
        AssertionError: the contract is broken.

    Examples:
        >>> from tf_robust import testing
        >>> darken = tfr.corruptions.Corruption("darken", lambda images, level: images * (1 - level), levels=(0.1, 0.2, 0.3, 0.4, 0.5))
        >>> testing.check_corruption(darken)
        >>> reverse = tfr.corruptions.Corruption("reverse", lambda images, level: images * (1 - level), levels=(0.5, 0.4, 0.3, 0.2, 0.1))
        >>> testing.check_corruption(reverse)
        Traceback (most recent call last):
        AssertionError: Expected severity 5 of reverse to change images more than severity 1. Received: ...
    """
    images, name = photographs(), corruption.name
    changes = []
    for severity in (1, 5):
        corrupted = corruption(tf.constant(images), severity, seed=1)
        expect(corrupted.shape == images.shape, f"images {images.shape} from {name}", f"shape {corrupted.shape}")
        expect(corrupted.dtype == tf.float32, f"float32 images from {name}", corrupted.dtype.name)
        corrupted = corrupted.numpy()
        inside = np.isfinite(corrupted).all() and corrupted.min() >= 0 and corrupted.max() <= 1
        expect(inside, f"images in [0, 1] from {name}", f"{corrupted.min()} to {corrupted.max()}")
        changes.append(np.abs(corrupted - images).mean())
    expect(min(changes) > 0.5 / 255, f"images that {name} changes by more than half a level, on average", changes)
    expect(not increasing or changes[1] > changes[0], f"severity 5 of {name} to change images more than severity 1", changes)
    _check_independence(corruption, images[:, :22], 2, atol)
    _check_independence(corruption, images[..., :1], 5, atol, in_graph=False)
    empty = corruption(tf.constant(images[:0]), 1).shape
    expect(empty == images[:0].shape, f"no images from {name} for none", f"shape {empty}")
    if corruption.draw is not None:
        same = tf.constant(np.repeat(images[:1], 2, axis=0))
        first, other = (corruption(same, 5, seed=seed).numpy() for seed in (3, 4))
        expect((first[0] != first[1]).any(), f"draws of {name} that differ by index", "equal images for indices 0 and 1")
        expect((first != other).any(), f"draws of {name} that differ by seed", "equal images for seeds 3 and 4")


def _check_independence(corruption, images, severity, atol, in_graph=True):
    """The result of an image depends on its seed and index alone."""

    def corrupt(images, indices):
        return corruption(tf.convert_to_tensor(images), severity, seed=2, indices=indices)

    keras.utils.set_random_seed(0)
    with without_global_draws(corruption.name):
        expected = corrupt(images, _INDICES).numpy()
    keras.utils.set_random_seed(1)
    results = {
        "alone": [corrupt(images[i : i + 1], _INDICES[i : i + 1])[0] for i in range(len(images))],
        "in a part of the batch": [*expected[:1], *corrupt(images[1:3], _INDICES[1:3]), *expected[3:]],
    }
    if in_graph:
        dataset = tf.data.Dataset.from_tensor_slices((images, _INDICES)).batch(3).map(corrupt).unbatch()
        results["in Dataset.map"] = list(dataset)
    for where, result in results.items():
        difference = np.abs(np.stack(result) - expected).max()
        expect(difference <= atol, f"the same images from {corruption.name} {where} as in a batch", f"a difference of {difference:.2g}")
