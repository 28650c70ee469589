"""Norms of perturbations, and what the attacks need of each. A perturbation is float32 [N, H, W, C].

The norms are of one image's H * W * C values, in units of the pixel scale: of `l2`, 0.5 is half the way from black to
white in one value.
"""

import math

import numpy as np
import tensorflow as tf

from tf_robust.utils.errors import unknown

_AXES = [1, 2, 3]
_TINY = 1e-12


class Linf:
    """The largest absolute value."""
    name = "linf"

    @staticmethod
    def size(perturbations):
        """[N, H, W, C] -> [N]"""
        return tf.reduce_max(tf.abs(perturbations), axis=_AXES)

    @staticmethod
    def largest(shape):
        """The largest perturbation's size that images of `shape` (H, W, C) in [0, 1] have room for."""
        return 1.0

    @staticmethod
    def steepest(gradients):
        """The perturbation of size 1 along which a loss with these gradients rises most."""
        return tf.sign(gradients)

    @staticmethod
    def projected(perturbations, radius):
        """The nearest perturbation (by l2) of size at most `radius`, a number or [N, 1, 1, 1]."""
        return tf.clip_by_value(perturbations, -radius, radius)

    @staticmethod
    def drawn(draws, shape):
        """Uniform in the ball of radius 1: [N, *shape], from `Draws`."""
        return draws.uniform(shape, -1.0, 1.0)


class L2:
    """The Euclidean length."""
    name = "l2"

    @staticmethod
    def size(perturbations):
        return tf.sqrt(tf.reduce_sum(perturbations ** 2, axis=_AXES))

    @staticmethod
    def largest(shape):
        return math.sqrt(np.prod(shape))

    @staticmethod
    def steepest(gradients):
        # by the largest value first: a confident model's gradients are so small that their squares would vanish
        scaled = gradients / tf.maximum(tf.reduce_max(tf.abs(gradients), axis=_AXES, keepdims=True), 1e-37)
        return scaled / tf.maximum(_column(L2.size(scaled)), _TINY)

    @staticmethod
    def projected(perturbations, radius):
        return perturbations * tf.minimum(1.0, radius / tf.maximum(_column(L2.size(perturbations)), _TINY))

    @staticmethod
    def drawn(draws, shape):
        share = draws.uniform([1, 1, 1]) ** (1.0 / np.prod(shape))  # of the ball's volume
        return L2.steepest(draws.normal(shape)) * share


class L1:
    """The sum of the absolute values."""
    name = "l1"

    @staticmethod
    def size(perturbations):
        return tf.reduce_sum(tf.abs(perturbations), axis=_AXES)


class L0:
    """The number of values that are not 0: a pixel of three channels counts up to three times."""
    name = "l0"

    @staticmethod
    def size(perturbations):
        return tf.reduce_sum(tf.cast(perturbations != 0.0, tf.float32), axis=_AXES)


NORMS = {norm.name: norm for norm in (L0, L1, L2, Linf)}
BALLS = ("l2", "linf")  # the norms that have a steepest direction and a projection here


def norm(name, among=BALLS):
    """The norm of a name, or a ValueError that lists `among`."""
    if name not in among:
        raise unknown("norm", name, among)
    return NORMS[name]


def check_radius(radius, of, shape):
    """Raises ValueError unless `radius` is a size that perturbations of images of `shape` (H, W, C) can have."""
    largest = of.largest(shape)
    if not 0.0 <= radius <= largest:
        raise ValueError(f"Expected a radius in [0, {largest:g}], which is what images {'x'.join(map(str, shape))} in "
                         f"[0, 1] have room for in {of.name}. Received: {radius:g}")


def _column(numbers):
    return tf.reshape(numbers, [-1, 1, 1, 1])
