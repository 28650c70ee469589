"""Training: epochs of batches through `Method.train_step`, with checkpoints, exact resume and a clean stop.

Keras' own `fit` runs past the end of an epoch when `steps_per_execution` does not divide it and cannot start inside
one; this loop does neither. Keras' callbacks and progress bar serve.
"""

import dataclasses
import logging
import signal
import sys
import threading
import time

import keras
import numpy as np
import tensorflow as tf

from tf_robust import data, losses
from tf_robust.training import checkpoints, distribution

CHECKPOINT_SECONDS = 600.0


class TrainingDiverged(RuntimeError):
    """A loss term or the gradient is not finite."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the state is saved, the same command goes on from here."""


@dataclasses.dataclass
class TrainingResult:
    """steps: the global step reached. seconds: spent on training, by stopped and killed processes up to their last checkpoint."""
    steps: int
    seconds: float


def fit(method, source, *, epochs, batch_size, checkpoint_folder=None, validation=None, callbacks=(), steps_per_execution=1,
        stop_after=None, servers=(), **pipeline):
    """Trains a compiled method, from its newest checkpoint if there is one; or at once, if that is how it is trained.

    Args:
        method: a `Method`, compiled with an optimizer (inside the strategy's scope, if any).
        source: a `data.Source`. epochs, batch_size: positive; the batch is over all replicas.
        checkpoint_folder: where to save after each epoch and, on one machine, every ten minutes or so and on Ctrl-C; None: nowhere.
        validation: a `Source` evaluated after every epoch, or about ten times in a longer training; None for none.
        callbacks: Keras callbacks. steps_per_execution: steps run without coming back to Python.
        servers: addresses of processes that make the batches (`data.service`); none: this one.
        stop_after: stop cleanly at this global step, as Ctrl-C does.
        **pipeline: `augmentations` and `views`, as `data.training_batches` takes them.

    Returns:
        TrainingResult

    Raises:
        TrainingDiverged: names the term and the step; the last good checkpoint is kept.
        Interrupted: after Ctrl-C; the state is saved. WorkerLost: another machine's process has ended.
    """
    if epochs < 1 or steps_per_execution < 1:
        raise ValueError(f"Expected epochs and steps_per_execution >= 1. Received: {epochs}, {steps_per_execution}")
    if method.closed_form:
        began = time.monotonic()
        method.solve(source)
        return TrainingResult(1, time.monotonic() - began)
    steps = data.steps_per_epoch(source, batch_size)
    strategy = method.distribute_strategy
    chief, alone = distribution.is_chief(strategy), not distribution.several_machines(strategy)
    if batch_size % strategy.num_replicas_in_sync:
        raise ValueError(f"Expected a batch that {strategy.num_replicas_in_sync} replicas can share equally. "
                         f"Received: batch_size={batch_size}")
    for warning in method.schedule(steps, steps * epochs):
        logging.warning(warning)
    with strategy.scope():
        method.optimizer.build(method.trainable_variables)
    step, seconds = checkpoints.restore(method, checkpoint_folder) if checkpoint_folder else (0, 0.0)
    distribution.check_agreement(strategy, step)
    if step:
        print(f"Resumed at step {step} of {steps * epochs}.", flush=True)
    began, run_steps = time.monotonic() - seconds, steps_function(method)
    validate = _validation(method, source, validation, pipeline.get("views", ()))
    verbose = 1 if sys.stdout.isatty() else 2
    callbacks = keras.callbacks.CallbackList(list(callbacks) if chief else [], add_progbar=chief, model=method, verbose=verbose,
                                             epochs=epochs, steps=steps)
    callbacks.on_train_begin()
    with distribution.together(strategy), data.service.watched(servers), _clean_stop(alone) as stop_requested:
        saver = _Saver(method, checkpoint_folder, step, began)
        batches = data.training_batches(source, batch_size, seed=method.seed, step=step, servers=servers, **pipeline)
        iterator = iter(distribution.distributed(strategy, batches, batch_size))
        while step < steps * epochs:
            epoch, done = divmod(step, steps)
            callbacks.on_epoch_begin(epoch)
            if not done:
                method.reset_metrics()
            while step < (epoch + 1) * steps:
                count = min(steps_per_execution, (epoch + 1) * steps - step, (stop_after or step + 10**9) - step)
                checked_run(run_steps, iterator, count, method)
                step += count
                callbacks.on_train_batch_end(step - epoch * steps - 1, _values(method))
                if stop_requested.is_set() or step == stop_after:
                    break
                if step < (epoch + 1) * steps and alone:  # several machines' clocks differ, and all must take part
                    saver.save_if_due(step)
            if step < (epoch + 1) * steps:
                saver.stop(step, steps * epochs)
            logs = _values(method)
            if validation is not None and chief and ((epoch + 1) % max(1, epochs // 10) == 0 or epoch + 1 == epochs):
                logs.update(validate())
            callbacks.on_epoch_end(epoch, logs)
            saver.save(step)
            if stop_requested.is_set() or step == stop_after:
                saver.stop(step, steps * epochs)
    callbacks.on_train_end()
    return TrainingResult(step, time.monotonic() - began)


def _validation(method, known, source, views):
    """A function that measures a source in inference mode: {"val_cross_entropy": ..., "val_accuracy": ...}, and monitors."""
    @tf.function(reduce_retracing=True)
    def sums(images, labels):
        logits = method.classifier(images, training=False)["logits"]
        hits = tf.cast(tf.argmax(logits, 1) == labels, tf.float32)
        return tf.reduce_sum(losses.cross_entropy(labels, logits)), tf.reduce_sum(hits)

    def validate():
        loss, hits = np.sum([sums(*batch) for batch in data.evaluation_batches(source)], axis=0) / len(source)
        monitored = {f"val_{name}": value for name, value in method.monitors(known, source, views).items()}
        return {"val_cross_entropy": float(loss), "val_accuracy": float(hits), **monitored}
    return validate


def steps_function(method):
    """A graph that trains a number of steps: (iterator over `Batch`es, int32 count) -> nothing."""
    train_step = tf.autograph.experimental.do_not_convert(method.train_step)

    @tf.function(reduce_retracing=True)
    def run_steps(iterator, count):
        for _ in tf.range(count):
            method.distribute_strategy.run(train_step, (next(iterator),))
    return run_steps


def checked_run(run_steps, iterator, count, method):
    """Runs a graph of `steps_function`; raises TrainingDiverged, with the term and the step, where a number is not finite."""
    try:
        run_steps(iterator, tf.constant(count))
    except tf.errors.InvalidArgumentError as error:
        at = int(method.optimizer.iterations.numpy())
        culprit = next((line for line in error.message.split("\n") if "Tensor had" in line), None)
        if culprit is None:
            raise
        what = culprit.split(" : ")[0].strip()
        raise TrainingDiverged(
            f"Not finite at step {at}: {what} ({culprit.split(' : ')[-1].strip()}). Training stopped; the last good "
            f"checkpoint is kept. Try a lower learning rate or weight of the term.") from error


def _values(method):
    return {name: float(value) for name, value in method.get_metrics_result().items()}


class _Saver:
    """Saves checkpoints. began: monotonic time at which the training would have begun without interruptions."""

    def __init__(self, method, folder, step, began):
        self.method, self.folder, self.saved, self.time, self.began = method, folder, step, time.monotonic(), began

    def save(self, step):
        if self.folder and step != self.saved:
            checkpoints.save(self.method, self.folder, step, time.monotonic() - self.began,
                             write=distribution.is_chief(self.method.distribute_strategy))
            self.saved, self.time = step, time.monotonic()

    def stop(self, step, last):
        self.save(step)
        raise Interrupted(f"Stopped at step {step} of {last}. The same command goes on from here.")

    def save_if_due(self, step):
        if time.monotonic() - self.time > CHECKPOINT_SECONDS:
            self.save(step)


class _clean_stop:
    """While open, the first Ctrl-C sets an event instead of raising; the second raises at once. Unless `able`, the first does."""

    def __init__(self, able):
        self.event, self.main = threading.Event(), able and threading.current_thread() is threading.main_thread()

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
