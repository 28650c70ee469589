"""The pixels of a unit: chunks of a source, corrupted as they will be stored."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from tf_robust import corruptions
from tf_robust.data.source import Arrays, Source
from tf_robust.ops import image_ops
from tf_robust.utils.errors import unknown

PROTOCOLS = ("cifar_c", "imagenet_c")
_BATCH_VALUES = 3 * 2**20  # values corrupted at once: 1,024 images of 32x32x3, 20 of 224x224x3


@dataclasses.dataclass(frozen=True)
class CorruptionConfig:
    """Everything besides the clean images that the pixels of a corrupted set depend on.

    Args:
        seed: int.
        constants: as in `corruptions.corrupt`.
        protocol: as in `corruptions.corrupt`, but not `float`, which no file format stores.
        frost_dir: as in `corruptions.corrupt`.

    Raises:
        ValueError: unknown protocol.
    """

    seed: int = 0
    constants: str = "auto"
    protocol: str = "cifar_c"
    frost_dir: str | None = None

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise unknown("protocol for files", self.protocol, PROTOCOLS)


class Generator:
    """Generates chunks of corrupted images. A chunk is divided into the same batches wherever and whenever it is generated.

    Args:
        source: the clean images.
        corruption_config: a `CorruptionConfig`.
        as_files: omit what the protocol's file format does to an image, since the file itself will do it.
    """

    def __init__(self, source: Source, corruption_config: CorruptionConfig, *, as_files: bool = False) -> None:
        self.source, self.corruption_config = source, corruption_config
        self._protocol = "cifar_c" if as_files else corruption_config.protocol
        self._batch = max(1, _BATCH_VALUES // int(np.prod(source.image_shape)))
        traced = 1 if source.in_memory else 128  # in memory, one corruption of all chunks follows another; else they alternate
        self._corruption = functools.lru_cache(maxsize=traced)(self._traced)
        self.chunk = functools.lru_cache(maxsize=1)(source.read_range)

    def __call__(self, name: str, severity: int, first: int, last: int) -> Arrays:
        """Returns the images `first`..`last` - 1 corrupted: (uint8 [n, H, W, C], int64 labels [n])."""
        images, labels = self.chunk(first, last)
        positions, corrupt = self.source.positions[first:last], self._corruption(name, severity)
        corrupted = np.empty_like(images)
        for start in range(0, last - first, self._batch):
            cut = slice(start, start + self._batch)
            corrupted[cut] = corrupt(tf.constant(images[cut]), tf.constant(positions[cut], tf.int64))
        return corrupted, labels

    def _traced(self, name, severity):
        config = self.corruption_config
        options = {"constants": config.constants, "protocol": self._protocol, "frost_dir": config.frost_dir}
        specs = [tf.TensorSpec([None, *self.source.image_shape], tf.uint8), tf.TensorSpec([None], tf.int64)]

        @tf.function(autograph=False, input_signature=specs)
        def levels(images, positions):
            corrupted = corruptions.corrupt(image_ops.to_float(images), name, severity, config.seed, positions, **options)
            return tf.cast(tf.round(corrupted * 255.0), tf.uint8)

        return levels.get_concrete_function()
