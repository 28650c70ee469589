"""source -> each epoch's order -> batches -> float32 in [0, 1] -> augmentations -> views -> prefetch."""

import functools
import os
import typing

import tensorflow as tf

from tf_robust.data import service
from tf_robust.data.augment import clean
from tf_robust.data.contrastive_views import min_crop_areas
from tf_robust.ops import image_ops, philox

PARALLEL_CALLS = max(2, min(8, os.cpu_count() or 2))  # batches that are being made


class Batch(typing.NamedTuple):
    """What a method trains on.

    Attributes:
        views: tuple of float32 [B, H, W, C] in [0, 1]; the first is the image a classifier sees.
        labels: int64 [B].
        step: int64 [B], the global step, the same for all (a vector, so that replicas can divide the batch).
        positions: int64 [B], each image's place in the training set.
    """
    views: tuple
    labels: tf.Tensor
    step: tf.Tensor
    positions: tf.Tensor = None


def training_batches(source, batch_size, *, seed, step=0, augmentations=(), views=(clean,), servers=()):
    """The batches of a training from a global step on, epoch after epoch, as a pure function of its arguments.

    Args:
        source: a `Source`. batch_size: examples a step, over all replicas.
        seed: the run's seed. step: the first one.
        augmentations: functions (images, seed) -> images, applied in this order.
        views: functions (images, seed) -> images, each of which makes one view of the augmented image.
        servers: addresses of processes that make the batches (`data.service`); none: this one.

    Returns:
        Dataset of `Batch`, without end.
    """
    first, skipped = divmod(step, steps_per_epoch(source, batch_size))
    windows = min_crop_areas(views) if source.cuts_windows else ()
    if windows:  # cut from the whole image, in its own resolution
        views = [functools.partial(view, min_crop_area=1.0) for view in views]

    @tf.autograph.experimental.do_not_convert
    def of_epoch(epoch):
        return source.epoch(seed, epoch, batch_size, tf.where(epoch == first, tf.constant(skipped, tf.int64), 0), windows)

    def to_batch(step, example):
        images, labels, positions = example
        shape = [batch_size, *source.image_shape]
        inputs = [image_ops.to_float(part) for part in (tf.unstack(images, len(windows), axis=1) if windows else [images])]

        def applied(function, part, purpose):
            return tf.ensure_shape(function(part, philox.fold(
                tf.stack([tf.constant(seed, tf.int64), step]), purpose)), shape)
        for position, augment in enumerate(augmentations):
            inputs = [applied(augment, part, 1000 + position) for part in inputs]
        made = tuple(applied(view, inputs[position if windows else 0], 2000 + position) for position, view in enumerate(views))
        return Batch(made, labels, tf.fill([batch_size], step), positions)

    options = _untuned()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    examples = tf.data.Dataset.range(first, tf.int64.max).flat_map(of_epoch).enumerate(start=step).with_options(options)

    def made(examples):
        return examples.map(to_batch, num_parallel_calls=PARALLEL_CALLS, deterministic=True).prefetch(4)
    if not servers:
        return made(examples)
    return service.in_turn([service.made_by(server, made(examples.shard(len(servers), place)))
                            for place, server in enumerate(servers)]).with_options(options)


def steps_per_epoch(source, batch_size):
    """Whole batches in an epoch.

    Raises:
        ValueError: the batch is not positive, or larger than the data.
    """
    if batch_size < 1:
        raise ValueError(f"Expected batch_size >= 1. Received: {batch_size}")
    if batch_size > len(source):
        raise ValueError(f"Expected a batch no larger than the data ({len(source)} examples of {source.name}, "
                         f"{source.split}). Received: batch_size={batch_size}")
    return len(source) // batch_size


def evaluation_batches(source, batch_size=256):
    """Dataset of (float32 [B, H, W, C] in [0, 1], int64 [B]) in the fixed order."""
    return source.ordered(batch_size).map(lambda images, labels: (image_ops.to_float(images), labels)).prefetch(2).with_options(_untuned())


def _untuned():
    """All parallelism is fixed, and tf.data's tuner can keep a network's layers to half of the cores as long as a dataset lives."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return options
