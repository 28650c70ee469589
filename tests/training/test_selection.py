"""The weights of the best epoch are kept, over kills too, and training stops early."""

import keras
import numpy as np
import pytest

from tf_robust import methods
from tf_robust.training import loop
from tf_robust.training.selection import Selection

pytestmark = pytest.mark.usefixtures("eagerly")
VALUES = [0.3, 0.7, 0.5, 0.7, 0.6, 0.9]
FIT = {"batch_size": 24, "epochs": 6}


def build(network, seed=0):
    method = methods.CrossEntropy(network(seed=seed))
    method.compile(keras.optimizers.SGD(0.1))
    return method


class Scripted:
    """A metric with given values, by the number of steps that were taken; keeps the weights that it was called with."""

    def __init__(self, method, values=VALUES):
        self.method, self.values, self.weights = method, values, {}

    def __call__(self, network):
        epoch = int(self.method.optimizer.iterations.numpy()) // 2
        self.weights[epoch] = [v.numpy() for v in network.variables]
        return self.values[epoch - 1]


def fit(network, source, seed=0, folder=None, stop=None, values=VALUES, **options):
    method = build(network, seed)
    metric = Scripted(method, values)
    selection = Selection("un", metric, **options)
    result = loop.fit(method, source(), selection=selection, checkpoint_folder=folder, stop_after=stop, **FIT)
    return method, metric, result


def test_the_weights_of_the_best_epoch_are_kept(network, source):
    method, metric, result = fit(network, source)
    assert (result.steps, result.selected_epoch) == (12, 6)
    method, metric, result = fit(network, source, values=VALUES[:5] + [0.1])
    assert result.selected_epoch == 2  # the first of equals
    for variable, best, last in zip(method.classifier.variables, metric.weights[2], metric.weights[6]):
        np.testing.assert_array_equal(variable.numpy(), best)
        assert np.abs(best - last).max() > 0


def test_the_smallest_value_can_be_the_best_and_epochs_skipped(network, source):
    _, metric, result = fit(network, source, lower_is_better=True)
    assert result.selected_epoch == 1
    _, metric, result = fit(network, source, every=4)
    assert sorted(metric.weights) == [4, 6] and result.selected_epoch == 6


def test_a_value_that_is_not_a_number_is_never_the_best(network, source):
    _, _, result = fit(network, source, values=[np.nan, 0.2, np.nan, 0.1, np.nan, 0.1])
    assert result.selected_epoch == 2


def test_training_stops_after_epochs_without_improvement(network, source):
    method, metric, result = fit(network, source, patience=2)
    assert (result.steps, result.selected_epoch) == (8, 2)  # epochs 3 and 4 are not better
    _, _, result = fit(network, source, patience=4)
    assert (result.steps, result.selected_epoch) == (12, 6)


def test_a_resumed_run_selects_the_same_epoch(network, source, tmp_path):
    uninterrupted, _, expected = fit(network, source, patience=2)
    folder = str(tmp_path)
    for stop in (3, 4, 7):
        with pytest.raises(loop.Interrupted):
            fit(network, source, seed=stop - 3, folder=folder, stop=stop, patience=2)
    for seed in (17, 18):  # resumed; then again, as after a kill between the last checkpoint and the export
        resumed, _, result = fit(network, source, seed=seed, folder=folder, patience=2)
        assert (result.steps, result.selected_epoch) == (expected.steps, expected.selected_epoch) == (8, 2)
        for a, b in zip(uninterrupted.classifier.variables, resumed.classifier.variables):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_invalid_options_raise():
    with pytest.raises(ValueError, match="Expected select_every >= 1 and early_stopping >= 0. Received: 0, 0"):
        Selection("un", len, every=0)
