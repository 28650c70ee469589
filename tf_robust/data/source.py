"""One split of a data set, `Source`: its size, its classes, and its batches in a fixed order or in the order of an epoch.

`Fit` resizes images to the height and width of a source.
"""

import contextlib
import dataclasses
import hashlib
import os
import typing
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_robust.ops import image_ops, philox
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import path_text

PARALLEL_READS = max(2, os.cpu_count() or 2)  # images
_RANGE_BATCH = 64  # images decoded at once by `read_range`
_BALANCED = 1  # purpose of the draws of `balanced_order`
FITS = ("crop", "stretch", "pad")
USUAL_SIZE = (224, 224)  # default for images of many sizes
_MARGIN = 256 / 224  # ImageNet's evaluation protocol: the shorter side becomes 256, of which 224 are kept

Arrays: typing.TypeAlias = tuple[np.ndarray, np.ndarray]  # uint8 [N, H, W, C], int64 [N]


@dataclasses.dataclass(frozen=True)
class Fit:
    """Resizes one image [h, w, C] of any size, or a batch [N, h, w, C], to float32 [..., height, width, C]: bilinear, antialiased.

    Attributes:
        height, width: of the result, in pixels.
        how: `crop` covers the result and crops the center; `stretch` ignores the aspect ratio; `pad` puts the image on black.
        varying: the images have many sizes. `crop` then follows ImageNet's protocol: an image first covers 8/7 of the height and
            width, and training crops random windows instead.
    """

    height: int
    width: int
    how: str = "crop"
    varying: bool = False

    def __post_init__(self) -> None:
        if self.how not in FITS:
            raise unknown("image_fit", self.how, FITS)

    @property
    def random_windows(self) -> bool:
        """Whether training crops random windows of the images."""
        return self.varying and self.how == "crop"

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        channels, target = images.shape[-1], tf.constant([self.height, self.width], tf.float32)
        shape = tf.cast(tf.shape(images)[-3:-1], tf.float32)
        if self.how == "stretch":
            scaled = tf.constant([self.height, self.width])
        elif self.how == "pad":
            side = tf.argmax(shape / target)
            scaled = tf.maximum(1, tf.cast(tf.round(shape * (target[side] / shape[side])), tf.int32))
        else:
            side = tf.argmin(shape / target)
            scaled = tf.cast(tf.round(shape * (target[side] * (_MARGIN if self.varying else 1.0)) / shape[side]), tf.int32)
        images = tf.image.resize_with_crop_or_pad(image_ops.resize(images, scaled[0], scaled[1]), self.height, self.width)
        return tf.ensure_shape(images, [*images.shape[:-3], self.height, self.width, channels])

    def levels(self, images: tf.Tensor) -> tf.Tensor:
        """Applies the fit to uint8 images in 0..255; the result is rounded to uint8."""
        return tf.cast(tf.round(tf.clip_by_value(self(images), 0, 255)), tf.uint8)

    def __str__(self) -> str:
        size = f"{self.height}x{self.width}"
        if self.random_windows:
            return f"resized to cover {round(self.height * _MARGIN)}x{round(self.width * _MARGIN)}, center-cropped to {size}"
        return {
            "crop": f"resized to cover {size}, center-cropped",
            "stretch": f"resized to {size}, whatever the aspect ratio",
            "pad": f"resized to fit inside {size}, padded with black",
        }[self.how]


@dataclasses.dataclass(frozen=True)
class Source:
    """One split of a data set.

    Attributes:
        name: the requested name.
        split: train, validation or test.
        class_names: one name per label.
        image_shape: (H, W, C), the same for all images.
        size: number of examples.
        kept: int [size], positions of the examples in the full set, for a subset; None: the full set.
        class_mask: the columns of the logits that compete, sorted; None: all.
        label_columns: column of the model's output for each class, where labels are mapped to these columns; None: they are not.
        fit: how images of other sizes are resized to `image_shape`; None: they have that size and are unchanged.
        columns: {name: text [N] of each example of the full set}, further columns of a table of images; None: none.
        label_set: published set of classes of the labels, one of `configs.data.LABEL_SETS`; empty: not declared.
        balanced: whether an epoch draws every class equally often (`subsets.balanced`).
        superset: the source of which this is a subset, or a function that reads it; None: it is complete.

    """

    in_memory: typing.ClassVar[bool] = False  # in `images`
    random_access: typing.ClassVar[bool] = False  # `subset` works and `labels` are known; otherwise the set is read as a stream
    sorted_by_class: typing.ClassVar[bool] = False  # the fixed order is class by class

    name: str
    split: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    size: int
    _: dataclasses.KW_ONLY
    kept: np.ndarray | None = None
    class_mask: tuple[int, ...] | None = None
    label_columns: tuple[int, ...] | None = None
    fit: Fit | None = None
    label_set: str = ""
    balanced: bool = False
    columns: Mapping[str, np.ndarray] | None = None
    superset: "Source | Callable[[], Source] | None" = dataclasses.field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        return self.size

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def has_columns_of(self, num_classes: int) -> bool:
        """Returns whether the labels are columns of a model with `num_classes` outputs."""
        return num_classes == self.num_classes or self.label_columns is not None and max(self.label_columns) < num_classes

    @property
    def complete(self) -> "Source":
        """The complete source of which this is a part; itself if it is complete."""
        *_, source = self._with_supersets()
        return source

    def _with_supersets(self):
        source: Source | None = self
        while source is not None:
            yield source
            source = source.superset() if callable(source.superset) else source.superset

    @property
    def labels(self) -> Sequence[int] | np.ndarray | None:
        """Labels [N] in the fixed order; None unless the source has random access."""
        return None

    @property
    def paths(self) -> tuple[str, ...] | None:
        """Image files [N] in the fixed order; None unless every image is a file in a class folder."""
        return None

    @property
    def cuts_windows(self) -> bool:
        """Whether `epoch` can crop the windows of views from images in their original size."""
        return self.fit is not None and not self.in_memory

    @property
    def varying_size(self) -> bool:
        """Whether images come in many sizes, of which training crops random windows."""
        return self.fit is not None and self.fit.random_windows

    def resized(self, size: Sequence[int], how: str) -> typing.Self:
        """Returns the source with images of `size`, (height, width); itself if they have that size or `size` is empty."""
        if not size or tuple(size) == tuple(self.image_shape[:2]):
            return self
        height, width = size
        return dataclasses.replace(self, image_shape=(height, width, self.image_shape[2]), fit=Fit(height, width, how))

    def _changed(self):
        """Returns the part of the fingerprint for `fit`: empty for ImageNet's protocol, the default for images of many sizes."""
        return "" if self.fit is None or self.fit.random_windows else str(self.fit)

    @property
    def positions(self) -> np.ndarray:
        """Position of each example in the full set, int [N]."""
        return np.arange(self.size) if self.kept is None else self.kept

    def epoch_order(self, seed: int, epoch: int | tf.Tensor) -> tf.Tensor:
        """Returns the examples of an epoch, int [size] positions in the fixed order: a pure function of (seed, epoch)."""
        return balanced_order(self.read_labels(), seed, epoch) if self.balanced else epoch_order(self.size, seed, epoch)

    def ordered(self, batch_size: int) -> tf.data.Dataset:
        """Returns a Dataset of (uint8 [B, H, W, C], int64 [B]) in the fixed order; the last batch may be smaller."""
        raise NotImplementedError

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for reading this source, in which errors name the file that cannot be read."""
        return contextlib.nullcontext()

    def fingerprint(self) -> str:
        """Returns a text that is equal for the same examples in the same order and differs for others."""
        raise NotImplementedError

    def fingerprints(self) -> Iterator[str]:
        """Yields the fingerprint of this source, and of each source of which it is a subset, with images of its size."""
        for source in self._with_supersets():
            yield dataclasses.replace(source, image_shape=self.image_shape, fit=self.fit).fingerprint()

    def epoch(
        self, seed: int, epoch: int | tf.Tensor, batch_size: int, skip_batches: int | tf.Tensor = 0, windows: Sequence[float] = ()
    ) -> tf.data.Dataset:
        """Returns the full batches of an epoch but the first `skip_batches`, in an order that is a pure function of (seed, epoch).

        Batches are (uint8 [B, H, W, C], int64 [B] labels, int64 [B] positions in the fixed order). windows: for a source with
        `cuts_windows`, the smallest fraction of an image's area for each view's own window; images are then [B, len(windows), H, W, C].
        """
        raise NotImplementedError

    def check_random_access(self, expected: str, received: object, advice: str = "") -> None:
        """Raises ValueError, of what was expected and received, if the source is read as a stream."""
        if not self.random_access:
            raise ValueError(f"Expected {expected} for {self.name}, which is read as a stream. Received: {received}{advice}")

    def subset(self, indices: np.ndarray) -> typing.Self:
        """Returns the examples at these positions of the fixed order, int [M]; raises ValueError if the source is read as a stream."""
        raise ValueError(f"Expected a data set that supports subsets. Received: {self.name}, which is read as a stream")

    def _select(self, indices, **fields):
        return dataclasses.replace(self, size=len(indices), kept=self.positions[indices], superset=self, **fields)

    def part(self, first: int, last: int) -> typing.Self:
        """Returns the examples `first`..`last` - 1 of the fixed order, for evaluation; also of a source that is read as a stream."""
        return self.subset(np.arange(first, last))

    def read_labels(self) -> np.ndarray:
        """Returns the labels, int64 [N], in any order, without decoding images."""
        return np.asarray(self.labels)

    def read_range(self, first: int, last: int) -> Arrays:
        """Returns the examples `first`..`last` - 1 of the fixed order: (uint8 [n, H, W, C], int64 labels [n])."""
        if self.random_access:
            return collect(self.part(first, last).ordered(_RANGE_BATCH))
        return collect(self.ordered(1).skip(first).take(last - first))


@dataclasses.dataclass(frozen=True)
class ArraySource(Source):
    """All examples in memory: images, uint8 [N, H, W, C], and labels, int64 [N].

    Examples:
        >>> images, labels = np.zeros([6, 8, 8, 3], np.uint8), [0, 1, 2, 0, 1, 2]
        >>> source = tfr.data.ArraySource.of("insects", "test", images, labels, ["ant", "bee", "cicada"])
        >>> len(source), source.num_classes, source.image_shape
        (6, 3, (8, 8, 3))
        >>> len(source.subset(np.array([0, 3])))
        2
    """

    in_memory = random_access = True

    images: np.ndarray
    labels: np.ndarray = None  # hides the property of `Source`

    @classmethod
    def of(cls, name: str, split: str, images: np.ndarray, labels: np.ndarray, class_names: Iterable[str]) -> typing.Self:
        """Returns a source of uint8 images [N, H, W, C] and as many labels [N], indices of the class names."""
        images, labels = np.asarray(images), np.asarray(labels, np.int64)
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(labels):
            raise ValueError(
                f"Expected uint8 images [N, H, W, C] in 0..255 and labels [N] in {name} ({split}). "
                f"Received: {images.dtype} {images.shape}, labels {labels.shape}"
            )
        class_names = tuple(class_names)
        check_labels(labels, len(class_names), f"{name} ({split})")
        return cls(name, split, class_names, images.shape[1:], len(images), images, labels)

    def ordered(self, batch_size: int) -> tf.data.Dataset:
        batches = tf.data.Dataset.from_tensor_slices((self.images, self.labels)).batch(batch_size)
        return batches if self.fit is None else batches.map(lambda images, labels: (self.fit.levels(images), labels))

    def epoch(
        self, seed: int, epoch: int | tf.Tensor, batch_size: int, skip_batches: int | tf.Tensor = 0, windows: Sequence[float] = ()
    ) -> tf.data.Dataset:
        del windows  # images have one size: views crop their windows themselves
        with tf.init_scope(), tf.device("CPU"):  # tensors that a graph captures may be larger than its constants, 2 GB
            images, labels = tf.constant(self.images), tf.constant(self.labels)
        batches = tf.data.Dataset.from_tensor_slices(self.epoch_order(seed, epoch)).skip(skip_batches * batch_size)
        change = tf.identity if self.fit is None else self.fit.levels
        return batches.batch(batch_size, drop_remainder=True).map(
            lambda i: (change(tf.gather(images, i)), tf.gather(labels, i), tf.cast(i, tf.int64))
        )

    def subset(self, indices: np.ndarray) -> typing.Self:
        return self._select(indices, images=self.images[indices], labels=self.labels[indices])

    def read_range(self, first: int, last: int) -> Arrays:
        return (self.images[first:last], self.labels[first:last]) if self.fit is None else super().read_range(first, last)

    def fingerprint(self) -> str:
        return digest(self.images, self.labels, self._changed())


def collect(batches: tf.data.Dataset) -> Arrays:
    """Returns the concatenated batches of a Dataset of (images, labels)."""
    images, labels = zip(*batches.as_numpy_iterator())
    return np.concatenate(images), np.concatenate(labels)


def digest(*parts: str | np.ndarray) -> str:
    """Returns the first 16 hexadecimal digits of the SHA-256 of arrays and texts."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).data)
    return sha.hexdigest()[:16]


def epoch_order(size: int, seed: int, epoch: int | tf.Tensor) -> tf.Tensor:
    """Returns the order of an epoch, int [size]: a pure function of (seed, epoch)."""
    return tf.random.experimental.stateless_shuffle(tf.range(size), tf.stack([tf.constant(seed, tf.int64), epoch]))


def balanced_order(labels: np.ndarray, seed: int, epoch: int | tf.Tensor) -> tf.Tensor:
    """Returns the examples of an epoch in which each of C classes occurs N / C times (rounded up or down), in a random order.

    Of a class with fewer examples each occurs several times, one time more or less than another; of a class with more, a random
    part occurs once. A pure function of (seed, epoch). labels: int [N]; returns int [N], their positions.
    """
    classes, counts = np.unique(labels, return_counts=True)
    of_class, starts = -(-len(labels) // len(classes)), np.cumsum(counts) - counts
    shuffled = epoch_order(len(labels), seed, epoch)
    grouped = tf.gather(shuffled, tf.argsort(tf.gather(tf.constant(labels), shuffled), stable=True))  # class by class
    drawn = tf.gather(grouped, (starts[:, None] + np.arange(of_class) % counts[:, None]).ravel())
    key = philox.fold(tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)]), tf.constant(_BALANCED, tf.int64))
    surplus = len(classes) * of_class - len(labels)  # one draw of as many classes is left out
    skipped = tf.random.experimental.stateless_shuffle(tf.range(len(classes)), key)[:surplus] * of_class
    kept = tf.tensor_scatter_nd_update(tf.fill([len(classes) * of_class], True), skipped[:, None], tf.fill([surplus], False))
    return tf.random.experimental.stateless_shuffle(tf.boolean_mask(drawn, kept), key)


def example_seed(seed: int, epoch: int | tf.Tensor, position: int | tf.Tensor) -> tf.Tensor:
    """Returns the int [2] seed of one example's stateless draws in one epoch."""
    return philox.fold(tf.stack([tf.constant(seed, tf.int64), epoch]), tf.cast(position, tf.int64))


def normalize_name(name: str) -> str:
    """Returns the name of a class as names are compared: text in composed form (NFC), where macOS writes decomposed letters (NFD)."""
    return unicodedata.normalize("NFC", path_text(name))


def list_some(names: Collection[str]) -> str:
    """Returns the first five of some names, and their number, for messages."""
    return f"{', '.join([*names][:5])}{', ...' if len(names) > 5 else ''} ({len(names)})"


def check_labels(labels: np.ndarray, num_classes: int, where: str) -> None:
    """Raises ValueError unless every label is in 0..num_classes - 1; `where` names the labels in the message."""
    labels = np.asarray(labels)
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if bad.size:
        hint = ". Try: labels - 1" if labels.min() == 1 and labels.max() == num_classes else ""
        found = f"{labels[bad[0]]} at index {bad[0]} ({bad.size} labels)"
        raise ValueError(f"Expected labels in 0..{num_classes - 1} in {where}. Received: {found}{hint}")
