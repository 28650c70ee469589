"""The layout of TFDS: a set of TFRecord files for each corruption and severity, NAME_SEVERITY/1.0.0/.

Images are PNG, or JPEG of quality 85 where the storage protocol is ImageNet-C's: the file then implements that protocol.
"""

import functools
import glob
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_robust.corrupted_datasets.layout import Layout
from tf_robust.corrupted_datasets.plan import Unit
from tf_robust.utils.files import atomic_file

VERSION = "1.0.0"
QUALITY = 85
_FRAME = 16  # bytes of a TFRecord around each example


class RecordLayout(Layout):
    """One folder for each corruption and severity."""

    def group(self, name: str, severity: int) -> str:
        return f"{name}_{severity}"

    def path(self, unit: Unit) -> str:
        group = self.group(unit.name, unit.severity)
        return self.unfinished(group, f"{group}-{self.plan.split}.tfrecord-{unit.chunk:05d}-of-{self.plan.chunks:05d}")

    def is_finished(self, group: str) -> bool:
        return os.path.isdir(self._final(group))

    def write(self, unit: Unit, levels: np.ndarray, labels: np.ndarray) -> None:
        images = _encoder(self.plan.jpeg)(levels).numpy()
        with atomic_file(self.path(unit), "wb") as file, tf.io.TFRecordWriter(file.name) as writer:
            for image, label in zip(images, labels):
                writer.write(_example(image, int(label)))

    def _finish(self, group, paths):
        import tensorflow_datasets as tfds

        folder = self.unfinished(group)
        lengths = list(map(self.plan.images, range(self.plan.chunks)))
        split = tfds.core.SplitInfo(
            name=self.plan.split, shard_lengths=lengths, num_bytes=sum(map(os.path.getsize, paths)) - _FRAME * self.plan.size
        )
        kind = "jpeg" if self.plan.jpeg else "png"
        features = tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=self.plan.image_shape, encoding_format=kind),
                "label": tfds.features.ClassLabel(names=self.plan.class_names),
            }
        )
        tfds.folder_dataset.write_metadata(
            data_dir=folder, features=features, split_infos=[split], version=VERSION, supervised_keys=("image", "label"), check_data=False
        )
        for leftover in glob.glob(os.path.join(glob.escape(folder), "*.writing-*")):  # of processes that were killed
            os.remove(leftover)
        for path in set(glob.glob(os.path.join(glob.escape(folder), "*"))) - set(paths):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        os.makedirs(os.path.dirname(self._final(group)), exist_ok=True)
        os.rename(folder, self._final(group))

    def room(self, units: Sequence[Unit]) -> int:
        return 0

    def _final(self, group):
        return os.path.join(self.folder, group, VERSION)


@functools.cache
def _encoder(jpeg):
    """Returns a function uint8 [N, H, W, C] -> bytes [N]."""
    encode = functools.partial(tf.io.encode_jpeg, quality=QUALITY) if jpeg else tf.io.encode_png

    @tf.function(reduce_retracing=True)
    def encoded(levels):
        return tf.map_fn(encode, levels, fn_output_signature=tf.string)

    return encoded


def _example(image, label):
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)
