"""Stylized images in addition to the natural ones: the joint training of Geirhos et al. (ICLR 2019), SIN + IN.

Stylized images are read from a directory, one folder per class: DIR/train/CLASS/NAME, else DIR/CLASS/NAME. An epoch covers both
kinds in one common order.
"""

import dataclasses
import os

import numpy as np
import tensorflow as tf

from tf_robust.data.fitting import Fit
from tf_robust.data.folders import SUFFIXES
from tf_robust.data.source import Source
from tf_robust.ops import image_ops


def with_stylized(source: Source, directory: str) -> Source:
    """Adds stylized images to a training set.

    For `folder:` data every image has one stylized image, of the same class folder and name; the suffix may differ, as in
    Stylized-ImageNet. Images that are held out, such as for validation, are thus held out in both kinds. For data in memory the
    class folders are the class names; they contain any number of images of any name, none of them of an image that is held
    out, which cannot be checked. Images of another size are resized.

    Args:
        source: data in memory, or image files in class folders.
        directory: of the stylized images.

    Returns:
        a source of the same kind: the natural images, then the stylized ones

    Raises:
        FileNotFoundError: the directory, a class or an image is missing.
        ValueError: a folder that is not a class; a file that is not an image; a data set that is read as a stream.
    """
    if source.paths is None and not source.in_memory:
        raise ValueError(
            f"Expected data in memory or data=folder:DIR for training with stylized images. Received: "
            f"{source.name}, which is read as a stream"
        )
    root = os.path.expanduser(directory)
    if not os.path.isdir(root):
        raise FileNotFoundError(f"Expected stylized images in {directory}, one subfolder per class. Not found")
    train = os.path.join(root, "train")
    root = train if os.path.isdir(train) and "train" not in source.class_names else root
    return _arrays(source, root) if source.paths is None else _files(source, root)


def _files(source, root):
    names = [path.split(os.sep)[-2:] for path in source.paths]  # [class folder, name]
    folders = {folder for folder, _ in names}
    files = [path for paths in _images(root, folders, folders | set(source.class_names)).values() for path in paths]
    by_name = {**{os.path.splitext(path)[0]: path for path in files}, **{path: path for path in files}}  # prefers the same suffix
    expected = [os.path.join(root, folder, name) for folder, name in names]
    stylized = [by_name.get(path, by_name.get(os.path.splitext(path)[0])) for path in expected]
    missing = [path for path, match in zip(expected, stylized) if match is None]
    if missing:
        raise FileNotFoundError(
            f"Expected a stylized image for each of the {len(source)} images of {source.name}. "
            f"Missing: {len(missing)}, the first {missing[0]}"
        )
    fit = source.fit or Fit(*source.image_shape[:2], "stretch")  # does not change images of this size
    return dataclasses.replace(
        source,
        size=2 * len(source),
        kept=np.tile(source.positions, 2),
        fit=fit,
        paths=(*source.paths, *stylized),
        labels=(*source.labels, *source.labels),
    )


def _arrays(source, root):
    paths = _images(root, source.class_names, source.class_names)
    images = np.stack([_read(path, source.images.shape[1:]) for name in source.class_names for path in paths[name]])
    labels = np.repeat(np.arange(source.num_classes), [len(paths[name]) for name in source.class_names])
    return dataclasses.replace(
        source,
        size=len(source) + len(images),
        kept=None,
        images=np.concatenate([source.images, images]),
        labels=np.concatenate([source.labels, labels]),
    )


def _images(root, classes, known):
    """Returns {class folder: sorted paths} of `classes`, none empty; raises for folders that are not among the known classes."""
    folders = {name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name)) and not name.startswith(".")}
    unknown, missing = sorted(folders - set(known)), sorted(set(classes) - folders)
    if unknown:
        raise ValueError(f"Expected only folders of the training set's classes in {root}. Received also: {_first(unknown)}")
    if missing:
        raise FileNotFoundError(f"Expected a folder of stylized images for each class in {root}. Missing: {_first(missing)}")
    paths_by_class = {
        name: sorted(os.path.join(root, name, file) for file in os.listdir(os.path.join(root, name)) if file.lower().endswith(SUFFIXES))
        for name in classes
    }
    empty = sorted(name for name, paths in paths_by_class.items() if not paths)
    if empty:
        raise FileNotFoundError(
            f"Expected images ({', '.join(SUFFIXES)}) in each class folder of {root}. Received: none in {_first(empty)}"
        )
    return paths_by_class


def _first(names):
    return f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''} ({len(names)})"


def _read(path, shape):
    """Returns uint8 [H, W, C]."""
    try:
        image = image_ops.decode(tf.io.read_file(path), shape[-1])
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(f"Expected an image that can be decoded. Received: {path}") from error
    if image.shape != shape:
        image = tf.cast(tf.clip_by_value(tf.round(image_ops.resize(image, *shape[:2])), 0, 255), tf.uint8)
    return image.numpy()
