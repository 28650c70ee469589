"""Entry point of the suite: `corrupt(images, name, severity, seed, indices)`. Images are float32 in [0, 1], NHWC."""

import hashlib
import typing
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from tf_robust.corruptions import noise_sets, severities
from tf_robust.corruptions.bar_covers import checkerboard_cutout, inverse_sparkles, lines, sparkles
from tf_robust.corruptions.bar_noise import (
    blue_noise_sample,
    brownish_noise,
    concentric_sine_waves,
    perlin_noise,
    plasma_noise,
    single_frequency_grayscale,
)
from tf_robust.corruptions.bar_warps import (
    caustic_refraction,
    circular_motion_blur,
    pinch_and_twirl,
    ripple,
    transverse_chromatic_aberration,
)
from tf_robust.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from tf_robust.corruptions.corruption import Corruption, static_shape
from tf_robust.corruptions.digital import contrast, elastic_transform, jpeg_compression, jpeg_round_trip, pixelate, saturate
from tf_robust.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from tf_robust.corruptions.weather import brightness, fog, frost, frost_from, frost_source, snow, spatter
from tf_robust.ops import image_ops
from tf_robust.utils.errors import unknown
from tf_robust.utils.user_code import digest

CORRUPTIONS: dict[str, Corruption] = {
    corruption.name: corruption
    for corruption in (
        gaussian_noise,
        shot_noise,
        impulse_noise,
        defocus_blur,
        glass_blur,
        motion_blur,
        zoom_blur,
        snow,
        frost,
        fog,
        brightness,
        contrast,
        elastic_transform,
        pixelate,
        jpeg_compression,
        speckle_noise,
        gaussian_blur,
        spatter,
        saturate,
        blue_noise_sample,
        brownish_noise,
        checkerboard_cutout,
        inverse_sparkles,
        sparkles,
        circular_motion_blur,
        lines,
        pinch_and_twirl,
        ripple,
        transverse_chromatic_aberration,
        caustic_refraction,
        concentric_sine_waves,
        perlin_noise,
        plasma_noise,
        single_frequency_grayscale,
    )
}  # those of the published means are named in `metrics.MEANS` and `metrics.BAR`
PROTOCOLS = ("float", "cifar_c", "imagenet_c")
NOISE_SETS = ("uniform_noise", "nonuniform_noise")  # of the FCL paper
_QUALITY = 85  # of ImageNet-C's JPEG files


def corrupt(
    images: np.ndarray | tf.Tensor,
    name: str,
    severity: int = 3,
    seed: int = 0,
    indices: int | Sequence[int] | np.ndarray | tf.Tensor | None = None,
    *,
    constants: str = "auto",
    protocol: str = "float",
    frost_dir: str | None = None,
    probabilities: np.ndarray | None = None,
) -> tf.Tensor:
    """Corrupts images. The result for an image depends on (seed, its index) alone, not on its batch.

    Args:
        images: float32 [N, H, W, C] in [0, 1], or one image [H, W, C]; C = 1 or 3. On one channel, color operations
            act on three equal channels and the result is its Rec. 601 luma; `saturate` changes nothing.
        name: from `CORRUPTIONS` (the 15 and 4 of the common-corruption benchmark, and 15 of C-bar), or one of the FCL paper's noise
            sets, which have no severities: `uniform_noise` (UN) or `nonuniform_noise` (NUN).
        severity: 1 to 5.
        seed: int.
        indices: int [N] (or one int for one image), positions in the data set; None: 0..N-1.
        constants: `cifar`, `tiny_imagenet` or `imagenet`: the published set of constants; `auto`: the one made for
            images nearest in size (32, 64 and 224 pixels), see `describe`. Corruptions of C-bar that lack this set have that
            of the nearest size.
        protocol: `float`: unrounded values; `cifar_c`: truncated to 256 levels, as CIFAR-10-C is stored;
            `imagenet_c`: then compressed as JPEG of quality 85, as ImageNet-C is stored.
        frost_dir: folder of the original frost photographs; None: procedural ice.
        probabilities: [H, W], for `nonuniform_noise`: each location's probability, from `nonuniform_probabilities`.

    Returns:
        float32 in [0, 1], of the shape of `images`

    Raises:
        ValueError: unknown name (the message suggests the nearest ones), severity, constants or protocol; images that are
            integers, not finite or not in [0, 1] (checked outside of graphs only); another number of indices.

    Examples:
        >>> images, _ = tfr.images(4, data="digits")
        >>> foggy = tfr.corruptions.corrupt(images, "fog", severity=5)
        >>> [round(float(tf.reduce_mean(one)), 2) for one in (images, foggy)]
        [0.12, 0.34]
        >>> again = tfr.corruptions.corrupt(images[2:], "fog", severity=5, indices=[2, 3])  # the same two images alone
        >>> bool(np.allclose(again, foggy[2:]))
        True
    """
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    if not tf.is_symbolic_tensor(images):
        single = np.ndim(images) == 3
        images = tf.constant(image_ops.check_images(np.asarray(images)[None] if single else images))
    else:
        single = images.shape.rank == 3
        images = images[None] if single else images
    if images.dtype != tf.float32:
        raise ValueError(f"Expected float32 images in [0, 1]. Received dtype: {images.dtype.name}")
    if indices is not None:
        indices = tf.reshape(tf.cast(indices, tf.int64), [-1])
        counts = tf.convert_to_tensor(indices).shape[0], images.shape[0]
        if None not in counts and counts[0] != counts[1]:
            raise ValueError(f"Expected one index per image, {counts[1]}. Received: {counts[0]}")
    if name in NOISE_SETS:
        corrupted = _noise_set(images, name, seed, indices, probabilities)
    else:
        corrupted = named(name, frost_dir)(images, severity, seed=seed, indices=indices, constants=constants)
    corrupted = store(corrupted, protocol)
    return corrupted[0] if single else corrupted


def _noise_set(images, name, seed, indices, probabilities):
    if name == "uniform_noise":
        return noise_sets.uniform_noise(images, seed=seed, indices=indices)
    if probabilities is None or tuple(np.shape(probabilities)) != tuple(images.shape[1:3]):
        raise ValueError(
            f"Expected probabilities [H, W] of the images' size {tuple(images.shape[1:3])} for nonuniform_noise. "
            f"Received: {'none' if probabilities is None else np.shape(probabilities)}. "
            f"Try: nonuniform_probabilities(location_std(batches of training images))"
        )
    return noise_sets.nonuniform_noise(images, probabilities, seed=seed, indices=indices)


def named(name: str, frost_dir: str | None = None) -> Corruption:
    """Returns the `Corruption` of a name.

    Raises:
        ValueError: unknown name.
    """
    if name not in CORRUPTIONS:
        raise unknown("corruption", name, (*CORRUPTIONS, *NOISE_SETS))
    return frost_from(frost_dir) if name == "frost" else CORRUPTIONS[name]


def store(images: tf.Tensor, protocol: str) -> tf.Tensor:
    """Returns float32 [N, H, W, C] in [0, 1] as read back after storage by a protocol; see `corrupt`."""
    if protocol == "float":
        return images
    levels = tf.cast(images * 255.0 + 1e-3, tf.uint8)  # truncation; k / 255 * 255 may fall short of k
    if protocol == "imagenet_c":
        levels = jpeg_round_trip(levels, _QUALITY)
    return image_ops.to_float(tf.ensure_shape(levels, images.shape))


def describe(
    image_shape: Sequence[int],
    constants: str = "auto",
    protocol: str = "float",
    frost_dir: str | None = None,
    names: Iterable[str] = (),
) -> dict[str, typing.Any]:
    """Returns the description of the corruptions for result cards: a dictionary for JSON; arguments as in `corrupt`.

    Of `names`, those that a user defined have a digest of their code and levels, {"user_code": {name: digest}}.

    Examples:
        >>> card = tfr.corruptions.describe((224, 224, 3), protocol="imagenet_c")
        >>> card["constants"], card["protocol"], card["severities"]
        ('imagenet', 'imagenet_c', 5)
    """
    code = {name: text for name in names if (text := user_code(name))}
    height, width, channels = static_shape(tf.TensorSpec([None, *image_shape]))
    constants_set = severities.nearest_set(height, width) if constants == "auto" else constants
    side = severities.SETS[constants_set]
    note = "" if height == width == side else f", made for {side}x{side}, used for {height}x{width}"
    return {
        "constants": constants_set + note,
        "protocol": protocol,
        "frost": frost_source(frost_dir),
        "severities": 5,
        **({"one_channel": "color operations: luma of three equal channels; saturate: identity"} if channels == 1 else {}),
        **({"user_code": code} if code else {}),
    }


def user_code(name: str) -> str | None:
    """Returns a digest of the code and the levels of a corruption that a user defined; None: it is one of the package."""
    corruption = CORRUPTIONS[name]
    code = digest(corruption.apply, corruption.draw)
    if code is None and corruption.levels is None:
        return None
    return hashlib.sha256(repr((code, corruption.levels)).encode()).hexdigest()[:16]
