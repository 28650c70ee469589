"""Where examples come from: `load(name, split, data_dir)` gives (uint8 [H, W, C], int64 label), in a fixed order.

`open_source` gives the same examples as a `Source`, which knows its size and classes and can be read epoch by epoch in
an order that is a pure function of (seed, epoch). Names: `digits`, `synthetic_digits`, `synthetic_mnist`, any
image-classification set of TFDS, `folder:DIR`. Splits: train, validation, test.
"""

import dataclasses
import functools
import os

import numpy as np
import tensorflow as tf

from tf_robust.data import corner_digits, image_ops
from tf_robust.errors import unknown

SPLITS = ("train", "validation", "test")
IN_MEMORY_BYTES = 2**31
_SUBSET_SEED = 20210101  # one fixed draw: every seed and every method sees the same subset
_PARALLEL = tf.data.AUTOTUNE


@dataclasses.dataclass(frozen=True)
class Source:
    """One split of a data set.

    Attributes:
        name: what was asked for. split: train, validation or test.
        class_names: a name per label. image_shape: (H, W, C), the same for all pictures.
        size: number of examples.
    """
    name: str
    split: str
    class_names: tuple
    image_shape: tuple
    size: int

    def __len__(self):
        return self.size

    @property
    def num_classes(self):
        return len(self.class_names)

    def ordered(self, batch_size):
        """Dataset of (uint8 [B, H, W, C], int64 [B]) in the fixed order, the last batch as small as it is."""
        raise NotImplementedError

    def epoch(self, seed, epoch, batch_size, skip_batches=0):
        """The same in the epoch's own order, whole batches only, without the first `skip_batches`."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class ArraySource(Source):
    """All examples in memory."""
    images: np.ndarray = None
    labels: np.ndarray = None

    @classmethod
    def of(cls, name, split, images, labels, class_names):
        images, labels = np.asarray(images), np.asarray(labels, np.int64)
        class_names = tuple(class_names)
        check_labels(labels, len(class_names), f"{name} ({split})")
        return cls(name, split, class_names, images.shape[1:], len(images), images, labels)

    def ordered(self, batch_size):
        return tf.data.Dataset.from_tensor_slices((self.images, self.labels)).batch(batch_size)

    def epoch(self, seed, epoch, batch_size, skip_batches=0):
        images, labels = tf.constant(self.images), tf.constant(self.labels)
        order = _epoch_order(self.size, seed, epoch)
        batches = tf.data.Dataset.from_tensor_slices(order).skip(skip_batches * batch_size)
        return batches.batch(batch_size, drop_remainder=True).map(lambda i: (tf.gather(images, i), tf.gather(labels, i)))

    def subset(self, indices):
        return self.of(self.name, self.split, self.images[indices], self.labels[indices], self.class_names)


@dataclasses.dataclass(frozen=True)
class FileSource(Source):
    """Picture files of any size: cropped at random in training, resized and centre-cropped otherwise."""
    paths: tuple = ()
    labels: tuple = ()

    def _read(self, path):
        channels = self.image_shape[-1]
        image = tf.io.decode_image(tf.io.read_file(path), channels=channels, expand_animations=False)
        return tf.ensure_shape(image, [None, None, channels])

    def ordered(self, batch_size):
        def example(path, label):
            image = image_ops.center_crop_resized(self._read(path), self.image_shape[0])
            return tf.cast(tf.round(image), tf.uint8), label
        files = tf.data.Dataset.from_tensor_slices((list(self.paths), np.array(self.labels, np.int64)))
        return files.map(example, _PARALLEL, deterministic=True).batch(batch_size)

    def epoch(self, seed, epoch, batch_size, skip_batches=0):
        paths, labels = tf.constant(self.paths), tf.constant(self.labels, tf.int64)

        def example(i):
            image = image_ops.random_resized_crop_flip(self._read(paths[i]), self.image_shape[0],
                                                       _example_seed(seed, epoch, i))
            return tf.cast(tf.round(image), tf.uint8), labels[i]
        order = tf.data.Dataset.from_tensor_slices(_epoch_order(self.size, seed, epoch)).skip(skip_batches * batch_size)
        return order.map(example, _PARALLEL, deterministic=True).batch(batch_size, drop_remainder=True)

    def subset(self, indices):
        return dataclasses.replace(self, size=len(indices), paths=tuple(self.paths[i] for i in indices),
                                   labels=tuple(self.labels[i] for i in indices))


@dataclasses.dataclass(frozen=True)
class RecordSource(Source):
    """A TFDS set too large to hold, or of pictures of many sizes: its record files, read as a stream.

    An epoch's order: files shuffled by (seed, epoch), 16 read in turn, then a seeded buffer of 10,000 examples.
    What is skipped on resuming is skipped before it is decoded.
    """
    builder: object = None
    tfds_split: str = ""

    def _example(self, crop):
        decoders = {"image": _skip_decoding()}
        features, channels = self.builder.info.features, self.image_shape[-1]

        def example(position, record):
            fields = features.deserialize_example(record, decoders=decoders)
            image = tf.io.decode_image(fields["image"], channels=channels, expand_animations=False)
            image = crop(tf.ensure_shape(image, [None, None, channels]), position)
            return tf.cast(tf.round(image), tf.uint8), tf.cast(fields["label"], tf.int64)
        return example

    @property
    def _files(self):
        return [str(f) for f in self.builder.info.splits[self.tfds_split].filepaths]

    def ordered(self, batch_size):
        crop = self._example(lambda image, _: image_ops.center_crop_resized(image, self.image_shape[0]))
        records = tf.data.TFRecordDataset(self._files).enumerate()
        return records.map(crop, _PARALLEL, deterministic=True).batch(batch_size)

    def epoch(self, seed, epoch, batch_size, skip_batches=0):
        crop = self._example(lambda image, position: image_ops.random_resized_crop_flip(
            image, self.image_shape[0], _example_seed(seed, epoch, position)))
        files = tf.random.experimental.stateless_shuffle(tf.constant(self._files), [seed, epoch])
        records = tf.data.Dataset.from_tensor_slices(files).interleave(
            tf.data.TFRecordDataset, cycle_length=16, block_length=16, num_parallel_calls=_PARALLEL, deterministic=True)
        buffer_seed = int(tf.random.stateless_uniform([], [seed, epoch], 0, 2**31 - 1, tf.int32))
        records = records.shuffle(10_000, seed=buffer_seed).enumerate().skip(skip_batches * batch_size)
        return records.map(crop, _PARALLEL, deterministic=True).batch(batch_size, drop_remainder=True)


def _epoch_order(size, seed, epoch):
    return tf.random.experimental.stateless_shuffle(tf.range(size), [seed, epoch])


def _example_seed(seed, epoch, position):
    fold = tf.random.experimental.stateless_fold_in
    return fold(tf.constant([seed, epoch], tf.int64), tf.cast(position, tf.int64))


def check_labels(labels, num_classes, where):
    """Raises ValueError unless every label is in 0..num_classes - 1."""
    labels = np.asarray(labels)
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if bad.size:
        raise ValueError(f"Expected labels in 0..{num_classes - 1} in {where}. Received {labels[bad[0]]} "
                         f"at index {bad[0]} ({bad.size} labels out of range)")


def stratified_order(labels):
    """A fixed order in which every prefix holds each class in its share: subsets are stratified and nested."""
    random = np.random.RandomState(_SUBSET_SEED)
    position = np.empty(len(labels))
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        position[members] = (np.arange(len(members)) + random.rand()) / len(members)
    return np.argsort(position, kind="stable")


def open_source(name, split, data_dir=None, *, image_size=224, validation_share=0.0, examples=0, download=False):
    """One split of a data set as a `Source`.

    Args:
        name: `digits`, `synthetic_digits`, `synthetic_mnist`, a TFDS name, or `folder:DIR`.
        split: `train`, `validation` or `test`.
        data_dir: where TFDS keeps its sets; None for its default (~/tensorflow_datasets).
        image_size: side in pixels to which pictures of varying size are cropped.
        validation_share: share of the training set held out as `validation` when the set has no validation split
            of its own; stratified, fixed.
        examples: keep only this many examples, stratified and nested; 0 keeps all.
        download: fetch a TFDS set that is not in `data_dir`.

    Raises:
        ValueError: unknown name or split, impossible share, labels out of range.
        FileNotFoundError: the data are not there; says where it looked and what would fetch them.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if not 0.0 <= validation_share < 1.0:
        raise ValueError(f"Expected validation_share in [0, 1). Received: {validation_share}")
    if name.startswith("folder:"):
        source = _folder(name, split, image_size, validation_share)
    elif name in ("digits", "synthetic_digits"):
        source = _embedded(name, split)
    elif name == "synthetic_mnist":
        source = _synthetic_mnist(split, data_dir, download)
    else:
        source = _tfds(name, split, data_dir, image_size, validation_share, download)
    if examples > source.size:
        raise ValueError(f"Expected at most {source.size} examples, the size of {name} ({split}). Received: {examples}")
    if examples and not hasattr(source, "subset"):
        raise ValueError(f"{name} is read as a stream, which has no subsets. Received examples={examples}; use 0")
    return source.subset(np.sort(stratified_order(np.asarray(source.labels))[:examples])) if examples else source


def load(name, split, data_dir=None, **options):
    """The examples of one split in a fixed order: Dataset of (uint8 [H, W, C], int64). Arguments as `open_source`."""
    return open_source(name, split, data_dir, **options).ordered(256).unbatch()


def has_validation(name, data_dir=None, validation_share=0.0):
    """Whether `open_source(name, "validation", ...)` can give anything."""
    if name in ("digits", "synthetic_digits", "synthetic_mnist") or validation_share > 0.0:
        return True
    if name.startswith("folder:"):
        return os.path.isdir(os.path.join(name.removeprefix("folder:"), "validation"))
    return _has_three_splits(name, _tfds_builder(name, data_dir, False).info.splits)


def _has_three_splits(name, splits):
    """Not so imagenet2012, whose test labels are not public: the papers' test set is its `validation`."""
    return "validation" in splits and "test" in splits and not name.startswith("imagenet2012")


@functools.lru_cache(maxsize=8)
def _embedded_split(name, split):
    pools = corner_digits.digit_pools()
    if name == "digits":
        return pools[split]
    quota = {"train": (1000, 10), "validation": (50, 50), "test": (100, 100)}[split]
    return corner_digits.build(*pools[split], *quota, salt=SPLITS.index(split), shift=2)


def _embedded(name, split):
    images, labels = _embedded_split(name, split)
    return ArraySource.of(name, split, images, labels, map(str, range(15 if name == "synthetic_digits" else 10)))


@functools.lru_cache(maxsize=4)
def _synthetic_mnist_split(split, data_dir):
    origin = "test" if split == "test" else "train"
    mnist = _tfds("mnist", origin, data_dir, 28, 0.0, False)
    pools = corner_digits.divide(mnist.images, mnist.labels, {"train": 5, "validation": 1})
    pool = (mnist.images, mnist.labels) if split == "test" else pools[split]
    quota = {"train": (5000, 50), "validation": (1000, 1000), "test": (1000, 1000)}[split]
    return corner_digits.build(*pool, *quota, salt=SPLITS.index(split))


def _synthetic_mnist(split, data_dir, download):
    _tfds_builder("mnist", data_dir, download)
    images, labels = _synthetic_mnist_split(split, data_dir)
    return ArraySource.of("synthetic_mnist", split, images, labels, map(str, range(15)))


def _folder(name, split, image_size, validation_share):
    root = os.path.expanduser(name.removeprefix("folder:"))
    if not os.path.isdir(root):
        raise FileNotFoundError(f"Expected a folder of pictures, one subfolder a class. Not found: {root}")
    inner = os.path.join(root, split)
    divided = os.path.isdir(os.path.join(root, "train"))
    if divided and split == "validation" and not os.path.isdir(inner):
        inner, divided = os.path.join(root, "train"), "share"
    elif divided and split == "train" and not os.path.isdir(os.path.join(root, "validation")):
        divided = "share"
    base = inner if divided else root
    if not os.path.isdir(base):
        raise FileNotFoundError(f"Expected {base}, with one subfolder a class, for the split {split!r}. Not found")
    classes = sorted(d for d in os.listdir(base) if os.path.isdir(os.path.join(base, d)) and not d.startswith("."))
    paths, labels = [], []
    for label, class_name in enumerate(classes):
        folder = os.path.join(base, class_name)
        found = sorted(f for f in os.listdir(folder) if f.lower().endswith((".png", ".jpg", ".jpeg", ".bmp", ".gif")))
        paths += [os.path.join(folder, f) for f in found]
        labels += [label] * len(found)
    if not paths:
        raise FileNotFoundError(f"Expected pictures (png, jpg, bmp, gif) in the subfolders of {base}. Found none")
    source = FileSource(name, split, tuple(classes), (image_size, image_size, 3), len(paths), tuple(paths), tuple(labels))
    if divided == "share":
        return _share(source, split, validation_share)
    return source if divided else _three_ways(source, split, validation_share or 0.1)


def _three_ways(source, split, share):
    """A folder without train/ and test/ of its own: `share` of it for test, as much for validation, the rest to train."""
    order = stratified_order(np.asarray(source.labels))
    held = max(1, round(share * len(order)))
    part = {"test": order[:held], "validation": order[held:2 * held], "train": order[2 * held:]}[split]
    return source.subset(np.sort(part))


def _share(source, split, share):
    """The training set without its validation share, or that share."""
    order = stratified_order(np.asarray(source.labels))
    held = round(share * len(order))
    if split == "validation" and not held:
        raise ValueError(f"{source.name} has no validation split. Expected validation_share > 0 (say 0.1), which holds "
                         f"out a part of the training set. Received: {share}")
    return source.subset(np.sort(order[:held] if split == "validation" else order[held:]))


@functools.lru_cache(maxsize=8)
def _tfds_builder(name, data_dir, download):
    import tensorflow_datasets as tfds
    where = os.path.expanduser(data_dir or tfds.core.constants.DATA_DIR)
    fetch = (f"Looked in {where}. To fetch it on a machine with a network: add --download, "
             f"or run `tfds build {name} --data_dir={where}`; or name the folder that has it with --data_dir")
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        known = ["digits", "synthetic_digits", "synthetic_mnist", "folder:DIR", *tfds.list_builders(with_community_datasets=False)]
        message = str(unknown("data set", name, known)).split(" Known: ")[0]
        raise ValueError(f"{message} Known: digits, synthetic_digits, synthetic_mnist, folder:DIR, and the "
                         f"image-classification sets of TFDS (mnist, cifar10, cifar100, imagenet2012, ...)") from error
    if not builder.info.splits and download:
        try:
            builder.download_and_prepare()
        except Exception as error:
            raise FileNotFoundError(f"{name} could not be fetched ({type(error).__name__}: {error}). {fetch}") from error
    if not builder.info.splits:
        raise FileNotFoundError(f"No data for {name!r}. {fetch}")
    features = builder.info.features
    if "image" not in features or "label" not in features:
        raise ValueError(f"Expected a set with the features 'image' and 'label'. {name} has: {', '.join(features)}")
    return builder


def _skip_decoding():
    import tensorflow_datasets as tfds
    return tfds.decode.SkipDecoding()


def _tfds(name, split, data_dir, image_size, validation_share, download):
    builder = _tfds_builder(name, data_dir, download)
    splits, features = builder.info.splits, builder.info.features
    own = _has_three_splits(name, splits)
    final = "test" if own or "validation" not in splits else "validation"
    tfds_split = {"train": "train", "validation": "validation" if own else "train", "test": final}[split]
    if tfds_split not in splits:
        raise ValueError(f"{name} has no split {tfds_split!r}. It has: {', '.join(splits)}")
    shape, size = features["image"].shape, splits[tfds_split].num_examples
    class_names = features["label"].names
    if None not in shape and size * np.prod(shape) <= IN_MEMORY_BYTES:
        images, labels = _read_arrays(name, tfds_split, data_dir)
        source = ArraySource.of(name, split, images, labels, class_names)
        return source if own or split == "test" else _share(source, split, validation_share)
    if split != "test" and not own and (validation_share or split == "validation"):
        raise ValueError(f"{name} is read as a stream and has no validation split of its own. "
                         f"Expected validation_share=0. Received: {validation_share} (split {split!r})")
    return RecordSource(name, split, tuple(class_names), (image_size, image_size, shape[-1]), size, builder, tfds_split)


@functools.lru_cache(maxsize=4)
def _read_arrays(name, tfds_split, data_dir):
    import tensorflow_datasets as tfds
    builder = _tfds_builder(name, data_dir, False)
    dataset = builder.as_dataset(split=tfds_split, batch_size=4096, shuffle_files=False)
    batches = [(b["image"], b["label"]) for b in tfds.as_numpy(dataset)]
    return np.concatenate([b[0] for b in batches]), np.concatenate([b[1] for b in batches])
