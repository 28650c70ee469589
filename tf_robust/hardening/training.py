"""Fine-tunes one model by many recipes, and averages the weights of fine-tuned models.

Each result starts from the model's own weights and is a function of (candidate, steps, seed). Weights are lists of arrays in the order of
`keras.Model.get_weights`, which include batch normalization's moving averages.
"""

import contextlib
import dataclasses
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_robust import data, methods, metrics
from tf_robust.data.augment import AUGMENTATIONS, VIEWS
from tf_robust.data.source import Source
from tf_robust.hardening.candidates import Candidate
from tf_robust.layers.augmentations import RandomCorruption
from tf_robust.training import divergence, loop

CHUNK = 10  # steps between changes of the learning rate
MOMENTUM = 0.9
MAX_BATCH_NORM_MOMENTUM = 0.95  # with the 0.999 of keras.applications, averages would hardly follow some hundred steps
BATCHES = 30  # of images, from which batch normalization's moving averages are estimated anew
_VIEWS = {**VIEWS, "extra_corruptions": RandomCorruption(metrics.EXTRA).augment}

Weights = Sequence[np.ndarray]


@dataclasses.dataclass(eq=False)
class Trainers:
    """Trains a model in place by candidates, always from its weights at construction, `start`. Graphs are built once and shared."""

    model: keras.Model
    source: Source
    _: dataclasses.KW_ONLY
    batch_size: int
    seed: int  # of order, views and noise
    options: Mapping[str, typing.Any]  # arguments of all methods, such as `input_range`
    stages: Sequence[str] = ()  # names of layers at which NoisyMix mixes, for a model of another package

    def __post_init__(self):
        self.start: Weights = self.model.get_weights()
        weights = {id(variable) for variable in self.model.weights}
        others = [variable for variable in self.model.variables if id(variable) not in weights]
        self._random_states = [(variable, variable.numpy()) for variable in others]  # of dropout
        self._batches: dict[tuple, tf.data.Dataset] = {}
        self._trainers: dict[str, _Trainer] = {}

    def train(self, candidate: Candidate, steps: int) -> list[np.ndarray]:
        """Returns the weights after some steps from the initial model; raises TrainingDiverged if losses or gradients are not finite."""
        trainer = self._trainer(candidate)
        for variable, state in self._random_states:
            variable.assign(state)
        return trainer.train(self.start, candidate.learning_rate, steps)

    def seconds_per_step(self, candidate: Candidate) -> float:
        """Returns the seconds of a step of a candidate's latest training, or of two chunks that are trained now."""
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
            batches = self.batches(candidate.views, candidate.augmentations)
            self._trainers[repr(graph)] = _Trainer(method, self.model, batches, candidate.layers)
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
                with divergence.named(self.method):
                    self._run_steps(iterator, tf.constant(count))
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


def interpolate(start: Weights, end: Weights, coefficient: float) -> list[np.ndarray]:
    """Returns (1 - coefficient) * start + coefficient * end (WiSE-FT: Wortsman et al., 2022a, section 3)."""
    return _weighted_sum([start, end], [1.0 - coefficient, coefficient])


def average(models: Sequence[Weights]) -> list[np.ndarray]:
    """Returns the mean of the weights of models of one architecture."""
    return _weighted_sum(models, [1.0 / len(models)] * len(models))


def _weighted_sum(models, fractions):
    """Sums weights in float64; integers, such as the states of random generators, are those of the first model."""
    sums = []
    for values in zip(*models):
        first = np.asarray(values[0])
        if tf.as_dtype(first.dtype).is_floating:  # also of bfloat16
            first = sum(fraction * np.asarray(value, np.float64) for fraction, value in zip(fractions, values)).astype(first.dtype)
        sums.append(first)
    return sums


def greedy_soup(models: Sequence[Weights], score: Callable[[Weights], float], best: float) -> tuple[list[int], list[np.ndarray]]:
    """Returns (positions of the members, their mean weights) of the greedy soup (Wortsman et al., 2022b, recipe 1).

    The best model is first, with the score `best`; a larger score is better.
    """
    members, soup = [0], list(models[0])
    for position in range(1, len(models)):
        tried = average([models[i] for i in (*members, position)])
        if (value := score(tried)) >= best:
            members, soup, best = [*members, position], tried, value
    return members, soup


def reestimated(model: keras.Model, network: keras.Model, weights: Weights, batches: Iterable[tf.Tensor]) -> list[np.ndarray]:
    """Returns weights whose moving averages are the means of the statistics of batches (Schneider et al., 2020); all else is unchanged.

    Args:
        model: whose weights they are; it has the new ones afterwards.
        network: calls the model: images in [0, 1] -> outputs.
        weights: of the model.
        batches: of images, float32 [N, H, W, C] in [0, 1], as training saw them.
    """
    model.set_weights(weights)
    layers = batch_norms(model)
    momenta = [layer.momentum for layer in layers]
    try:
        for count, images in enumerate(batches):
            for layer in layers:
                layer.momentum = count / (count + 1)  # the cumulative mean: the first batch replaces the averages
            network(images, training=True)
    finally:
        for layer, momentum in zip(layers, momenta):
            layer.momentum = momentum
    return model.get_weights()
