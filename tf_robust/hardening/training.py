"""Fine-tunes one model by many recipes, and averages the weights of fine-tuned models.

Each training starts from the model's own weights, or goes on where another of the same candidate ended, and is a function of (candidate,
steps, seed). Weights are lists of arrays in the order of `keras.Model.get_weights`, which include batch normalization's moving averages.
"""

import contextlib
import dataclasses
import math
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
from tf_robust.layers.augmentations import PatchGaussian, RandomCorruption
from tf_robust.training import divergence, loop

CHUNK = 10  # steps between changes of the learning rate
MEASURED_SECONDS = 3.0  # of steps by which their time is known
STABLE_STEPS = 10  # in which a momentum of 0.9 builds up
STABLE_FACTOR, STABLE_RISE = 2.0, 1.0  # a loss that rises from `a` to more than factor * a + rise is not stable
MOMENTUM = 0.9
MAX_BATCH_NORM_MOMENTUM = 0.95  # with the 0.999 of keras.applications, averages would hardly follow some hundred steps
BATCHES = 10  # of images in all views of a mixture, from which batch normalization's moving averages are estimated anew
NOISE: dict[str, typing.Any] = {"size": 1 << 20, "sigma": 0.5, "random_sigma": True}  # of `PatchGaussian`: over all of an image
_VIEWS = {**VIEWS, "extra_corruptions": RandomCorruption(metrics.EXTRA).augment, "noise": PatchGaussian(**NOISE).augment}

Weights = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """A training after some steps: all that is needed to go on with it."""

    weights: Weights
    others: Weights  # variables of the optimizer, and states of random generators such as dropout's
    steps: int  # number of batches that it has seen


@dataclasses.dataclass(eq=False)
class Trainers:
    """Trains a model in place by candidates, from its weights at construction, `start`. Graphs are built once and shared."""

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
        self._random_states = [(one, one.numpy()) for one in self.model.variables if id(one) not in weights]  # of dropout
        self._batches: dict[tuple, tf.data.Dataset] = {}
        self._graphs: dict[str, tuple] = {}
        self._seconds: dict[str, float] = {}  # of a step

    def train(self, candidate: Candidate, steps: int, state: State | None = None, seconds: float = math.inf) -> State:
        """Returns the state after some steps from the initial model, or from the state of an earlier training of the candidate.

        The learning rate falls by a cosine over these steps, or, on a machine that has become slower, over `seconds`, after which the
        training ends. Raises TrainingDiverged if losses or gradients are not finite.
        """
        method, run_steps, variables, first = self._graph(candidate)
        state = state or first
        self._restore(variables, state)
        iterator, done = iter(self.batches(candidate.views, candidate.augmentations, state.steps)), 0
        begin = first_ended = time.monotonic()
        with fine_tuning(self.model, candidate.layers):  # the graph is built with these in the first chunk
            while done < steps and (passed := (time.monotonic() - begin) / seconds) < 1.0:
                progress = max(done / steps, passed)
                method.optimizer.learning_rate.assign(candidate.learning_rate * 0.5 * (1.0 + np.cos(np.pi * progress)))
                with divergence.named(method):
                    run_steps(iterator, tf.constant(min(CHUNK, steps - done)))
                first_ended = first_ended if done else time.monotonic()
                done += min(CHUNK, steps - done)
        if done > CHUNK:
            self._seconds[_graph_of(candidate)] = (time.monotonic() - first_ended) / (done - CHUNK)
        return State(self.model.get_weights(), [variable.numpy() for variable in variables], state.steps + done)

    def _restore(self, variables, state):
        self.model.set_weights(state.weights)
        for variable, value in zip(variables, state.others, strict=True):
            variable.assign(value)

    def is_stable(self, candidate: Candidate) -> bool:
        """Returns whether the loss of some steps from the initial model, at the candidate's learning rate, rises little."""
        method, run_steps, variables, first = self._graph(candidate)
        self._restore(variables, first)
        method.optimizer.learning_rate.assign(candidate.learning_rate)
        iterator, losses = iter(self.batches(candidate.views, candidate.augmentations)), []
        with fine_tuning(self.model, candidate.layers):
            for _ in range(STABLE_STEPS):
                method.reset_metrics()
                try:
                    with divergence.named(method):
                        run_steps(iterator, tf.constant(1))
                except loop.TrainingDiverged:
                    return False
                losses.append(float(method.trackers["total"].result()))
                if not losses[-1] < STABLE_FACTOR * losses[0] + STABLE_RISE:
                    return False
        return True

    def seconds_per_step(self, candidate: Candidate) -> float:
        """Returns the seconds of a step of a candidate's latest training, or of some steps that are trained now."""
        if (name := _graph_of(candidate)) not in self._seconds:
            method, run_steps, *_ = self._graph(candidate)
            iterator, one = iter(self.batches(candidate.views, candidate.augmentations)), tf.constant(1)
            with fine_tuning(self.model, candidate.layers), divergence.named(method):
                run_steps(iterator, one)  # builds the graph
                begin, done = time.monotonic(), 0
                while done < CHUNK and (not done or time.monotonic() - begin < MEASURED_SECONDS):
                    run_steps(iterator, one)
                    done += 1
            self._seconds[name] = (time.monotonic() - begin) / done
        return self._seconds[name]

    def batches(self, views: Sequence[str], augmentations: Sequence[str] = (), step: int = 0) -> tf.data.Dataset:
        """Returns the infinite Dataset of `Batch`es with views and augmentations of these names, from a step on."""
        key = (tuple(views), tuple(augmentations), step)
        if key not in self._batches:
            options = {"augmentations": [AUGMENTATIONS[name] for name in augmentations], "views": [_VIEWS[name] for name in views]}
            self._batches[key] = data.training_batches(self.source, self.batch_size, seed=self.seed, step=step, **options)
        return self._batches[key]

    def _graph(self, candidate):
        """The method of a candidate, the graph of its steps, all variables but the weights, and the initial state."""
        name = _graph_of(candidate)
        if name not in self._graphs:
            self.model.set_weights(self.start)  # of which a method may keep a copy
            stages = {"stages": (0, *self.stages)} if self.stages and candidate.method == "noisymix" else {}
            method = methods.METHODS[candidate.method](self.model, seed=self.seed, **candidate.settings, **stages, **self.options)
            with fine_tuning(self.model, candidate.layers):
                method.compile(optimizer=keras.optimizers.SGD(0.0, momentum=MOMENTUM))
                method.optimizer.build(method.trainable_variables)
            initial = [(variable, variable.numpy()) for variable in method.optimizer.variables] + self._random_states
            variables, values = map(list, zip(*initial))
            self._graphs[name] = method, loop.steps_function(method), variables, State(self.start, values, 0)
        return self._graphs[name]


def _graph_of(candidate):
    return repr(dataclasses.replace(candidate, learning_rate=0.0, variation=""))


@contextlib.contextmanager
def fine_tuning(model: keras.Model, layers: str) -> Iterator[None]:
    """Context in which some layers of a model are frozen, in inference mode, and batch norm's momentum is at most 0.95.

    `layers` are trained: `all`, `first half` (of the layers with weights) or `all but batch norm`.
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
    """Sums weights in float64; integers, such as the states of random generators, are the first model's."""
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


def reestimate(model: keras.Model, network: keras.Model, weights: Weights, batches: Iterable[tf.Tensor]) -> list[np.ndarray]:
    """Returns weights whose moving averages are the means of the statistics of batches (Schneider et al., 2020); all else is unchanged.

    The model has them afterwards. `network` calls it: images in [0, 1] -> outputs. `batches` are images, float32 [N, H, W, C] in [0, 1], as
    training saw them.
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
