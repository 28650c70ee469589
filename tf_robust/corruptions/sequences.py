"""Perturbation sequences: the frames of CIFAR-10-P and ImageNet-P (Hendrycks and Dietterich, 2019), difficulty 1.

A sequence changes an image slightly from frame to frame. Images are float32 [N, H, W, C] in [0, 1], sequences
[N, frames, H, W, C]. The originals store ImageNet-P as video; its compression is not imitated.
"""

import math
import typing
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_robust import metrics
from tf_robust.corruptions import severities, weather
from tf_robust.corruptions.corruption import static_shape
from tf_robust.corruptions.noise import poisson
from tf_robust.ops import filters, image_ops
from tf_robust.ops.draws import Draws
from tf_robust.utils.errors import unknown

_FRAMES = 31
Frames: typing.TypeAlias = tf.Tensor | list[tf.Tensor]  # [N, frames, H, W, C], or a list of [N, H, W, C]


def perturb(
    images: tf.Tensor | np.ndarray, name: str, seed: int = 0, indices: tf.Tensor | np.ndarray | None = None, *, constants: str = "auto"
) -> tf.Tensor:
    """Returns a perturbation sequence of each image: a pure function of (seed, index).

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        name: from `SEQUENCES`.
        seed: int.
        indices: int [N], positions in the data set; None: 0..N-1.
        constants: `imagenet` for ImageNet-P's numbers; `cifar` and `tiny_imagenet` for CIFAR-10-P's; `auto`: the ones made
            for images nearest in size.

    Returns:
        float32 [N, frames, H, W, C] in [0, 1]; 31 frames, except 21 for motion_blur and 16 for translate with CIFAR-10-P's
        numbers, and 41 for translate with ImageNet-P's

    Raises:
        ValueError: unknown name or constants; images that are integers, not finite or not in [0, 1].

    Examples:
        >>> images, _ = tfr.images(2, data="digits")
        >>> frames = tfr.corruptions.perturb(images, "rotate")
        >>> frames.shape.as_list(), bool(np.allclose(frames[:, 15], images, atol=1e-3))  # frame 15 is rotated by 0 degrees
        ([2, 31, 28, 28, 1], True)
    """
    if name not in SEQUENCES:
        raise unknown("perturbation", name, SEQUENCES)
    if constants not in ("auto", *severities.SETS):
        raise unknown("set of constants", constants, ("auto", *severities.SETS))
    if not tf.is_symbolic_tensor(images):
        images = tf.constant(image_ops.check_images(images))
    shape = static_shape(images)
    constants_set = severities.nearest_set(*shape[:2]) if constants == "auto" else constants
    indices = tf.range(tf.shape(images)[0]) if indices is None else indices
    frames = SEQUENCES[name](images, Draws(seed, indices, "sequence", name), constants_set == "imagenet")
    return tf.clip_by_value(tf.stack(frames, axis=1) if isinstance(frames, list) else frames, 0.0, 1.0)


def sequence_names(which: str) -> tuple[str, ...]:
    """Returns the perturbations of `imagenet_p` (ten, with snow), `cifar_p` (ten, with spatter) or `all` fourteen."""
    return {"imagenet_p": metrics.PERTURBATIONS, "cifar_p": metrics.CIFAR_PERTURBATIONS, "all": tuple(SEQUENCES)}[which]


# Noise: the image itself, then 30 independent frames


def gaussian_noise(images: tf.Tensor, draws: Draws, imagenet: bool) -> Frames:
    """Returns the clean image and 30 frames of additive noise, std 0.03 (ImageNet-P) or 0.02."""
    return _with_clean(images, images[:, None] + (0.03 if imagenet else 0.02) * _normal(images, draws))


def shot_noise(images: tf.Tensor, draws: Draws, imagenet: bool) -> Frames:
    """Returns the clean image and 30 frames of Poisson noise, 300 (ImageNet-P) or 700 photons."""
    uniform = draws.uniform((_FRAMES - 1, *static_shape(images)))
    repeated = tf.broadcast_to(images[:, None], tf.shape(uniform))
    return _with_clean(images, poisson(repeated, 300 if imagenet else 700, uniform))


def speckle_noise(images: tf.Tensor, draws: Draws, _: bool) -> Frames:
    """Returns the clean image and 30 frames of multiplicative noise, std 0.05."""
    return _with_clean(images, images[:, None] * (1.0 + 0.05 * _normal(images, draws)))


def _normal(images, draws):
    return draws.normal((_FRAMES - 1, *static_shape(images)))


def _with_clean(images, frames):
    return tf.concat([images[:, None], frames], axis=1)


# Blur


def motion_blur(images: tf.Tensor, _: Draws, imagenet: bool) -> Frames:
    """Rotates the direction of the blur; there is no clean frame."""
    if imagenet:
        return [_blown(images, 10, 3, 4.0 * (i - 30)) for i in range(31)]
    return [_blown(images, 6, 1.8, 9.0 * (i - 20)) for i in range(21)]


def _blown(images, radius, sigma, angle):
    return filters.motion_blur(images, radius, sigma, tf.fill(tf.shape(images)[:1], angle))


def zoom_blur(images: tf.Tensor, *_) -> Frames:
    """Averages the zooms by 1, 1.004, ..., 1 + 0.004 i about the center in frame i."""
    factors = [1 + 0.004 * i for i in range(_FRAMES)]
    zoomed = _warp(images, [[[1 / f, 0, 0], [0, 1 / f, 0], [0, 0, 1]] for f in factors], True)
    weights = np.reshape(1 / (1 + np.arange(_FRAMES)), [1, -1, 1, 1, 1]).astype(np.float32)
    return tf.cumsum(zoomed, axis=1) * weights


def gaussian_blur(images: tf.Tensor, _: Draws, imagenet: bool) -> Frames:
    """Increases the standard deviation of the blur; there is no clean frame."""
    if imagenet:
        return [filters.gaussian_blur(images, 0.25 + 0.035 * i, truncate=6.0) for i in range(_FRAMES)]
    return [filters.gaussian_blur(images, 0.3 + 0.015 * i, truncate=7.0) for i in range(_FRAMES)]


# Weather


def snow(images: tf.Tensor, draws: Draws, imagenet: bool) -> Frames:
    """Rotates the direction in which the same flakes fall."""
    layer = weather.flakes(draws.normal(static_shape(images)[:2]), 0.05, 0.3, 3 if imagenet else 2, 0.5)
    radius, sigma = (14, 4) if imagenet else (10, 2)
    return [weather.snowed(images, _blown(layer, radius, sigma, 4.0 * i - 150), 0.85) for i in range(_FRAMES)]


def spatter(images: tf.Tensor, draws: Draws, imagenet: bool) -> Frames:
    """Lets drops of water run down: from frame to frame the layer is smeared along its columns."""
    mean, std, sigma, drip = (0.65, 0.27, 3.7, (0.05, 0.1, 0.15, 0.7)) if imagenet else (0.6, 0.265, 1.75, (0.2, 0.8))
    layer = weather.drops(draws.normal(static_shape(images)[:2]), mean, std, sigma, 0.7)
    smear, frames = _smear(layer.shape[1], drip), []
    for _ in range(_FRAMES):
        frames.append(weather.wetted(images, layer, 0.6))
        layer = tf.einsum("ij,njwc->niwc", smear, layer)
    return frames


def _smear(side, taps):
    """Returns numpy.convolve(column, taps, mode="same") as a matrix, float32 [side, side]."""
    return np.stack([np.convolve(unit, taps, mode="same") for unit in np.eye(side)], axis=1).astype(np.float32)


def brightness(images: tf.Tensor, _: Draws, imagenet: bool) -> Frames:
    """Increases the HSV value from frame to frame; frame 15 is the clean image."""
    return [weather.brightness.apply(images, (2.0 if imagenet else 1.5) * (i - 15) / 100) for i in range(_FRAMES)]


# Geometry: one projective map per frame, about the center of the image


def translate(images: tf.Tensor, _: Draws, imagenet: bool) -> Frames:
    """Translates horizontally by one pixel per frame."""
    steps = range(-20, 21) if imagenet else range(-7, 9)
    return _warp(images, [[[1, 0, step], [0, 1, 0], [0, 0, 1]] for step in steps], imagenet)


def rotate(images: tf.Tensor, _: Draws, imagenet: bool) -> Frames:
    """Rotates by one degree per frame, from -15 to 15."""
    return _warp(images, [_rotation(math.radians(i - 15)) for i in range(_FRAMES)], imagenet)


def _rotation(angle):
    return [[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]]  # counterclockwise


def scale(images: tf.Tensor, _: Draws, imagenet: bool) -> Frames:
    """Scales from 40 % by 2.5 % per frame (ImageNet-P), or from 70 % by 2 %."""
    sizes = [((40 + 2.5 * i) if imagenet else (70 + 2 * i)) / 100 for i in range(_FRAMES)]
    return _warp(images, [[[1 / size, 0, 0], [0, 1 / size, 0], [0, 0, 1]] for size in sizes], imagenet)


def shear(images: tf.Tensor, _: Draws, imagenet: bool) -> Frames:
    """Shears by one degree per frame, from -15 to 15."""
    return _warp(images, [[[1, math.tan(math.radians(i - 15)), 0], [0, 1, 0], [0, 0, 1]] for i in range(_FRAMES)], imagenet)


def tilt(images: tf.Tensor, _: Draws, imagenet: bool) -> Frames:
    """Rotates the image about its horizontal and its vertical axis, seen from a distance of its diagonal."""
    height, width = static_shape(images)[:2]
    degrees = 1.0 if imagenet else 0.75
    return _warp(images, [_tilt_map(math.radians(degrees * (i - 15)), math.hypot(height, width)) for i in range(_FRAMES)], imagenet)


def _tilt_map(angle, distance):
    """Returns the map from positions in the frame to positions in the image, both about the center."""
    cos, sin = math.cos(angle), math.sin(angle)
    about_x = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]])
    about_y = np.array([[cos, 0, -sin], [0, 1, 0], [sin, 0, cos]])
    plane = (about_x @ about_y)[:, :2]  # (x, y) in the image -> position in three dimensions
    projection = np.diag([distance, distance, 1]) @ np.column_stack([plane, [0, 0, distance]])
    inverse = np.linalg.inv(projection)
    return inverse / inverse[2, 2]


def _warp(images, matrices, imagenet):
    """Returns frames [N, F, H, W, C]: the pixel at p shows the image at matrix p, bilinearly, p = (x, y, 1) about the center.

    The area outside of the image is black, as in CIFAR-10-P. ImageNet-P moves larger images and keeps their center, so that there is
    image content outside; for its numbers the image is mirrored here.
    """
    height, width, channels = static_shape(images)
    from_center = np.array([[1, 0, (width - 1) / 2], [0, 1, (height - 1) / 2], [0, 0, 1]])
    to_center = np.linalg.inv(from_center)
    maps = np.stack([from_center @ np.array(matrix, float) @ to_center for matrix in matrices])
    maps = (maps / maps[:, 2:, 2:]).reshape(-1, 9)[:, :8].astype(np.float32)
    count, frames = tf.shape(images)[0], len(maps)
    repeated = tf.repeat(images, frames, axis=0)
    warped = tf.raw_ops.ImageProjectiveTransformV3(
        images=repeated,
        transforms=tf.tile(tf.constant(maps), [count, 1]),
        output_shape=[height, width],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="REFLECT" if imagenet else "CONSTANT",
    )
    return tf.reshape(warped, [count, frames, height, width, channels])


SEQUENCES: dict[str, Callable[[tf.Tensor, Draws, bool], Frames]] = {
    f.__name__: f
    for f in (
        gaussian_noise,
        shot_noise,
        motion_blur,
        zoom_blur,
        snow,
        brightness,
        translate,
        rotate,
        tilt,
        scale,
        speckle_noise,
        gaussian_blur,
        spatter,
        shear,
    )
}
