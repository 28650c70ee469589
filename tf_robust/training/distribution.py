"""Distributed training: on one device, on several of this machine, or on several machines (workers)."""

import contextlib
import functools
import json
import os
from collections.abc import Iterator

import keras
import tensorflow as tf

STRATEGIES = ("auto", "mirrored", "multi_worker")
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)


class WorkerLost(RuntimeError):
    """Another process of a training run on several machines has ended."""


@functools.cache
def strategy(name: str = "auto") -> tf.distribute.Strategy:
    """Returns the strategy of a name, one object per process: a second one would reuse the first one's collective keys.

    Args:
        name: `auto`: all GPUs of this machine if there are several, else the default device. `mirrored`: the same, or all
            logical CPU devices. `multi_worker`: the devices of every worker in TF_CONFIG; call this before any computation.

    Raises:
        ValueError: there is only one device to mirror on, or TF_CONFIG does not contain this worker.
    """
    if name == "multi_worker":
        check_cluster(os.environ.get("TF_CONFIG", ""))
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus, cpus = (tf.config.list_logical_devices(kind) for kind in ("GPU", "CPU"))
    if name == "auto":
        return tf.distribute.MirroredStrategy() if len(gpus) > 1 else tf.distribute.get_strategy()
    if len(gpus or cpus) < 2:
        raise ValueError(f"Expected several devices for strategy=mirrored. Received: only {(gpus or cpus)[0].name}. Try: strategy=auto")
    return tf.distribute.MirroredStrategy([device.name for device in gpus or cpus])


def check_cluster(text: str) -> None:
    """Raises ValueError unless a TF_CONFIG has at least two workers, one of which is this process."""
    try:
        config = json.loads(text)
        workers, task = config["cluster"]["worker"], config["task"]
        valid = len(workers) > 1 and task["type"] == "worker" and 0 <= int(task["index"]) < len(workers)
    except (ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise ValueError(
            'Expected for strategy=multi_worker, in every worker, an environment variable like TF_CONFIG=\'{"cluster": '
            '{"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, "task": {"type": "worker", "index": 0}}\' with '
            f"its own index. Received: {text or 'none'}"
        )


def several_machines(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether a strategy spans several machines."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process writes files: the only one, or the first of several workers."""
    return not several_machines(strategy) or strategy.cluster_resolver.task_id == 0


def distribute(strategy: tf.distribute.Strategy, batches: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Divides batches [B, ...] over the strategy's replicas, B / replicas each, in order; every worker produces all batches."""
    replicas = strategy.num_replicas_in_sync
    if replicas == 1 and not several_machines(strategy):
        return batches

    def of_worker(context):
        count = replicas // context.num_input_pipelines  # replicas of this worker
        first = context.input_pipeline_id * count

        def divide(batch):
            return tf.data.Dataset.from_tensor_slices(
                tf.nest.map_structure(
                    lambda part: tf.reshape(part, [replicas, batch_size // replicas, *part.shape[1:]])[first : first + count], batch
                )
            )

        return batches.flat_map(divide)

    return strategy.distribute_datasets_from_function(of_worker)


def batch_norms(layer: keras.layers.Layer) -> Iterator[keras.layers.BatchNormalization]:
    """Yields all batch norm layers inside a layer or model, at any depth, also those that are attributes of a layer."""
    for inner in layer._flatten_layers(include_self=False):
        if isinstance(inner, keras.layers.BatchNormalization):
            yield inner


def synchronize_batch_norm(model: keras.Model) -> None:
    """Makes a model's batch norm compute its statistics over all replicas instead of each replica's own."""
    for layer in batch_norms(model):
        layer.synchronized = True


def check_agreement(strategy: tf.distribute.Strategy, step: int) -> None:
    """Raises ValueError unless every worker starts at this step."""
    if several_machines(strategy):

        @tf.function
        def sum_of_steps():
            return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(step, tf.int64)), axis=None)

        if int(sum_of_steps()) != step * strategy.num_replicas_in_sync:
            raise ValueError(
                f"Expected all workers to start at the same step. Received: step {step} in this one, another step in "
                "others. Try: a --workdir that all workers can access"
            )


@contextlib.contextmanager
def detect_lost_workers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Context for computations of several workers; raises WorkerLost if another worker has ended."""
    try:
        yield
    except _LOST as error:
        if not several_machines(strategy):
            raise
        raise WorkerLost(
            "Another worker has ended. Try: start all workers again with the same command; they resume from the last epoch's checkpoint"
        ) from error
