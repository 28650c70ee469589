"""The training pipeline: source -> order of an epoch -> batches -> float32 in [0, 1] -> augmentations -> views -> prefetch.

Batches can be prepared by other processes through tf.data service, one `Server` per address. With n servers each prepares every n-th batch
and they are read in turn: batches and their order are those without servers.
"""

import contextlib
import functools
import os
import socket
import sys
import threading
import typing
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tf_robust.data.augment import VIEWS, clean, min_crop_areas
from tf_robust.data.source import Source
from tf_robust.ops import image_ops, philox
from tf_robust.utils.errors import unknown

PARALLEL_CALLS = max(2, min(8, os.cpu_count() or 2))  # batches prepared in parallel
FIRST_AUGMENTATION, FIRST_VIEW = 1000, 2000  # purposes of the draws of the first augmentation and of the first view
_TIMEOUT = 5.0  # seconds to wait for a server's answer, and between two checks
service = tf.data.experimental.service
Augmentation: typing.TypeAlias = Callable[..., tf.Tensor]  # (images, seed) -> images


class Batch(typing.NamedTuple):
    """One batch of training examples.

    Attributes:
        views: tuple of float32 [B, H, W, C] in [0, 1]; the first is the image a classifier sees.
        labels: int64 [B]; in `fit` also probabilities of the classes, float32 [B, classes].
        step: int64 [B], the global step, the same for all (a vector, so that replicas can split the batch).
        positions: int64 [B], each image's position in the training set.

    Examples:
        >>> source = tfr.data.open_source("digits", "train", examples=100)
        >>> batch = next(iter(tfr.data.training_batches(source, 32, seed=0)))
        >>> len(batch.views), batch.labels.shape.as_list(), batch.positions.shape.as_list()
        (1, [32], [32])
    """

    views: tuple[tf.Tensor, ...]
    labels: tf.Tensor
    step: tf.Tensor
    positions: tf.Tensor = None


def training_batches(
    source: Source,
    batch_size: int,
    *,
    seed: int,
    step: int = 0,
    augmentations: Sequence[Augmentation] = (),
    views: Sequence[Augmentation] = (clean,),
    servers: Sequence[str] = (),
) -> tf.data.Dataset:
    """Returns the training batches from a global step on, epoch after epoch, as a pure function of the arguments.

    Args:
        source: the training set.
        batch_size: examples per step, over all replicas.
        seed: of the run.
        step: the first global step.
        augmentations: functions (images, seed) -> images, applied in this order.
        views: functions (images, seed) -> images; each makes one view of the augmented image.
        servers: addresses of processes that prepare the batches (`data.pipeline.Server`); empty: this process.

    Returns:
        infinite Dataset of `Batch`; ValueError: the batch is empty or larger than the data

    Examples:
        >>> source = tfr.data.open_source("digits", "train", examples=100)
        >>> batches = tfr.data.training_batches(source, 32, seed=0, step=7)
        >>> batch = next(iter(batches))
        >>> int(batch.step[0]), batch.views[0].shape.as_list()
        (7, [32, 28, 28, 1])
    """
    examples, to_batch = _steps(source, batch_size, seed=seed, step=step, augmentations=augmentations, views=views)

    def to_batches(examples):
        return examples.map(to_batch, num_parallel_calls=PARALLEL_CALLS, deterministic=True).prefetch(4)

    if not servers:
        return to_batches(examples)
    parts = []
    for number, server in enumerate(servers):
        shard = to_batches(examples.shard(len(servers), number))
        parts.append(shard.apply(service.distribute("parallel_epochs", f"grpc://{server}", compression=None)).prefetch(2))
    in_turn = tf.data.Dataset.range(len(parts)).repeat()
    return tf.data.Dataset.choose_from_datasets(parts, in_turn, stop_on_empty_dataset=True).with_options(_options(shard=False))


def first_batch(source: Source, batch_size: int, **options: typing.Any) -> Batch:
    """Returns the first of `training_batches` without building their graph; values may differ in the last digit. Options as there."""
    examples, to_batch = _steps(source, batch_size, **options)
    with tf.device("CPU"):  # as in a Dataset
        return to_batch(*next(iter(examples)))


def _steps(source, batch_size, *, seed, step=0, augmentations=(), views=(clean,)):
    """Returns the examples of each step, a Dataset of (step, examples), and the function that makes a `Batch` of them."""
    first, skipped = divmod(step, steps_per_epoch(source, batch_size))
    windows = min_crop_areas(views) if source.cuts_windows else ()
    if windows:  # cropped from the full image in its original resolution
        views = [functools.partial(view, min_crop_area=1.0) for view in views]

    @tf.autograph.experimental.do_not_convert
    def read_epoch(epoch):
        return source.epoch(seed, epoch, batch_size, tf.where(epoch == first, tf.constant(skipped, tf.int64), 0), windows)

    def to_batch(step, example):
        images, labels, positions = example
        shape, key = [batch_size, *source.image_shape], tf.stack([tf.constant(seed, tf.int64), step])

        def apply(function, part, purpose):
            return tf.ensure_shape(function(part, philox.fold(key, purpose)), shape)

        inputs = [image_ops.to_float(part) for part in (tf.unstack(images, len(windows), axis=1) if windows else [images])]
        for position, augment in enumerate(augmentations):
            inputs = [apply(augment, part, FIRST_AUGMENTATION + position) for part in inputs]
        inputs = inputs if windows else inputs * len(views)
        outputs = tuple(apply(view, part, FIRST_VIEW + position) for position, (view, part) in enumerate(zip(views, inputs)))
        return Batch(outputs, labels, tf.fill([batch_size], step), positions)

    examples = tf.data.Dataset.range(first, tf.int64.max).flat_map(read_epoch).enumerate(start=step).with_options(_options(shard=False))
    return examples, to_batch


def steps_per_epoch(source: Source, batch_size: int) -> int:
    """Returns the number of full batches in an epoch; raises ValueError if the batch is empty or larger than the data."""
    if not 1 <= batch_size <= len(source):
        raise ValueError(f"Expected batch_size in 1..{len(source)}, the size of {source.name} ({source.split}). Received: {batch_size}")
    return len(source) // batch_size


def evaluation_batches(source: Source, batch_size: int = 256, *, keep: bool = False) -> tf.data.Dataset:
    """Returns a Dataset of (float32 [B, H, W, C] in [0, 1], int64 [B]) in the fixed order.

    `keep`: hold the images in memory, as uint8, after the first time that they are all read.

    Examples:
        >>> source = tfr.data.open_source("digits", "test", examples=100)
        >>> [images.shape.as_list() for images, labels in tfr.data.evaluation_batches(source, 64)]
        [[64, 28, 28, 1], [36, 28, 28, 1]]
    """

    @tf.autograph.experimental.do_not_convert
    def to_float(images, labels):
        return image_ops.to_float(images), labels

    levels = source.ordered(batch_size)
    levels = levels.cache() if keep else levels
    return levels.map(to_float).prefetch(2).with_options(_options())


def _options(shard=True):
    """Returns options without tf.data's autotuning: parallelism is fixed, and the tuner can restrict a network to half of the cores."""
    options = tf.data.Options()
    options.autotune.enabled = False
    if not shard:
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def views(
    dataset: tf.data.Dataset, views: Sequence[str | Augmentation], *, seed: int = 0, input_range: Sequence[float] = (0.0, 1.0)
) -> tf.data.Dataset:
    """Makes the views of a training method in a dataset instead of in the training step, in parallel to it.

    The views of step s are those that the method with the same seed makes in its step s, on one device. To draw anew in every
    epoch, the dataset is repeated without end: `fit` needs `steps_per_epoch`.

        views = tfr.data.views(dataset, model.views, seed=model.seed, input_range=model.input_range)
        model.fit(views, epochs=10, steps_per_epoch=len(dataset))

    Args:
        dataset: batches of (images, labels) or (images, labels, sample weights).
        views: names of views (`data.augment.VIEWS`) or functions (images, seed) -> images, of images in [0, 1].
        seed: int, of the method.
        input_range: (low, high) of the images, in and out.

    Returns:
        tf.data.Dataset of ((view 1, view 2, ...), labels[, sample weights]); views are float32 in `input_range`.

    Raises:
        ValueError: an unknown view, or a dataset that is not of batches of images and labels.
        tf.errors.InvalidArgumentError: in iteration, images outside `input_range`.

    Examples:
        >>> images, labels = tfr.images(20, data="digits")
        >>> dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(10)
        >>> (clean, cropped), _ = next(iter(tfr.data.views(dataset, ["clean", "crop_flip"], seed=0)))
        >>> bool(np.allclose(clean, images[:10])), cropped.shape.as_list()
        (True, [10, 28, 28, 1])
    """
    spec, functions = dataset.element_spec, view_functions(views)
    if not isinstance(spec, tuple) or len(spec) not in (2, 3) or getattr(spec[0], "shape", tf.TensorShape([])).rank != 4:
        raise ValueError(f"Expected a dataset of batches (images [N, H, W, C], labels[, sample weights]). Received: {spec}")
    low, high = (float(value) for value in input_range)
    if spec[0].dtype.is_integer and (low, high) == (0.0, 1.0):
        raise ValueError(f"Expected float images in [0, 1]. Received: {spec[0].dtype.name}. Try: input_range=(0, 255)")

    def make(step, batch):
        images, *rest = batch
        made = views_of(image_ops.unit_images(images, (low, high)), functions, tf.stack([tf.constant(seed, tf.int64), step]))
        return tuple(view * (high - low) + low for view in made), *rest

    return dataset.repeat().enumerate().map(make, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(2)


def views_of(images: tf.Tensor, functions: Sequence[Augmentation], seed: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Returns the views of images, float32 [N, H, W, C] in [0, 1]. functions: one for each view; seed: int64 [2], of the step."""
    seeds = [philox.fold(seed, FIRST_VIEW + number) for number in range(len(functions))]
    return tuple(tf.ensure_shape(view(images, key), images.shape) for view, key in zip(functions, seeds))


def view_functions(views: Sequence[str | Augmentation]) -> list[Augmentation]:
    """Returns the functions of views given by name or as functions."""
    for view in views:
        if not callable(view) and view not in VIEWS:
            raise unknown("view", view, VIEWS)
    return [VIEWS[view] if isinstance(view, str) else view for view in views]


class Server:
    """Prepares batches for clients, which can reach this machine under HOST:PORT, as long as the object lives."""

    def __init__(self, address: str) -> None:
        host, port = parse_address(address)
        with socket.socket() as probe:  # the server itself would silently share a port that is in use
            try:
                probe.bind(("", port))
            except OSError as error:
                raise ValueError(f"Expected a free port of this machine. Received: {address} ({error})") from error
        self._dispatcher = service.DispatchServer(service.DispatcherConfig(port=port))
        config = service.WorkerConfig(dispatcher_address=f"localhost:{port}", worker_address=f"{host}:%port%")
        self._worker = service.WorkerServer(config)


def parse_address(address: str) -> tuple[str, int]:
    """Returns (host, port) of HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"Expected data_service=HOST:PORT, or several separated by commas. Received: {address!r}")
    return host, int(port)


def check_servers(addresses: Sequence[str]) -> None:
    """Raises ConnectionError unless all servers answer."""
    for address in addresses:
        try:
            socket.create_connection(parse_address(address), timeout=_TIMEOUT).close()
        except OSError as error:
            raise ConnectionError(
                f"{address} does not answer ({error}). Try: restart its server, tf-robust serve --data_service={address}, and repeat this "
                "command, or omit --data_service: training resumes from the last checkpoint"
            ) from error


@contextlib.contextmanager
def watched_servers(addresses: Sequence[str]) -> Iterator[None]:
    """Context in which a server that does not answer ends the process with a message; TensorFlow would wait for an hour."""
    check_servers(addresses)
    closed = threading.Event()

    def watch():
        while not closed.wait(_TIMEOUT):
            try:
                check_servers(addresses)
            except ConnectionError as error:
                print(f"Error: {error}", file=sys.stderr, flush=True)
                os._exit(1)  # the main thread blocks inside TensorFlow, where no exception reaches it

    if addresses:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        closed.set()
