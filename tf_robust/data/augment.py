"""Training augmentations and views: images [N, H, W, C] float32 in [0, 1] and an int [2] seed -> the same shape and range.

Each draws once per image of the batch from the stateless `seed`. Their annotated keyword arguments become flags,
`--patch_gaussian_size` and so on; the order in `--augmentations` is the order of application. `--views` lists the views made
of the augmented image: `clean,augmix,augmix`.

The views of contrastive methods, `FAMILIES`, begin with a random window of each image, enlarged to the image's size; half of them are
mirrored. The further operations are those of SimCLR, MoCo or AugMix; URRL draws one of two families for each image (URRL, eq. 2). Color,
blur and windows follow torchvision. One-channel images have no color: brightness and contrast change, saturation, hue and grayscale do
nothing.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_robust.data.augmix import augmix, augmix_chain
from tf_robust.data.augmix import draw as draw_chains
from tf_robust.data.autoaugment import autoaugment
from tf_robust.ops import color, filters, image_ops, philox
from tf_robust.ops.image_ops import fold


def crop_flip(images: tf.Tensor, seed: tf.Tensor, *, padding: int = 4) -> tf.Tensor:
    """Zero-pads, crops a random window of the original size, mirrors half of the images: the CIFAR standard.

    Args:
        padding: zeros on each side, in pixels.
    """
    if padding < 0:
        raise ValueError(f"Expected padding >= 0. Received: {padding}")
    count, (height, width) = tf.shape(images)[0], images.shape[1:3]
    corners = philox.uniform([count, 2], seed, 0, 2 * padding + 1, tf.int32)
    padded = tf.pad(images, [[0, 0], [padding, padding], [padding, padding], [0, 0]])
    cropped = image_ops.crop_at(padded, corners[:, 0], corners[:, 1], height, width)
    mirror = philox.uniform([count, 1, 1, 1], fold(seed, 1)) < 0.5
    return tf.where(mirror, cropped[:, :, ::-1], cropped)


def patch_gaussian(
    images: tf.Tensor, seed: tf.Tensor, *, size: int = 25, sigma: float = 0.1, random_size: bool = False, random_sigma: bool = False
) -> tf.Tensor:
    """Adds Gaussian noise inside one square patch at a random position and clips to [0, 1] (Lopes et al., 2019).

    The patch center is uniform over all pixels, so the patch may extend beyond the image; rows and columns
    [center - size // 2, center + ceil(size / 2)) receive noise.

    Args:
        size: side of the patch in pixels.
        sigma: standard deviation of the noise on the [0, 1] scale.
        random_size: draw each image's side uniformly from 1..size instead of using `size`.
        random_sigma: draw each image's standard deviation uniformly from [0, sigma] instead of using `sigma`.
    """
    if size < 1 or not sigma > 0:
        raise ValueError(f"Expected size >= 1 and sigma > 0. Received: size={size}, sigma={sigma}")
    count, (height, width) = tf.shape(images)[0], images.shape[1:3]
    uniform = philox.uniform([count, 4], seed)
    sides = tf.floor(uniform[:, 3] * size) + 1.0 if random_size else tf.fill([count], float(size))

    def inside(draw, length):  # -> bool [N, length]
        start = tf.floor(draw * length)[:, None] - tf.floor(sides / 2)[:, None]
        positions = tf.range(length, dtype=tf.float32)[None]
        return (positions >= start) & (positions < start + sides[:, None])

    patch = inside(uniform[:, 0], height)[:, :, None] & inside(uniform[:, 1], width)[:, None, :]
    stds = sigma * (uniform[:, 2] if random_sigma else tf.ones([count]))[:, None, None, None]
    noise = stds * philox.normal(tf.shape(images), fold(seed, 1))
    return tf.where(patch[..., None], tf.clip_by_value(images + noise, 0.0, 1.0), images)


def clean(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns the image unchanged."""
    del seed
    return images


def simclr(images: tf.Tensor, seed: tf.Tensor, *, strength: float = 1.0, min_crop_area: float = 0.08, blur: bool = True) -> tf.Tensor:
    """SimCLR's views (Chen et al., 2020, appendix A): window, color jitter (p 0.8), gray (p 0.2), blur (p 0.5).

    Args:
        strength: of the color jitter: brightness, contrast and saturation within 1 +- 0.8 * strength, hue within 0.2 * strength.
            The authors' value for CIFAR-10 is 0.5.
        min_crop_area: smallest fraction of the image's area for a window.
        blur: apply the blur; the authors do not on CIFAR-10.
    """
    if not 0 <= strength <= 2.5:
        raise ValueError(f"Expected strength in [0, 2.5], since hue shifts by at most half. Received: {strength}")
    images = _window(images, fold(seed, 0), min_crop_area)
    images = _jitter(images, fold(seed, 1), 0.8, (0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength))
    images = _gray(images, fold(seed, 2))
    return _blur(images, fold(seed, 3)) if blur else images


def moco_v1(images: tf.Tensor, seed: tf.Tensor, *, min_crop_area: float = 0.2) -> tf.Tensor:
    """MoCo v1's views (He et al., 2020): window, gray (p 0.2), color jitter of 0.4 always.

    Args:
        min_crop_area: smallest fraction of the image's area for a window.
    """
    return _moco_v1_colors(_window(images, fold(seed, 0), min_crop_area), fold(seed, 1))


def moco_v2(images: tf.Tensor, seed: tf.Tensor, *, min_crop_area: float = 0.2, blur: bool = True) -> tf.Tensor:
    """MoCo v2's views (Chen et al., 2020d): window, color jitter (p 0.8), gray (p 0.2), blur (p 0.5). URRL's T_rep.

    Args:
        min_crop_area: smallest fraction of the image's area for a window.
        blur: apply the blur.
    """
    return _moco_v2_colors(_window(images, fold(seed, 0), min_crop_area), fold(seed, 1), blur)


def window_augmix(
    images: tf.Tensor, seed: tf.Tensor, *, min_crop_area: float = 0.2, severity: float = 3.0, all_ops: bool = False
) -> tf.Tensor:
    """AugMix of a window: the views of URRL's rows AugMix and, with all_ops, AugMix (AllOp), its T_rob.

    Args:
        min_crop_area: smallest fraction of the image's area for a window.
        severity: amounts are drawn from levels between 0.1 and this, of 10.
        all_ops: also change color, contrast, brightness and sharpness.
    """
    images = _window(images, fold(seed, 0), min_crop_area)
    return augmix(images, fold(seed, 1), severity=severity, all_ops=all_ops)


def window_augmix_moco(
    images: tf.Tensor, seed: tf.Tensor, *, min_crop_area: float = 0.2, severity: float = 3.0, blur: bool = True
) -> tf.Tensor:
    """URRL's row AugMix (MoCo): MoCo v2's colors, gray and blur inside AugMix's convex combination.

    The paper gives no more details. Here each of the three chains begins with its own draw of them and continues with AugMix's
    operations.

    Args:
        min_crop_area: smallest fraction of the image's area for a window.
        severity: amounts are drawn from levels between 0.1 and this, of 10.
        blur: apply the blur.
    """
    images = _window(images, fold(seed, 0), min_crop_area)
    drawn = draw_chains(fold(seed, 1), tf.shape(images)[0], images.shape[1:], severity)
    weights, lam = tf.transpose(drawn["weights"]), drawn["lam"][:, None, None, None]
    colored = _moco_v2_colors(tf.tile(images, [weights.shape[0], 1, 1, 1]), fold(seed, 2), blur)  # chain by chain
    chains = tf.stack(tf.split(augmix_chain(colored, fold(seed, 3), severity=severity), weights.shape[0]))
    mixed = tf.reduce_sum(weights[..., None, None, None] * chains, axis=0)
    return tf.clip_by_value((1.0 - lam) * images + lam * mixed, 0.0, 1.0)


def urrl(
    images: tf.Tensor,
    seed: tf.Tensor,
    *,
    probability: float = 0.5,
    other: typing.Literal["moco_v2", "moco_v1"] = "moco_v2",
    min_crop_area: float = 0.2,
    severity: float = 3.0,
    blur: bool = True,
) -> tf.Tensor:
    """URRL's views (eq. 2): each image's is AugMix (AllOp) with probability p, else MoCo v2's.

    Args:
        probability: p, of AugMix's views.
        other: family of the remaining views, T_rep: moco_v2, or moco_v1 for InstDis and PIRL (Table 4).
        min_crop_area: smallest fraction of the image's area for a window.
        severity: of AugMix.
        blur: apply the blur, in MoCo v2's views.
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"Expected probability in [0, 1]. Received: {probability}")
    if other not in ("moco_v1", "moco_v2"):
        raise ValueError(f"Expected other in moco_v2, moco_v1. Received: {other!r}")
    images = _window(images, fold(seed, 0), min_crop_area)
    count = tf.shape(images)[0]
    robust = philox.uniform([count], fold(seed, 1)) < probability

    def representation(subset, _):
        return _moco_v2_colors(subset, fold(seed, 2), blur) if other == "moco_v2" else _moco_v1_colors(subset, fold(seed, 2))

    def robustness(subset, _):
        return augmix(subset, fold(seed, 3), severity=severity, all_ops=True)

    return image_ops.apply_chosen(images, tf.cast(robust, tf.int32), tf.zeros([count]), [representation, robustness])


def min_crop_areas(views: Sequence[Callable]) -> tuple[float, ...]:
    """Returns the smallest fraction of the area that each view may crop, or () unless every view crops a window of its own.

    It is an attribute of the view, or a keyword bound with `functools.partial`.
    """
    own: list[typing.Any] = [getattr(getattr(view, "func", view), "min_crop_area", None) for view in views]
    areas = [getattr(view, "keywords", {}).get("min_crop_area", area) for view, area in zip(views, own)]
    return () if None in areas else tuple(areas)


def _window(images, seed, min_crop_area):
    """Returns a random window of each image, enlarged to the image's size; half of them mirrored."""
    if not 0 < min_crop_area <= 1:
        raise ValueError(f"Expected min_crop_area in (0, 1]. Received: {min_crop_area}")
    count, shape = tf.shape(images)[0], tf.constant(tuple(images.shape[1:3]), tf.float32)
    images = filters.resized_windows(images, *image_ops.random_windows(count, shape, seed, min_crop_area))
    return _apply_to_some(lambda subset: subset[:, :, ::-1], images, fold(seed, 1), 0.5)


def _moco_v1_colors(images, seed):
    return _jitter(_gray(images, fold(seed, 0)), fold(seed, 1), 1.0, (0.4, 0.4, 0.4, 0.4))


def _moco_v2_colors(images, seed, blur):
    images = _gray(_jitter(images, fold(seed, 0), 0.8, (0.4, 0.4, 0.4, 0.1)), fold(seed, 1))
    return _blur(images, fold(seed, 2)) if blur else images


def _jitter(images, seed, probability, strengths):
    """Applies color jitter with a probability: factors within 1 +- strength, not below 0; hue within +- strength."""
    count = tf.shape(images)[0]
    order = tf.argsort(philox.uniform([count, 4], fold(seed, 0)), axis=1)
    middle = tf.constant([1.0, 1.0, 1.0, 0.0])
    lowest = tf.maximum(middle - tf.constant(strengths), [0.0, 0.0, 0.0, -1.0])
    amounts = lowest + philox.uniform([count, 4], fold(seed, 1)) * (middle + tf.constant(strengths) - lowest)
    return _apply_to_some(color.jitter, images, fold(seed, 2), probability, order, amounts)


def _gray(images, seed):
    return _apply_to_some(lambda subset: tf.zeros_like(subset) + color.luma(subset), images, seed, 0.2)


def _blur(images, seed):
    """Blurs half of the images by a Gaussian with a standard deviation of 0.1 to 2 pixels, truncated at two standard deviations."""
    sigma = philox.uniform([tf.shape(images)[0]], fold(seed, 0), 0.1, 2.0)
    blur = functools.partial(filters.gaussian_blur, truncate=2.0, mode="reflect")
    return _apply_to_some(blur, images, fold(seed, 1), 0.5, sigma)


def _apply_to_some(function, images, seed, probability, *arguments):
    """Applies a function to images drawn with a probability, and to the corresponding rows of the arguments [N, ...]."""
    count = tf.shape(images)[0]
    chosen = tf.where(philox.uniform([count], seed) < probability, 0, -1)

    def apply(subset, rows):
        return function(subset, *(tf.gather(argument, rows) for argument in arguments))

    return image_ops.apply_chosen(images, chosen, tf.range(count), [apply])


FAMILIES = {f.__name__: f for f in (simclr, moco_v1, moco_v2, window_augmix, window_augmix_moco, urrl)}
for _view in FAMILIES.values():  # read by the pipeline through `min_crop_areas`
    _view.min_crop_area = inspect.signature(_view).parameters["min_crop_area"].default  # type: ignore[attr-defined]
_without_autograph = tf.autograph.experimental.do_not_convert  # AutoGraph is not needed, and takes longer than tracing
AUGMENTATIONS = {f.__name__: _without_autograph(f) for f in (crop_flip, patch_gaussian, autoaugment, augmix, augmix_chain)}
VIEWS = {"clean": clean, **AUGMENTATIONS, **{name: _without_autograph(view) for name, view in FAMILIES.items()}}
