"""Image-classification sets of TFDS: in memory where they fit, else as a stream of their record files."""

import collections
import contextlib
import dataclasses
import functools
import json
import os

import numpy as np
import tensorflow as tf
from google.protobuf import json_format

from tf_robust.data.fitting import USUAL_SIZE, Fit
from tf_robust.data.source import PARALLEL_READS, ArraySource, Source, digest, epoch_order, example_seed, without_validation
from tf_robust.ops import image_ops
from tf_robust.utils.errors import unknown

IN_MEMORY_BYTES = 2**31
WINDOW = 10_000  # records shuffled at a time in a stream
DAMAGED = (json_format.Error, json.JSONDecodeError, UnicodeDecodeError, TypeError, KeyError, AttributeError)  # said of metadata
OURS = ("digits", "synthetic_digits", "synthetic_mnist", "toy", "toy_band", "folder:DIR")


@dataclasses.dataclass(frozen=True)
class RecordSource(Source):
    """A TFDS set too large to hold, or of images of many sizes: its record files, read as a stream.

    An epoch's order: files shuffled by (seed, epoch), 16 read in turn, then every 10,000 records shuffled among
    themselves (tf.data's own shuffle buffer also depends on the global seed). What is skipped on resuming is skipped
    before it is decoded.
    """
    builder: object = None
    tfds_split: str = ""

    @property
    def cuts_windows(self):
        return self.fit is not None

    def _example(self, crop=None):
        """A function (position, record) -> (uint8 image, label). crop: (image, position) -> image, in place of `fit`."""
        decoders = {"image": _skip_decoding()}
        features, channels = self.builder.info.features, self.image_shape[-1]
        fit = tf.identity if self.fit is None else self.fit.levels
        crop = crop or (lambda image, _: tf.ensure_shape(fit(image), self.image_shape))

        def example(position, record):
            fields = features.deserialize_example(record, decoders=decoders)
            image = tf.io.decode_image(fields["image"], channels=channels, expand_animations=False)
            image = crop(tf.ensure_shape(image, [None, None, channels]), position)
            image = image if image.dtype == tf.uint8 else tf.cast(tf.round(image), tf.uint8)
            return image, tf.cast(fields["label"], tf.int64)
        return example

    @property
    def _files(self):
        return [str(f) for f in self.builder.info.splits[self.tfds_split].filepaths]

    @property
    def _lengths(self):
        """The number of records in each file."""
        return self.builder.info.splits[self.tfds_split].shard_lengths

    def ordered(self, batch_size):
        records = tf.data.TFRecordDataset(self._files).enumerate()
        return records.map(self._example(), PARALLEL_READS, deterministic=True).batch(batch_size)

    def epoch(self, seed, epoch, batch_size, skip_batches=0, windows=()):
        def random_windows(image, position):
            return image_ops.random_crops(image, *self.image_shape[:2], example_seed(seed, epoch, position), windows)
        crop = self._example(random_windows if windows or self.varying_size else None)
        files, firsts = tf.constant(self._files), tf.constant(np.cumsum([0, *self._lengths[:-1]]), tf.int64)
        order = epoch_order(len(self._files), seed, epoch)
        records = tf.data.Dataset.from_tensor_slices((tf.gather(files, order), tf.gather(firsts, order))).interleave(
            lambda file, first: tf.data.TFRecordDataset(file).enumerate(start=first), cycle_length=16, block_length=16,
            num_parallel_calls=PARALLEL_READS, deterministic=True)

        def shuffled(window, content):
            order = tf.random.experimental.stateless_shuffle(
                tf.range(tf.shape(content[0])[0]), tf.stack([seed + epoch * 2**32, window]))
            return tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda part: tf.gather(part, order), content))
        records = records.batch(WINDOW).enumerate().flat_map(shuffled).enumerate().skip(skip_batches * batch_size)
        return records.map(lambda turn, record: (*crop(turn, record[1]), record[0]), PARALLEL_READS,
                           deterministic=True).batch(batch_size, drop_remainder=True)

    def reading(self):
        return naming(self._files)

    def fingerprint(self):
        """Of the set's name and version and the number of examples in each file."""
        info = self.builder.info
        return digest(f"{info.full_name} {self.tfds_split} {self._lengths} {self.image_shape}", self._changed())


@contextlib.contextmanager
def naming(files):
    """While open, an OSError names the first of these record files that cannot be read: TensorFlow does not say which it was."""
    try:
        yield
    except tf.errors.DataLossError as error:
        for file in files:
            try:
                collections.deque(tf.data.TFRecordDataset(file), maxlen=0)
            except tf.errors.DataLossError:
                raise OSError(f"Expected a whole file of records. Received: {file} (cut short or damaged). Fetch the data set "
                              f"again") from error
        raise


def damaged(where, error):
    """What to raise for an error of `DAMAGED` on opening a set."""
    return ValueError(f"Expected a whole dataset_info.json and features.json of each set in {where}. Received a damaged one "
                      f"({error}). Delete its folder and make or fetch it again")


@functools.lru_cache(maxsize=8)
def builder_of(name, data_dir, download):
    import tensorflow_datasets as tfds
    where = os.path.expanduser(data_dir or tfds.core.constants.DATA_DIR)
    fetch = (f"Looked in {where}. To fetch it on a machine with a network: add --download, "
             f"or run `tfds build {name} --data_dir={where}`; or name the folder that has it with --data_dir")
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except DAMAGED as error:
        raise damaged(where, error) from error
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError) as error:
        known = [*OURS, *tfds.list_builders(with_community_datasets=False)]
        message = str(unknown("data set", name, known)).split(" Known: ")[0]
        raise ValueError(f"{message} Known: {', '.join(OURS)}, and the image-classification sets of TFDS (mnist, cifar10, "
                         f"cifar100, imagenet2012, ...)") from error
    if not builder.info.splits and download:
        try:
            builder.download_and_prepare()
        except Exception as error:
            raise FileNotFoundError(f"{name} could not be fetched ({type(error).__name__}: {error}). {fetch}") from error
    if not builder.info.splits:
        raise FileNotFoundError(f"No data for {name!r}. {fetch}")
    features = builder.info.features
    if "image" not in features or "label" not in features or not hasattr(features["label"], "names"):
        raise ValueError(f"Expected a set with the features 'image' and 'label' (a ClassLabel). {name} has: "
                         f"{', '.join(sorted(features))}")
    return builder


def _skip_decoding():
    import tensorflow_datasets as tfds
    return tfds.decode.SkipDecoding()


def open_tfds(name, split, data_dir, *, size=(), fit="crop", default_size=(), validation_fraction=0.0, download=False):
    """One split of a TFDS set; arguments as `sources.open_source`."""
    builder = builder_of(name, data_dir, download)
    splits, features = builder.info.splits, builder.info.features
    own = _has_three_splits(name, splits)
    final = "test" if own or "validation" not in splits else "validation"
    tfds_split = {"train": "train", "validation": "validation" if own else "train", "test": final}[split]
    if tfds_split not in splits:
        raise ValueError(f"{name} has no split {tfds_split!r}. It has: {', '.join(splits)}")
    shape, count = features["image"].shape, splits[tfds_split].num_examples
    class_names = features["label"].names
    if _fits_memory(builder.info):
        images, labels = _read_arrays(name, tfds_split, data_dir)
        source = ArraySource.of(name, split, images, labels, class_names).resized(size, fit)
        return source if own or split == "test" else without_validation(source, split, validation_fraction)
    if split != "test" and not own and (validation_fraction or split == "validation"):
        raise ValueError(f"{name} is read as a stream and has no validation split of its own. "
                         f"Expected validation_fraction=0. Received: {validation_fraction} (split {split!r})")
    if None not in shape:
        return RecordSource(name, split, tuple(class_names), shape, count, builder, tfds_split).resized(size, fit)
    size = size or default_size or USUAL_SIZE
    return RecordSource(name, split, tuple(class_names), (*size, shape[-1]), count, builder, tfds_split, fit=Fit(*size, fit, varying=True))


@functools.lru_cache(maxsize=4)
def _read_arrays(name, tfds_split, data_dir):
    import tensorflow_datasets as tfds
    builder = builder_of(name, data_dir, False)
    dataset = builder.as_dataset(split=tfds_split, batch_size=4096, shuffle_files=False)
    with naming([str(file) for file in builder.info.splits[tfds_split].filepaths]):
        batches = [(b["image"], b["label"]) for b in tfds.as_numpy(dataset)]
    return np.concatenate([b[0] for b in batches]), np.concatenate([b[1] for b in batches])


def has_validation(name, data_dir, validation_fraction):
    """Whether `open_tfds(name, "validation", ...)` can give anything."""
    info = builder_of(name, data_dir, False).info
    return _has_three_splits(name, info.splits) or (validation_fraction > 0.0 and _fits_memory(info))


def _fits_memory(info):
    """Whether every split does: a set is read in one way."""
    shape, largest = info.features["image"].shape, max(split.num_examples for split in info.splits.values())
    return None not in shape and largest * np.prod(shape) <= IN_MEMORY_BYTES


def _has_three_splits(name, splits):
    """Not so imagenet2012, whose test labels are not public: the papers' test set is its `validation`."""
    return "validation" in splits and "test" in splits and not name.startswith("imagenet2012")
