"""Training augmentations: images [N, H, W, C] float32 in [0, 1] and an int [2] seed -> the same shape and range.

Each draws once per image of the batch from the stateless `seed`. Their annotated keyword arguments become flags,
`--patch_gaussian_size` and so on; the order in `--augmentations` is the order of application. `--views` lists the views made
of the augmented image: `clean,augmix,augmix`.
"""

import tensorflow as tf

from tf_robust.data.augmix import augmix, augmix_chain
from tf_robust.data.autoaugment import autoaugment
from tf_robust.data.contrastive_views import FAMILIES
from tf_robust.ops import image_ops, philox


def crop_flip(images: tf.Tensor, seed: tf.Tensor, *, padding: int = 4) -> tf.Tensor:
    """Zero-pads, crops a random window of the original size, mirrors half of the images: the CIFAR standard.

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        seed: int [2].
        padding: zeros on each side, in pixels.
    """
    if padding < 0:
        raise ValueError(f"Expected padding >= 0. Received: {padding}")
    count, (height, width) = tf.shape(images)[0], images.shape[1:3]
    corners = philox.uniform([count, 2], seed, 0, 2 * padding + 1, tf.int32)
    padded = tf.pad(images, [[0, 0], [padding, padding], [padding, padding], [0, 0]])
    cropped = image_ops.crop_at(padded, corners[:, 0], corners[:, 1], height, width)
    mirror = philox.uniform([count, 1, 1, 1], image_ops.fold(seed, 1)) < 0.5
    return tf.where(mirror, cropped[:, :, ::-1], cropped)


def patch_gaussian(
    images: tf.Tensor, seed: tf.Tensor, *, size: int = 25, sigma: float = 0.1, random_size: bool = False, random_sigma: bool = False
) -> tf.Tensor:
    """Adds Gaussian noise inside one square patch at a random position and clips to [0, 1] (Lopes et al., 2019).

    The patch center is uniform over all pixels, so the patch may extend beyond the image; rows and columns
    [center - size // 2, center + ceil(size / 2)) receive noise.

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        seed: int [2].
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
    noise = stds * philox.normal(tf.shape(images), image_ops.fold(seed, 1))
    return tf.where(patch[..., None], tf.clip_by_value(images + noise, 0.0, 1.0), images)


def clean(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns the image unchanged."""
    del seed
    return images


_without_autograph = tf.autograph.experimental.do_not_convert  # not needed, and takes longer than tracing
AUGMENTATIONS = {f.__name__: _without_autograph(f) for f in (crop_flip, patch_gaussian, autoaugment, augmix, augmix_chain)}
VIEWS = {"clean": clean, **AUGMENTATIONS, **{name: _without_autograph(view) for name, view in FAMILIES.items()}}
