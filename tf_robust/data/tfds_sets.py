"""Image-classification sets of TFDS: in memory if they fit, else read as a stream of their record files."""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import typing
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from google.protobuf import json_format

from tf_robust.data.class_mask import label_set_of
from tf_robust.data.kinds import DATA_KINDS, ReadOptions
from tf_robust.data.source import PARALLEL_READS, USUAL_SIZE, Arrays, ArraySource, Fit, Source, collect, digest, epoch_order, example_seed
from tf_robust.data.subsets import without_validation
from tf_robust.ops import image_ops
from tf_robust.utils.errors import unknown

IN_MEMORY_BYTES = 2**31
WINDOW = 10_000  # records shuffled at a time in a stream
DAMAGED = (json_format.Error, json.JSONDecodeError, UnicodeDecodeError, TypeError, KeyError, AttributeError)  # raised on damaged metadata


@dataclasses.dataclass(frozen=True)
class RecordFiles(Source):
    """Record files of a TFDS set."""

    builder: typing.Any  # tfds.core.DatasetBuilder
    tfds_split: str  # name of the split in TFDS

    @property
    def files(self) -> list[str]:
        return [str(path) for path in self.builder.info.splits[self.tfds_split].filepaths]

    @property
    def file_lengths(self) -> Sequence[int]:
        """The number of records in each file."""
        return self.builder.info.splits[self.tfds_split].shard_lengths

    def reading(self) -> contextlib.AbstractContextManager[None]:
        return naming_damaged_files(self.files)

    def fingerprint(self) -> str:
        """Covers the set's name and version, the number of examples in each file and, of a subset, the positions."""
        info = self.builder.info
        complete = digest(f"{info.full_name} {self.tfds_split} {self.file_lengths} {self.image_shape}", self._changed())
        return complete if self.kept is None else digest(complete, self.kept)

    def _range(self, first, last):
        """Returns a Dataset of (position, record) of a range, without opening the files before it."""
        ends = np.cumsum(self.file_lengths)
        file = int(np.searchsorted(ends, first, side="right"))
        before = int(ends[file - 1]) if file else 0
        return tf.data.TFRecordDataset(self.files[file:]).skip(first - before).take(last - first).enumerate(start=first)

    def _fields(self, record):
        """Returns the features of a record, with the image as it is encoded."""
        import tensorflow_datasets as tfds

        return self.builder.info.features.deserialize_example(record, decoders={"image": tfds.decode.SkipDecoding()})

    def _labels_of(self, records):
        """Returns the labels, int64 [N], of a Dataset of (position, record), without decoding images."""
        labels = records.map(lambda _, record: tf.cast(self._fields(record)["label"], tf.int64)).batch(4096)
        return np.concatenate([np.zeros(0, np.int64), *labels.as_numpy_iterator()])


@dataclasses.dataclass(frozen=True)
class RecordSource(RecordFiles):
    """A TFDS set that does not fit in memory, or with images of many sizes: its record files, read as a stream.

    The order of an epoch: files shuffled by (seed, epoch), 16 read in turn, then every 10,000 records shuffled among
    themselves (tf.data's own shuffle buffer also depends on the global seed). Batches skipped on resuming are not decoded.
    """

    def _records(self):
        """Returns a Dataset of (position, record) of the examples; a part is a range."""
        first = 0 if self.kept is None else int(self.kept[0])
        return self._range(first, first + self.size)

    def _decoder(self, crop=None):
        """Returns a function (position, record) -> (uint8 image, label). crop: (image, position) -> image, instead of `fit`."""
        fit = tf.identity if self.fit is None else self.fit.levels
        crop = crop or (lambda image, _: tf.ensure_shape(fit(image), self.image_shape))

        def decode(position, record):
            fields = self._fields(record)
            image = crop(image_ops.decode(fields["image"], self.image_shape[-1]), position)
            return tf.cast(tf.round(image) if image.dtype.is_floating else image, tf.uint8), tf.cast(fields["label"], tf.int64)

        return decode

    def ordered(self, batch_size: int) -> tf.data.Dataset:
        return self._records().map(self._decoder(), PARALLEL_READS, deterministic=True).batch(batch_size)

    def part(self, first: int, last: int) -> typing.Self:
        return dataclasses.replace(self, size=last - first, kept=self.positions[first:last])

    def epoch(
        self, seed: int, epoch: int | tf.Tensor, batch_size: int, skip_batches: int | tf.Tensor = 0, windows: Sequence[float] = ()
    ) -> tf.data.Dataset:
        def crop(image, position):
            return image_ops.random_crops(image, *self.image_shape[:2], example_seed(seed, epoch, position), windows)

        if self.kept is not None:
            raise ValueError(f"Expected all examples of {self.name} in an epoch. Received: a part, which is for evaluation")
        decode = self._decoder(crop if windows or self.varying_size else None)
        files, firsts = tf.constant(self.files), tf.constant(np.cumsum([0, *self.file_lengths[:-1]]), tf.int64)
        order = epoch_order(len(self.files), seed, epoch)
        records = tf.data.Dataset.from_tensor_slices((tf.gather(files, order), tf.gather(firsts, order))).interleave(
            lambda file, first: tf.data.TFRecordDataset(file).enumerate(start=first),
            cycle_length=16,
            block_length=16,
            num_parallel_calls=PARALLEL_READS,
            deterministic=True,
        )

        def shuffle(window, content):
            order = tf.random.experimental.stateless_shuffle(tf.range(tf.shape(content[0])[0]), tf.stack([seed + epoch * 2**32, window]))
            return tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda part: tf.gather(part, order), content))

        records = records.batch(WINDOW).enumerate().flat_map(shuffle).enumerate().skip(skip_batches * batch_size)
        examples = records.map(lambda turn, record: (*decode(turn, record[1]), record[0]), PARALLEL_READS, deterministic=True)
        return examples.batch(batch_size, drop_remainder=True)

    def read_labels(self) -> np.ndarray:
        return self._labels_of(self._records())

    def read_range(self, first: int, last: int) -> Arrays:
        """Returns the examples of a range, without opening files or decoding records before it."""
        return collect(self.part(first, last).ordered(64))


@contextlib.contextmanager
def naming_damaged_files(files: Sequence[str]) -> Iterator[None]:
    """Context in which an OSError names the first of these files that cannot be read, which TensorFlow does not report."""
    try:
        yield
    except tf.errors.DataLossError as error:
        for file in files:
            try:
                collections.deque(tf.data.TFRecordDataset(file), maxlen=0)
            except tf.errors.DataLossError:
                found = f"{file} (truncated or damaged). Try: download the data set again"
                raise OSError(f"Expected a complete file of records. Received: {found}") from error
        raise


def damaged(where: str, error: Exception) -> ValueError:
    """Returns the ValueError to raise for an error of `DAMAGED` on opening a set."""
    return ValueError(
        f"Expected a valid dataset_info.json and features.json of each set in {where}. Received: a damaged one "
        f"({error}). Try: delete its folder and create or download it again"
    )


@functools.lru_cache(maxsize=8)
def builder_of(name: str, data_dir: str | None, download: bool) -> typing.Any:
    """Returns the TFDS builder of a set with images and class labels."""
    import tensorflow_datasets as tfds

    where = os.path.expanduser(data_dir or tfds.core.constants.DATA_DIR)
    advice = f"Looked in {where}. Try: download, or `tfds build {name} --data_dir={where}` with a network; or another --data_dir"
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except DAMAGED as error:
        raise damaged(where, error) from error
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError) as error:
        forms = [kind.form for kind in DATA_KINDS.values()]
        message = str(unknown("data set", name, [*forms, *tfds.list_builders(with_community_datasets=False)])).split(" Known: ")[0]
        raise ValueError(f"{message} Known: {', '.join(forms)} (any image-classification set of TFDS)") from error
    if not builder.info.splits and download:
        try:
            builder.download_and_prepare()
        except Exception as error:
            raise FileNotFoundError(f"{name} could not be downloaded ({type(error).__name__}: {error}). {advice}") from error
    if not builder.info.splits:
        raise FileNotFoundError(f"No data for {name!r}. {advice}")
    features = builder.info.features
    if "image" not in features or "label" not in features or not hasattr(features["label"], "names"):
        raise ValueError(f"Expected a set with the features 'image' and 'label' (a ClassLabel). {name} has: {', '.join(sorted(features))}")
    return builder


def open_tfds(name: str, split: str, options: ReadOptions) -> Source:
    """Opens one split of a TFDS set, whose name may declare a label set."""
    builder = builder_of(name, options.data_dir, options.download)
    info = builder.info
    own = _has_three_splits(name, info)
    test = "test" if own or "validation" not in info.splits else "validation"
    tfds_split = {"train": "train", "validation": "validation" if own else "train", "test": test}[split]
    if tfds_split not in info.splits:
        raise ValueError(f"{name} has no split {tfds_split!r}. It has: {', '.join(info.splits)}")
    class_names, label_set = tuple(info.features["label"].names), label_set_of(name)
    if _fits_memory(info):
        images, labels = _read_arrays(name, tfds_split, options.data_dir)
        source: Source = ArraySource.of(name, split, images, labels, class_names)
        source = dataclasses.replace(source, label_set=label_set)
        return source if own or split == "test" else without_validation(source, split, options.validation_fraction)
    if split != "test" and not own and (options.validation_fraction or split == "validation"):
        raise ValueError(
            f"{name} is read as a stream and has no validation split of its own. "
            f"Expected validation_fraction=0. Received: {options.validation_fraction} (split {split!r})"
        )
    fit, shape = None, info.features["image"].shape
    if None in shape:
        height, width = options.size or USUAL_SIZE
        fit, shape = Fit(height, width, options.image_fit, varying=True), (height, width, shape[-1])
    count = info.splits[tfds_split].num_examples
    return RecordSource(name, split, class_names, shape, count, builder, tfds_split, fit=fit, label_set=label_set)


@functools.lru_cache(maxsize=4)
def _read_arrays(name, tfds_split, data_dir):
    builder = builder_of(name, data_dir, False)
    dataset = builder.as_dataset(split=tfds_split, batch_size=4096, shuffle_files=False)
    with naming_damaged_files([str(file) for file in builder.info.splits[tfds_split].filepaths]):
        return collect(dataset.map(lambda batch: (batch["image"], batch["label"])))


def has_validation(name: str, data_dir: str | None, validation_fraction: float) -> bool:
    """Returns whether `open_tfds(name, "validation", ...)` has examples."""
    info = builder_of(name, data_dir, False).info
    return _has_three_splits(name, info) or (validation_fraction > 0.0 and _fits_memory(info))


def _fits_memory(info):
    """Returns whether every split fits in memory: all splits of a set are read in the same way."""
    shape, largest = info.features["image"].shape, max(split.num_examples for split in info.splits.values())
    return None not in shape and largest * np.prod(shape) <= IN_MEMORY_BYTES


def _has_three_splits(name, info):
    """Returns whether a set has its own validation split. The papers test on `validation` of imagenet2012, whose test labels are secret."""
    return {"validation", "test"} <= {*info.splits} and not name.startswith("imagenet2012")
