"""Exponential moving average of the weights during training: Keras' of the trained weights, and here of the batch statistics.

Keras' optimizers average the variables that they update (`use_ema`, `ema_momentum`), not batch norm's moving mean and variance. Those
of the last step belong to its weights and lag behind them; the averaged weights are those of the last 1 / (1 - momentum) steps. The
statistics are therefore averaged with the same momentum, over the same steps, as timm's ModelEma does.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_robust.training.optimizers import updating

Method = Any  # a `methods.base.Method`, which this package does not import


class WeightAverage:
    """The averaged weights of a method's classifier; without `use_ema` of the optimizer it does nothing.

    Args:
        method: a compiled method, whose optimizer is built. Call inside the strategy's scope.

    Attributes:
        variables: averages of batch statistics; those of weights belong to the optimizer.
    """

    def __init__(self, method: Method):
        self.method, self._optimizer = method, updating(method.optimizer)
        self.enabled = bool(self._optimizer.use_ema)
        candidates = method.classifier.non_trainable_variables if self.enabled else []
        self._statistics = [v for v in candidates if tf.as_dtype(v.dtype).is_floating]
        self.variables = [
            keras.Variable(v.numpy(), dtype=v.dtype, trainable=False, aggregation="mean", name="average") for v in self._statistics
        ]

    def update(self) -> None:
        """Averages the batch statistics. Called in the graph after each step; the first value is a copy, as in Keras."""
        first = tf.equal(tf.convert_to_tensor(self._optimizer.iterations), 1)
        for average, statistic in zip(self.variables, self._statistics):
            momentum = tf.where(first, tf.zeros([], average.dtype), tf.cast(self._optimizer.ema_momentum, average.dtype))
            average.assign(momentum * tf.convert_to_tensor(average) + (1 - momentum) * tf.convert_to_tensor(statistic))

    def apply(self) -> None:
        """Sets the classifier's weights to the averages, unless no step was taken."""
        if self.enabled and int(self._optimizer.iterations.numpy()):
            self._optimizer.finalize_variable_values(self.method.trainable_variables)
            for average, statistic in zip(self.variables, self._statistics):
                statistic.assign(average.numpy())

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the classifier has the averaged weights."""
        changed = [*self.method.trainable_variables, *self._statistics] if self.enabled else []
        before = [v.numpy() for v in changed]
        self.apply()
        try:
            yield
        finally:
            for variable, value in zip(changed, before):
                variable.assign(value)

    def warn_if_long(self, steps: int) -> None:
        """Logs a warning if the average reaches over more than a third of a training of so many steps."""
        if self.enabled and 3 / (1 - self._optimizer.ema_momentum) > steps:
            momentum = self._optimizer.ema_momentum
            logging.warning(
                "ema=%g averages over about %.0f steps, of %d in all: weights of the beginning count. Try: ema=%.2g",
                momentum,
                1 / (1 - momentum),
                steps,
                max(0.5, 1 - 10 / steps),
            )
