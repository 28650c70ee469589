"""Fine-tunes one model by many recipes: each result starts from the model's own weights and is a function of (candidate, steps, seed)."""

import contextlib
import dataclasses
import time
import typing
from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_robust import data, methods, metrics
from tf_robust.data.augment import AUGMENTATIONS, VIEWS
from tf_robust.data.source import Source
from tf_robust.hardening.candidates import Candidate
from tf_robust.layers.augmentations import RandomCorruption
from tf_robust.training import loop

CHUNK = 10  # steps between changes of the learning rate
MOMENTUM = 0.9
MAX_BATCH_NORM_MOMENTUM = 0.95  # with the 0.999 of keras.applications, averages would hardly follow some hundred steps
_VIEWS = {**VIEWS, "extra_corruptions": RandomCorruption(metrics.EXTRA).augment}

Weights = Sequence[np.ndarray]


class Trainers:
    """Trains a model in place by candidates. Graphs of views and of steps are built once and shared.

    Args:
        model: the classifier; its weights are replaced.
        source: the training set.
        batch_size: examples per step.
        seed: of order, views and noise.
        options: arguments of all methods, such as `input_range` and `from_logits`.
        stages: names of layers at which NoisyMix mixes, for a model of another package.

    Attributes:
        start: the model's weights at construction, from which every training starts.
    """

    def __init__(
        self,
        model: keras.Model,
        source: Source,
        *,
        batch_size: int,
        seed: int,
        options: Mapping[str, typing.Any],
        stages: Sequence[str] = (),
    ):
        self.model, self.source, self.batch_size, self.seed = model, source, batch_size, seed
        self.options, self.stages = dict(options), tuple(stages)
        self.start: Weights = model.get_weights()
        weights = {id(variable) for variable in model.weights}
        self._random_states = [(variable, variable.numpy()) for variable in model.variables if id(variable) not in weights]  # of dropout
        self._batches: dict[tuple, tf.data.Dataset] = {}
        self._trainers: dict[str, _Trainer] = {}

    @property
    def steps_per_epoch(self) -> int:
        return data.steps_per_epoch(self.source, self.batch_size)

    def train(self, candidate: Candidate, steps: int) -> list[np.ndarray]:
        """Returns the weights after a number of steps from the initial model.

        Raises:
            TrainingDiverged: a loss term, the gradient or the logits under attack are not finite.
        """
        trainer = self._trainer(candidate)
        for variable, state in self._random_states:
            variable.assign(state)
        return trainer.train(self.start, candidate.learning_rate, steps)

    def seconds_per_step(self, candidate: Candidate) -> float:
        """Returns the seconds that a step of a candidate takes, of its latest training, or of two chunks that are trained now."""
        trainer = self._trainer(candidate)
        if not trainer.seconds_per_step:
            trainer.train(self.start, candidate.learning_rate, 2 * CHUNK)
        return trainer.seconds_per_step

    def batches(self, views: Sequence[str], augmentations: Sequence[str] = ()) -> tf.data.Dataset:
        """Returns the infinite Dataset of `Batch`es with views and augmentations of these names."""
        key = (tuple(views), tuple(augmentations))
        if key not in self._batches:
            self._batches[key] = data.training_batches(
                self.source,
                self.batch_size,
                seed=self.seed,
                augmentations=[AUGMENTATIONS[name] for name in augmentations],
                views=[_VIEWS[name] for name in views],
            )
        return self._batches[key]

    def _trainer(self, candidate):
        graph = dataclasses.replace(candidate, learning_rate=0.0, variation="")
        if repr(graph) not in self._trainers:
            self.model.set_weights(self.start)  # of which a method may keep a copy
            stages = {"stages": (0, *self.stages)} if self.stages and candidate.method == "noisymix" else {}
            method = methods.METHODS[candidate.method](self.model, seed=self.seed, **candidate.settings, **stages, **self.options)
            self._trainers[repr(graph)] = _Trainer(
                method, self.model, self.batches(candidate.views, candidate.augmentations), candidate.layers
            )
        return self._trainers[repr(graph)]


class _Trainer:
    """Trains a model by one method, on some of its layers. The graph of a step is built once."""

    def __init__(self, method, model, batches, layers):
        self.method, self.model, self.batches, self.layers = method, model, batches, layers
        self.seconds_per_step = 0.0  # of the latest training, without the first chunk
        with fine_tuning(model, layers):
            method.compile(optimizer=keras.optimizers.SGD(0.0, momentum=MOMENTUM))
            method.optimizer.build(method.trainable_variables)
        self._optimizer_start = [variable.numpy() for variable in method.optimizer.variables]
        self._run_steps = loop.steps_function(method)

    def train(self, start: Weights, learning_rate: float, steps: int) -> list[np.ndarray]:
        optimizer = self.method.optimizer
        self.model.set_weights(start)
        for variable, value in zip(optimizer.variables, self._optimizer_start):
            variable.assign(value)
        iterator, done, timed = iter(self.batches), 0, None
        with fine_tuning(self.model, self.layers):  # the graph is built with these in the first chunk
            while done < steps:
                count = min(CHUNK, steps - done)
                optimizer.learning_rate.assign(learning_rate * 0.5 * (1.0 + np.cos(np.pi * done / steps)))
                loop.checked_run(self._run_steps, iterator, count, self.method)
                done += count
                if timed:
                    self.seconds_per_step = (time.monotonic() - timed[0]) / (done - timed[1])
                timed = timed or (time.monotonic(), done)
        return self.model.get_weights()


@contextlib.contextmanager
def fine_tuning(model: keras.Model, layers: str) -> Iterator[None]:
    """Context in which some layers of a model are frozen, in inference mode, and batch norm's momentum is at most 0.95.

    Args:
        model: the classifier.
        layers: which are not frozen: `all`, `first half` (of those with weights) or `all but batch norm`.
    """
    with_weights = [layer for layer in leaves(model) if layer.trainable and layer.trainable_variables]
    frozen = {
        "all": [],
        "first half": with_weights[(len(with_weights) + 1) // 2 :],
        "all but batch norm": [layer for layer in with_weights if isinstance(layer, keras.layers.BatchNormalization)],
    }[layers]
    momenta = {layer: layer.momentum for layer in batch_norms(model)}
    try:
        for layer in frozen:
            layer.trainable = False
        for layer, momentum in momenta.items():
            layer.momentum = min(momentum, MAX_BATCH_NORM_MOMENTUM)
        yield
    finally:
        for layer in frozen:
            layer.trainable = True
        for layer, momentum in momenta.items():
            layer.momentum = momentum


def batch_norms(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Returns the batch normalization layers of a model that compute statistics in training."""
    return [layer for layer in leaves(model) if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable]


def leaves(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Returns the innermost layers of a model, in their order."""
    inner = layer._flatten_layers(include_self=False, recursive=False) if isinstance(layer, keras.Layer) else []
    return [leaf for one in inner for leaf in leaves(one)] or [layer]
