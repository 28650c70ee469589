"""Square: random search by square-shaped changes, without gradients (Andriushchenko et al., 2020, Algorithms 1 to 3).

A change is kept if it raises the margin. It covers a square, whose share of the image shrinks as the search goes on.
What is drawn for an image at a step depends on the seed, the image's index and the step alone.
"""

import bisect

import numpy as np
import tensorflow as tf

from tf_robust.attacks import norms
from tf_robust.attacks.attack import finite
from tf_robust.attacks.gradient import BallAttack
from tf_robust.ops import philox
from tf_robust.ops.draws import Draws

_FIRST_SHARE = 0.8  # of the image, of the square that is changed: what the authors' ensemble uses
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of that share, after these of 10,000 queries
_TILES = 5  # along the shorter side, of the first perturbation in l2
_TINY = 1e-12


class Square(BallAttack):
    """Square attack on the margin, by the paper's schedules for `linf` and `l2`; the model needs no gradients.

    Args:
        norm, radius: as `BallAttack`. steps: queries of the model, an image, after the first one, >= 1; an image that
            is misclassified (or of the wanted class) is done and takes no more.
    """

    def __init__(self, *, steps=5000, **kwargs):
        super().__init__(loss="margin", **kwargs)
        if steps < 1:
            raise ValueError(f"Expected steps >= 1 for {type(self).__name__}, the number of its steps. Received: {steps}")
        self.steps = steps

    def attacked(self, predict, images, criterion, seed, indices):
        changes = _CHANGES[self.norm](images.shape[1:], self.radius, self.steps)
        start = self.inside(images + changes.first(Draws(seed, indices, "square", "first")), images, self.radius)
        logits = finite(predict(start))
        left = tf.where(~criterion.reached(logits))[:, 0]

        def step(i, left, best, found):
            around, here, aim = tf.gather(images, left), tf.gather(found, left), criterion.at(left)
            draws = Draws(philox.fold(seed, i), tf.gather(indices, left), "square")
            tried = self.inside(around + changes.next(here - around, draws, i), around, self.radius)
            logits = finite(predict(tried))
            margin, reached = aim.margin(logits), aim.reached(logits)
            kept = (margin > best) | reached
            here = tf.raw_ops.Select(condition=kept, x=tried, y=here)  # by rows; `tf.where` is slow at that
            found = tf.tensor_scatter_nd_update(found, left[:, None], here)
            return i + 1, tf.boolean_mask(left, ~reached), tf.boolean_mask(tf.maximum(margin, best), ~reached), found
        return tf.while_loop(
            lambda i, left, best, found: (i < self.steps) & (tf.size(left) > 0), step,
            (tf.constant(0, tf.int64), left, tf.gather(criterion.margin(logits), left), start),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([None]), start.shape))[3]


def sides(steps, shape, least=1):
    """int [steps]: the side in pixels of the square that each step changes in images of `shape` (H, W, C).

    The nearest whole number to sqrt(p H W), from `least` to the shorter side. The share p is halved after the queries
    of the paper's schedule for 10,000, scaled to `steps`.
    """
    halvings = [bisect.bisect_left(_HALVINGS, step * 10_000 // steps) for step in range(steps)]
    shares = _FIRST_SHARE * 0.5 ** np.array(halvings)
    return np.clip(np.rint(np.sqrt(shares * shape[0] * shape[1])).astype(np.int32), least, min(shape[:2]))


def two_bumps(side):
    """float32 [side, side] of length 1: a positive bump beside a negative one (section 3.4, eq. 2, and below it)."""
    half = side // 2
    both = np.concatenate([_bump(side, half), -_bump(side, side - half)], axis=1)
    return (both / np.linalg.norm(both)).astype(np.float32)


def _bump(height, width):
    """[height, width]: at distance d (the larger along the axes) from the middle, the sum of 1/(i+1)^2 from d on."""
    last = max(height, width) // 2
    sums = np.cumsum(1.0 / np.arange(last + 1, 0, -1) ** 2)[::-1]
    rows, columns = (np.abs(np.arange(side) - side // 2) for side in (height, width))
    return sums[np.maximum(rows[:, None], columns[None, :])]


class _LinfChanges:
    """Every value is `radius` away from the image's, up or down: stripes first, then squares of one color."""

    def __init__(self, shape, radius, steps):
        self.shape, self.radius, self.sides = shape, radius, tf.constant(sides(steps, shape))

    def first(self, draws):
        """Columns of one color each: [N, H, W, C]"""
        colors = _signs(draws.uniform([1, self.shape[1], self.shape[2]]))
        return tf.repeat(self.radius * colors, self.shape[0], axis=1)

    def next(self, perturbations, draws, step):
        """Algorithm 2. The projection on the ball that follows makes one radius of the two."""
        drawn = draws.uniform([2 + self.shape[2]])
        window, _, _ = _window(drawn[:, :2], self.sides[step], self.shape)
        return perturbations + window * (2.0 * self.radius * _signs(drawn[:, None, None, 2:]))


class _L2Changes:
    """The whole radius is used: tiles of two bumps first, then the length of one window moves into another."""

    def __init__(self, shape, radius, steps):
        self.shape, self.radius = shape, radius
        of_steps = sides(steps, shape, least=min(3, *shape[:2]))  # of one pixel, nothing but its sign could change
        levels, of_steps = np.unique(of_steps, return_inverse=True)
        self.sides, self.level, self.widest = tf.constant(levels), tf.constant(of_steps, tf.int32), levels[-1]
        bumps = np.stack([np.pad(two_bumps(side), [(0, self.widest - side)] * 2) for side in levels])
        self.bumps = tf.constant(bumps)

    def first(self, draws):
        """A grid of two bumps each, of random sign and orientation: [N, H, W, C] of length `radius`"""
        height, width, channels = self.shape
        side = max(min(height, width) // _TILES, 1)
        counts = height // side, width // side
        rows, columns = (_padded(np.repeat(np.arange(count), side), whole, -1)
                         for count, whole in zip(counts, (height, width)))
        covered = tf.constant(((rows[:, None] >= 0) & (columns >= 0))[:, :, None], tf.float32)
        upright = _padded(np.tile(two_bumps(side), counts), (height, width), 0)[:, :, None]
        drawn = draws.uniform([*counts, channels + 1])
        drawn = tf.gather(tf.gather(drawn, np.maximum(rows, 0), axis=1), np.maximum(columns, 0), axis=2)
        lying = _padded(np.tile(two_bumps(side).T, counts), (height, width), 0)[:, :, None]
        tiles = tf.where(drawn[..., :1] < 0.5, upright, lying) * _signs(drawn[..., 1:]) * covered
        return self.radius * norms.L2.steepest(tiles)

    def next(self, perturbations, draws, step):
        """Algorithm 3: by channel, one window takes the length that it, another one, and no value had."""
        drawn = draws.uniform([5 + self.shape[2]])
        level = self.level[step]
        side = self.sides[level]
        first, rows, columns = _window(drawn[:, :2], side, self.shape)
        second, _, _ = _window(drawn[:, 2:4], side, self.shape)
        bumps = first * self._bumps(rows, columns, drawn[:, 4] < 0.5, level)
        aimed = _unit(bumps * _signs(drawn[:, None, None, 5:]) + _unit(first * perturbations))
        unused = tf.maximum(self.radius**2 - tf.reduce_sum(perturbations**2, [1, 2, 3], keepdims=True), 0.0)
        held = perturbations * tf.maximum(first, second)
        available = _squared(held) + unused * (1.0 / self.shape[2])
        return perturbations - held + aimed * tf.sqrt(available)

    def _bumps(self, rows, columns, lying, level):
        """The two bumps at rows [N, H] and columns [N, W] of a window, where they are in it: [N, H, W, 1]"""
        rows, columns = (tf.clip_by_value(part, 0, self.widest - 1) for part in (rows, columns))
        upright = rows[:, :, None] * self.widest + columns[:, None, :]
        turned = columns[:, None, :] * self.widest + rows[:, :, None]
        places = tf.where(lying[:, None, None], turned, upright)
        return tf.gather(tf.reshape(self.bumps[level], [-1]), places)[..., None]


_CHANGES = {norms.Linf: _LinfChanges, norms.L2: _L2Changes}


def _window(drawn, side, shape):
    """A square at a uniform place: (float [N, H, W, 1], 1 inside; rows [N, H], columns [N, W] counted from its corner).

    Args:
        drawn: [N, 2] uniform in (0, 1). side: int32, of the square.
    """
    rows, columns = (tf.range(whole) - tf.cast(drawn[:, axis, None] * tf.cast(whole - side + 1, tf.float32), tf.int32)
                     for axis, whole in enumerate(shape[:2]))
    across, along = (tf.cast((part >= 0) & (part < side), tf.float32) for part in (rows, columns))
    return (across[:, :, None] * along[:, None, :])[..., None], rows, columns


def _signs(drawn):
    """-1 or 1 of uniform numbers in (0, 1)."""
    return tf.where(drawn < 0.5, -1.0, 1.0)


def _squared(perturbations):
    """The squared length of each channel: [N, 1, 1, C]"""
    return tf.reduce_sum(tf.reduce_sum(perturbations**2, axis=1, keepdims=True), axis=2, keepdims=True)


def _unit(perturbations):
    """Each channel at length 1, or 0 where it is 0."""
    return perturbations / tf.maximum(tf.sqrt(_squared(perturbations)), _TINY)


def _padded(values, whole, fill):
    """An array in the middle of one of size `whole`; where the rest is odd, the larger part is after it."""
    rests = np.atleast_1d(whole) - values.shape
    return np.pad(values, [(rest // 2, rest - rest // 2) for rest in rests], constant_values=fill)
