"""Selection of the epoch with the best value of a metric on validation images, and early stopping."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf


class Selection:
    """Keeps the weights of the best epoch, and stops the training when it does not improve. Its state is part of each checkpoint.

    Args:
        name: of the metric.
        score: network (images -> {"logits", "embedding"}) -> value.
        lower_is_better: whether the smallest value is the best.
        every: number of epochs between two measurements; the last epoch is measured too.
        patience: epochs without a better value after which training stops; 0: it does not stop early.

    Raises:
        ValueError: `every` is below 1 or `patience` below 0.
    """

    def __init__(
        self,
        name: str,
        score: Callable[[keras.Model], float],
        *,
        lower_is_better: bool = False,
        every: int = 1,
        patience: int = 0,
    ):
        if every < 1 or patience < 0:
            raise ValueError(f"Expected select_every >= 1 and early_stopping >= 0. Received: {every}, {patience}")
        self.name, self.score, self.every, self.patience = name, score, every, patience
        self.sign = -1.0 if lower_is_better else 1.0

    def start(self, classifier: keras.Model) -> None:
        """Creates the state, for a classifier; called before a checkpoint is restored."""
        self._weights = list(classifier.variables)
        self._best = [tf.Variable(v.numpy(), trainable=False) for v in self._weights]
        # value, epoch, and the last epoch that was measured; epochs are counted from 1
        self._value = tf.Variable(np.nan, dtype=tf.float64, trainable=False)
        self._epoch, self._measured = (tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2))

    @property
    def variables(self) -> list[tf.Variable]:
        """The state."""
        return [*self._best, self._value, self._epoch, self._measured]

    @property
    def best_epoch(self) -> int:
        """The best epoch, counted from 1; 0 before the first measurement."""
        return int(self._epoch)

    @property
    def best_value(self) -> float:
        """Value of the best epoch."""
        return float(self._value)

    def is_due(self, epoch: int, epochs: int) -> bool:
        """Returns whether to measure after an epoch, counted from 1."""
        return epoch % self.every == 0 or epoch == epochs

    def update(self, epoch: int, network: keras.Model) -> dict[str, float]:
        """Measures after an epoch (counted from 1) and keeps the weights if they are better; returns the value for the logs."""
        value = float(self.score(network))
        self._measured.assign(epoch)
        if np.isnan(self.best_value) or self.sign * value > self.sign * self.best_value:
            self._value.assign(value)
            self._epoch.assign(epoch)
            for best, weight in zip(self._best, self._weights):
                best.assign(weight.numpy())
        return {f"val_{self.name}": value}

    @property
    def stops(self) -> bool:
        """Whether the last `patience` epochs were not better."""
        return bool(self.patience) and int(self._measured) - self.best_epoch >= self.patience

    def apply(self) -> None:
        """Sets the classifier's weights to those of the best epoch."""
        for best, weight in zip(self._best, self._weights):
            weight.assign(best.numpy())
