"""Square: random search by square-shaped changes, without gradients (Andriushchenko et al., 2020, Algorithms 1 to 3).

A change is kept if it raises the margin. It covers a square, whose fraction of the image decreases during the search.
The draws for an image at a step depend on the seed, the image's index and the step only.
"""

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_robust.attacks import norms
from tf_robust.attacks.attack import Predict, finite
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.gradient import BallAttack
from tf_robust.ops import philox
from tf_robust.ops.draws import Draws

_FIRST_FRACTION = 0.8  # of the image that the square covers: the setting of the authors' ensemble
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of that fraction, after these of 10,000 queries
_TILES = 5  # along the shorter side, of the first perturbation in l2
_TINY = 1e-12


class Square(BallAttack):
    """Square attack on the margin, by the paper's schedules for `linf` and `l2`; the model needs no gradients.

    Args:
        steps: queries of the model per image, after the first one, >= 1; an image that is misclassified (or assigned to the
            target class) takes no more.
        **kwargs: of `BallAttack`, without `loss`.

    Examples:
        >>> def model(images):  # the class is the brightest of four pixels; rounding leaves no gradient
        ...     return tf.round(100 * tf.reshape(images, [-1, 4]))
        >>> images = np.array([[[[0.5], [0.4]], [[0.1], [0.2]]]])
        >>> attacked = tfr.attacks.Square(radius=0.06, steps=100)(model, images, labels=[0])
        >>> int(tf.argmax(model(attacked)[0]))
        1
    """

    takes_radius_as_tensor = True

    def __init__(self, *, steps: int = 5000, **kwargs):
        super().__init__(loss="margin", **kwargs)
        if steps < 1:
            raise ValueError(f"Expected steps >= 1 for {type(self).__name__}, the number of its steps. Received: {steps}")
        self.steps = steps

    def perturb(self, predict: Predict, images: tf.Tensor, criterion: Criterion, seed: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        proposals = _PROPOSALS[self.norm](images.shape[1:], self.radius, self.steps)
        start = self.project(images + proposals.first(Draws(seed, indices, "square", "first")), images, self.radius)
        logits = finite(predict(start))
        active = tf.where(~criterion.reached(logits))[:, 0]

        def step(i, active, best, points):
            centers, current, goal = tf.gather(images, active), tf.gather(points, active), criterion.at(active)
            draws = Draws(philox.fold(seed, i), tf.gather(indices, active), "square")
            proposed = self.project(centers + proposals.next(current - centers, draws, i), centers, self.radius)
            logits = finite(predict(proposed))
            margin, reached = goal.margin(logits), goal.reached(logits)
            accepted = (margin > best) | reached
            current = tf.raw_ops.Select(condition=accepted, x=proposed, y=current)  # whole rows; `tf.where` is slower
            points = tf.tensor_scatter_nd_update(points, active[:, None], current)
            return i + 1, tf.boolean_mask(active, ~reached), tf.boolean_mask(tf.maximum(margin, best), ~reached), points

        return tf.while_loop(
            lambda i, active, best, points: (i < self.steps) & (tf.size(active) > 0),
            step,
            (tf.constant(0, tf.int64), active, tf.gather(criterion.margin(logits), active), start),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([None]), start.shape),
        )[3]


def sides(steps: int, shape: Sequence[int], minimum: int = 1) -> np.ndarray:
    """Returns the side of the square that each step changes, in pixels: int32 [steps].

    The nearest whole number to sqrt(p H W), from `minimum` to the shorter side. The fraction p is halved after the queries
    of the paper's schedule for 10,000, scaled to `steps`.

    Args:
        steps: number of steps.
        shape: (H, W, C) of the images.
        minimum: of the sides.
    """
    halvings = [bisect.bisect_left(_HALVINGS, step * 10_000 // steps) for step in range(steps)]
    fractions = _FIRST_FRACTION * 0.5 ** np.array(halvings)
    return np.clip(np.rint(np.sqrt(fractions * shape[0] * shape[1])).astype(np.int32), minimum, min(shape[:2]))


def two_bumps(side: int) -> np.ndarray:
    """Returns float32 [side, side] of length 1: a positive bump next to a negative one (section 3.4, eq. 2, and below it)."""
    half = side // 2
    bumps = np.concatenate([_bump(side, half), -_bump(side, side - half)], axis=1)
    return (bumps / np.linalg.norm(bumps)).astype(np.float32)


def _bump(height, width):
    """Returns [height, width]: at distance d (the larger along the axes) from the middle, the sum of 1/(i+1)^2 from d on."""
    last = max(height, width) // 2
    sums = np.cumsum(1.0 / np.arange(last + 1, 0, -1) ** 2)[::-1]
    rows, columns = (np.abs(np.arange(side) - side // 2) for side in (height, width))
    return sums[np.maximum(rows[:, None], columns[None, :])]


class _LinfProposals:
    """Every value is `radius` away from the image's, up or down: stripes first, then squares of one color."""

    def __init__(self, shape, radius, steps):
        self.shape, self.radius, self.sides = shape, radius, tf.constant(sides(steps, shape))

    def first(self, draws):
        """Returns columns of one color each: [N, H, W, C]."""
        colors = _signs(draws.uniform([1, self.shape[1], self.shape[2]]))
        return tf.repeat(self.radius * colors, self.shape[0], axis=1)

    def next(self, perturbations, draws, step):
        """Returns a change by Algorithm 2. The projection onto the ball that follows turns two radii into one."""
        drawn = draws.uniform([2 + self.shape[2]])
        window, _, _ = _window(drawn[:, :2], self.sides[step], self.shape)
        return perturbations + window * (2.0 * self.radius * _signs(drawn[:, None, None, 2:]))


class _L2Proposals:
    """The whole radius is used: tiles of two bumps first, then the length of one window moves into another."""

    def __init__(self, shape, radius, steps):
        self.shape, self.radius = shape, radius
        step_sides = sides(steps, shape, minimum=min(3, *shape[:2]))  # in a single pixel only the sign could change
        levels, step_levels = np.unique(step_sides, return_inverse=True)
        self.sides, self.levels, self.largest = tf.constant(levels), tf.constant(step_levels, tf.int32), levels[-1]
        bumps = np.stack([np.pad(two_bumps(side), [(0, self.largest - side)] * 2) for side in levels])
        self.bumps = tf.constant(bumps)

    def first(self, draws):
        """Returns a grid of two bumps each, of random sign and orientation: [N, H, W, C] of length `radius`."""
        height, width, channels = self.shape
        side = max(min(height, width) // _TILES, 1)
        counts = height // side, width // side
        rows, columns = (_padded(np.repeat(np.arange(count), side), size, -1) for count, size in zip(counts, (height, width)))
        covered = tf.constant(((rows[:, None] >= 0) & (columns >= 0))[:, :, None], tf.float32)
        horizontal = _padded(np.tile(two_bumps(side), counts), (height, width), 0)[:, :, None]
        drawn = draws.uniform([*counts, channels + 1])
        drawn = tf.gather(tf.gather(drawn, np.maximum(rows, 0), axis=1), np.maximum(columns, 0), axis=2)
        vertical = _padded(np.tile(two_bumps(side).T, counts), (height, width), 0)[:, :, None]
        tiles = tf.where(drawn[..., :1] < 0.5, horizontal, vertical) * _signs(drawn[..., 1:]) * covered
        return self.radius * norms.L2.steepest(tiles)

    def next(self, perturbations, draws, step):
        """Returns a change by Algorithm 3: per channel, one window receives its length, another's, and the unused one."""
        drawn = draws.uniform([5 + self.shape[2]])
        level = self.levels[step]
        side = self.sides[level]
        first, rows, columns = _window(drawn[:, :2], side, self.shape)
        second, _, _ = _window(drawn[:, 2:4], side, self.shape)
        bumps = first * self._bumps(rows, columns, drawn[:, 4] < 0.5, level)
        direction = _unit(bumps * _signs(drawn[:, None, None, 5:]) + _unit(first * perturbations))
        unused = tf.maximum(self.radius**2 - tf.reduce_sum(perturbations**2, [1, 2, 3], keepdims=True), 0.0)
        in_windows = perturbations * tf.maximum(first, second)
        available = _squared_length(in_windows) + unused * (1.0 / self.shape[2])
        return perturbations - in_windows + direction * tf.sqrt(available)

    def _bumps(self, rows, columns, transposed, level):
        """Returns the two bumps at rows [N, H] and columns [N, W] of a window, valid inside it: [N, H, W, 1]."""
        rows, columns = (tf.clip_by_value(part, 0, self.largest - 1) for part in (rows, columns))
        plain = rows[:, :, None] * self.largest + columns[:, None, :]
        swapped = columns[:, None, :] * self.largest + rows[:, :, None]
        indices = tf.where(transposed[:, None, None], swapped, plain)
        return tf.gather(tf.reshape(self.bumps[level], [-1]), indices)[..., None]


_PROPOSALS: dict[type[norms.Norm], Any] = {norms.Linf: _LinfProposals, norms.L2: _L2Proposals}


def _window(drawn, side, shape):
    """Returns a square at a uniform position.

    Args:
        drawn: [N, 2], uniform in (0, 1).
        side: int32, of the square.
        shape: (H, W, C) of the images.

    Returns:
        (float [N, H, W, 1], 1 inside; rows [N, H] and columns [N, W] relative to the square's corner)
    """
    rows, columns = (
        tf.range(size) - tf.cast(drawn[:, axis, None] * tf.cast(size - side + 1, tf.float32), tf.int32)
        for axis, size in enumerate(shape[:2])
    )
    in_rows, in_columns = (tf.cast((part >= 0) & (part < side), tf.float32) for part in (rows, columns))
    return (in_rows[:, :, None] * in_columns[:, None, :])[..., None], rows, columns


def _signs(drawn):
    """Returns -1 or 1 for uniform numbers in (0, 1)."""
    return tf.where(drawn < 0.5, -1.0, 1.0)


def _squared_length(perturbations):
    """Returns the squared length of each channel: [N, 1, 1, C]."""
    return tf.reduce_sum(tf.reduce_sum(perturbations**2, axis=1, keepdims=True), axis=2, keepdims=True)


def _unit(perturbations):
    """Returns each channel at length 1, or 0 where it is 0."""
    return perturbations / tf.maximum(tf.sqrt(_squared_length(perturbations)), _TINY)


def _padded(values, size, fill):
    """Returns an array centered in one of the given size; an odd remainder has its larger part after the array."""
    remainders = np.atleast_1d(size) - values.shape
    return np.pad(values, [(r // 2, r - r // 2) for r in remainders], constant_values=fill)
