"""Norms of perturbations and the operations that attacks need of each. A perturbation is float32 [N, H, W, C].

A norm is taken over one image's H * W * C values, in units of the pixel scale: an `l2` size of 0.5 is half the way from
black to white in one value.
"""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_robust.ops.draws import Draws
from tf_robust.utils.errors import unknown

_AXES = [1, 2, 3]
_TINY = 1e-12


def per_image(values: tf.Tensor) -> tf.Tensor:
    """Returns values [N], one per image, as [N, 1, 1, 1], which broadcasts over images."""
    return tf.reshape(values, [-1, 1, 1, 1])


class Norm:
    """Base class of the norms, which are used as namespaces of static methods, without instances."""

    name: str

    @staticmethod
    def size(perturbations: tf.Tensor) -> tf.Tensor:
        """Returns the norm of each perturbation: [N, H, W, C] -> [N]."""
        raise NotImplementedError

    @staticmethod
    def largest(shape: Sequence[int]) -> float:
        """Returns the largest distance between images of `shape` (H, W, C) in [0, 1]."""
        raise NotImplementedError

    @staticmethod
    def steepest(gradients: tf.Tensor) -> tf.Tensor:
        """Returns the perturbation of size 1 along which a loss with these gradients rises most."""
        raise NotImplementedError

    @staticmethod
    def projected(perturbations: tf.Tensor, radius: float | tf.Tensor) -> tf.Tensor:
        """Returns the nearest perturbation (by l2) of size at most `radius`, a number or [N, 1, 1, 1]."""
        raise NotImplementedError

    @staticmethod
    def drawn(draws: Draws, shape: Sequence[int]) -> tf.Tensor:
        """Returns perturbations [N, *shape], uniform in the ball of radius 1."""
        raise NotImplementedError


class Linf(Norm):
    """The largest absolute value."""

    name = "linf"

    @staticmethod
    def size(perturbations: tf.Tensor) -> tf.Tensor:
        return tf.reduce_max(tf.abs(perturbations), axis=_AXES)

    @staticmethod
    def largest(shape: Sequence[int]) -> float:
        return 1.0

    @staticmethod
    def steepest(gradients: tf.Tensor) -> tf.Tensor:
        return tf.sign(gradients)

    @staticmethod
    def projected(perturbations: tf.Tensor, radius: float | tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value(perturbations, -radius, radius)

    @staticmethod
    def drawn(draws: Draws, shape: Sequence[int]) -> tf.Tensor:
        return draws.uniform(shape, -1.0, 1.0)


class L2(Norm):
    """The Euclidean length."""

    name = "l2"

    @staticmethod
    def size(perturbations: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(tf.reduce_sum(perturbations**2, axis=_AXES))

    @staticmethod
    def largest(shape: Sequence[int]) -> float:
        return math.sqrt(np.prod(shape))

    @staticmethod
    def steepest(gradients: tf.Tensor) -> tf.Tensor:
        # scaled by the largest value first: the squares of a confident model's tiny gradients would underflow
        scaled = gradients / tf.maximum(tf.reduce_max(tf.abs(gradients), axis=_AXES, keepdims=True), 1e-37)
        return scaled / tf.maximum(per_image(L2.size(scaled)), _TINY)

    @staticmethod
    def projected(perturbations: tf.Tensor, radius: float | tf.Tensor) -> tf.Tensor:
        return perturbations * tf.minimum(1.0, radius / tf.maximum(per_image(L2.size(perturbations)), _TINY))

    @staticmethod
    def drawn(draws: Draws, shape: Sequence[int]) -> tf.Tensor:
        length = draws.uniform([1, 1, 1]) ** (1.0 / np.prod(shape))  # uniform in the ball's volume
        return L2.steepest(draws.normal(shape)) * length


class L1(Norm):
    """The sum of the absolute values. It has a size only."""

    name = "l1"

    @staticmethod
    def size(perturbations: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.abs(perturbations), axis=_AXES)


class L0(Norm):
    """The number of values that are not 0: a pixel of three channels counts up to three times. It has a size only."""

    name = "l0"

    @staticmethod
    def size(perturbations: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(perturbations != 0.0, tf.float32), axis=_AXES)


NORMS: dict[str, type[Norm]] = {norm.name: norm for norm in (L0, L1, L2, Linf)}
BALLS = ("l2", "linf")  # the norms with a steepest direction and a projection


def norm(name: str, among: Sequence[str] = BALLS) -> type[Norm]:
    """Returns the norm of a name.

    Args:
        name: one of `among`.
        among: the names that are allowed.

    Raises:
        ValueError: `name` is not one of `among`.
    """
    if name not in among:
        raise unknown("norm", name, among)
    return NORMS[name]


def check_radius(radius: float, norm: type[Norm], shape: Sequence[int]) -> None:
    """Checks that perturbations of images can have a size.

    Args:
        radius: the size.
        norm: the norm of the perturbations.
        shape: (H, W, C) of the images.

    Raises:
        ValueError: the radius is negative, NaN, or larger than images in [0, 1] allow.
    """
    largest = norm.largest(shape)
    if not 0.0 <= radius <= largest:
        advice = f". Try: {radius:g}/255, as in {norm.name}_{radius:g}/255" if largest < radius <= 255 * largest else ""
        raise ValueError(
            f"Expected a radius in [0, {largest:g}] on the [0, 1] pixel scale, the largest {norm.name} distance between images "
            f"{'x'.join(map(str, shape))}. Received: {radius:g}{advice}"
        )
