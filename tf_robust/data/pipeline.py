"""The training pipeline: source -> order of an epoch -> batches -> float32 in [0, 1] -> augmentations -> views -> prefetch."""

import functools
import os
import typing
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_robust.data import service
from tf_robust.data.augment import clean
from tf_robust.data.contrastive_views import min_crop_areas
from tf_robust.data.dataset_views import FIRST_VIEW
from tf_robust.data.source import Source
from tf_robust.ops import image_ops, philox

PARALLEL_CALLS = max(2, min(8, os.cpu_count() or 2))  # batches prepared in parallel
Augmentation: typing.TypeAlias = Callable[..., tf.Tensor]  # (images, seed) -> images


class Batch(typing.NamedTuple):
    """One batch of training examples.

    Attributes:
        views: tuple of float32 [B, H, W, C] in [0, 1]; the first is the image a classifier sees.
        labels: int64 [B]; in `fit` also probabilities of the classes, float32 [B, classes].
        step: int64 [B], the global step, the same for all (a vector, so that replicas can split the batch).
        positions: int64 [B], each image's position in the training set.
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
        source: a `Source`.
        batch_size: examples per step, over all replicas.
        seed: of the run.
        step: the first global step.
        augmentations: functions (images, seed) -> images, applied in this order.
        views: functions (images, seed) -> images; each makes one view of the augmented image.
        servers: addresses of processes that prepare the batches (`data.service`); empty: this process.

    Returns:
        infinite Dataset of `Batch`

    Raises:
        ValueError: the batch is empty or larger than the data.
    """
    examples, to_batch = _steps(source, batch_size, seed, step, augmentations, views)

    def to_batches(examples):
        return examples.map(to_batch, num_parallel_calls=PARALLEL_CALLS, deterministic=True).prefetch(4)

    if not servers:
        return to_batches(examples)
    return service.round_robin(
        [service.from_server(server, to_batches(examples.shard(len(servers), number))) for number, server in enumerate(servers)]
    ).with_options(_training_options())


def first_batch(
    source: Source,
    batch_size: int,
    *,
    seed: int,
    step: int = 0,
    augmentations: Sequence[Augmentation] = (),
    views: Sequence[Augmentation] = (clean,),
) -> Batch:
    """Returns the first of `training_batches` without building their graph; values may differ in the last digit. Arguments as there."""
    examples, to_batch = _steps(source, batch_size, seed, step, augmentations, views)
    with tf.device("CPU"):  # as in a Dataset
        return to_batch(*next(iter(examples)))


def _steps(source, batch_size, seed, step, augmentations, views):
    """The examples of each step, a Dataset of (step, examples), and the function that makes a `Batch` of them."""
    first, skipped = divmod(step, steps_per_epoch(source, batch_size))
    windows = min_crop_areas(views) if source.cuts_windows else ()
    if windows:  # cropped from the full image in its original resolution
        views = [functools.partial(view, min_crop_area=1.0) for view in views]

    @tf.autograph.experimental.do_not_convert
    def read_epoch(epoch):
        return source.epoch(seed, epoch, batch_size, tf.where(epoch == first, tf.constant(skipped, tf.int64), 0), windows)

    def to_batch(step, example):
        images, labels, positions = example
        shape = [batch_size, *source.image_shape]
        inputs = [image_ops.to_float(part) for part in (tf.unstack(images, len(windows), axis=1) if windows else [images])]

        def apply(function, part, purpose):
            return tf.ensure_shape(function(part, philox.fold(tf.stack([tf.constant(seed, tf.int64), step]), purpose)), shape)

        for position, augment in enumerate(augmentations):
            inputs = [apply(augment, part, 1000 + position) for part in inputs]
        outputs = tuple(apply(view, inputs[position if windows else 0], FIRST_VIEW + position) for position, view in enumerate(views))
        return Batch(outputs, labels, tf.fill([batch_size], step), positions)

    examples = tf.data.Dataset.range(first, tf.int64.max).flat_map(read_epoch).enumerate(start=step).with_options(_training_options())
    return examples, to_batch


def steps_per_epoch(source: Source, batch_size: int) -> int:
    """Returns the number of full batches in an epoch.

    Raises:
        ValueError: the batch is empty, or larger than the data.
    """
    if batch_size < 1:
        raise ValueError(f"Expected batch_size >= 1. Received: {batch_size}")
    if batch_size > len(source):
        raise ValueError(
            f"Expected a batch no larger than the data ({len(source)} examples of {source.name}, "
            f"{source.split}). Received: batch_size={batch_size}"
        )
    return len(source) // batch_size


def evaluation_batches(source: Source, batch_size: int = 256) -> tf.data.Dataset:
    """Returns a Dataset of (float32 [B, H, W, C] in [0, 1], int64 [B]) in the fixed order."""
    return source.ordered(batch_size).map(lambda images, labels: (image_ops.to_float(images), labels)).prefetch(2).with_options(_untuned())


def _untuned():
    """Disables tf.data's autotuning: parallelism is fixed, and the tuner can restrict a network to half of the cores."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def _training_options():
    options = _untuned()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
