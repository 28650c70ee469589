"""Measurements after an epoch: validation loss and accuracy, a method's monitors, and the metric of a `Selection`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_robust import data, losses
from tf_robust.data.source import Source
from tf_robust.training.averaging import WeightAverage
from tf_robust.training.selection import Selection

TIMES = 10  # of the validation in a training run, at most

Method = Any  # a `methods.base.Method`, which this package does not import


class Validation:
    """Measurements after epochs, of the averaged weights if there are any.

    Args:
        method: the method that is trained.
        source: the training set.
        validation: the validation set; None: none.
        views: of the pipeline, for monitors.
        epochs: number of epochs of the training.
        average: of the weights.
        selection: None: none.
    """

    def __init__(
        self,
        method: Method,
        source: Source,
        validation: Source | None,
        views: Sequence[Callable],
        epochs: int,
        average: WeightAverage,
        selection: Selection | None,
    ):
        self.method, self.source, self.validation, self.views, self.epochs = method, source, validation, views, epochs
        self.average, self.selection = average, selection
        self._sums = tf.function(self._sums_of_batch, reduce_retracing=True)

    def after(self, epoch: int) -> dict[str, float]:
        """Returns {name: value} of the measurements due after an epoch, counted from 1."""
        validates = self.validation is not None and (epoch % max(1, self.epochs // TIMES) == 0 or epoch == self.epochs)
        selects = self.selection is not None and self.selection.is_due(epoch, self.epochs)
        logs: dict[str, float] = {}
        if validates or selects:
            with self.average.applied():
                logs.update(self._validate() if validates else {})
                logs.update(self.selection.update(epoch, self.method.network) if self.selection and selects else {})
        return logs

    def _validate(self):
        batches = data.evaluation_batches(self.validation)
        loss, accuracy = np.sum([self._sums(*batch) for batch in batches], axis=0) / len(self.validation)
        monitored = {f"val_{name}": value for name, value in self.method.monitors(self.source, self.validation, self.views).items()}
        return {"val_cross_entropy": float(loss), "val_accuracy": float(accuracy), **monitored}

    def _sums_of_batch(self, images, labels):
        logits = self.method.network(images, training=False)["logits"]
        correct = tf.cast(tf.argmax(logits, 1) == labels, tf.float32)
        return tf.reduce_sum(losses.cross_entropy(labels, logits)), tf.reduce_sum(correct)
