"""The noise sets of the FCL paper (sections 4.1 and 4.2.1). Images are float32 in [0, 1], NHWC.

A chosen location is replaced, all its channels at once, by one uniform gray value. What happens to an image depends on
(seed, its index in the data set) alone, not on the batch it is in.
"""

import numpy as np
import scipy.optimize
import tensorflow as tf

from tf_robust.ops import philox

RATE = 0.15
FLOOR = 0.1  # on the [0, 1] scale, where a location is constant; see `nonuniform_probabilities`
_CONSTANT = 1e-6  # above the rounding of a constant location, below one gray level in one of 50,000 images


def replace_locations(images, probabilities, *, seed, indices=None):
    """Replaces locations at random by uniform gray values.

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        probabilities: float, or [H, W]: the chance of each location.
        seed: int. indices: int [N], positions in the data set; None: 0..N-1.

    Returns:
        float32 [N, H, W, C] in [0, 1]
    """
    images = tf.convert_to_tensor(images, tf.float32)
    indices = tf.range(tf.shape(images)[0]) if indices is None else tf.convert_to_tensor(indices)
    return apply(images, probabilities, **draw(seed, indices, tf.shape(images)[1:3]))


def draw(seed, indices, size):
    """What is random: {"choice", "gray"}: float32 [N, H, W] each, uniform in [0, 1). size: (H, W)."""
    def one(index):
        key = tf.stack([tf.constant(seed, tf.int64), tf.cast(index, tf.int64)])
        return philox.uniform(tf.concat([size, [2]], 0), key)
    drawn = tf.map_fn(one, indices, fn_output_signature=tf.float32)
    return {"choice": drawn[..., 0], "gray": drawn[..., 1]}


def apply(images, probabilities, choice, gray):
    """Locations whose `choice` lies below their probability become `gray`: [N, H, W, C] -> the same. Deterministic."""
    return tf.where((choice < tf.cast(probabilities, tf.float32))[..., None], gray[..., None], images)


def uniform_noise(images, *, seed, indices=None, rate=RATE):
    """UN: every location has the same chance `rate` of being replaced."""
    return replace_locations(images, rate, seed=seed, indices=indices)


def nonuniform_noise(images, probabilities, *, seed, indices=None):
    """NUN: a location's chance is inversely proportional to its deviation; see `nonuniform_probabilities`."""
    return replace_locations(images, probabilities, seed=seed, indices=indices)


def nonuniform_probabilities(deviation, *, rate=RATE, floor=None):
    """Returns min(1, c / (deviation + floor)) with c such that the mean is `rate`.

    Section 4.2.1 of the FCL paper has "inversely proportional to its sample standard deviation", which is floor=0. A location that
    is constant over the training images would then have an infinite chance, hence the floor: the smaller it is, the more of the
    noise falls on such locations. floor=0 is the limit for a floor that goes to 0.

    Args:
        deviation: [H, W], standard deviation of each location over the training images (mean over channels), [0, 1] scale.
        rate: mean probability, in (0, 1]. floor: >= 0; None: `default_floor(deviation)`.

    Returns:
        np.ndarray [H, W]
    """
    deviation = np.asarray(deviation, np.float64)
    floor = default_floor(deviation) if floor is None else floor
    if not 0 < rate <= 1 or not 0 <= floor < np.inf:
        raise ValueError(f"Expected rate in (0, 1] and floor >= 0. Received: rate={rate}, floor={floor}")
    constant = deviation + floor == 0
    if constant.mean() >= rate:
        return np.where(constant, rate / constant.mean(), 0.0)
    inverse = 1.0 / np.where(constant, np.inf, deviation + floor)

    def probabilities(c):
        return np.where(constant, 1.0, np.minimum(1.0, c * inverse))
    c = scipy.optimize.brentq(lambda c: probabilities(c).mean() - rate, 0.0, 1.0 / inverse[~constant].min())
    return probabilities(c)


def default_floor(deviation):
    """Returns 0.1 if a location is constant over the training images, else 0. deviation: [H, W]."""
    return FLOOR if np.min(deviation) < _CONSTANT else 0.0


def location_std(batches):
    """Standard deviation of each location over images, averaged over channels.

    Args:
        batches: iterable of float [B, H, W, C] in [0, 1].

    Returns:
        np.ndarray [H, W], float64
    """
    count, total, squares = 0, 0.0, 0.0
    for images in batches:
        images = np.asarray(images, np.float64)
        count, total, squares = count + len(images), total + images.sum(axis=0), squares + (images**2).sum(axis=0)
    mean = total / count
    return np.sqrt(np.maximum(squares / count - mean**2, 0.0)).mean(axis=-1)
