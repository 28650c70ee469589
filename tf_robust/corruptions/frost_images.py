"""The five images that frost overlays: procedural ice, or the benchmark's photographs from a folder."""

import functools
import hashlib
import io
import os

import numpy as np
import PIL.Image
import tensorflow as tf

from tf_robust.corruptions import severities
from tf_robust.corruptions.frost_textures import procedural_textures

FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")  # a sixth, frost6.jpg, was never drawn
SCALES = {"cifar": 0.2, "tiny_imagenet": 0.3, "imagenet": 1.0}


def frost_textures(frost_dir: str | os.PathLike | None = None) -> list[np.ndarray]:
    """Returns the five images in full size: a list of float32 [rows, columns, 3] in [0, 1].

    Args:
        frost_dir: folder with the original frost1.png, frost2.png, frost3.png, frost4.jpg and frost5.jpg; None:
            procedural ice that imitates them (`frost_textures.py`).

    Raises:
        FileNotFoundError: one of the five is missing in `frost_dir`.
        ValueError: one of them is not an image.
    """
    return [image.astype(np.float32) / 255 for image in _images(_key(frost_dir))]


def frost_source(frost_dir: str | os.PathLike | None = None) -> str:
    """Returns the textures' origin for result cards: "procedural", or "photographs sha256:" and 12 digits over the files."""
    if frost_dir is None:
        return "procedural"
    digest = hashlib.sha256(b"".join(_contents(_key(frost_dir)))).hexdigest()
    return f"photographs sha256:{digest[:12]}"


def scaled_textures(frost_dir: str | os.PathLike | None, height: int, width: int) -> list[np.ndarray]:
    """Returns the five images scaled for images of height x width: a list of uint8 [rows, columns, 3].

    Full size for images of about ImageNet-C's size, shrunk to 0.3 for Tiny-ImageNet-C's and to 0.2 for CIFAR-C's
    (`severities.nearest_set`). Mirrored at the lower right where an image is larger still.
    """
    scale = SCALES[severities.nearest_set(height, width)]
    scaled = [image if scale == 1.0 else _resize(image, scale) for image in _images(_key(frost_dir))]
    return [
        np.pad(image, [(0, max(height - image.shape[0], 0)), (0, max(width - image.shape[1], 0)), (0, 0)], mode="symmetric")
        for image in scaled
    ]


def windows(frost_dir: str | os.PathLike | None, height: int, width: int, texture: tf.Tensor, corner: tf.Tensor) -> tf.Tensor:
    """Returns one window of height x width for each image.

    Args:
        frost_dir: as in `frost_textures`.
        height: of the windows, in pixels.
        width: of the windows, in pixels.
        texture: int32 [N] in 0..4.
        corner: float [N, 2] in [0, 1): row and column, as fractions of the available range.

    Returns:
        float32 [N, height, width, 3] in 0..255
    """
    pixels, starts, sizes = _concatenated(_key(frost_dir), height, width)
    size = tf.gather(sizes, texture)
    # float64: a corner just below 1 must not become 1
    top_left = tf.cast(tf.cast(corner, tf.float64) * tf.cast(size - [height, width], tf.float64), tf.int32)
    first = tf.gather(starts, texture) + top_left[:, 0] * size[:, 1] + top_left[:, 1]
    cells = (first[:, None] + tf.range(height) * size[:, 1:])[..., None] + tf.range(width)  # [N, height, width]
    return tf.cast(tf.gather(pixels, cells), tf.float32)


@functools.lru_cache(maxsize=8)
def _concatenated(frost_dir, height, width):
    """Returns uint8 [pixels of all five, 3], int32 [5] first pixel of each, int32 [5, 2] rows and columns of each."""
    textures = scaled_textures(frost_dir, height, width)
    sizes = np.array([texture.shape[:2] for texture in textures], np.int32)
    starts = np.cumsum([0, *sizes.prod(axis=1)[:-1]]).astype(np.int32)
    return np.concatenate([texture.reshape(-1, 3) for texture in textures]), starts, sizes


def _key(frost_dir):
    return None if frost_dir is None else os.fspath(frost_dir)


@functools.lru_cache(maxsize=4)
def _images(frost_dir):
    """Returns a tuple of five uint8 [rows, columns, 3]."""
    if frost_dir is None:
        return procedural_textures()
    return tuple(_decode(content, os.path.join(frost_dir, name)) for name, content in zip(FILES, _contents(frost_dir)))


def _contents(frost_dir):
    """Returns the bytes of the five files."""
    names = tf.io.gfile.listdir(frost_dir) if tf.io.gfile.isdir(frost_dir) else []
    missing = [name for name in FILES if name not in names]
    if missing:
        present = ", ".join(sorted(names)[:20]) or "no such folder, or an empty one"
        raise FileNotFoundError(
            f"Expected {', '.join(FILES)} in frost_dir {frost_dir!r}. Missing: {', '.join(missing)}. Received: {present}"
        )
    contents = []
    for name in FILES:
        with tf.io.gfile.GFile(os.path.join(frost_dir, name), "rb") as file:
            contents.append(file.read())
    return contents


def _decode(content, path):
    try:
        return np.asarray(PIL.Image.open(io.BytesIO(content)).convert("RGB"))
    except OSError as error:
        raise ValueError(f"Expected a frost photograph in {path}. Received: a file that is not an image ({error})") from error


def _resize(image, scale):
    """Interpolates bilinearly between the four nearest pixels without antialiasing, as the benchmark shrank its images."""
    for axis in (0, 1):
        side = image.shape[axis]
        positions = np.clip((np.arange(max(round(side * scale), 1)) + 0.5) / scale - 0.5, 0, side - 1)
        low = np.minimum(positions.astype(int), side - 2)
        fraction = (positions - low).reshape([-1, 1, 1] if axis == 0 else [1, -1, 1])
        image = image.take(low, axis) * (1 - fraction) + image.take(low + 1, axis) * fraction
    return np.round(image).astype(np.uint8)
