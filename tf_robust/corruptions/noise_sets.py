"""The noise sets of the FCL paper (sections 4.1 and 4.2.1). Images are float32 in [0, 1], NHWC.

A selected location is replaced, in all its channels, by one uniform gray value. The result for an image depends on
(seed, its index in the data set) alone, not on the batch it is in.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import scipy.optimize
import tensorflow as tf

from tf_robust.ops import philox

RATE = 0.15
FLOOR = 0.1  # on the [0, 1] scale, where a location is constant; see `nonuniform_probabilities`
_CONSTANT = 1e-6  # above the rounding of a constant location, below one gray level in one of 50,000 images


def replace_locations(
    images: tf.Tensor | np.ndarray,
    probabilities: float | np.ndarray | tf.Tensor,
    *,
    seed: int,
    indices: Sequence[int] | np.ndarray | tf.Tensor | None = None,
) -> tf.Tensor:
    """Replaces locations at random by uniform gray values.

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        probabilities: float, or [H, W]: the probability of each location.
        seed: int.
        indices: int [N], positions in the data set; None: 0..N-1.

    Returns:
        float32 [N, H, W, C] in [0, 1]
    """
    images = tf.convert_to_tensor(images, tf.float32)
    indices = tf.range(tf.shape(images)[0]) if indices is None else tf.convert_to_tensor(indices)
    return apply(images, probabilities, **draw(seed, indices, tf.shape(images)[1:3]))


def draw(seed: int, indices: tf.Tensor, size: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the random inputs of `apply`, {"choice", "gray"}: float32 [N, H, W] each, uniform in [0, 1).

    Args:
        seed: int.
        indices: int [N].
        size: int [2], (H, W).
    """
    given = tf.constant(seed, tf.int64), tf.cast(indices, tf.int64), tf.cast(size, tf.int32)
    drawn = _drawn_by_graph(*given) if tf.executing_eagerly() else _drawn(*given)
    return {"choice": drawn[..., 0], "gray": drawn[..., 1]}


def _drawn(seed, indices, size):
    """Uniform numbers [N, H, W, 2]."""

    def one(index):
        return philox.uniform(tf.concat([size, [2]], 0), tf.stack([seed, index]))

    return tf.map_fn(one, indices, fn_output_signature=tf.float32)


_SPECS = tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64), tf.TensorSpec([2], tf.int32)
_drawn_by_graph = tf.function(_drawn, autograph=False, input_signature=_SPECS)  # else Python would draw image by image


def apply(images: tf.Tensor, probabilities: float | np.ndarray | tf.Tensor, choice: tf.Tensor, gray: tf.Tensor) -> tf.Tensor:
    """Replaces locations whose `choice` is below their probability by `gray`: [N, H, W, C] -> the same. Deterministic."""
    return tf.where((choice < tf.cast(probabilities, tf.float32))[..., None], gray[..., None], images)


def uniform_noise(
    images: tf.Tensor | np.ndarray, *, seed: int, indices: Sequence[int] | np.ndarray | tf.Tensor | None = None, rate: float = RATE
) -> tf.Tensor:
    """Applies UN: every location is replaced with the same probability `rate`; arguments as in `replace_locations`.

    Examples:
        >>> noisy = tfr.corruptions.uniform_noise(np.zeros([1, 100, 100, 3], np.float32), seed=0)
        >>> round(float(np.mean(noisy != 0)), 2)
        0.16
    """
    return replace_locations(images, rate, seed=seed, indices=indices)


def nonuniform_noise(
    images: tf.Tensor | np.ndarray,
    probabilities: np.ndarray | tf.Tensor,
    *,
    seed: int,
    indices: Sequence[int] | np.ndarray | tf.Tensor | None = None,
) -> tf.Tensor:
    """Applies NUN: a location's probability is inversely proportional to its standard deviation; see `nonuniform_probabilities`.

    Examples:
        >>> images, _ = tfr.images(20, data="digits")
        >>> probabilities = tfr.corruptions.nonuniform_probabilities(tfr.corruptions.location_std([images]))
        >>> noisy = tfr.corruptions.nonuniform_noise(images, probabilities, seed=0)
        >>> changed = np.any(noisy != images, axis=-1)
        >>> [round(float(changed[:, rows].mean()), 2) for rows in (slice(0, 4), slice(12, 16))]  # at the border, in the center
        [0.21, 0.13]
    """
    return replace_locations(images, probabilities, seed=seed, indices=indices)


def nonuniform_probabilities(std: np.ndarray, *, rate: float = RATE, floor: float | None = None) -> np.ndarray:
    """Returns min(1, c / (std + floor)) with c such that the mean is `rate`.

    Section 4.2.1 of the FCL paper has "inversely proportional to its sample standard deviation", which is floor=0. A location that
    is constant over the training images would then have an infinite probability, hence the floor: the smaller it is, the more of
    the noise falls on such locations. floor=0 is the limit for a floor that tends to 0.

    Args:
        std: [H, W], standard deviation of each location over the training images (mean over channels), [0, 1] scale.
        rate: mean probability, in (0, 1].
        floor: >= 0; None: 0.1 if a location is constant over the training images, else 0.

    Returns:
        np.ndarray [H, W]

    Raises:
        ValueError: rate or floor out of range.

    Examples:
        >>> std = np.array([[0.1, 0.2], [0.2, 0.4]])
        >>> tfr.corruptions.nonuniform_probabilities(std, rate=0.15).round(3)
        array([[0.267, 0.133],
               [0.133, 0.067]])
    """
    std = np.asarray(std, np.float64)
    floor = default_floor(std) if floor is None else floor
    if not 0 < rate <= 1 or not 0 <= floor < np.inf:
        raise ValueError(f"Expected rate in (0, 1] and floor >= 0. Received: rate={rate}, floor={floor}")
    constant = std + floor == 0
    if constant.mean() >= rate:
        return np.where(constant, rate / constant.mean(), 0.0)
    inverse = 1.0 / np.where(constant, np.inf, std + floor)

    def probabilities(c):
        return np.where(constant, 1.0, np.minimum(1.0, c * inverse))

    c = scipy.optimize.brentq(lambda c: probabilities(c).mean() - rate, 0.0, 1.0 / inverse[~constant].min())
    return probabilities(c)


def default_floor(std: np.ndarray) -> float:
    """Returns 0.1 if a location is constant over the training images, else 0. std: [H, W]."""
    return FLOOR if np.min(std) < _CONSTANT else 0.0


def location_std(batches: Iterable[np.ndarray]) -> np.ndarray:
    """Returns the standard deviation of each location over images, averaged over channels.

    Args:
        batches: iterable of float [B, H, W, C] in [0, 1].

    Returns:
        np.ndarray [H, W], float64

    Examples:
        >>> dark_and_bright = np.stack([np.zeros([2, 2, 1]), np.ones([2, 2, 1])])
        >>> tfr.corruptions.location_std([dark_and_bright])
        array([[0.5, 0.5],
               [0.5, 0.5]])
    """
    count, total, squares = 0, 0.0, 0.0
    for images in batches:
        images = np.asarray(images, np.float64)
        count, total, squares = count + len(images), total + images.sum(axis=0), squares + (images**2).sum(axis=0)
    mean = total / count
    return np.sqrt(np.maximum(squares / count - mean**2, 0.0)).mean(axis=-1)
