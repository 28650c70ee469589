"""Misclassified starting points: growing noise or blur, gradient ascent, or another image.

Images are float32 [N, H, W, C] in [0, 1]. The draws for an image depend on (seed, its index) only.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from tf_robust.attacks import norms
from tf_robust.attacks.attack import Predict, loss_and_gradient
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.norms import per_image
from tf_robust.ops import filters
from tf_robust.ops.draws import Draws

_FIRST_SCALE, _GROWTH = 0.01, 1.01  # of noise and blur; the growth is per try of the published code
_STRIDE = 10  # tries of the published code per try here
_LAST_SCALE = 100.0  # normal noise of this scale puts nearly all values at 0 or 1
_TRIES = math.ceil(math.log(_LAST_SCALE / _FIRST_SCALE) / math.log(_GROWTH) / _STRIDE) + 1
_HALVINGS = 10
_STEPS = 45  # of gradient ascent; the last ones are as long as half the cube
_FIRST_STEP, _STEP_GROWTH = 0.001, 1.15  # the first as a fraction of the cube's size
_JITTER = 0.002  # standard deviation of the noise from which gradient ascent starts

Points = tuple[tf.Tensor, tf.Tensor]  # (points [N, H, W, C], bool [N] whether one was found; if not, the point is the image)


def gaussian(images: tf.Tensor, scale: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Returns images + scale * normal noise, clipped to [0, 1]; scale is float32 [N]."""
    return tf.clip_by_value(images + per_image(scale) * draws.normal(images.shape[1:]), 0.0, 1.0)


def uniform(images: tf.Tensor, scale: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Returns images + scale * noise uniform in (-1, 1), clipped to [0, 1]; scale is float32 [N]."""
    return tf.clip_by_value(images + per_image(scale) * draws.uniform(images.shape[1:], -1.0, 1.0), 0.0, 1.0)


def blur(images: tf.Tensor, scale: tf.Tensor, draws: Draws | None) -> tf.Tensor:
    """Returns images under a Gaussian blur, truncated at two standard deviations; `draws` is not used.

    The standard deviation is min(scale, 1) times the longer side; scale is float32 [N].
    """
    blurred = filters.gaussian_blur(images, tf.minimum(scale, 1.0) * max(images.shape[1:3]), truncate=2.0)
    return tf.clip_by_value(blurred, 0.0, 1.0)


GROWING = {kind.__name__: kind for kind in (gaussian, uniform, blur)}
INITIAL = (*GROWING, "gradient", "neighbour")


def start(
    kind: str,
    predict: Predict,
    images: tf.Tensor,
    criterion: Criterion,
    seed: tf.Tensor,
    indices: tf.Tensor,
    candidates: tf.Tensor,
    norm: type[norms.Norm] = norms.L2,
    towards: Criterion | None = None,
) -> Points:
    """Returns points that meet the goal, moved towards their images as far as their class reaches (`bisect_line`).

    Where noise, blur or ascent fail (half the directions never leave a linear model's half of the cube), the nearest
    candidate that meets the goal is used, if there is one; an attack's `restarts` try other noise.

    Args:
        kind: one of INITIAL; `neighbour`: the nearest candidate, without a search.
        predict: images -> logits.
        images: float32 [N, H, W, C].
        criterion: the goal for these images.
        seed: int [2] for `Draws`.
        indices: int [N] for `Draws`.
        candidates: float32 [M, H, W, C]; M may be 0.
        norm: the norm in whose steepest direction gradient ascent moves.
        towards: goal of gradient ascent; None: `criterion`.

    Returns:
        (points [N, H, W, C], bool [N] whether one was found; if not, the point is the image)
    """
    if kind == "neighbour":
        points, success = images, tf.zeros(tf.shape(images)[:1], tf.bool)
    elif kind == "gradient":
        points, success = ascend(predict, images, criterion, Draws(seed, indices, "initial"), norm, towards or criterion)
    else:
        points, success = grow(GROWING[kind], predict, images, criterion, seed, indices)
    missing = tf.where(~success)[:, 0]

    def with_candidates():
        nearest, exists = nearest_candidates(predict, tf.gather(images, missing), criterion.at(missing), candidates)
        return tf.tensor_scatter_nd_update(points, missing[:, None], nearest), _updated(success, missing, exists)

    points, success = tf.cond((tf.size(missing) > 0) & (tf.shape(candidates)[0] > 0), with_candidates, lambda: (points, success))
    rows = tf.where(success)[:, 0]

    def bisected():
        ends = tf.gather(points, rows)
        return tf.tensor_scatter_nd_update(
            points, rows[:, None], bisect_line(predict, tf.gather(images, rows), ends, criterion.class_of(predict(ends)))
        )

    return tf.cond(tf.size(rows) > 0, bisected, lambda: points), success


def grow(
    noise: Callable[[tf.Tensor, tf.Tensor, Draws], tf.Tensor],
    predict: Predict,
    images: tf.Tensor,
    criterion: Criterion,
    seed: tf.Tensor,
    indices: tf.Tensor,
) -> Points:
    """Returns the first points of growing scale that meet the goal, in the format of `start`.

    The published code takes the first of the scales 0.01 * 1.01^k at which an image is misclassified, k < 10,000. Here
    every tenth of them is tried, up to 100, where clipping leaves only the signs: 94 tries instead of 930.

    Args:
        noise: one of GROWING's functions.
        predict: images -> logits.
        images: float32 [N, H, W, C].
        criterion: the goal for these images.
        seed: int [2] for `Draws`.
        indices: int [N] for `Draws`.
    """

    def attempt(number, active, points):
        scale = _FIRST_SCALE * _GROWTH ** (_STRIDE * tf.cast(number, tf.float32))
        current = tf.gather(images, active)
        # the same noise at every scale
        noised = noise(current, tf.fill([tf.size(active)], scale), Draws(seed, tf.gather(indices, active), "initial"))
        reached = criterion.at(active).reached(predict(noised))
        points = tf.tensor_scatter_nd_update(points, active[:, None], tf.where(per_image(reached), noised, current))
        return number + 1, tf.boolean_mask(active, ~reached), points

    _, failed, points = tf.while_loop(
        lambda number, active, points: tf.size(active) > 0,
        attempt,
        (0, tf.range(tf.shape(images)[0]), images),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None]), images.shape),
        maximum_iterations=_TRIES,
    )
    return points, _updated(tf.ones(tf.shape(images)[:1], tf.bool), failed, tf.zeros_like(failed, tf.bool))


def ascend(predict: Predict, images: tf.Tensor, criterion: Criterion, draws: Draws, norm: type[norms.Norm], towards: Criterion) -> Points:
    """Returns points found by gradient ascent on the margin of the goal `towards`, in growing steps, in the format of `start`.

    It starts from slight noise, so that seeds differ, and steps along the steepest direction of linf or else of l2, 1.15
    times as far each time, at most 45 times. Where it does not reach `towards`, its end counts if it meets `criterion`.

    Args:
        predict: images -> logits.
        images: float32 [N, H, W, C].
        criterion: the goal for these images.
        draws: the random numbers of these images.
        norm: the norm in whose steepest direction the steps go; any but linf: l2.
        towards: the goal whose margin is maximized.
    """
    norm = norm if norm.name in norms.BALLS else norms.L2
    first = _FIRST_STEP * norm.largest(images.shape[1:])

    def step(number, active, points):
        current, goal = tf.gather(points, active), towards.at(active)
        _, gradient, _ = loss_and_gradient(predict, current, goal.margin)
        length = first * _STEP_GROWTH ** tf.cast(number, tf.float32)
        current = tf.clip_by_value(current + length * norm.steepest(gradient), 0.0, 1.0)
        reached = goal.reached(predict(current))
        return number + 1, tf.boolean_mask(active, ~reached), tf.tensor_scatter_nd_update(points, active[:, None], current)

    noised = tf.clip_by_value(images + _JITTER * draws.normal(images.shape[1:]), 0.0, 1.0)
    points = tf.while_loop(
        lambda number, active, points: tf.size(active) > 0,
        step,
        (0, tf.range(tf.shape(images)[0]), noised),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None]), images.shape),
        maximum_iterations=_STEPS,
    )[2]
    success = criterion.reached(predict(points))
    return tf.where(per_image(success), points, images), success


def nearest_candidates(predict: Predict, images: tf.Tensor, criterion: Criterion, candidates: tf.Tensor) -> Points:
    """Returns for each image the nearest candidate (by l2) that meets the goal, in the format of `start`."""
    classes = tf.argmax(predict(candidates), axis=1, output_type=criterion.classes.dtype)
    suitable = (classes == criterion.classes[:, None]) == criterion.targeted  # [N, M]
    values = math.prod(images.shape[1:])
    originals, others = (tf.reshape(part, [tf.shape(part)[0], values]) for part in (images, candidates))
    squares = (
        tf.reduce_sum(originals**2, axis=1)[:, None]
        + tf.reduce_sum(others**2, axis=1)
        - 2.0 * tf.matmul(originals, others, transpose_b=True)
    )
    nearest = tf.argmin(tf.where(suitable, squares, squares.dtype.max), axis=1)
    success = tf.reduce_any(suitable, axis=1)
    return tf.where(per_image(success), tf.gather(candidates, nearest), images), success


def bisect_line(predict: Predict, images: tf.Tensor, points: tf.Tensor, criterion: Criterion, halvings: int = _HALVINGS) -> tf.Tensor:
    """Returns the point nearest to each image, on the line to its point, that bisection finds to meet the goal.

    Args:
        predict: images -> logits.
        images: float32 [N, H, W, C].
        points: float32 [N, H, W, C], which meet the goal.
        criterion: the goal.
        halvings: rounds; the interval that remains is 2^-halvings of the line, and its far end is returned.
    """

    def at(fraction):
        # the point itself at 1: the line's end differs from it by rounding
        return tf.where(per_image(fraction) == 1.0, points, images + per_image(fraction) * (points - images))

    def halve(low, high):
        middle = (low + high) / 2
        reached = criterion.reached(predict(at(middle)))
        return tf.where(reached, low, middle), tf.where(reached, middle, high)

    zeros = tf.zeros(tf.shape(images)[:1])
    return at(tf.while_loop(lambda *_: True, halve, (zeros, zeros + 1.0), maximum_iterations=halvings)[1])


def _updated(values, rows, updates):
    return tf.tensor_scatter_nd_update(values, rows[:, None], updates)
