"""Fine-tunes one model by many recipes: each trial starts from the model's own weights and is a function of (recipe, steps, seed)."""

import time
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_robust import data, methods
from tf_robust.data.source import Source
from tf_robust.hardening.candidates import Candidate, view_functions
from tf_robust.training import loop

CHUNK = 10  # steps between changes of the learning rate
MOMENTUM = 0.9


class Trainer:
    """Trains a model in place by one candidate. The graph of a step is built once for all trials.

    Args:
        model: the classifier; its weights are replaced before each trial.
        candidate: the recipe.
        source: the training set.
        batch_size: examples per step.
        seed: of order, views and noise.
        **options: `input_range` and `from_logits` of the method.
    """

    def __init__(self, model: keras.Model, candidate: Candidate, source: Source, *, batch_size: int, seed: int, **options):
        self.model, self.candidate, self.source, self.batch_size, self.seed = model, candidate, source, batch_size, seed
        self.method = methods.METHODS[candidate.method](model, seed=seed, **candidate.hyperparameters, **options)
        self.method.compile(optimizer=keras.optimizers.SGD(candidate.learning_rate or 1.0, momentum=MOMENTUM))
        self.method.optimizer.build(self.method.trainable_variables)
        self._run_steps = loop.steps_function(self.method)
        self.seconds_per_step = 0.0  # of the last trial, without the first chunk

    def train(self, start: Sequence[np.ndarray], steps: int, on_chunk: Callable[[int], object] = lambda done: None) -> list[np.ndarray]:
        """Returns the weights after a number of steps from `start`; with learning rate 0 only batch norm's averages change.

        Args:
            start: weights, as `keras.Model.get_weights` returns them.
            steps: >= 1.
            on_chunk: called with the number of steps done; may raise, to stop.

        Raises:
            TrainingDiverged: a loss term or the gradient is not finite.
        """
        self.model.set_weights(start)
        for variable in self.method.optimizer.variables:
            if variable is not self.method.optimizer.learning_rate:
                variable.assign(tf.zeros_like(variable))
        self.method.schedule(data.steps_per_epoch(self.source, self.batch_size), steps)
        views = view_functions(self.candidate.views)
        iterator = iter(data.training_batches(self.source, self.batch_size, seed=self.seed, views=views))
        done, timed = 0, None
        while done < steps:
            count = min(CHUNK, steps - done)
            self.method.optimizer.learning_rate.assign(self.candidate.learning_rate * 0.5 * (1.0 + np.cos(np.pi * done / steps)))
            loop.checked_run(self._run_steps, iterator, count, self.method)
            done += count
            if timed:
                self.seconds_per_step = (time.monotonic() - timed[0]) / (done - timed[1])
            timed = timed or (time.monotonic(), done)
            on_chunk(done)
        return self.model.get_weights()
