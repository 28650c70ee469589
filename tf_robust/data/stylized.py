"""Stylized images beside the natural ones: the joint training of Geirhos et al. (ICLR 2019), SIN + IN.

How the images are stylized is not our concern; they lie in a directory, one folder a class: DIR/train/CLASS/NAME, else
DIR/CLASS/NAME. An epoch goes over both kinds, in one order of its own.
"""

import dataclasses
import os

import numpy as np
import tensorflow as tf

from tf_robust.data.fitting import Fit
from tf_robust.data.folders import SUFFIXES, FileSource
from tf_robust.data.source import ArraySource
from tf_robust.ops import image_ops


def with_stylized(source, directory):
    """A training set and its stylized images.

    For `folder:` data every image has one stylized image, of the same class folder and name; the suffix may differ, as in
    Stylized-ImageNet. So images that are left out, say for validation, are left out in both kinds. For data in memory the
    class folders are the class names; they hold any number of images of any name, none of them of an image that is held
    out, which cannot be checked. Images of another size are resized.

    Args:
        source: a `FileSource` or an `ArraySource`. directory: where the stylized images are.

    Returns:
        a source of the same kind: the natural images, then the stylized ones.

    Raises:
        FileNotFoundError: there is no such directory; a class or an image is missing in it.
        ValueError: a folder that is no class; a file that is no image; a data set that is read as a stream.
    """
    if not isinstance(source, (FileSource, ArraySource)):
        raise ValueError(f"Expected data in memory or data=folder:DIR for a training with stylized images. Received: "
                         f"{source.name}, which is read as a stream")
    root = os.path.expanduser(directory)
    if not os.path.isdir(root):
        raise FileNotFoundError(f"Expected stylized images in {directory}, one subfolder a class. Not found")
    train = os.path.join(root, "train")
    root = train if os.path.isdir(train) and "train" not in source.class_names else root
    return _files(source, root) if isinstance(source, FileSource) else _arrays(source, root)


def _files(source, root):
    here = [path.split(os.sep)[-2:] for path in source.paths]  # [class folder, name]
    held = {folder for folder, _ in here}
    there = [path for paths in _images(root, held, held | set(source.class_names)).values() for path in paths]
    there = {**{os.path.splitext(path)[0]: path for path in there}, **{path: path for path in there}}  # the same name first
    wanted = [os.path.join(root, folder, name) for folder, name in here]
    found = [there.get(path, there.get(os.path.splitext(path)[0])) for path in wanted]
    lost = [path for path, stylized in zip(wanted, found) if stylized is None]
    if lost:
        raise FileNotFoundError(f"Expected a stylized image for each of the {len(source)} images of {source.name}. "
                                f"Missing: {len(lost)}, the first {lost[0]}")
    fit = source.fit or Fit(*source.image_shape[:2], "stretch")  # which changes no image of this size
    return dataclasses.replace(source, size=2 * len(source), kept=np.tile(source.positions, 2), fit=fit,
                               paths=(*source.paths, *found), labels=(*source.labels, *source.labels))


def _arrays(source, root):
    paths = _images(root, source.class_names, source.class_names)
    images = np.stack([_read(path, source.images.shape[1:]) for name in source.class_names for path in paths[name]])
    labels = np.repeat(np.arange(source.num_classes), [len(paths[name]) for name in source.class_names])
    return dataclasses.replace(source, size=len(source) + len(images), kept=None,
                               images=np.concatenate([source.images, images]), labels=np.concatenate([source.labels, labels]))


def _images(root, wanted, known):
    """{class folder: sorted paths} of the wanted ones, none empty; no folder may be other than the known ones."""
    folders = {name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name)) and not name.startswith(".")}
    strange, lost = sorted(folders - set(known)), sorted(set(wanted) - folders)
    if strange:
        raise ValueError(f"Expected only folders of the training set's classes in {root}. Received also: {_first(strange)}")
    if lost:
        raise FileNotFoundError(f"Expected a folder of stylized images for each class in {root}. Missing: {_first(lost)}")
    found = {name: sorted(os.path.join(root, name, file) for file in os.listdir(os.path.join(root, name))
                          if file.lower().endswith(SUFFIXES)) for name in wanted}
    empty = sorted(name for name, paths in found.items() if not paths)
    if empty:
        raise FileNotFoundError(f"Expected images ({', '.join(SUFFIXES)}) in each class folder of {root}. "
                                f"Found none in: {_first(empty)}")
    return found


def _first(names):
    return f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''} ({len(names)})"


def _read(path, shape):
    """uint8 [H, W, C]"""
    try:
        image = tf.io.decode_image(tf.io.read_file(path), channels=shape[-1], expand_animations=False)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(f"Expected an image that can be decoded. Received: {path}") from error
    if image.shape != shape:
        image = tf.cast(tf.clip_by_value(tf.round(image_ops.resize(image, *shape[:2])), 0, 255), tf.uint8)
    return image.numpy()
