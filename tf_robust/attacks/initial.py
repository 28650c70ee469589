"""Points that a model gets wrong, to start from: noise or blur that grows until it does, a climb, or another image.

Images are float32 [N, H, W, C] in [0, 1]. What is drawn for an image depends on (seed, its index) alone.
"""

import math

import tensorflow as tf

from tf_robust.attacks import norms
from tf_robust.attacks.attack import loss_and_gradient
from tf_robust.ops import filters
from tf_robust.ops.draws import Draws

_FIRST, _GROWTH = 0.01, 1.01  # scale of the first try; its growth a try
_STRIDE = 10  # tries of the published code that are one here
_LAST = 100.0  # normal noise that large has nearly all values at 0 or 1
_TRIES = math.ceil(math.log(_LAST / _FIRST) / math.log(_GROWTH) / _STRIDE) + 1
_HALVINGS = 10
_STEPS = 45  # of a state: the last ones are as long as half the cube
_FIRST_STEP, _STEP_GROWTH = 0.001, 1.15  # the first as a share of the cube's size
_JITTER = 0.002  # deviation of the noise that a climb starts with


def gaussian(images, scale, draws):
    """images + scale * normal noise, cut off at [0, 1]; scale float32 [N]."""
    return tf.clip_by_value(images + _column(scale) * draws.normal(images.shape[1:]), 0.0, 1.0)


def uniform(images, scale, draws):
    """images + scale * noise uniform in (-1, 1), cut off at [0, 1]; scale float32 [N]."""
    return tf.clip_by_value(images + _column(scale) * draws.uniform(images.shape[1:], -1.0, 1.0), 0.0, 1.0)


def blur(images, scale, draws):
    """images under a Gaussian blur of deviation scale times the longer side, at most once that; scale float32 [N].

    Nothing is drawn. Taps beyond two deviations are left out.
    """
    blurred = filters.gaussian_blur(images, tf.minimum(scale, 1.0) * max(images.shape[1:3]), truncate=2.0)
    return tf.clip_by_value(blurred, 0.0, 1.0)


GROWING = {kind.__name__: kind for kind in (gaussian, uniform, blur)}
INITIAL = (*GROWING, "gradient", "neighbour")


def start(kind, predict, images, criterion, seed, indices, candidates, norm=norms.L2, towards=None):
    """Points that are as the goal wants, each as near to its image as its class reaches on the line (`nearer`).

    Where noise, blur or climb find nothing (half the directions never leave a linear model's half of the cube), the
    nearest candidate that is as wanted is taken, if there is one; an attack's `restarts` try other noise.

    Args:
        kind: one of INITIAL; neighbour: the nearest candidate at once. predict: images -> logits. criterion: `Criterion` of the
            images. seed, indices: for `Draws`. candidates: float32 [M, H, W, C]; M may be 0.
        norm: of `norms`; in whose steepest direction a climb goes. towards: `Criterion` that a climb makes for; None: `criterion`.

    Returns:
        (points [N, H, W, C], bool [N] whether one was found; where not, the point is the image)
    """
    if kind == "neighbour":
        points, found = images, tf.zeros(tf.shape(images)[:1], tf.bool)
    elif kind == "gradient":
        points, found = ascend(predict, images, criterion, Draws(seed, indices, "initial"), norm, towards or criterion)
    else:
        points, found = grown(GROWING[kind], predict, images, criterion, seed, indices)
    left = tf.where(~found)[:, 0]

    def helped():
        others, has = neighbours(predict, tf.gather(images, left), criterion.at(left), candidates)
        return tf.tensor_scatter_nd_update(points, left[:, None], others), _updated(found, left, has)
    points, found = tf.cond((tf.size(left) > 0) & (tf.shape(candidates)[0] > 0), helped, lambda: (points, found))
    some = tf.where(found)[:, 0]

    def near():
        here = tf.gather(points, some)
        return tf.tensor_scatter_nd_update(
            points, some[:, None], nearer(predict, tf.gather(images, some), here, criterion.class_of(predict(here))))
    return tf.cond(tf.size(some) > 0, near, lambda: points), found


def grown(kind, predict, images, criterion, seed, indices):
    """The first points of growing scale that are as wanted: (points, found), as `start`.

    The published code takes the first of the scales 0.01 * 1.01^k at which an image is misclassified, k < 10,000. Here
    every tenth of them is tried, up to 100, after which the cube cuts off all but the signs: 94 tries instead of 930.

    Args:
        kind: one of GROWING's functions.
    """
    def attempt(number, places, points):
        scale = _FIRST * _GROWTH ** (_STRIDE * tf.cast(number, tf.float32))
        here = tf.gather(images, places)
        # the same noise at every scale
        tried = kind(here, tf.fill([tf.size(places)], scale), Draws(seed, tf.gather(indices, places), "initial"))
        reached = criterion.at(places).reached(predict(tried))
        points = tf.tensor_scatter_nd_update(points, places[:, None], tf.where(_column(reached), tried, here))
        return number + 1, tf.boolean_mask(places, ~reached), points
    _, left, points = tf.while_loop(
        lambda number, places, points: tf.size(places) > 0, attempt, (0, tf.range(tf.shape(images)[0]), images),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None]), images.shape), maximum_iterations=_TRIES)
    return points, _all_but(left, images)


def ascend(predict, images, criterion, draws, norm, towards):
    """Up the margin of the goal `towards`, in steps that grow, until it is reached: (points, found), as `start`.

    It begins at slight noise, so that seeds differ, and steps along the steepest direction of linf or else of l2, 1.15
    times as far each time, at most 45 times. Where that is not reached, the end counts if it is as `criterion` wants.
    """
    norm = norm if norm.name in norms.BALLS else norms.L2
    first = _FIRST_STEP * norm.largest(images.shape[1:])

    def attempt(number, places, points):
        here, aim = tf.gather(points, places), towards.at(places)
        _, gradient, _ = loss_and_gradient(predict, here, aim.margin)
        length = first * _STEP_GROWTH ** tf.cast(number, tf.float32)
        here = tf.clip_by_value(here + length * norm.steepest(gradient), 0.0, 1.0)
        reached = aim.reached(predict(here))
        return number + 1, tf.boolean_mask(places, ~reached), tf.tensor_scatter_nd_update(points, places[:, None], here)
    begin = tf.clip_by_value(images + _JITTER * draws.normal(images.shape[1:]), 0.0, 1.0)
    points = tf.while_loop(
        lambda number, places, points: tf.size(places) > 0, attempt, (0, tf.range(tf.shape(images)[0]), begin),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None]), images.shape), maximum_iterations=_STEPS)[2]
    found = criterion.reached(predict(points))
    return tf.where(_column(found), points, images), found


def neighbours(predict, images, criterion, candidates):
    """For each image the nearest candidate (by l2) that is as wanted: (points, found), as `start`."""
    classes = tf.argmax(predict(candidates), axis=1, output_type=criterion.classes.dtype)
    wanted = (classes == criterion.classes[:, None]) == criterion.targeted  # [N, M]
    values = math.prod(images.shape[1:])
    originals, others = (tf.reshape(part, [tf.shape(part)[0], values]) for part in (images, candidates))
    squares = (tf.reduce_sum(originals ** 2, axis=1)[:, None] + tf.reduce_sum(others ** 2, axis=1)
               - 2.0 * tf.matmul(originals, others, transpose_b=True))
    nearest = tf.argmin(tf.where(wanted, squares, squares.dtype.max), axis=1)
    found = tf.reduce_any(wanted, axis=1)
    return tf.where(_column(found), tf.gather(candidates, nearest), images), found


def nearer(predict, images, points, criterion, halvings=_HALVINGS):
    """Of the line from each image to its point, which is as wanted, the nearest found that is so too, by bisection.

    As wide as half to the power of `halvings` of the line is the interval that is left; the point is its far end.
    """
    def at(share):
        # the point itself at 1: the line's end differs from it by rounding
        return tf.where(_column(share) == 1.0, points, images + _column(share) * (points - images))

    def halve(low, high):
        middle = (low + high) / 2
        reached = criterion.reached(predict(at(middle)))
        return tf.where(reached, low, middle), tf.where(reached, middle, high)
    nothing = tf.zeros(tf.shape(images)[:1])
    return at(tf.while_loop(lambda *_: True, halve, (nothing, nothing + 1.0), maximum_iterations=halvings)[1])


def _all_but(left, images):
    return _updated(tf.ones(tf.shape(images)[:1], tf.bool), left, tf.zeros_like(left, tf.bool))


def _updated(values, places, new):
    return tf.tensor_scatter_nd_update(values, places[:, None], new)


def _column(numbers):
    return tf.reshape(numbers, [-1, 1, 1, 1])
