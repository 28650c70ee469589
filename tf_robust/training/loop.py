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
import tensorflow as tf

from tf_robust import data
from tf_robust.data.source import Source
from tf_robust.training import checkpoints, distribution, divergence, optimizers
from tf_robust.training.averaging import WeightAverage
from tf_robust.training.divergence import TrainingDiverged as TrainingDiverged
from tf_robust.training.selection import Selection
from tf_robust.training.validation import Validation
from tf_robust.utils.progress import print_line

CHECKPOINT_SECONDS = 600.0

Method = Any  # a `methods.base.Method`, which this package does not import


class TrainingStopped(Exception):
    """A callback ended the training on purpose: its results are not needed."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped, by Ctrl-C for example; if there is a folder of checkpoints, the same command resumes it."""


@dataclasses.dataclass
class TrainingResult:
    """Result of `fit`.

    Attributes:
        steps: the global step reached.
        seconds: training time, including that of interrupted processes up to their last checkpoint.
        selected_epoch: epoch, counted from 1, whose weights a `Selection` chose; None without one.
    """

    steps: int
    seconds: float
    selected_epoch: int | None = None

    def record(self) -> dict[str, int | float]:
        """Returns the fields that are not None, for JSON."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


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
    selection: Selection | None = None,
    **pipeline,
) -> TrainingResult:
    """Trains a compiled method, from its newest checkpoint if there is one; a method with a closed-form solution is solved without epochs.

    At the end the classifier has the weights of the last epoch: the averaged ones if the optimizer averages them (`use_ema`); or those
    of the epoch that `selection` chose.

    Args:
        method: a `Method`, compiled with an optimizer (inside the strategy's scope, if any).
        source: the training set.
        epochs: >= 1.
        batch_size: >= 1, over all replicas.
        checkpoint_folder: folder of the checkpoints, saved after each epoch and, on one machine, about every ten minutes and on
            Ctrl-C; None: no checkpoints.
        validation: a set to evaluate after every epoch, or about ten times in a longer training run; None: no validation.
        callbacks: Keras callbacks. On one machine they may end the training after an epoch (`stop_training`). Checkpoints do not contain
            their state.
        steps_per_execution: number of steps per call of the compiled graph.
        stop_after: stop cleanly at this global step, as Ctrl-C does; before the first step if the checkpoint has reached it.
        servers: addresses of processes that produce the batches (`data.pipeline.Server`); empty: this process.
        on_first_batch: called before the first step with its batch, unless servers produce the batches.
        selection: chooses the epoch whose weights the classifier gets, and may stop the training early; on one machine. None: the last.
        **pipeline: `augmentations` and `views`, arguments of `data.training_batches`.

    Returns:
        TrainingResult

    Raises:
        TrainingDiverged: a loss term, the gradient or the logits under attack are not finite; earlier checkpoints are kept.
        Interrupted: after Ctrl-C or at `stop_after`; the state is saved if there is a `checkpoint_folder`.
        WorkerLost: the process of another machine has ended.
    """
    if epochs < 1 or steps_per_execution < 1:
        raise ValueError(f"Expected epochs and steps_per_execution >= 1. Received: {epochs}, {steps_per_execution}")
    if stop_after is not None and stop_after < 1:
        raise ValueError(f"Expected stop_after >= 1, or None. Received: {stop_after}")
    if source.num_classes > (classes := method.network.output["logits"].shape[-1]):
        raise ValueError(
            f"Expected a model of the {source.num_classes} classes of the labels in {source.name}. Received: {classes} outputs"
        )
    if method.closed_form:
        start = time.monotonic()
        method.solve(source)
        return TrainingResult(1, time.monotonic() - start)
    steps = data.steps_per_epoch(source, batch_size)
    strategy = method.distribute_strategy
    _check_devices(method, strategy, selection)
    chief, one_machine = distribution.is_chief(strategy), not distribution.several_machines(strategy)
    if batch_size % strategy.num_replicas_in_sync:
        raise ValueError(
            f"Expected a batch that {strategy.num_replicas_in_sync} replicas divide equally. Received: batch_size={batch_size}"
        )
    method.check_batch(batch_size)
    for warning in method.schedule(steps, steps * epochs):
        logging.warning(warning)
    with strategy.scope():
        method.optimizer.build(method.trainable_variables)
        average = WeightAverage(method)
    average.warn_if_long(steps * epochs)
    if selection:
        selection.start(method.classifier)
    state = [*average.variables, *(selection.variables if selection else ())]
    step, seconds = checkpoints.restore(method, checkpoint_folder, state) if checkpoint_folder else (0, 0.0)
    distribution.check_agreement(strategy, step)
    if step:
        print_line(f"Resumed at step {step} of {steps * epochs}.")
    if stop_after is not None and stop_after <= step < steps * epochs and not (selection and selection.stops):
        raise Interrupted(
            f"Expected stop_after beyond the checkpoint, at step {step} of {steps * epochs}. Received: {stop_after}. "
            "Try: a larger one, or None, to resume the training"
        )
    start, run_steps = time.monotonic() - seconds, steps_function(method, average)
    measurements = Validation(method, source, validation, pipeline.get("views", ()), epochs, average, selection)
    verbose = 1 if sys.stdout.isatty() else 2
    callback_list = keras.callbacks.CallbackList(
        list(callbacks) if chief else [], add_progbar=chief, model=method, verbose=verbose, epochs=epochs, steps=steps
    )
    method.stop_training = False
    callback_list.on_train_begin()
    with distribution.detect_lost_workers(strategy), data.pipeline.watched_servers(servers), StopOnInterrupt(one_machine) as stop_requested:
        saver = _Saver(method, checkpoint_folder, step, start, state)
        batches = data.training_batches(source, batch_size, seed=method.seed, step=step, servers=servers, **pipeline)
        if on_first_batch and not servers:
            on_first_batch(data.first_batch(source, batch_size, seed=method.seed, step=step, **pipeline))
        iterator = iter(distribution.distribute(strategy, batches, batch_size))
        while step < steps * epochs and not (selection and selection.stops) and not (one_machine and method.stop_training):
            epoch, steps_done = divmod(step, steps)
            callback_list.on_epoch_begin(epoch)
            if not steps_done:
                method.reset_metrics()
            while step < (epoch + 1) * steps:
                count = min(steps_per_execution, (epoch + 1) * steps - step, (stop_after or step + 10**9) - step)
                callback_list.on_train_batch_begin(step - epoch * steps)
                with divergence.named(method):
                    run_steps(iterator, tf.constant(count))
                step += count
                callback_list.on_train_batch_end(step - epoch * steps - 1, _values(method))
                if stop_requested.is_set() or step == stop_after:
                    break
                if step < (epoch + 1) * steps and one_machine:  # the clocks of several machines differ, and all must take part
                    saver.save_if_due(step)
            if step < (epoch + 1) * steps:
                saver.stop(step, steps * epochs)
            logs = _values(method)
            if chief:
                logs.update(measurements.after(epoch + 1))
            callback_list.on_epoch_end(epoch, logs)
            saver.save(step)
            if stop_requested.is_set() or step == stop_after:
                saver.stop(step, steps * epochs)
    callback_list.on_train_end()
    if selection:
        print_line(f"Best {selection.name}: {selection.best_value:.4f} after epoch {selection.best_epoch} of {step // steps}.")
        selection.apply()
    else:
        average.apply()
    return TrainingResult(step, time.monotonic() - start, selection.best_epoch if selection else None)


def _check_devices(method, strategy, selection):
    """Raises ValueError for options that do not work on several devices or machines."""
    if optimizers.updating(method.optimizer).global_clipnorm and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"Expected one device with global_clipnorm: Keras clips each device's part of the gradient. Received: "
            f"{strategy.num_replicas_in_sync}"
        )
    if selection and distribution.several_machines(strategy):
        raise ValueError("Expected one machine with select or early_stopping. Received: strategy=multi_worker")


def steps_function(method: Method, average: WeightAverage | None = None) -> Callable[[Iterator, tf.Tensor], None]:
    """Returns a compiled graph that trains for a number of steps: (iterator over `Batch`es, int32 count) -> None.

    Call it in a context of `divergence.named`.

    Args:
        method: the method that is trained.
        average: updated after each step; None: none.
    """
    train_step = tf.autograph.experimental.do_not_convert(method.train_step)
    update = average and tf.autograph.experimental.do_not_convert(average.update)

    @tf.function(reduce_retracing=True)
    def run_steps(iterator, count):
        for _ in tf.range(count):
            method.distribute_strategy.run(train_step, (next(iterator),))
            if update:
                method.distribute_strategy.run(update)

    return run_steps


def _values(method):
    return {name: float(value) for name, value in method.get_metrics_result().items()}


class _Saver:
    """Saves checkpoints. start: monotonic time at which training would have started without interruptions."""

    def __init__(self, method, folder, step, start, state):
        self.state = state  # variables besides those of the method
        self.method, self.folder, self.saved_step, self.time, self.start = method, folder, step, time.monotonic(), start

    def save(self, step):
        if self.folder and step != self.saved_step:
            checkpoints.save(
                self.method,
                self.folder,
                step,
                time.monotonic() - self.start,
                write=distribution.is_chief(self.method.distribute_strategy),
                state=self.state,
            )
            self.saved_step, self.time = step, time.monotonic()

    def stop(self, step, total):
        self.save(step)
        advice = "the same command resumes the training" if self.folder else "a checkpoint_folder, from which the training can be resumed"
        raise Interrupted(f"Stopped at step {step} of {total}. Try: {advice}.")

    def save_if_due(self, step):
        if time.monotonic() - self.time > CHECKPOINT_SECONDS:
            self.save(step)


class StopOnInterrupt:
    """Context in which the first Ctrl-C sets an event, and the second raises. Unless `enabled`, the first one raises."""

    def __init__(self, enabled: bool):
        self.event, self.main = threading.Event(), enabled and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> threading.Event:
        if self.main:
            self.previous = signal.signal(signal.SIGINT, self._handle)
        return self.event

    def _handle(self, *_):
        print_line("\nStopping after these steps; press Ctrl-C again to stop at once.")
        signal.signal(signal.SIGINT, self.previous)
        self.event.set()

    def __exit__(self, *_):
        if self.main:
            signal.signal(signal.SIGINT, self.previous)
