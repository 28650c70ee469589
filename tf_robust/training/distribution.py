"""Which devices train together: the one there is, several of this machine, or those of several machines (workers)."""

import contextlib
import functools
import json
import os

import keras
import tensorflow as tf

STRATEGIES = ("auto", "mirrored", "multi_worker")
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError,
         tf.errors.InternalError, tf.errors.UnknownError)


class WorkerLost(RuntimeError):
    """A process of a training on several machines has ended before the others."""


@functools.lru_cache(maxsize=None)
def strategy(name="auto"):
    """The strategy of a name, one object a process: a second one would reuse the first one's collective keys.

    Args:
        name: `auto`: all GPUs of this machine if there are several, else the device there is. `mirrored`: the same, or all
            logical CPU devices. `multi_worker`: the devices of every worker in TF_CONFIG; asked for before anything is computed.

    Raises:
        ValueError: there is one device alone to mirror on, or TF_CONFIG does not name this worker.
    """
    if name == "multi_worker":
        check_cluster(os.environ.get("TF_CONFIG", ""))
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus, cpus = (tf.config.list_logical_devices(kind) for kind in ("GPU", "CPU"))
    if name == "auto":
        return tf.distribute.MirroredStrategy() if len(gpus) > 1 else tf.distribute.get_strategy()
    if len(gpus or cpus) < 2:
        raise ValueError(f"Expected several devices for strategy=mirrored. Received {(gpus or cpus)[0].name} alone; leave it at auto")
    return tf.distribute.MirroredStrategy([device.name for device in gpus or cpus])


def check_cluster(text):
    """Raises ValueError unless a TF_CONFIG names at least two workers, and this process as one of them."""
    try:
        config = json.loads(text)
        workers, task = config["cluster"]["worker"], config["task"]
        good = len(workers) > 1 and task["type"] == "worker" and 0 <= int(task["index"]) < len(workers)
    except (ValueError, KeyError, TypeError):
        good = False
    if not good:
        raise ValueError("Expected for strategy=multi_worker, in every worker, an environment variable like TF_CONFIG='{\"cluster\": "
                         "{\"worker\": [\"10.0.0.1:2222\", \"10.0.0.2:2222\"]}, \"task\": {\"type\": \"worker\", \"index\": 0}}', of which "
                         f"the index differs. Received: {text or 'none'}")


def several_machines(strategy):
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def is_chief(strategy):
    """Whether this process writes: alone, or the first of several workers."""
    return not several_machines(strategy) or strategy.cluster_resolver.task_id == 0


def distributed(strategy, batches, batch_size):
    """Batches [B, ...] as the strategy's replicas share them, B / replicas each, in their order; every worker makes all of them."""
    replicas = strategy.num_replicas_in_sync
    if replicas == 1 and not several_machines(strategy):
        return batches

    def of_worker(context):
        here = replicas // context.num_input_pipelines
        first = context.input_pipeline_id * here

        def divided(batch):
            return tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(
                lambda part: tf.reshape(part, [replicas, batch_size // replicas, *part.shape[1:]])[first:first + here], batch))
        return batches.flat_map(divided)
    return strategy.distribute_datasets_from_function(of_worker)


def batch_norms(layer):
    """All layers of batch norm inside a layer or model, however deep."""
    for inner in getattr(layer, "layers", ()):
        if isinstance(inner, keras.layers.BatchNormalization):
            yield inner
        yield from batch_norms(inner)


def synchronize_batch_norm(model):
    """Lets a model's batch norm take its statistics over the shares of all replicas, not each replica's own."""
    for layer in batch_norms(model):
        layer.synchronized = True


def check_agreement(strategy, step):
    """Raises ValueError unless every worker begins at this step."""
    if several_machines(strategy):
        @tf.function
        def sum_of_steps():
            return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(step, tf.int64)), axis=None)
        if int(sum_of_steps()) != step * strategy.num_replicas_in_sync:
            raise ValueError(f"Expected all workers to begin at one step. This one found a checkpoint of step {step}, others another: "
                             "--workdir must be a folder that all of them see")


@contextlib.contextmanager
def together(strategy):
    """What workers do together: WorkerLost where one of them has ended."""
    try:
        yield
    except _LOST as error:
        if not several_machines(strategy):
            raise
        raise WorkerLost("Another worker has ended. Start all workers again with the same command; they go on from the last epoch's "
                         "checkpoint") from error
