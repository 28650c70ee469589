"""Training images of two sources in one common order."""

import dataclasses
import typing
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_robust.data.source import Source, digest


@dataclasses.dataclass(frozen=True)
class JoinedSource(Source):
    """The images of one source, then those of another; an epoch draws both in one random order. It is read as a stream.

    Attributes:
        first: has the classes.
        second: images of the same shape.
        second_labels: class of `first` for each class of `second`.
    """

    first: Source = None  # type: ignore[assignment]  # fields after optional ones need a default
    second: Source = None  # type: ignore[assignment]
    second_labels: tuple[int, ...] = ()

    @classmethod
    def of(cls, first: Source, second: Source, second_labels: Sequence[int]) -> typing.Self:
        """Returns the joined source; arguments as the attributes.

        Raises:
            ValueError: images of another shape.
        """
        if first.image_shape != second.image_shape:
            raise ValueError(
                f"Expected images of {first.name} and {second.name} of one shape. Received: {first.image_shape}, {second.image_shape}"
            )
        size, mask = len(first) + len(second), first.class_mask
        if mask and not {*second_labels} <= {*mask}:
            mask = tuple(sorted({*mask, *second_labels}))
        name = f"{first.name} and {second.name}"
        return cls(
            name,
            first.split,
            first.class_names,
            first.image_shape,
            size,
            class_mask=mask,
            label_columns=first.label_columns,
            label_set=first.label_set,
            first=first,
            second=second,
            second_labels=tuple(second_labels),
        )

    @property
    def cuts_windows(self) -> bool:
        return self.first.cuts_windows and self.second.cuts_windows

    def ordered(self, batch_size: int) -> tf.data.Dataset:
        second = self.second.ordered(batch_size).map(lambda images, labels: (images, self._mapped(labels)))
        return self.first.ordered(batch_size).concatenate(second).unbatch().batch(batch_size)

    def _mapped(self, labels):
        return tf.gather(tf.constant(self.second_labels, tf.int64), labels)

    def epoch(
        self, seed: int, epoch: int | tf.Tensor, batch_size: int, skip_batches: int | tf.Tensor = 0, windows: Sequence[float] = ()
    ) -> tf.data.Dataset:
        def renumbered(images, labels, positions):
            return images, self._mapped(labels), positions + len(self.first)

        first = self.first.epoch(seed, epoch, 1, 0, windows).unbatch()
        second = self.second.epoch(seed, epoch, 1, 0, windows).map(renumbered).unbatch()
        is_second = tf.cast(self.epoch_order(seed, epoch) >= len(self.first), tf.int64)
        chosen = tf.data.Dataset.choose_from_datasets([first, second], tf.data.Dataset.from_tensor_slices(is_second))
        return chosen.batch(batch_size, drop_remainder=True).skip(tf.cast(skip_batches, tf.int64))

    def read_labels(self) -> np.ndarray:
        return np.concatenate([self.first.read_labels(), np.take(self.second_labels, self.second.read_labels())])

    def fingerprint(self) -> str:
        return digest(self.first.fingerprint(), self.second.fingerprint(), str(self.second_labels))
