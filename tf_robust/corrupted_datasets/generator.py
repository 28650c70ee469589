"""The pixels of a unit: chunks of a source, corrupted as they will be stored."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tf_robust import corruptions
from tf_robust.data import ArraySource, FileSource
from tf_robust.data.source import PARALLEL_READS
from tf_robust.data.tfds_sets import RecordSource
from tf_robust.ops import image_ops
from tf_robust.utils.errors import unknown

PROTOCOLS = ("cifar_c", "imagenet_c")
_BATCH_VALUES = 3 * 2**20  # pixels times channels that are corrupted at once: 1,024 images of 32 pixels, 20 of 224
_READ = 64


@dataclasses.dataclass(frozen=True)
class CorruptionConfig:
    """What the pixels of a corrupted set depend on, beside the clean images.

    Args:
        seed: int. constants, protocol, frost_dir: as `corruptions.corrupt`, but not the protocol `float`, which no file
            holds.
    """
    seed: int = 0
    constants: str = "auto"
    protocol: str = "cifar_c"
    frost_dir: str = None

    def __post_init__(self):
        if self.protocol not in PROTOCOLS:
            raise unknown("protocol for files", self.protocol, PROTOCOLS)


class Generator:
    """Makes chunks of corrupted images. A chunk is cut into the same batches wherever and whenever it is made.

    Args:
        source: the clean images. corruption_config: a `CorruptionConfig`.
        as_files: leave out what the protocol's file format does to an image: the file itself will do it.
        keep: traced corruptions to hold: all, where corruptions come in turn, or 1.
    """

    def __init__(self, source, corruption_config, *, as_files=False, keep=128):
        self.source, self.corruption_config = source, corruption_config
        self._protocol = "cifar_c" if as_files else corruption_config.protocol
        self._batch = max(1, _BATCH_VALUES // int(np.prod(source.image_shape)))
        self.corruption = functools.lru_cache(maxsize=keep)(self._traced)
        self.chunk = functools.lru_cache(maxsize=1)(functools.partial(read_chunk, source))

    def __call__(self, name, severity, first, last):
        """The images `first`..`last` - 1 corrupted: (uint8 [n, H, W, C], int64 labels [n])."""
        images, labels = self.chunk(first, last)
        positions, corrupt = self.source.positions[first:last], self.corruption(name, severity)
        made = np.empty_like(images)
        for start in range(0, last - first, self._batch):
            cut = slice(start, start + self._batch)
            made[cut] = corrupt(tf.constant(images[cut]), tf.constant(positions[cut], tf.int64))
        return made, labels

    def _traced(self, name, severity):
        corruption_config, shape = self.corruption_config, self.source.image_shape

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, *shape], tf.uint8), tf.TensorSpec([None], tf.int64)])
        def levels(images, positions):
            found = corruptions.corrupt(image_ops.to_float(images), name, severity, corruption_config.seed, positions,
                                        constants=corruption_config.constants, protocol=self._protocol, frost_dir=corruption_config.frost_dir)
            return tf.cast(tf.round(found * 255.0), tf.uint8)
        return levels.get_concrete_function()


def read_chunk(source, first, last):
    """The images `first`..`last` - 1 of a source in its fixed order: (uint8 [n, H, W, C], int64 labels [n])."""
    if isinstance(source, ArraySource) and source.fit is None:
        return source.images[first:last], source.labels[first:last]
    if isinstance(source, (ArraySource, FileSource)):
        batches = source.subset(np.arange(first, last)).ordered(_READ)
    elif isinstance(source, RecordSource):
        batches = _RecordRange(**vars(source), first=first, last=last).ordered(_READ)
    else:
        batches = source.ordered(1).skip(first).take(last - first)
    images, labels = zip(*batches.as_numpy_iterator())
    return np.concatenate(images), np.concatenate(labels)


@dataclasses.dataclass(frozen=True)
class _RecordRange(RecordSource):
    """The examples `first`..`last` - 1 of a stream: files before them are not opened, records not decoded."""
    first: int = 0
    last: int = 0

    def ordered(self, batch_size):
        ends = np.cumsum(self.builder.info.splits[self.tfds_split].shard_lengths)
        file = int(np.searchsorted(ends, self.first, side="right"))
        before = self.first - int(ends[file - 1]) if file else self.first
        records = tf.data.TFRecordDataset(self._files[file:]).skip(before).take(self.last - self.first)
        return records.enumerate().map(self._example(), PARALLEL_READS, deterministic=True).batch(batch_size)
