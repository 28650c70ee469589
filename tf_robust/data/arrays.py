"""Images and labels in memory as a `Source`: arrays, a tf.data.Dataset, `npz:FILE`.

Images are rounded to the 256 levels in which data sets store them.
"""

import contextlib
import dataclasses
import numbers
import os
import re
import typing
import zipfile
from collections.abc import Sequence

import numpy as np
import pandas
import tensorflow as tf
from numpy.typing import ArrayLike

from tf_robust.data.kinds import ReadOptions, path_of
from tf_robust.data.source import ArraySource, Source, check_labels, normalize_name
from tf_robust.data.subsets import without_validation
from tf_robust.ops import pixel_scale
from tf_robust.utils.files import DAMAGED

WHOLE = "all"  # the split of a data set without splits
_MAX_EXAMPLES = 200_000  # read from a Dataset of unknown length
_CHANNELS = (1, 3)
_SPLIT_ARRAYS = {"x_train", "y_train", "x_test", "y_test"}
_TOLERANCE = 0.005  # of the pixel scale
_DARK = 64  # integer images none of whose values is as high are hardly on the scale 0..255


def from_arrays(
    images: ArrayLike,
    labels: ArrayLike,
    name: str = "arrays",
    *,
    data_range: str = "",
    class_names: Sequence[str] = (),
    num_classes: int = 0,
) -> ArraySource:
    """Returns a source of images and labels in memory.

    Args:
        images: [N, H, W, C], [N, C, H, W] or [N, H, W], 1 or 3 channels; uint8, or floats on the scale `data_range`.
        labels: [N] or [N, 1] class indices or class names, or [N, classes] one-hot.
        name: of the data set.
        data_range: pixel scale of the images: 0,1 or 0,255 or "mean=M,M,M std=S,S,S"; empty: 0..255 for integers, 0..1 for floats.
        class_names: one per class index; empty: the numbers, or the sorted names if labels are names.
        num_classes: number of classes if labels are indices; 0: the largest index + 1.

    Raises:
        ValueError: another shape, values outside `data_range`, or labels that are none of these.

    Examples:
        >>> source = tfr.data.from_arrays(np.random.RandomState(0).rand(4, 8, 8), ["cat", "dog", "dog", "cat"])
        >>> source.images.dtype, source.images.shape
        (dtype('uint8'), (4, 8, 8, 1))
        >>> source.labels, source.class_names
        (array([0, 1, 1, 0]), ('cat', 'dog'))
    """
    if isinstance(images, list | tuple) and len(sizes := sorted({np.shape(image) for image in images})) > 1:
        raise ValueError(f"Expected images of one size in {name}. Received: {sizes[0]} and {sizes[1]}. Try: resize them, or folder:DIR")
    pixels = np.asarray(images)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim == 4 and pixels.shape[3] not in _CHANNELS and pixels.shape[1] in _CHANNELS:
        pixels = np.moveaxis(pixels, 1, 3)
    if pixels.ndim != 4 or pixels.shape[3] not in _CHANNELS or 0 in pixels.shape or pixels.dtype.kind not in "biuf":
        raise ValueError(
            f"Expected images [N, H, W, C], [N, C, H, W] or [N, H, W], with 1 or 3 channels, in {name}. "
            f"Received: {pixels.dtype} {pixels.shape}"
        )
    if pixels.dtype == np.uint8 and data_range in ("", "0,255"):
        _check_scale(pixels, data_range, name)
        pixels = np.ascontiguousarray(pixels)
    else:
        pixels = np.round(255 * unit_images(pixels, data_range, name)).astype(np.uint8)
    indices, names = class_indices(labels, name, class_names, num_classes)
    return ArraySource.of(name, WHOLE, pixels, indices, names)


def from_dataset(dataset: tf.data.Dataset, name: str = "dataset", limit: int = 0, **options: typing.Any) -> ArraySource:
    """Returns a source of the examples of a Dataset, which is read once. Options and errors as in `from_arrays`.

    Args:
        dataset: of (image, label), single examples or batches; elements may have the fields "image" and "label" instead.
        name: of the data set.
        limit: number of examples to read of an endless Dataset.

    Examples:
        >>> images, labels = tfr.images(20, data="digits")
        >>> dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(8)
        >>> len(tfr.data.from_dataset(dataset))
        20
    """
    endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    if endless and not limit:
        raise ValueError(f"Expected a finite {name}. Received: an endless one (repeat). Try: subset=1000, or dataset.take(1000)")
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    count = 0
    for element in dataset.as_numpy_iterator():
        image, label = _image_and_label(element, name)
        if not images and _is_ambiguous(image, np.asarray(label)):
            raise ValueError(
                f"Expected images [H, W, C] or batches [N, H, W, C] in {name}. Received: {image.shape} with labels {np.shape(label)}, "
                "one image of 3 channels or 3 images. Try: tf.transpose or expand_dims in dataset.map"
            )
        batched = _is_batch(image, label)
        images.append(image if batched else image[None])
        labels.append(np.asarray(label) if batched else np.asarray(label)[None])
        count += len(images[-1])
        if endless and count >= limit:
            break
        if count > _MAX_EXAMPLES and dataset.cardinality() < 0:
            raise ValueError(f"Expected at most {_MAX_EXAMPLES} examples in {name} of unknown length. Received: more. Try: dataset.take(N)")
    if not images:
        raise ValueError(f"Expected examples in {name}. Received: none")
    if len(sizes := sorted({image.shape[1:] for image in images})) > 1:
        raise ValueError(f"Expected images of one size in {name}. Received: {sizes[0]} and {sizes[1]}. Try: tf.image.resize in dataset.map")
    kept = slice(limit if endless else None)
    return from_arrays(np.concatenate(images)[kept], np.concatenate(labels)[kept], name, **options)


def npz_splits(name: str) -> tuple[str, ...]:
    """Returns the splits of `npz:FILE`, train and test, if it has x_train, y_train, x_test and y_test, as the files of keras.datasets."""
    with contextlib.suppress(*DAMAGED), zipfile.ZipFile(path_of(name)) as arrays:
        return ("train", "test") if {f"{array}.npy" for array in _SPLIT_ARRAYS} <= {*arrays.namelist()} else ()
    return ()  # `open_npz` names what is wrong


def open_npz(name: str, split: str, options: ReadOptions) -> Source:
    """Opens `npz:FILE`, with the arrays x and y or images and labels, or with splits as by `npz_splits` (then validation is a part
    of the training images); `data_range` and `num_classes` as in `from_arrays`.
    """
    path = path_of(name)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"Expected an .npz file of images and labels. Not found: {path}")
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ValueError("an .npy file of one array")
        with loaded as arrays:
            found = dict(arrays)
    except DAMAGED as error:
        raise ValueError(f"Expected an .npz file of arrays of numbers or text. Received: {path} ({error})") from error
    if _SPLIT_ARRAYS <= found.keys():
        classes = class_indices(np.concatenate([found["y_train"], found["y_test"]]), name, (), options.num_classes)[1]
        part = "test" if split == "test" else "train"
        source: Source = from_arrays(found[f"x_{part}"], found[f"y_{part}"], name, data_range=options.data_range, class_names=classes)
        source = source if part == "test" else without_validation(source, split, options.validation_fraction)
        return dataclasses.replace(source, split=split)
    for images, labels in (("x", "y"), ("images", "labels"), ("x_test", "y_test")):
        if {images, labels} <= found.keys():
            return from_arrays(found[images], found[labels], name, data_range=options.data_range, num_classes=options.num_classes)
    raise ValueError(f"Expected the arrays x and y, or images and labels, in {path}. Received: {', '.join(found) or 'none'}")


def class_indices(
    labels: ArrayLike, where: str, class_names: Sequence[str] = (), num_classes: int = 0
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns labels as class indices, int64 [N], and the names of the classes. Arguments as in `from_arrays`; where: for messages."""
    values = np.asarray(labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 1 and (missing := np.flatnonzero(pandas.isna(values))).size:
        raise ValueError(f"Expected a label for each image of {where}. Received: {values[missing[0]]} at index {missing[0]}")
    if values.ndim == 1 and values.dtype.kind in "SUO":
        if all(isinstance(value, numbers.Real) and float(value).is_integer() for value in values):
            values = values.astype(np.int64)
        else:
            texts = [normalize_name(one.decode("utf-8", "backslashreplace") if isinstance(one, bytes) else str(one)) for one in values]
            if class_names or not all(re.fullmatch(r"\d+(\.0+)?", text) for text in texts):
                names = tuple(map(normalize_name, class_names)) or tuple(sorted(set(texts)))
                if unknown := sorted(set(texts) - set(names)):
                    raise ValueError(f"Expected labels in {where} of the classes {', '.join(names)}. Received: {unknown[0]!r}")
                positions = {name: position for position, name in enumerate(names)}
                return np.array([positions[text] for text in texts], np.int64), names
            values = np.array([text.partition(".")[0] for text in texts], np.int64)  # 3.0: of columns with missing numbers
    if values.ndim == 2 and values.dtype.kind in "biuf":
        if not (((values == 0) | (values == 1)).all() and (values.sum(axis=1) == 1).all()):
            raise ValueError(
                f"Expected one-hot labels in {where}: one 1 in every row. Received: {values.dtype} {values.shape} with other rows. "
                "Try: class indices, labels.argmax(axis=1)"
            )
        num_classes, values = max(num_classes, values.shape[1]), values.argmax(axis=1)
    if values.ndim != 1 or values.dtype.kind not in "biuf" or not (values == np.floor(values)).all():
        raise ValueError(
            f"Expected labels as class indices [N], names [N] or one-hot [N, classes] in {where}. Received: {values.dtype} {values.shape}"
        )
    indices = values.astype(np.int64)
    names = tuple(class_names) or tuple(map(str, range(num_classes or indices.max(initial=-1) + 1)))
    check_labels(indices, len(names), where)
    return indices, names


def _image_and_label(element, where):
    """Returns the two parts of an element of a Dataset."""
    is_tuple = isinstance(element, (tuple, list))
    if isinstance(element, dict) and {"image", "label"} <= element.keys():
        return element["image"], element["label"]
    if is_tuple and len(element) in (2, 3) and all(hasattr(part, "shape") or np.isscalar(part) for part in element):
        return element[0], element[1]  # a third part is the weight of the example
    kind = f"a tuple of {len(element)}" if is_tuple else type(element).__name__
    raise ValueError(f"Expected a Dataset of (image, label) as {where}. Received elements: {kind}. Try: dataset.map")


def _is_batch(image, label):
    """Returns whether an element of a Dataset is a batch: an image alone has 2 or 3 axes, the last of which may be channels."""
    if image.ndim != 3:
        return image.ndim > 3
    single = image.shape[2] in _CHANNELS or image.shape[0] in _CHANNELS and np.ndim(label) == 0
    return np.ndim(label) > 0 and len(label) == len(image) and not (single and np.ndim(label) < 2)


def _is_ambiguous(image, labels):
    """Returns whether [3, H, W] may be an image with a one-hot label or three gray images with their labels."""
    sizes = image.ndim == 3 and image.shape[0] == 3 and image.shape[2] not in _CHANNELS and labels.shape == (3,)
    return sizes and labels.dtype.kind in "biuf" and sorted(labels.tolist()) == [0, 0, 1]


def unit_images(images: np.ndarray, data_range: str, where: str) -> np.ndarray:
    """Returns images [N, H, W, C], integers or floats on the scale `data_range` (as in `from_arrays`), as float32 in [0, 1].

    Raises ValueError for values not finite, outside `data_range`, or in a part of it so small that it is another scale: less than
    1.5 / 255 of it, and of integers without a declared scale the lowest quarter. `where` names the images in the message.
    """
    scale, offset = _check_scale(images, data_range, where)
    return np.clip((images.astype(np.float32) - offset) / scale, 0, 1)


def _check_scale(images, data_range, where):
    """Returns (scale, offset) of images, which are scale * [0, 1] + offset: float32 [1] or [C] each."""
    declared = data_range or default_range(images)
    scale, offset = (np.array(part, np.float32) for part in pixel_scale.affine(declared, "data_range"))
    if len(scale) not in (1, images.shape[-1]):
        raise ValueError(f"Expected data_range with 1 or {images.shape[3]} numbers, one per channel. Received: {data_range!r}")
    lows, highs = (extreme(images, axis=(0, 1, 2)).astype(np.float32) for extreme in (np.min, np.max))
    low, high = float(lows.min()), float(highs.max())
    if not np.isfinite([low, high]).all():
        raise ValueError(f"Expected finite values in the images of {where}. Received: NaN or infinity")
    unit_low, unit_high = float(((lows - offset) / scale).min()), float(((highs - offset) / scale).max())
    outside = unit_low < -_TOLERANCE or unit_high > 1 + _TOLERANCE
    dark = not data_range and images.dtype.kind in "iu" and 1 < high < _DARK
    if outside or low < high and (dark or unit_high - unit_low < 1.5 / 255):
        fitting = [f"data_range={least},{most}" for least, most in ((0, 1), (0, 255), (-1, 1), (0, 65535)) if least <= low and high <= most]
        if low >= 0 and not data_range and 1 < high < _DARK:
            fitting = [f"data_range=0,{np.ceil(high):g} if that is white, data_range=0,255 if the images are dark"]
        unknown = "data_range='mean=M,M,M std=S,S,S', the numbers by which they were standardized (of images in [0, 1])"
        raise ValueError(
            f"Expected images of {where} on the pixel scale data_range={declared}. "
            f"Received: {images.dtype} from {low:.4g} to {high:.4g}. Try: {[*fitting, unknown][0]}"
        )
    return scale, offset


def default_range(images: np.ndarray) -> str:
    """Returns the pixel scale of images whose scale is not declared: 0,255 of integers, 0,1 of others."""
    return "0,255" if images.dtype.kind in "iu" else "0,1"
