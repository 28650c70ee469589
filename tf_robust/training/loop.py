"""Training: epochs of batches through `Method.train_step`, with checkpoints, exact resume and a clean stop.

Keras' own `fit` runs past the end of an epoch when `steps_per_execution` does not divide it, and cannot start inside
one; this loop has neither limitation. It uses Keras' callbacks and progress bar.
"""

import dataclasses
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_robust import data, losses
from tf_robust.data.source import Source
from tf_robust.training import checkpoints, distribution

CHECKPOINT_SECONDS = 600.0

Method = Any  # a `methods.base.Method`, which this package does not import


class TrainingDiverged(RuntimeError):
    """A loss term or the gradient is not finite."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped, by Ctrl-C for example; the state is saved, and the same command resumes it."""


@dataclasses.dataclass
class TrainingResult:
    """Result of `fit`.

    Attributes:
        steps: the global step reached.
        seconds: training time, including that of interrupted processes up to their last checkpoint.
    """

    steps: int
    seconds: float


def fit(
    method: Method,
    source: Source,
    *,
    epochs: int,
    batch_size: int,
    checkpoint_folder: str | None = None,
    validation: Source | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    steps_per_execution: int = 1,
    stop_after: int | None = None,
    servers: Sequence[str] = (),
    on_first_batch: Callable[[data.Batch], object] | None = None,
    **pipeline,
) -> TrainingResult:
    """Trains a compiled method, from its newest checkpoint if there is one; a method with a closed-form solution is solved without epochs.

    Args:
        method: a `Method`, compiled with an optimizer (inside the strategy's scope, if any).
        source: the training set.
        epochs: >= 1.
        batch_size: >= 1, over all replicas.
        checkpoint_folder: folder of the checkpoints, saved after each epoch and, on one machine, about every ten minutes and on
            Ctrl-C; None: no checkpoints.
        validation: a set to evaluate after every epoch, or about ten times in a longer training run; None: no validation.
        callbacks: Keras callbacks.
        steps_per_execution: number of steps per call of the compiled graph.
        stop_after: stop cleanly at this global step, as Ctrl-C does.
        servers: addresses of processes that produce the batches (`data.service`); empty: this process.
        on_first_batch: called before the first step with its batch, unless servers produce the batches.
        **pipeline: `augmentations` and `views`, arguments of `data.training_batches`.

    Returns:
        TrainingResult

    Raises:
        TrainingDiverged: a loss term or the gradient is not finite; the last good checkpoint is kept.
        Interrupted: after Ctrl-C or at `stop_after`; the state is saved.
        WorkerLost: the process of another machine has ended.
    """
    if epochs < 1 or steps_per_execution < 1:
        raise ValueError(f"Expected epochs and steps_per_execution >= 1. Received: {epochs}, {steps_per_execution}")
    if method.closed_form:
        start = time.monotonic()
        method.solve(source)
        return TrainingResult(1, time.monotonic() - start)
    steps = data.steps_per_epoch(source, batch_size)
    strategy = method.distribute_strategy
    chief, one_machine = distribution.is_chief(strategy), not distribution.several_machines(strategy)
    if batch_size % strategy.num_replicas_in_sync:
        raise ValueError(
            f"Expected a batch that {strategy.num_replicas_in_sync} replicas divide equally. Received: batch_size={batch_size}"
        )
    for warning in method.schedule(steps, steps * epochs):
        logging.warning(warning)
    with strategy.scope():
        method.optimizer.build(method.trainable_variables)
    step, seconds = checkpoints.restore(method, checkpoint_folder) if checkpoint_folder else (0, 0.0)
    distribution.check_agreement(strategy, step)
    if step:
        print(f"Resumed at step {step} of {steps * epochs}.", flush=True)
    start, run_steps = time.monotonic() - seconds, steps_function(method)
    validate = _validation(method, source, validation, pipeline.get("views", ()))
    verbose = 1 if sys.stdout.isatty() else 2
    callback_list = keras.callbacks.CallbackList(
        list(callbacks) if chief else [], add_progbar=chief, model=method, verbose=verbose, epochs=epochs, steps=steps
    )
    callback_list.on_train_begin()
    with distribution.detect_lost_workers(strategy), data.service.watched(servers), _StopOnInterrupt(one_machine) as stop_requested:
        saver = _Saver(method, checkpoint_folder, step, start)
        batches = data.training_batches(source, batch_size, seed=method.seed, step=step, servers=servers, **pipeline)
        if on_first_batch and not servers:
            on_first_batch(next(iter(batches)))
        iterator = iter(distribution.distribute(strategy, batches, batch_size))
        while step < steps * epochs:
            epoch, steps_done = divmod(step, steps)
            callback_list.on_epoch_begin(epoch)
            if not steps_done:
                method.reset_metrics()
            while step < (epoch + 1) * steps:
                count = min(steps_per_execution, (epoch + 1) * steps - step, (stop_after or step + 10**9) - step)
                checked_run(run_steps, iterator, count, method)
                step += count
                callback_list.on_train_batch_end(step - epoch * steps - 1, _values(method))
                if stop_requested.is_set() or step == stop_after:
                    break
                if step < (epoch + 1) * steps and one_machine:  # the clocks of several machines differ, and all must take part
                    saver.save_if_due(step)
            if step < (epoch + 1) * steps:
                saver.stop(step, steps * epochs)
            logs = _values(method)
            if validation is not None and chief and ((epoch + 1) % max(1, epochs // 10) == 0 or epoch + 1 == epochs):
                logs.update(validate())
            callback_list.on_epoch_end(epoch, logs)
            saver.save(step)
            if stop_requested.is_set() or step == stop_after:
                saver.stop(step, steps * epochs)
    callback_list.on_train_end()
    return TrainingResult(step, time.monotonic() - start)


def _validation(method, training_source, source, views):
    """Returns a function that evaluates a source in inference mode: {"val_cross_entropy": ..., "val_accuracy": ...}, and monitors."""

    @tf.function(reduce_retracing=True)
    def sums(images, labels):
        logits = method.network(images, training=False)["logits"]
        correct = tf.cast(tf.argmax(logits, 1) == labels, tf.float32)
        return tf.reduce_sum(losses.cross_entropy(labels, logits)), tf.reduce_sum(correct)

    def validate():
        loss, accuracy = np.sum([sums(*batch) for batch in data.evaluation_batches(source)], axis=0) / len(source)
        monitored = {f"val_{name}": value for name, value in method.monitors(training_source, source, views).items()}
        return {"val_cross_entropy": float(loss), "val_accuracy": float(accuracy), **monitored}

    return validate


def steps_function(method: Method) -> Callable[[Iterator, tf.Tensor], None]:
    """Returns a compiled graph that trains for a number of steps: (iterator over `Batch`es, int32 count) -> None."""
    train_step = tf.autograph.experimental.do_not_convert(method.train_step)

    @tf.function(reduce_retracing=True)
    def run_steps(iterator, count):
        for _ in tf.range(count):
            method.distribute_strategy.run(train_step, (next(iterator),))

    return run_steps


def checked_run(run_steps: Callable[[Iterator, tf.Tensor], None], iterator: Iterator, count: int, method: Method) -> None:
    """Runs a graph of `steps_function`.

    Args:
        run_steps: the graph.
        iterator: over `Batch`es.
        count: number of steps.
        method: the method that is trained.

    Raises:
        TrainingDiverged: a loss term or the gradient is not finite; the message names it and the step.
    """
    try:
        run_steps(iterator, tf.constant(count))
    except tf.errors.InvalidArgumentError as error:
        step = int(method.optimizer.iterations.numpy())
        line = next((text for text in error.message.split("\n") if "Tensor had" in text), None)
        if line is None:
            raise
        tensor = line.split(" : ")[0].strip()
        raise TrainingDiverged(
            f"Not finite at step {step}: {tensor} ({line.split(' : ')[-1].strip()}). Training stopped; the last good "
            f"checkpoint is kept. Try: a lower learning rate or weight of the term."
        ) from error


def _values(method):
    return {name: float(value) for name, value in method.get_metrics_result().items()}


class _Saver:
    """Saves checkpoints. start: monotonic time at which training would have started without interruptions."""

    def __init__(self, method, folder, step, start):
        self.method, self.folder, self.saved_step, self.time, self.start = method, folder, step, time.monotonic(), start

    def save(self, step):
        if self.folder and step != self.saved_step:
            checkpoints.save(
                self.method, self.folder, step, time.monotonic() - self.start, write=distribution.is_chief(self.method.distribute_strategy)
            )
            self.saved_step, self.time = step, time.monotonic()

    def stop(self, step, total):
        self.save(step)
        raise Interrupted(f"Stopped at step {step} of {total}. Try: the same command resumes the training.")

    def save_if_due(self, step):
        if time.monotonic() - self.time > CHECKPOINT_SECONDS:
            self.save(step)


class _StopOnInterrupt:
    """Context in which the first Ctrl-C sets an event, and the second raises. Unless `enabled`, the first one raises."""

    def __init__(self, enabled):
        self.event, self.main = threading.Event(), enabled and threading.current_thread() is threading.main_thread()

    def __enter__(self):
        if self.main:
            self.previous = signal.signal(signal.SIGINT, self._handle)
        return self.event

    def _handle(self, *_):
        print("\nStopping after these steps; press Ctrl-C again to stop at once.", flush=True)
        signal.signal(signal.SIGINT, self.previous)
        self.event.set()

    def __exit__(self, *_):
        if self.main:
            signal.signal(signal.SIGINT, self.previous)
