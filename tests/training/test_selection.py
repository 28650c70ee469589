"""The weights of the best epoch are kept, over kills too, and training stops early."""

import numpy as np
import pytest

from tests.methods.common import build, weights
from tf_robust.training import loop
from tf_robust.training.selection import Selection

pytestmark = pytest.mark.usefixtures("eagerly")
VALUES = [0.3, 0.7, 0.5, 0.7, 0.6, 0.9]


class Scripted:
    """A metric with given values, by the number of steps that were taken; keeps the weights that it was called with."""

    def __init__(self, method, values=VALUES):
        self.method, self.values, self.weights = method, values, {}

    def __call__(self, network):
        epoch = int(self.method.optimizer.iterations.numpy()) // 2
        self.weights[epoch] = [v.numpy() for v in network.variables]
        return self.values[epoch - 1]


def fit(network, source, seed=0, folder=None, stop=None, values=VALUES, **options):
    method = build("cross_entropy", network(seed=seed))
    metric = Scripted(method, values)
    selection = Selection("un", metric, **options)
    result = loop.fit(method, source(), batch_size=24, epochs=6, selection=selection, checkpoint_folder=folder, stop_after=stop)
    return method, metric, result


def test_the_weights_of_the_best_epoch_are_kept(network, source):
    method, metric, result = fit(network, source, values=VALUES[:5] + [0.1])
    assert (result.steps, result.selected_epoch) == (12, 2)  # the first of equals
    np.testing.assert_equal(weights(method), metric.weights[2])
    assert all(np.abs(best - last).max() > 0 for best, last in zip(metric.weights[2], metric.weights[6]))


def test_the_smallest_value_can_be_the_best_and_epochs_skipped(network, source):
    _, _, result = fit(network, source, lower_is_better=True)
    assert result.selected_epoch == 1
    _, metric, result = fit(network, source, every=4)
    assert sorted(metric.weights) == [4, 6] and result.selected_epoch == 6


def test_a_value_that_is_not_a_number_is_never_the_best(network, source):
    _, _, result = fit(network, source, values=[np.nan, 0.2, np.nan, 0.1, np.nan, 0.1])
    assert result.selected_epoch == 2


def test_training_stops_after_epochs_without_improvement(network, source):
    _, _, result = fit(network, source, patience=2)
    assert (result.steps, result.selected_epoch) == (8, 2)  # epochs 3 and 4 are not better
    _, _, result = fit(network, source, patience=4)
    assert (result.steps, result.selected_epoch) == (12, 6)


def test_a_resumed_run_selects_the_same_epoch(network, source, tmp_path):
    uninterrupted, _, expected = fit(network, source, patience=2)
    for stop in (3, 4, 7):
        with pytest.raises(loop.Interrupted):
            fit(network, source, seed=stop - 3, folder=str(tmp_path), stop=stop, patience=2)
    for seed in (17, 18):  # resumed; then again, as after a kill between the last checkpoint and the export
        resumed, _, result = fit(network, source, seed=seed, folder=str(tmp_path), patience=2)
        assert (result.steps, result.selected_epoch) == (expected.steps, expected.selected_epoch) == (8, 2)
        np.testing.assert_equal(weights(resumed), weights(uninterrupted))


def test_invalid_options_raise():
    with pytest.raises(ValueError, match="select_every"):
        Selection("un", len, every=0)
